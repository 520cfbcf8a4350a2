"""Comparison: two variants on one question, as paired differences and sentences."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.errors import SelectionError
from ..core.interval import Interval
from ..core.protocol import LEAST_SEEDS
from ..core.record import Outcome
from ..core.spec import Spec
from ..score.cost import RelativeCost, costs_by_variant, floor_of
from ..score.key import BoardKey
from ..score.quality import Predictions, SeedScores, outcome_words, scores_by_variant
from ..stats import format as wording
from ..stats.ranking import difference_is_proven
from ..stats.scoring import ratio, verdict
from ..store.table import ResultTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`points`: quality of `one` less that of `other`, in the task's points; `step_time` and `memory`: ratios of cost.

    None where it cannot be told; the sentences say why. `records`: keys of the cells behind it.
    """

    board_key: BoardKey
    one: str
    other: str
    points: Interval | None
    step_time: Interval | None
    memory: float | None
    sentences: tuple[str, ...]
    records: tuple[str, ...]


def compare(
    table: ResultTable, board_key: BoardKey, one: str, other: str, predictions: Predictions, margin: float | None = None
) -> Comparison:
    """How `one` differs from `other`; raises SelectionError where the question has no Record of one of them.

    `margin`: in the task's points, None for its own.
    """
    scores = scores_by_variant(table, board_key, predictions)
    timings = costs_by_variant(table, board_key)
    names = sorted({*scores, *timings})
    one, other = (_known(name, names, board_key) for name in (one, other))
    points, quality = _quality(one, other, scores, margin)
    step_time, cost = _cost(one, other, timings)
    cells = board_key.cells(table, "train", "time")
    peaks = [table.values("peak_bytes", cells.index[cells["variant"] == name]) for name in (one, other)]
    memory = peaks[0][-1] / peaks[1][-1] if all(peaks) else None
    sentences = [quality, cost]
    if memory is not None:
        sentences.append(
            f"At its peak a training step of {one} needs {_than(wording.memory(memory), 'memory', other)}."
        )
    return Comparison(
        board_key=board_key,
        one=one,
        other=other,
        points=points,
        step_time=step_time,
        memory=memory,
        sentences=tuple(sentences),
        records=tuple(cells[cells["variant"].isin([one, other])]["key"]),
    )


def _known(asked: str, names: list[str], board_key: BoardKey) -> str:
    name = str(Spec.parse(asked))
    if name not in names:
        raise SelectionError(
            f"no Records of {name!r} on {board_key.task}, {board_key.preset}; there are: {', '.join(names)}"
        )
    return name


def _quality(one: str, other: str, scores: dict[str, SeedScores], margin: float | None) -> tuple[Interval | None, str]:
    mine, theirs = scores.get(one), scores.get(other)
    seeds = len(set(mine.seeds) & set(theirs.seeds)) if mine and theirs else 0
    if mine is None or theirs is None or not seeds:
        missing_reason = next(
            (f" ({n}: {t.missing_reason})" for n, t in ((one, mine), (other, theirs)) if t and t.missing_reason), ""
        )
        return None, f"Their results cannot be compared: they have no seed in common{missing_reason}."
    gap, metric = mine.gap(theirs), mine.metric
    margin = metric.margin if margin is None else margin
    unit = metric.of_difference
    if seeds < LEAST_SEEDS:
        return None, (
            f"{one} scored {metric.signed(gap.value)} {unit} against {other} over {seeds} "
            f"seed{'s' if seeds > 1 else ''}: fewer than {LEAST_SEEDS} seeds prove nothing."
        )
    found = gap.interval()
    shown = metric.difference(found)
    text, _, ends = metric.gap(found).rstrip(")").partition(" (")
    within = metric.margin_words(margin)
    better, worse = ("is right more often than", "is right less often than") if metric.is_share else (
        "is better than", "is worse than")  # fmt: skip
    conclusion = {
        "better": f"{one} {better} {other}",
        "within margin": f"{one} is no worse than {other} by more than {within}",
        "worse": f"{one} is worse than {other} by more than {within}",
        "undecided": f"the data do not tell whether {one} is worse than {other} by {within}",
    }[verdict(found, margin / metric.points)]
    if verdict(found, margin / metric.points) == "undecided" and found.high < 0:
        conclusion = f"{one} {worse} {other}, by how much is open"
    kept = "paired by example" if mine.keeps_examples and theirs.keeps_examples else (
        "examples not paired" if metric.is_share else "examples not resampled")  # fmt: skip
    fewer = f", where {metric.better} is better" if metric.sign < 0 else ""
    return shown, f"{text} {unit}{fewer} ({ends} {unit} at 95 %; {seeds} seeds, {kept}): {conclusion}."


def _cost(one: str, other: str, timings: dict[str, RelativeCost]) -> tuple[Interval | None, str]:
    mine, theirs = timings.get(one), timings.get(other)
    if mine is None or theirs is None:
        missing = wording.listed([name for name, timing in ((one, mine), (other, theirs)) if timing is None])
        return None, f"Their speeds cannot be compared: there are no timings of {missing} here."
    for timing in (mine, theirs):
        if timing.cost is None:
            why = outcome_words(timing.outcome) if timing.outcome != Outcome.OK else timing.reason
            return None, f"Their speeds cannot be compared: {timing.variant}: {why}."
    gap = theirs.gap(mine)
    found = ratio(gap)
    floor = floor_of({one: mine, other: theirs})
    shared = (
        "the same rounds" if mine.block and mine.block == theirs.block else "other rounds, each against the reference"
    )
    if abs(gap.value) <= floor:
        return (
            found,
            f"Their training steps take the same time within the noise floor ({wording.speed(found)}; {shared}).",
        )
    doubt = "" if difference_is_proven(gap) else ", but the interval leaves no difference open"
    return found, f"A training step of {one} is {_than(wording.speed(found), '', other)} ({shared}){doubt}."


def _than(words: str, noun: str, other: str) -> str:
    """`1.82× faster (1.80-1.85)` with the thing compared put in: `1.82× faster than softmax (1.80-1.85)`."""
    head, bracket, rest = words.partition(" (")
    if "× " not in head:
        return f"as {'much ' + noun if noun else 'fast'} as {other}'s{bracket}{rest}"
    return f"{head}{' ' + noun if noun else ''} than that of {other}{bracket}{rest}"
