"""Footnotes: what a reader must know to believe a board, in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from ..core.cell import REFERENCE
from ..core.interval import Interval
from ..core.metrics import Metric
from ..score.cost import controls
from ..score.quality import SeedScores
from ..stats import format as wording
from ..stats.bootstrap import DRAWS
from ..stats.intervals import LEVEL
from ..stats.ranking import difference_is_proven
from ..stats.scoring import BATCHES, CAP, ratio
from ..store.rows import ResultRow
from .board import Footnote
from .preset_text import setting_words
from .task_context import BoardContext

PERCENT = f"{LEVEL:.0%}".replace("%", " %")


def footnotes(context: BoardContext) -> tuple[Footnote, ...]:
    """All that applies, the most needed first."""
    return tuple(f for part in (_data, _setting, _quality, _cost, _past) for f in part(context))


def _data(context: BoardContext) -> Iterator[Footnote]:
    board_key = context.board_key
    words = {
        "official": "the original data, by its checksum",
        "regenerated": "made by our generator, not the original files",
        "surrogate": "other data of the same kind: not comparable with official results",
        "synthetic": "inputs drawn at random",
    }.get(board_key.fidelity, "unknown origin")
    source = f" ({'; '.join(context.sources)})" if context.sources else ""
    yield Footnote(
        topic="data",
        text=f"{board_key.fidelity}: {words}{source}",
        warning=board_key.fidelity in ("surrogate", "unknown"),
    )
    for note in context.notes:
        yield Footnote(topic="data", text=note)
    if context.counts:
        yield Footnote(
            topic="data", text=", ".join(f"{count:,} {split}" for split, count in context.counts.items()) + " examples"
        )
    if board_key.selection == "test":
        yield Footnote(
            topic="selection",
            text="the checkpoint was chosen on the test split, as Long Range Arena does: results are too good",
            warning=True,
        )


def _setting(context: BoardContext) -> Iterator[Footnote]:
    named = f"preset {context.board_key.preset}, protocol {context.board_key.protocol}"
    yield Footnote(topic="preset", text="; ".join([named, *setting_words(context.setting)]))


def _quality(context: BoardContext) -> Iterator[Footnote]:
    able = [t for t in context.scores.values() if t.seeds]
    if not able:
        return
    reference = context.scores.get(REFERENCE)
    seeds = sorted({seed for t in able for seed in t.seeds})
    kept, metric = all(t.keeps_examples for t in able), context.metric
    count = max(t.examples for t in able)
    examples = f"{count:,} test examples" if count else "test examples"
    bare = not metric.is_share and not kept
    if bare:
        over, how = "", "; not over test examples, of which no statistics are at hand: on these very ones alone"
    elif metric.is_share:
        pairing = "paired by example" if kept else "not all predictions are kept: taken as independent, which is wider"
        over, how = f" and over test examples ({pairing}), their squares added", ""
    else:
        over = f" and over test examples ({DRAWS} bootstrap draws, paired by example), their squares added"
        how = ""
    if len(seeds) == 1:
        of_one = "no interval" if bare else f"±: {PERCENT} interval over the examples, not over seeds"
        text = f"seed {seeds[0]} alone on {examples}; {of_one}"
    else:
        text = (
            f"mean over seeds {wording.listed([str(s) for s in seeds])}, each on the same {examples}; ± and brackets: "
            f"{PERCENT} intervals over seeds (Student's t){over}{how}"
        )
    yield Footnote(topic=metric.title, text=text, warning=bare)
    if context.signatures:
        several = len(context.signatures) > 1
        apart = ". These are not the same score: do not compare across them" if several else ""
        yield Footnote(topic=metric.title, text=f"{'; '.join(context.signatures)}{apart}", warning=several)
    if reference is not None and sum(not t.missing_reason for t in able) > 1 and context.setting.get("ranked", True):
        yield Footnote(
            topic="verdict",
            column="verdict",
            text=f"margin of {metric.margin_words(context.margin)} {'above' if metric.sign < 0 else 'below'} "
            f"{REFERENCE}, by the interval of the difference",
        )
        yield Footnote(
            topic="rank",
            text=f"the places that the data leave open at {PERCENT}, corrected for all pairs; "
            "variants of equal places are tied and in alphabetical order",
        )


def _cost(context: BoardContext) -> Iterator[Footnote]:
    if not context.timings or context.machine is None:
        yield Footnote(topic="speed", text="no speed was measured for this board")
        return
    machine = context.machine
    rounds = sorted({len(t.seconds) for t in context.timings.values() if t.seconds})
    span = f"{rounds[0]}–{rounds[-1]}" if len(rounds) > 1 else "".join(map(str, rounds)) or "no"
    unit = f"rounds in {BATCHES} batches" if rounds and rounds[0] >= 2 * BATCHES else "rounds"
    where = (
        machine.accelerators[0]
        if machine.accelerators
        else f"{machine.processor}, {machine.threads} of {machine.cores} cores"
    )
    torch_version = machine.versions.get("torch", "")
    yield Footnote(
        topic="speed",
        text=f"one training step, {span} rounds interleaved with {REFERENCE} on {where} (machine {machine.id}"
        + (f", torch {torch_version}" if torch_version else "")
        + f"); brackets: {PERCENT} intervals of the geometric mean over {unit} (t)",
    )
    if context.foreign_load is not None and context.foreign_load > 0.1:
        yield Footnote(
            topic="speed",
            text=f"other processes used up to {context.foreign_load:.1f} cores meanwhile: trust ratios more than times",
            warning=True,
        )
    if len(context.trained_on) > 1:
        yield Footnote(topic="machines", text=f"quality comes from machines {wording.listed(context.trained_on)}")
    if context.frontier_shares:
        yield Footnote(
            topic="frontier",
            text=f"share of {DRAWS} bootstrap draws over seeds, test examples and rounds in which no other is at "
            "once as good and as fast; ● where none is by the values shown",
            column="frontier",
        )
    if context.at_equal_time:
        yield Footnote(
            topic="at equal time",
            text=f"best validation {context.metric.title} against {REFERENCE}'s after the time that {REFERENCE} "
            "trained; the faster are not trained on and the slower stop mid-schedule, so both are understated; the "
            "rest is at equal steps",
            column="equal_time",
        )
    if context.at_equal_state:
        yield Footnote(
            topic="at equal state",
            text="matched: at most as many bytes of decode state per sequence; held against the best other "
            "variant within them, whose luck in being chosen counts against the variant; at equal steps",
            column="equal_state",
        )
    yield from _null_control(context)
    if any(t.outcome != "ok" for t in context.timings.values()):
        yield Footnote(
            topic="failures",
            text=f"out of memory, timeout and incorrect count as {CAP:.0f} × {REFERENCE}, the cap of all costs",
        )


def _null_control(context: BoardContext) -> Iterator[Footnote]:
    nulls = controls(context.timings)
    if not nulls:
        yield Footnote(
            topic="null control", text="none was measured: the noise floor of these speeds is unknown", warning=True
        )
        return
    widest = max(nulls, key=lambda n: abs(n.value) + n.half_width())
    found = ratio(widest)
    floor = math.expm1(context.floor)
    # every timed variant is one more chance to find a difference where there is none
    separates = [n for n in nulls if difference_is_proven(n, len(context.timings) + len(nulls))]
    text = (
        f"{REFERENCE} timed under a second name came out at {found.value:.3f}× ({found.low:.3f}–{found.high:.3f}); "
        f"≈ marks differences within this noise floor of {100 * floor:.1f} %"
    )
    if separates:
        text += ". It separates from itself: no difference of that size can be trusted here"
    yield Footnote(topic="null control", text=text, warning=bool(separates))


def _past(context: BoardContext) -> Iterator[Footnote]:
    for reason, count in sorted(context.stale.items()):
        yield Footnote(topic="not counted", text=f"{count} older Record{'s' if count > 1 else ''}: {reason}")


def footnotes_of_trivial(
    levels: Iterable[tuple[ResultRow, Interval | None]], scores: Mapping[str, SeedScores], metric: Metric
) -> tuple[Footnote, ...]:
    """A warning where a variant that was trained is no better than the best predictor that was not."""
    known = {run.variant: metric.sign * level.value for run, level in levels if level is not None}
    reached = {name: metric.sign * one.level().value for name, one in scores.items() if one.seeds}
    if not known or not reached:
        return ()
    best = max(known, key=lambda name: known[name])
    beaten = sorted(name for name, value in reached.items() if value <= known[best])
    if not beaten:
        return ()
    who = (
        "no variant is"
        if len(beaten) == len(reached)
        else f"{wording.listed(beaten)} {'are' if beaten[1:] else 'is'} not"
    )
    text = (
        f"{who} better than {best}, by the values shown: gaps between such rows say little of what attention can learn"
    )
    return (Footnote(topic="baseline", text=text, warning=True, column=metric.name),)
