"""Notes on quality: who learned, what the comparisons can tell, and which Records stand beside those that count."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from ..core.cell import NO_ATTENTION, REFERENCE
from ..core.interval import Interval
from ..core.metrics import Metric
from ..core.protocol import LEAST_SEEDS
from ..score.contrasts import Contrast, Contrasts
from ..score.key import BoardKey
from ..score.quality import SeedScores
from ..stats.format import counted, listed
from ..stats.moderation import LEAST_POOL
from ..store.rows import ResultRow
from ..store.table import ResultTable
from ..store.versions import NOT_RANKED, REPEATED, version_order
from .board import Note, Row
from .cells import EMPTY
from .notes import NoteKind, footnote
from .task_context import BoardContext

NAMED = 3
"""So many repeated cells are named; of more, the number of the rest is given."""

SIMULATED_ERRORS = {3: 9, 4: 6, 5: 6}
"""Largest simulated share of boards, in %, with a false difference, by the number of seeds, where one deviation of
seeds is 3 to 10 times the others' (docs/scoring_simulations.md). From 6 seeds on it is 5 %."""


def corrected_words(contrasts: Contrasts, names: Iterable[str]) -> str:
    """For which pairs the comparisons of these variants are corrected: the one statement that every display quotes.

    >>> corrected_words(Contrasts({}, ["softmax", "rela", "linear"]), ["rela", "mine"])
    'corrected for the 3 pairs of the 3 declared variants; with mine, for the 15 pairs of twice as many'
    """
    count = len(contrasts.declared)
    pairs = contrasts.pairs(REFERENCE)
    text = f"corrected for the {pairs} pairs of the {count} declared variants"
    others = sorted(set(names) - contrasts.declared)
    if not others:
        return text
    named = listed(others) if len(others) <= NAMED else f"the {len(others)} others"
    return f"{text}; with {named}, for the {contrasts.pairs(others[0])} pairs of twice as many"


def comparison_footnotes(
    contrasts: Contrasts, ranked: Collection[str], metric: Metric, margin: float
) -> Iterator[Note]:
    """How comparisons are corrected, how often they err all the same, and the smallest difference that they would find.

    `margin`: in the metric's points.
    """
    if len(ranked) < 2:
        return
    gaps = [found for name in sorted(ranked) if (found := contrasts.to_reference(name)) and found.has_enough_seeds]
    yield from resolution_footnotes(gaps, metric, margin)
    seeds = min((len(found.seeds) for found in gaps), default=LEAST_SEEDS)
    text = (
        f"intervals, verdicts and ranks are one test at 95 %, {corrected_words(contrasts, ranked)}; the variance over "
        "seeds of each variant is shrunk towards that of the declared ones"
    )
    if seeds in SIMULATED_ERRORS:
        text += (
            f". With {seeds} seeds a false difference stands in up to {SIMULATED_ERRORS[seeds]} % of boards, and not "
            "5 %, where the seeds of one variant scatter 3 to 10 times as much as the others'"
        )
    others = len(set(ranked) - contrasts.declared)
    if others > len(contrasts.declared):
        text += (
            f". {others} variants beyond the declared ones are more than that provides for: a false difference "
            "stands in up to 11 % of boards; a suite's file that declares them corrects for all pairs"
        )
    if any(not found.is_moderated for found in gaps):
        text += (
            f". Fewer than {LEAST_POOL} declared variants have learned with these seeds, so each variant keeps its own "
            "variance, and differences must be larger to be told"
        )
    yield footnote(topic="comparisons", text=text)
    own = sorted({name for found in gaps for name in found.own if name in ranked})
    if own:
        yield footnote(
            topic="seeds",
            text=f"{listed(own)}: the seeds scatter far more than those of the others, or learned only in part, "
            "so the own variance counts. Seeds that agree by luck look safer than they are: where training jumps "
            "between two levels, a false difference stands in up to 40 % of boards",
            kind=NoteKind.UNDECIDED,
            warning=True,
        )


def resolution_footnotes(gaps: Sequence[Contrast], metric: Metric, margin: float) -> Iterator[Note]:
    """The smallest difference from the reference that these would find; `margin`: in the metric's points."""
    if not gaps:
        return
    effects = sorted(found.minimal_detectable_effect() for found in gaps)
    smallest, largest = (metric.value(effects[at]) for at in (0, -1))
    span = smallest if smallest == largest else f"{smallest} to {largest}"
    unit = metric.of_difference
    hidden = [found.one for found in gaps if found.minimal_detectable_effect() * metric.points > margin]
    yield footnote(
        topic="resolution",
        text=f"a true difference from {REFERENCE} is found in 4 of 5 boards like this one from {span} {unit} on"
        + (f"; for {len(hidden)} of {len(gaps)} variants that is more than the margin" if hidden else ""),
        kind=NoteKind.UNDECIDED,
        brief=f"a difference from {REFERENCE} is found from {span} {unit} on, in 4 of 5 such boards",
    )


def nothing_learned(context: BoardContext) -> str:
    """The sentence that heads a board whose reference did not learn the task; empty where it did."""
    reference = context.scores.get(REFERENCE)
    if context.constant is None or reference is None or not reference.seeds or reference.has_learned:
        return ""
    best = context.metric.value(context.constant.score)
    learned = sum(reference.learned)
    return (
        f"{REFERENCE} did not learn this task ({learned} of {len(reference.seeds)} seeds above "
        f"{context.constant.name}, {best}), so no variant counts as no worse."
    )


def learning_footnotes(context: BoardContext) -> Iterator[Note]:
    """Which variants did not learn the task at every seed."""
    if context.constant is None:
        return
    scored = {name: one for name, one in context.scores.items() if one.seeds and not all(one.learned)}
    never = sorted(name for name, one in scored.items() if not any(one.learned))
    partly = sorted(set(scored) - set(never))
    best = f"{context.constant.name}, {context.metric.value(context.constant.score)}"
    bar = f"the best constant prediction ({best})"
    said = [f"{listed(never)} at no seed"] if never else []
    said += [f"{name} at {sum(scored[name].learned)} of {len(scored[name].seeds)} seeds" for name in partly]
    if said:
        text = f"above {bar} at 95 %: {'; '.join(said)}; all others at every seed. The values measured are ranked"
        named = listed(sorted(scored)) if len(scored) <= NAMED else f"{len(scored)} variants"
        brief = f"{named}: not every seed is above the best constant ({best})"
        yield footnote(topic="learned", text=text, kind=NoteKind.LEARNING, brief=brief, warning=True)


def attention_gain_footnotes(context: BoardContext) -> Iterator[Note]:
    """How much better the reference is than the same model without attention."""
    without, metric = context.without_attention, context.metric
    if without is None or not without.seeds:
        return
    found = context.contrasts.to_reference(NO_ATTENTION)
    if found is None:
        return
    # of the reference over the model without attention, in points
    gain = Interval(-found.interval.value, -found.interval.high, -found.interval.low)
    unit, seeds = metric.of_difference, len(found.seeds)
    against = f"{REFERENCE} against the same model with identity in the place of attention"
    if not found.has_enough_seeds:
        over = f"over {counted(seeds, 'seed')}, which prove nothing"
        text = f"{against}: {metric.signed(gain.value)} {unit} {over}"
        yield footnote(topic="attention", text=text, kind=NoteKind.LEARNING)
        return
    size = metric.gap(gain)
    text = f"{against}: {size} {unit}"
    adds = found.is_separated and found.advantage.value < 0
    brief = f"attention adds {metric.signed(gain.value).lstrip('+')} {unit} here ({REFERENCE} against {NO_ATTENTION})"
    if not adds:
        brief = f"no gain of attention is shown here: {REFERENCE} against {NO_ATTENTION} {size}"
    yield footnote(topic="attention", text=text, kind=NoteKind.LEARNING, brief=brief, warning=not adds)


def seed_footnotes(scores: Mapping[str, SeedScores]) -> Iterator[Note]:
    """Seeds that do not count, and variants with fewer seeds than others."""
    for name, one in sorted(scores.items()):
        if one.uncounted:
            seeds = listed([str(seed) for seed in one.uncounted])
            yield footnote(
                topic="seeds",
                text=f"{name}: seed {seeds} does not count, since a smaller one is missing. Only seeds 0, 1, 2, … "
                "without a gap do, so that nobody picks the best of many",
                kind=NoteKind.MISSING,
                brief=f"{name}: seed {seeds} does not count, since a smaller one is missing",
            )
    counts = {len(one.seeds) for one in scores.values() if not one.missing_reason}
    if len(counts) > 1:
        fewest, most = min(counts), max(counts)
        text = f"variants have {fewest} to {most} seeds; each pair is compared on the seeds that both have"
        yield footnote(topic="seeds", text=text, kind=NoteKind.MISSING)


def repetition_footnotes(table: ResultTable, board_keys: Sequence[BoardKey]) -> Iterator[Note]:
    """Cells that were measured more than once: the rule, and the values that do not count."""
    found = []
    for board_key in board_keys:
        first = {row.key: row for row in board_key.runs(table, "train")}
        for row in _passed_over(table, board_key):
            if row.stale == REPEATED and row.key in first:
                found.append(_repeated(table, first[row.key], row))
    if found:
        rest = f"; and {len(found) - NAMED} more" if len(found) > NAMED else ""
        many = counted(len(found), "result")
        yield footnote(
            topic="repeated",
            text=f"of a cell measured several times the first result counts. Not counted: {'; '.join(found[:NAMED])}"
            f"{rest}",
            kind=NoteKind.MACHINES,
            brief=f"{many} of cells measured before: the first one counts",
        )


def _repeated(table: ResultTable, first: ResultRow, row: ResultRow) -> str:
    metric = row.metric or first.metric
    names = [metric.name] if metric else ["accuracy", "bleu", "bits_per_character"]
    values = [
        next((f"{m.value:.4g}" for name in names if (m := table.number(name, at, split="test"))), "no score")
        for at in (row.at, first.at)
    ]
    return f"{row.variant} at seed {row.seed}: {values[0]} on {row.machine}, beside {values[1]} on {first.machine}"


def left_behind(table: ResultTable, board_key: BoardKey) -> dict[str, ResultRow]:
    """Variants that only Records of other versions hold on this board, each with its newest."""
    here = {row.variant for row in board_key.runs(table, "train")}
    return {
        row.variant: row
        for row in _passed_over(table, board_key)
        if row.stale in NOT_RANKED and row.variant not in here
    }


def rows_left_behind(table: ResultTable, board_key: BoardKey, rows: Collection[str], columns: int) -> dict[str, Row]:
    """An unranked row for each of these that has no row yet."""
    return {
        name: Row(name=name, entries=(EMPTY,) * columns, reason=f"measured only at {row.version}: {row.stale}")
        for name, row in sorted(left_behind(table, board_key).items())
        if name not in rows
    }


def left_behind_footnotes(table: ResultTable, board_keys: Sequence[BoardKey]) -> Iterator[Note]:
    """Names variants of older versions than those ranked, with the command that measures them anew."""
    for board_key in board_keys:
        ranked = max((version_order(row.version) for row in board_key.runs(table, "train")), default=())
        # where a board is older than a variant, it is the others that are to be measured
        behind = left_behind(table, board_key).items()
        names = sorted(name for name, row in behind if version_order(row.version) <= ranked)
        if names:
            many = f"{counted(len(names), 'variant')} {'is' if len(names) == 1 else 'are'}"
            yield footnote(
                topic="version",
                text=f"on {board_key.task}, Records of {listed(names)} are of another version than those ranked; "
                f"measure anew: `{command(names, board_key)}`",
                kind=NoteKind.VERSIONS,
                brief=f"{many} of another version: `{command(names, board_key)}`",
            )


def command(names: Sequence[str], board_key: BoardKey) -> str:
    """The command that measures these variants on the board's task, quoted for a shell, to which brackets are patterns.

    >>> key = BoardKey(task="lra-text", preset="quick", selection="validation", fidelity="official", protocol=1)
    >>> command(["rela", "linear"], key)
    'attnbench run --variants rela,linear --task lra-text --preset quick --seeds 3'
    >>> command(["rela[impl=eager]"], key)
    "attnbench run --variants 'rela[impl=eager]' --task lra-text --preset quick --seeds 3"
    """
    selection = [] if board_key.selection == "validation" else ["--selection", board_key.selection]
    words = ["attnbench", "run", "--variants", ",".join(names), "--task", board_key.task, "--preset", board_key.preset]
    return shlex.join([*words, "--seeds", str(LEAST_SEEDS), *selection])


def _passed_over(table: ResultTable, board_key: BoardKey) -> Iterator[ResultRow]:
    for row in table.passed_over(board_key.task, board_key.preset, board_key.fidelity, board_key.protocol):
        if row.lane == "train" and row.selection == board_key.selection:
            yield row
