"""Comparison: two variants on one board, as paired differences and sentences."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.errors import SelectionError
from ..core.interval import Interval
from ..core.metrics import check_margin
from ..core.protocol import LEAST_SEEDS
from ..core.record import Outcome
from ..core.spec import Spec
from ..score.cost import RelativeCost, costs_by_variant, floor_of
from ..score.key import BoardKey
from ..score.quality import Predictions, SeedScores, outcome_words, scores_by_variant
from ..stats.format import listed, memory, speed
from ..stats.ranking import difference_is_proven
from ..stats.scoring import ratio, verdict
from ..store.table import ResultTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`points`: score of `one` less that of `other`, in the task's points; `step_time` and `memory`: ratios of cost.

    None where it is not known; the sentences say why. `records`: keys of the cells behind it.
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
    """The difference of `one` from `other`; raises SelectionError where the board has no Record of one of them.

    `margin`: in the task's points, None for its own.
    """
    if Spec.parse(one) == Spec.parse(other):
        raise SelectionError(f"expected two variants, got {one} twice; leave one out to compare with softmax")
    check_margin(margin)
    scores = scores_by_variant(table, board_key, predictions)
    timings = costs_by_variant(table, board_key)
    names = sorted({*scores, *timings})
    one, other = (_known(name, names, board_key) for name in (one, other))
    points, quality = _quality(one, other, scores, margin)
    step_time, cost = _cost(one, other, timings)
    runs = board_key.runs(table, "train", "time")
    peaks = [table.values("peak_bytes", [run.at for run in runs if run.variant == name]) for name in (one, other)]
    ratio_of_peaks = peaks[0][-1] / peaks[1][-1] if all(peaks) else None
    sentences = [quality, cost]
    if ratio_of_peaks is not None:
        sentences.append(f"A training step of {one} needs {_than(memory(ratio_of_peaks), 'peak memory', other)}.")
    return Comparison(
        board_key=board_key,
        one=one,
        other=other,
        points=points,
        step_time=step_time,
        memory=ratio_of_peaks,
        sentences=tuple(sentences),
        records=tuple(run.key for run in runs if run.variant in (one, other)),
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
        reasons = [f"{own.variant}: {own.missing_reason}" for own in (mine, theirs) if own and own.missing_reason]
        return None, f"Quality cannot be compared: no seed in common{f' ({reasons[0]})' if reasons else ''}."
    gap, metric = mine.advantage_over(theirs), mine.metric
    unit = metric.of_difference
    if seeds < LEAST_SEEDS:
        return None, (
            f"{one} scored {metric.signed(gap.value)} {unit} against {other} over {seeds} "
            f"seed{'s' if seeds > 1 else ''}; fewer than {LEAST_SEEDS} seeds prove nothing."
        )
    found = gap.interval()
    difference, _, ends = metric.gap(found).rstrip(")").partition(" (")
    margin = metric.margin if margin is None else margin
    within = metric.margin_words(margin)
    better, worse = (
        ("is right more often than", "is right less often than")
        if metric.is_share
        else ("is better than", "is worse than")
    )
    conclusion = {
        "better": f"{one} {better} {other}",
        "within margin": f"{one} is at most {within} worse than {other}",
        "worse": f"{one} is more than {within} worse than {other}",
        "undecided": f"{one} {worse} {other}; whether by more than {within} is open"
        if found.high < 0
        else f"It is open whether {one} is more than {within} worse than {other}",
    }[verdict(found, margin / metric.points)]
    unpaired = "examples not paired" if metric.is_share else "examples not resampled"
    paired = "paired by example" if mine.keeps_examples and theirs.keeps_examples else unpaired
    direction = f", {metric.better} is better" if metric.sign < 0 else ""
    return metric.difference(found), (
        f"{conclusion}: {difference} {unit}{direction} ({ends} {unit} at 95 %; {seeds} seeds, {paired})."
    )


def _cost(one: str, other: str, timings: dict[str, RelativeCost]) -> tuple[Interval | None, str]:
    mine, theirs = timings.get(one), timings.get(other)
    if mine is None or theirs is None:
        missing = listed([name for name, timing in ((one, mine), (other, theirs)) if timing is None])
        return None, f"Speed cannot be compared: no timings of {missing}."
    for timing in (mine, theirs):
        if timing.cost is None:
            why = outcome_words(timing.outcome) if timing.outcome != Outcome.OK else timing.reason
            return None, f"Speed cannot be compared: {timing.variant}: {why}."
    gap = theirs.advantage_over(mine)
    found = ratio(gap)
    shared = mine.block and mine.block == theirs.block
    rounds = "the same rounds" if shared else "different rounds, each against the reference"
    if abs(gap.value) <= floor_of({one: mine, other: theirs}):
        return found, f"Their training steps take the same time within the noise floor ({speed(found)}), in {rounds}."
    doubt = "" if difference_is_proven(gap) else "; the interval does not exclude equal times"
    return found, f"A training step of {one} is {_than(speed(found), '', other)}, in {rounds}{doubt}."


def _than(words: str, noun: str, other: str) -> str:
    """`1.82× faster (1.80–1.85)` with the thing compared put in: `1.82× faster than that of softmax (1.80–1.85)`."""
    head, bracket, rest = words.partition(" (")
    if "× " not in head:
        return f"as {'much ' + noun if noun else 'fast'} as that of {other}{bracket}{rest}"
    return f"{head}{' ' + noun if noun else ''} than that of {other}{bracket}{rest}"
