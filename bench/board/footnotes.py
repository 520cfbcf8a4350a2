"""Footnotes: the facts that a reader needs to believe a board, each a function of what the board is made from.

A footnote on one column stands with that column, in the file of the board's columns.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ..core.cell import REFERENCE
from ..core.interval import Interval
from ..core.metrics import Metric
from ..core.protocol import LANE_VERSIONS, OBJECTIVE_VERSIONS, VERSION_ZERO
from ..score.cost import RelativeCost, controls, floor_of, resolution_of
from ..score.quality import SeedScores
from ..stats.bootstrap import DRAWS
from ..stats.format import counted, listed
from ..stats.intervals import LEVEL
from ..stats.ranking import difference_is_proven
from ..stats.scoring import BATCHES, CAP, ratio
from ..store.rows import ResultRow
from ..store.table import ResultTable
from .board import Note
from .notes import NoteKind, footnote
from .preset_text import objective_of, setting_words
from .task_context import BoardContext

PERCENT = f"{LEVEL:.0%}".replace("%", " %")

MUCH_LOAD = 0.5
"""Cores that other processes used, above which a board warns and does not only note it."""

RANKS = f"{PERCENT} rank intervals, corrected for all pairs; tied variants are in alphabetical order"

FAILURES = f"count as {CAP:.0f} × {REFERENCE}, the cost cap; failures are listed with outcome and reason, never dropped"

CHOSEN_ON_TEST = footnote(
    topic="selection",
    text="checkpoints were chosen on the test split, as in Long Range Arena, so results are optimistic",
    kind=NoteKind.DATA,
    brief="checkpoints were chosen on the test split: results are optimistic",
    warning=True,
)

_FIDELITIES = {
    "official": "original files, verified by checksum",
    "regenerated": "made by a generator, not read from published files",
    "surrogate": "other data of the same kind, not comparable with official results",
    "own": "files of your own, comparable with results on the same files",
    "synthetic": "inputs drawn at random",
}

_FIDELITIES_IN_BRIEF = {
    "official": "official files, verified by checksum",
    "regenerated": "drawn by our generator, not read from published files",
    "surrogate": "surrogate, not comparable with official results",
    "own": "files of your own",
    "synthetic": "synthetic, drawn at random",
}


def data_footnotes(context: BoardContext) -> Iterator[Note]:
    """Origin, notes and sizes of the data, and a warning where the test split chose the checkpoint."""
    fidelity = context.board_key.fidelity
    placed = [run for run in context.runs if not run.unplaced]
    sources = "; ".join(sorted({run.source for run in placed} - {""}))
    counts: Mapping[str, int] = next((run.counts for run in reversed(placed) if run.counts), {})
    tested = f"; {counts['test']:,} test examples" if "test" in counts else ""
    yield footnote(
        topic="data",
        text=f"{fidelity}: {_FIDELITIES.get(fidelity, 'origin not recorded')}" + (f" ({sources})" if sources else ""),
        kind=NoteKind.DATA,
        brief=_FIDELITIES_IN_BRIEF.get(fidelity, "origin not recorded") + tested,
        warning=fidelity in ("surrogate", "unknown"),
    )
    for note in dict.fromkeys(note for run in placed for note in run.notes):
        yield footnote(topic="data", text=note, kind=NoteKind.DATA)
    if counts:
        words = ", ".join(f"{count:,} {split}" for split, count in counts.items())
        yield footnote(topic="data", text=f"{words} examples", kind=NoteKind.DATA)
    if context.board_key.selection == "test":
        yield CHOSEN_ON_TEST


def preset_footnote(context: BoardContext) -> Note:
    named = f"{context.board_key.preset}, protocol {context.board_key.protocol}"
    return footnote(topic="preset", text="; ".join([named, *setting_words(context.setting)]))


def dropout_footnotes(context: BoardContext) -> Iterator[Note]:
    """Which variants were trained without the attention dropout that the preset asks for."""
    ignoring = [n for n, one in context.scores.items() if 0.0 in context.table.values("attention_dropout", one.rows)]
    if ignoring:
        rate = context.setting.get("attention_dropout")
        of_rate = f" of {rate:g}" if isinstance(rate, int | float) else ""
        text = f"{listed(sorted(ignoring))} ignored the preset's attention dropout{of_rate}: no weights to drop"
        yield footnote(topic="preset", text=text)


def quality_footnotes(context: BoardContext) -> Iterator[Note]:
    """Meaning of the scores, their intervals and the ranks."""
    scored, metric = [one for one in context.scores.values() if one.seeds], context.metric
    if not scored:
        return
    seeds = sorted({seed for one in scored for seed in one.seeds})
    kept, most = all(one.keeps_examples for one in scored), max(one.examples for one in scored)
    examples = f"{most:,} test examples" if most else "test examples"
    without = not metric.is_share and not kept
    brief = "intervals are over seeds alone: there are no statistics of test examples" if without else ""
    if len(seeds) == 1:
        brief = f"seed {seeds[0]} alone: another seed may differ by more than ±"
        interval = f"±: {PERCENT} interval over the examples, not over seeds"
        text = f"seed {seeds[0]} alone on {examples}; {'no interval' if without else interval}"
    else:
        how = (
            f"{DRAWS} bootstrap draws, paired by example"
            if not metric.is_share
            else "paired by example"
            if kept
            else "not all predictions are available: taken as independent, which is wider"
        )
        over = (
            ", not over test examples, of which no statistics are available"
            if without
            else f" and test examples ({how}), errors added in quadrature"
        )
        text = (
            f"mean over seeds {listed([str(seed) for seed in seeds])}, all on the same {examples}; ± and brackets: "
            f"{PERCENT} intervals over seeds (Student's t){over}"
        )
    yield footnote(topic=metric.title, text=text, brief=brief, warning=without)
    tested = (context.table.number(metric.name, at, split="test") for one in context.scores.values() for at in one.rows)
    signatures = sorted({str(m.where["signature"]) for m in tested if m is not None and m.where.get("signature")})
    if signatures:
        several = ". These are different scores: do not compare across them" if signatures[1:] else ""
        yield footnote(topic=metric.title, text="; ".join(signatures) + several, warning=bool(several))
    if REFERENCE in context.scores and sum(not one.missing_reason for one in scored) > 1 and context.is_ranked:
        yield footnote(topic="rank", text=RANKS)


def cost_footnotes(context: BoardContext) -> Iterator[Note]:
    """How the speeds were measured, and whether they can be trusted."""
    machine = context.table.machines.get(context.board_key.machine)
    if not context.timings or machine is None:
        text = "no speed was measured for this board"
        yield footnote(topic="speed", text=text, kind=NoteKind.MISSING, brief=text)
        return
    rounds = sorted({len(cost.seconds) for cost in context.timings.values() if cost.seconds})
    cores = f"{machine.processor}, {machine.threads} of {machine.cores} cores"
    version = f", torch {machine.versions['torch']}" if "torch" in machine.versions else ""
    name = context.board_key.machine
    yield footnote(
        topic="speed",
        text=f"one training step, {span_of(rounds)} rounds interleaved with {REFERENCE} on "
        f"{machine.accelerators[0] if machine.accelerators else cores} (machine {name}{version}); brackets: "
        f"{PERCENT} t intervals of the geometric mean over {unit_of(rounds)}",
    )
    load = max(context.table.values("foreign_load", [run.at for run in context.runs]), default=0.0)
    if load > 0.1:
        text = f"other processes used up to {load:.1f} cores during the timing: trust ratios more than times"
        much = load > MUCH_LOAD
        brief = f"other processes used up to {load:.1f} cores: trust ratios more than times" if much else ""
        yield footnote(topic="speed", text=text, kind=NoteKind.NOISE, brief=brief, warning=much)
    trained_on = sorted({run.machine for run in context.runs if run.lane == "train"})
    if len(trained_on) > 1:
        text = f"quality was measured on machines {listed(trained_on)}"
        yield footnote(topic="machines", text=text, kind=NoteKind.MACHINES)
    yield _null_control(context)
    if any(cost.outcome != "ok" for cost in context.timings.values()):
        text = f"out of memory, timeout and incorrect {FAILURES}"
        brief = f"out of memory, timeout and incorrect count as {CAP:.0f} × {REFERENCE}"
        yield footnote(topic="failures", text=text, kind=NoteKind.MISSING, brief=brief)


def _null_control(context: BoardContext) -> Note:
    nulls = controls(context.timings)
    if not nulls:
        text = "not measured: the noise floor of these speeds is unknown"
        return footnote(topic="null control", text=text, kind=NoteKind.NOISE, brief=text, warning=True)
    found = ratio(max(nulls, key=lambda null: abs(null.value) + null.half_width()))
    floor = difference_words(floor_of(context.timings))
    text = (
        f"{REFERENCE} timed under a second name came out at {found.value:.3f}× ({found.low:.3f}–{found.high:.3f}), so "
        f"the noise floor is {floor}; ≈ marks differences within it"
    )
    text += resolution_words(context.timings)
    # every timed variant is one more chance to find a difference where there is none
    separates = any(difference_is_proven(null, len(context.timings) + len(nulls)) for null in nulls)
    if separates:
        text += f". {REFERENCE} separates from itself: trust no difference of that size"
    brief = (
        f"{REFERENCE} separates from itself by {floor}: trust no smaller difference in speed"
        if separates
        else f"noise floor of the speeds {floor} (marked ≈){resolution_in_brief(context.timings)}"
    )
    return footnote(topic="null control", text=text, kind=NoteKind.NOISE, brief=brief, warning=separates)


def resolution_words(*timings: dict[str, RelativeCost]) -> str:
    """The smallest difference that all these could have told, as the end of a sentence; empty where none was timed."""
    brief = resolution_in_brief(*timings).replace(",", ";")
    return f"{brief}: a smaller difference would mostly have been missed" if brief else ""


def resolution_in_brief(*timings: dict[str, RelativeCost]) -> str:
    """The same, as a part of a sentence."""
    found = [resolution for resolution in map(resolution_of, timings) if resolution is not None]
    if not found:
        return ""
    return f", resolution {difference_words(max(found), decimals=0)}"


def difference_words(log: float, decimals: int = 1) -> str:
    """A difference of times, from its log-ratio: a percentage, or a factor from twice the time on.

    >>> difference_words(0.04), difference_words(0.04, decimals=0), difference_words(9.0)
    ('4.1 %', '4 %', 'a factor of 8103.1')
    """
    factor = math.exp(log)
    return f"{100 * (factor - 1):.{decimals}f} %" if factor < 2 else f"a factor of {factor:.1f}"


def span_of(counts: Sequence[int]) -> str:
    """
    >>> span_of([3, 5, 9]), span_of([5]), span_of([])
    ('3–9', '5', 'no')
    """
    return f"{counts[0]}–{counts[-1]}" if len(counts) > 1 else "".join(map(str, counts)) or "no"


def unit_of(rounds: Sequence[int]) -> str:
    """What the intervals of times are over, for these numbers of rounds, ascending.

    >>> unit_of([3, 5]), unit_of([20, 30]), unit_of([19, 30])
    ('rounds', 'rounds in 10 batches', 'rounds, in 10 batches from 20 on')
    """
    if not rounds or rounds[-1] < 2 * BATCHES:
        return "rounds"
    return (
        f"rounds in {BATCHES} batches"
        if rounds[0] >= 2 * BATCHES
        else f"rounds, in {BATCHES} batches from {2 * BATCHES} on"
    )


def version_footnotes(
    table: ResultTable, runs: Sequence[ResultRow], boards: Iterable[tuple[str, str]]
) -> Iterator[Note]:
    """How many of `runs` come from another version than the present one.

    Then how many Records do not count, by reason; `boards`: their tasks and presets.
    """
    older, present = _older_versions(runs)
    for version, count in older.items():
        some = f"All {count:,}" if count == len(runs) else f"{count:,} of {len(runs):,}"
        many = f"{some} Records are"
        named = f"{version}, made before versions were declared" if version == VERSION_ZERO else f"version {version}"
        numbers = set(present.values())
        named_present = ", ".join(f"{name} {number}" for name, number in sorted(present.items()))
        now_is = f"version is {numbers.pop()}" if len(numbers) == 1 else f"versions are {named_present}"
        text = f"{many} of {named}; the present {now_is}. Run the same command again to measure anew"
        brief = f"{some.lower()} Records come from other code: run the command again"
        yield footnote(topic="version", text=text, kind=NoteKind.VERSIONS, brief=brief)
    asked = set(boards)
    reasons: Counter[str] = Counter()
    for (task, preset, reason), count in table.replaced.items():
        reasons[reason] += count if (task, preset) in asked else 0
    for reason, count in sorted((+reasons).items()):
        text = f"{counted(count, 'older Record')}: {reason}"
        versions = "another version" in reason
        kind = NoteKind.VERSIONS if versions else NoteKind.MISSING
        yield footnote(topic="version" if versions else "not counted", text=text, kind=kind)


def stale_words(runs: Sequence[ResultRow]) -> str:
    """How many of `runs` come from another version than the present one, in brief; empty where none does."""
    count = sum(_older_versions(runs)[0].values())
    if not count:
        return ""
    return "older version" if count == len(runs) else f"{count:,} of {len(runs):,} Records of an older version"


def _older_versions(runs: Sequence[ResultRow]) -> tuple[Counter[str], dict[str, int | None]]:
    """How many of `runs` each other version made; and the present versions of their lanes and objectives, by name."""
    older: Counter[str] = Counter()
    present: dict[str, int | None] = {}
    for run in runs:
        objective = objective_of(run.setting)
        now = {"lane": LANE_VERSIONS[run.lane], "objective": OBJECTIVE_VERSIONS.get(objective)}
        made_by = {name: int(number) for name, number in re.findall(r"(lane|objective)(\d+)", run.version)}
        if not made_by or not made_by.items() <= now.items():
            older[run.version] += 1
            present |= {run.lane: now["lane"], objective or run.lane: now["objective"] or now["lane"]}
    return older, present


def baseline_footnotes(
    levels: Iterable[tuple[ResultRow, Interval | None]], scores: Mapping[str, SeedScores], metric: Metric
) -> Iterator[Note]:
    """Which trained variants are no better than the best trivial predictor. A fact, and no bar to be shown."""
    known = {run.variant: metric.sign * level.value for run, level in levels if level is not None}
    reached = {name: metric.sign * one.level().value for name, one in scores.items() if one.seeds}
    best = max(known, key=lambda name: known[name], default="")
    if known:
        yield footnote(topic="baselines", text="predictors without trained attention, for scale")
    beaten = sorted(name for name, value in reached.items() if known and value <= known[best])
    if beaten:
        some = f"{listed(beaten)} {'are' if beaten[1:] else 'is'} not"
        brief = f"{'no variant is' if len(beaten) == len(reached) else some} better than {best}"
        yield footnote(topic="baseline", text=f"{brief}, by the values shown", brief=brief, column=metric.name)
