"""Comparison: two variants on one board, as paired differences and sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count as count_from

from ..core.cell import LEAST_SEEDS
from ..core.errors import SelectionError
from ..core.metrics import Interval, check_margin
from ..core.record import Outcome
from ..core.registry import nearest
from ..core.spec import Spec
from ..score.contrasts import Contrast, Contrasts
from ..score.cost import Mode, RelativeCost, costs_by_variant, floor_of
from ..score.key import BoardKey
from ..score.quality import Predictions, describe_outcome, scores_by_variant
from ..stats.format import counted, in_a_line, listed, memory, speed
from ..stats.intervals import MOST_SEEDS, POWER
from ..stats.ranking import difference_is_proven
from ..stats.scoring import CAP, Verdict, capped, ratio
from ..stats.shares import least_difference
from ..store.table import ResultTable
from .length_board import MODES
from .timings import Timings


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`points`: score of `one` less that of `other`, in the task's points; `step_time` and `memory`: ratios of cost,
    of a training step, or of what a sweep times instead.

    The interval of `points` and the `verdict` are corrected for `pairs` comparisons, as on the board. `detectable`: the
    smallest difference, in points, that would have been seen in 80 % of such comparisons; `seeds_needed`: how many
    seeds of both would see a difference of the margin, None for more than 100. None where it is not known; the
    sentences say why, the answer first. `records`: keys of the cells behind it.
    """

    board_key: BoardKey
    one: str
    other: str
    points: Interval | None
    verdict: Verdict | None
    pairs: int
    detectable: float | None
    seeds_needed: int | None
    step_time: Interval | None
    memory: float | None
    sentences: tuple[str, ...]
    records: tuple[str, ...]


def compare_on_boards(
    table: ResultTable,
    keys: Sequence[BoardKey],
    one: str,
    other: str,
    predictions: Predictions,
    margin: float | None = None,
) -> list[Comparison]:
    """The differences on each board that has both. Raises SelectionError where no board has both."""
    check_measured(table, one, other)
    found, problems = [], []
    for key in keys:
        try:
            found.append(compare(table, key, one, other, predictions, margin))
        except SelectionError as error:
            problems.append(error)
    if not found and problems:
        raise problems[0]
    return found


def compare(
    table: ResultTable, board_key: BoardKey, one: str, other: str, predictions: Predictions, margin: float | None = None
) -> Comparison:
    """The difference of `one` from `other`.

    Raises SelectionError where the board has no Record of one of them, and where they are the same.

    `margin`: in the task's points, None for its own.
    """
    if Spec.parse(one) == Spec.parse(other):
        raise SelectionError(
            f"expected two variants, got {one} twice; `attnbench compare rela` compares rela with softmax"
        )
    check_margin(margin)
    contrasts = Contrasts(scores_by_variant(table, board_key, predictions))
    mode = _timed_mode(table, board_key)
    timings = costs_by_variant(table, board_key, mode)
    names = sorted({*contrasts.scores, *timings})
    one, other = (_known(name, names, board_key) for name in (one, other))
    where = f"{board_key.task} ({board_key.preset})"
    trained = bool(contrasts.scores)
    quality = _quality(one, other, where, contrasts, margin) if trained else _Quality(sentences=())
    codes = Timings(table=table, by_point={board_key.task: timings})
    step_time, cost = _cost(one, other, timings, mode, {name: codes.implementation(name) for name in (one, other)})
    runs = board_key.runs(table, "train", "time")
    peaks = [table.values("peak_bytes", [run.at for run in runs if run.variant == name]) for name in (one, other)]
    ratio_of_peaks = peaks[0][-1] / peaks[1][-1] if all(peaks) else None
    # where nothing was trained, as in a sweep, there is no quality to be compared
    sentences = [*quality.sentences, cost if trained else f"{one} beside {other} on {where}: {cost}"]
    if ratio_of_peaks is not None:
        work = MODES[mode].one.capitalize()
        sentences.append(f"{work} of {one} needs {_than(memory(ratio_of_peaks), 'peak memory', other)}.")
    return Comparison(
        board_key=board_key,
        one=one,
        other=other,
        points=quality.points,
        verdict=quality.verdict,
        pairs=quality.pairs,
        detectable=quality.detectable,
        seeds_needed=quality.seeds_needed,
        step_time=step_time,
        memory=ratio_of_peaks,
        sentences=tuple(sentences),
        records=tuple(run.key for run in runs if run.variant in (one, other)),
    )


def _timed_mode(table: ResultTable, board_key: BoardKey) -> Mode:
    """The mode whose timings the key has: a training step, or the mode of a sweep."""
    timed = (mode for mode in MODES if any(t.seconds for t in costs_by_variant(table, board_key, mode).values()))
    return next(timed, "step")


def check_measured(table: ResultTable, *variants: str) -> None:
    """Raises SelectionError for a variant without any Record, with the names that are near."""
    names = {row.variant for row in table.current}
    for asked in variants:
        if (name := str(Spec.parse(asked))) not in names:
            raise SelectionError(f"no Records of {name!r}{nearest(name, sorted(names))}; there are: {in_a_line(names)}")


def _known(asked: str, names: list[str], board_key: BoardKey) -> str:
    name = str(Spec.parse(asked))
    if name not in names:
        raise SelectionError(
            f"no Records of {name!r} on {board_key.task}, {board_key.preset}; there are: {', '.join(names)}"
        )
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class _Quality:
    """The known difference in quality; only `sentences` where nothing is known."""

    sentences: tuple[str, ...]
    points: Interval | None = None
    verdict: Verdict | None = None
    pairs: int = 0
    detectable: float | None = None
    seeds_needed: int | None = None


def _quality(one: str, other: str, where: str, contrasts: Contrasts, margin: float | None) -> _Quality:
    """The very contrast of the board, with its corrected interval."""
    scores = contrasts.scores
    where = f"{one} − {other} on {where}"
    seeds = len(contrasts.seeds_of(one, other))
    if not seeds:
        own = [scores[name] for name in (one, other) if name in scores]
        reasons = [f"{each.variant}: {each.missing_reason}" for each in own if each.missing_reason]
        why = f" ({reasons[0]})" if reasons else ""
        return _Quality(sentences=(f"{where}: quality cannot be compared, since no seed is in common{why}.",))
    contrast = contrasts.between(one, other)
    metric, found = contrast.metric, contrast.interval
    unit = metric.of_difference
    if seeds < LEAST_SEEDS:
        signed = metric.signed(found.value)
        text = f"{where}: {signed} {unit} over {counted(seeds, 'seed')}; fewer than {LEAST_SEEDS} prove nothing."
        return _Quality(sentences=(text,))
    margin = metric.margin if margin is None else margin
    difference, _, ends = metric.gap(found).rstrip(")").partition(" (")
    direction = f" ({metric.better} is better)" if metric.sign < 0 else ""
    paired = all(scores[name].keeps_examples for name in (one, other))
    unpaired = "" if paired else ", examples not paired" if metric.is_share else ", examples not resampled"
    judged = contrast.verdict(margin / metric.points)
    sentence = _verdict_sentence(contrast, judged, metric.margin_words(margin))
    if contrast.by_shares:
        counts = " and ".join(
            f"{name} at {share.learned} of {share.trained} seeds"
            for name, share in zip((one, other), contrast.shares, strict=True)
        )
        all_seeds = (
            f"{where}: {difference} {unit}{direction}, the mean over all seeds; {counts} learned, and only these "
            f"counts are tested, corrected for {contrast.pairs} pairs. {sentence}"
        )
        return _Quality(sentences=(all_seeds, power_sentence(contrast, margin)), verdict=judged, pairs=contrast.pairs)
    return _Quality(
        sentences=(
            f"{where}: {difference} {unit}{direction}, 95 % interval {ends}, corrected for {contrast.pairs} "
            f"pairs{unpaired}. {sentence}",
            power_sentence(contrast, margin),
        ),
        points=metric.difference(found),
        verdict=judged,
        pairs=contrast.pairs,
        detectable=metric.points * contrast.minimal_detectable_effect(),
        seeds_needed=contrast.seeds_needed(margin / metric.points),
    )


def _verdict_sentence(contrast: Contrast, judged: Verdict, within: str) -> str:
    if judged == "undecided" and contrast.is_behind:
        return f"Worse; whether by more than {within} is undecided."
    if judged == "undecided" and contrast.is_spared:
        behind = contrast.one if not contrast.may_be_worse[0] else contrast.other
        return f"Undecided: {behind} is not established, or was still improving when its training ended."
    if judged == "undecided" and not contrast.other_learned:
        return f"Undecided: {contrast.other} did not learn this task, so being no worse than it says nothing."
    words = {
        "better": "Better.",
        "within margin": f"At most {within} worse.",
        "worse": f"Worse by more than {within}.",
        "undecided": "Undecided.",
    }
    return words[judged]


def power_sentence(contrast: Contrast, margin: float) -> str:
    """The smallest difference that would have been seen, and how many seeds one of the margin needs.

    `margin`: in the points of the metric.
    """
    metric, seeds = contrast.metric, len(contrast.seeds)
    if contrast.by_shares:
        enough = next(count for count in count_from(1) if least_difference(count, contrast.pairs) is not None)
        return f"{enough} trainings that all learned against {enough} that all failed would have been told apart."
    if not contrast.compares_means:
        return (
            f"{seeds} seeds below halfway to a perfect score may all have failed, so they show nothing; "
            f"{contrast.least_seeds} do."
        )
    detectable = metric.value(contrast.minimal_detectable_effect())
    sizes = {margin / metric.points: f"a difference of {metric.margin_words(margin)}"}
    if contrast.verdict(margin / metric.points) == "undecided" and contrast.advantage.value:
        sizes[abs(contrast.advantage.value)] = "one of the size found"
    sizes_of: dict[str, list[str]] = {}
    for size, words in sizes.items():
        sizes_of.setdefault(_seeds_words(contrast.seeds_needed(size)), []).append(words)
    needs = [
        f"{' and '.join(words)} {'needs' if len(words) == 1 else 'each need'} {n}" for n, words in sizes_of.items()
    ]
    return (
        f"With {seeds} seeds a difference of {detectable} {metric.of_difference} or more would have been seen in at "
        f"least {100 * POWER:.0f} % of such comparisons; {', and '.join(needs)}."
    )


def _cost(
    one: str, other: str, timings: dict[str, RelativeCost], mode: Mode, codes: Mapping[str, str]
) -> tuple[Interval | None, str]:
    work, several = MODES[mode]
    mine, theirs = timings.get(one), timings.get(other)
    if mine is None or theirs is None:
        missing = listed([name for name, timing in ((one, mine), (other, theirs)) if timing is None])
        return None, f"Speed cannot be compared: no timings of {missing}."
    for timing in (mine, theirs):
        if timing.cost is None or timing.disturbed:
            why = describe_outcome(timing.outcome) if timing.outcome != Outcome.OK else timing.reason
            return None, f"Speed cannot be compared: {timing.variant}: {why}."
    beyond = [timing for timing in (mine, theirs) if timing.rank_cost == capped(None)]
    if len(beyond) > 1:
        return None, f"Speed cannot be compared: both take {CAP:.0f} times as long as the reference, or longer."
    gap = theirs.advantage_over(mine)
    found = ratio(gap)
    # of a time beyond the cap the ratio is a bound
    words = f"≥ {speed(found).removeprefix('≥ ')}" if beyond else speed(found)
    shared = mine.block and mine.block == theirs.block
    rounds = "the same rounds" if shared else "different rounds, each against the reference"
    if abs(gap.value) <= floor_of({one: mine, other: theirs}):
        return found, f"Their {several} take the same time within the noise floor ({words}), in {rounds}."
    doubt = "" if difference_is_proven(gap) else "; the interval does not exclude equal times"
    # plain code may be slow where the mechanism is not
    ran = ", ".join(f"{name} ({code})" for name, code in codes.items() if code)
    ran = f" Code that was timed: {ran}." if ran else ""
    return found, f"{work.capitalize()} of {one} is {_than(words, '', other)}, in {rounds}{doubt}.{ran}"


def _than(words: str, noun: str, other: str) -> str:
    """`1.82× faster (1.80–1.85)` with the thing compared put in: `1.82× faster than that of softmax (1.80–1.85)`."""
    head, bracket, rest = words.partition(" (")
    if "× " not in head:
        return f"as {'much ' + noun if noun else 'fast'} as that of {other}{bracket}{rest}"
    return f"{head}{' ' + noun if noun else ''} than that of {other}{bracket}{rest}"


def _seeds_words(needed: int | None) -> str:
    if needed is None:
        return f"more than {MOST_SEEDS} seeds, or more test examples"
    return f"{needed if needed <= LEAST_SEEDS else f'about {needed}'} seeds"
