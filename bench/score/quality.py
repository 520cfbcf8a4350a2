"""Quality: test scores of a variant by seed, lined up with those of the reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..core.cell import LEAST_SEEDS, REFERENCE
from ..core.metrics import ACCURACY, RANKING_METRICS, Interval, Metric
from ..core.record import Measurement, Outcome
from ..stats import format as wording
from ..stats.bootstrap import resampled_scores, resampled_shares, sound_statistics
from ..stats.intervals import Estimate, NoiseSource
from ..stats.scoring import Correct, Draws, accuracy, accuracy_difference, corpus_difference, corpus_level
from ..store.artifacts import ExampleResults, agrees, score_of
from ..store.rows import ResultRow, newest
from ..store.table import ResultTable
from .key import BoardKey
from .learning import TrivialBaselines, above, bars_of, in_doubt, learned_seeds

Predictions = Callable[[str], ExampleResults | None]
"""Reads an artifact; None where it is missing."""


@dataclass(frozen=True, kw_only=True)
class SeedScores:
    """Test scores by seed, in the unit of the metric.

    Of what is known of each example, None unless it is kept for every seed: `correct`, for accuracy, by seed; `draws`,
    for all else, (draws, seeds), the scores of resampled examples. `documents`: (examples, 2), the documents of each
    pair, None where examples share none. `curves`: artifacts that hold the training curves,
    by seed, empty where there is none. `learned_by_seed`: which trainings did not fail, and `above_by_seed`: which are
    above the best constant prediction, empty where nothing is known. `uncounted`: seeds with a result behind a gap in
    0, 1, 2, …, which do not count. `missing_reason`: why these do not suffice for a rank; empty where they do. `rows`:
    places in the ResultTable, of failed Records too. `unestablished`: why the implementation is not established, empty
    where nothing says so. `unsettled`: how many of the trainings ended while validation still improved. `in_doubt`: as
    `learning.in_doubt` says.
    """

    variant: str
    metric: Metric = ACCURACY
    seeds: tuple[int, ...] = ()
    scores: tuple[float, ...] = ()
    examples: int = 0
    correct: tuple[Correct, ...] | None = None
    draws: Draws | None = None
    documents: npt.NDArray[Any] | None = None
    curves: tuple[str, ...] = ()
    learned_by_seed: tuple[bool, ...] = ()
    above_by_seed: tuple[bool, ...] = ()
    uncounted: tuple[int, ...] = ()
    missing_reason: str = ""
    rows: tuple[int, ...] = ()
    unestablished: str = ""
    unsettled: int = 0
    in_doubt: bool = False

    @property
    def mean(self) -> float:
        return math.fsum(self.scores) / len(self.scores)

    @property
    def keeps_examples(self) -> bool:
        return self.correct is not None or self.draws is not None

    @property
    def learned(self) -> tuple[bool, ...]:
        """True for each seed that learned; so it did where nothing says otherwise."""
        return self.learned_by_seed or (True,) * len(self.seeds)

    @property
    def has_learned(self) -> bool:
        """True if more than half of the seeds are above the best constant prediction, and so the task was learned."""
        return 2 * sum(self.above_by_seed or self.learned) > len(self.seeds)

    @property
    def learned_nowhere(self) -> bool:
        return bool(self.seeds) and not any(self.learned)

    @property
    def is_certain(self) -> bool:
        """False where the seeds that are compared may be of two modes, and nothing says which of them learned."""
        return not self.metric.is_share or not (self.learned_nowhere or self.in_doubt)

    @property
    def learned_in_part(self) -> bool:
        """True if it learned at some seeds and not at others: then its scores have two modes."""
        return any(self.learned) and not all(self.learned)

    @property
    def may_be_worse(self) -> bool:
        """False where a loss says nothing of the mechanism: it is not established, or was still improving."""
        return not self.unestablished and not self.unsettled

    @property
    def compared(self) -> SeedScores:
        """The part that is of one mode: the seeds that learned, or all where none did."""
        if not self.learned_in_part:
            return self
        return self.on_seeds(tuple(seed for seed, learned in zip(self.seeds, self.learned, strict=True) if learned))

    def level(self, of_seeds: NoiseSource | None = None) -> Interval:
        """The mean score with its interval; `of_seeds`: its noise over seeds, the seeds' own where it is None."""
        if self.metric.is_share:
            return accuracy(self.scores, self.examples, self.correct, of_seeds, self.documents)
        return corpus_level(self.scores, self.draws, of_seeds)

    def on_seeds(self, seeds: tuple[int, ...]) -> SeedScores:
        """The part of these that is of `seeds`, in their order."""
        if seeds == self.seeds:
            return self
        places = {seed: place for place, seed in enumerate(self.seeds)}
        at = [places[seed] for seed in seeds]
        return replace(
            self,
            seeds=seeds,
            scores=tuple(self.scores[i] for i in at),
            correct=None if self.correct is None else tuple(self.correct[i] for i in at),
            draws=None if self.draws is None else self.draws[:, at],
            curves=tuple(self.curves[i] for i in at) if self.curves else (),
            learned_by_seed=tuple(self.learned_by_seed[i] for i in at) if self.learned_by_seed else (),
            above_by_seed=tuple(self.above_by_seed[i] for i in at) if self.above_by_seed else (),
        )

    def advantage_over(self, other: SeedScores) -> Estimate:
        """The advantage of these over `other`, whichever way the metric points, by the seeds that both have.

        The noise over seeds is that of these two alone, and no pair is corrected for: boards that compare variants ask
        `score.contrasts`. Raises ValueError where they have no seed in common.
        """
        both = tuple(sorted(set(self.seeds) & set(other.seeds)))
        if not both:
            raise ValueError(f"{self.variant} and {other.variant} have no seed in common")
        ours, theirs = self.on_seeds(both), other.on_seeds(both)
        if self.metric.sign < 0:
            ours, theirs = theirs, ours
        same_examples = self.examples == other.examples
        if self.metric.is_share:
            our_correct, their_correct = (scores.correct if same_examples else None for scores in (ours, theirs))
            least = min(self.examples, other.examples)
            return accuracy_difference(ours.scores, theirs.scores, least, our_correct, their_correct, self.documents)
        draws = [scores.draws if same_examples else None for scores in (ours, theirs)]
        return corpus_difference(ours.scores, theirs.scores, *draws)

    def resampled(self) -> Draws | None:
        """Scores in every draw of examples, (draws, seeds), for every metric; None where these are not kept."""
        return resampled_shares(self.correct, self.documents) if self.correct else self.draws


def is_unlearned(reference: SeedScores | None) -> bool:
    """True if there are scores of the reference, and half of its seeds or fewer learned."""
    return reference is not None and bool(reference.seeds) and not reference.has_learned


def scores_by_variant(table: ResultTable, board_key: BoardKey, predictions: Predictions) -> dict[str, SeedScores]:
    """Scores by variant, each of its own seeds 0, 1, 2, … without a gap.

    A variant has a rank with at least three of them, and three in common with the reference; one that learned at some
    seeds only, where it learned at three. Whatever Records the others have changes none of that.
    """
    by_variant: dict[str, list[ResultRow]] = {}
    for row in sorted(board_key.runs(table, "train"), key=lambda run: (run.variant, run.seed)):
        by_variant.setdefault(row.variant, []).append(row)
    metric = metric_of(table, board_key)
    bars = bars_of(table, board_key.runs(table, "baseline"), metric)
    done = {variant: _done(table, rows, metric) for variant, rows in by_variant.items()}
    counted = {variant: _without_gap(rows, done[variant]) for variant, rows in by_variant.items()}
    reference = {one.row.seed for one in counted.get(REFERENCE, ())}
    return {
        variant: _seed_scores(
            table, variant, rows, done[variant], counted[variant], reference, predictions, metric, bars
        )
        for variant, rows in by_variant.items()
    }


def more_parameters(table: ResultTable, scores: Mapping[str, Mapping[str, SeedScores]]) -> dict[tuple[str, str], float]:
    """The parameters that each variant has more than the reference, as a share of its, by task and variant."""
    found: dict[tuple[str, str], float] = {}
    for task, by_name in scores.items():
        counts = {name: own[-1] for name, one in by_name.items() if (own := table.values("parameters", one.rows))}
        if usual := counts.get(REFERENCE):
            found |= {(task, name): count / usual - 1 for name, count in counts.items()}
    return found


class _Done(NamedTuple):
    row: ResultRow
    score: float
    examples: int


def _done(table: ResultTable, rows: list[ResultRow], metric: Metric) -> list[_Done]:
    """The rows with a usable test score."""
    found = []
    for row in rows:
        tested = table.number(metric.name, row.at, split="test") if row.outcome == Outcome.OK else None
        if tested is None or not 0 <= tested.value < math.inf:
            continue
        count = int(tested.where.get("examples") or 0)
        if not metric.is_share or (tested.value <= 1 and count > 0):
            found.append(_Done(row, tested.value, count))
    return found


def _without_gap(rows: list[ResultRow], done: list[_Done]) -> list[_Done]:
    """The results of seeds 0, 1, 2, … up to the first never tried: a person cannot pick the best of many seeds."""
    gap = _first_gap({row.seed for row in rows})
    return [one for one in done if one.row.seed < gap]


def _first_gap(tried: set[int]) -> int:
    return next(seed for seed in count() if seed not in tried)


def _seed_scores(
    table: ResultTable,
    variant: str,
    rows: list[ResultRow],
    done: list[_Done],
    used: list[_Done],
    reference: set[int],
    predictions: Predictions,
    metric: Metric,
    bars: TrivialBaselines,
) -> SeedScores:
    seeds = tuple(int(one.row.seed) for one in used)
    results = _kept(used, predictions, metric)
    kept = tuple(each.values for each in results) if results else None
    least = min((one.examples for one in used), default=0)
    counted = frozenset(seeds)
    scores = tuple(float(one.score) for one in used)
    examples = least if metric.is_share or kept is None else len(kept[0])
    draws = None if metric.is_share or kept is None else _draws(kept, metric)
    uncounted = tuple(int(seed) for seed in (one.row.seed for one in done) if seed not in counted)
    learned = learned_seeds(scores, examples, draws, metric, bars)
    unestablished = table.unestablished.get(variant, "")
    return SeedScores(
        variant=variant,
        metric=metric,
        seeds=seeds,
        scores=scores,
        examples=examples,
        correct=kept if metric.is_share else None,
        draws=draws,
        documents=results[0].documents if results else None,
        curves=tuple(one.row.artifacts.get("curve", "") for one in used),
        learned_by_seed=learned,
        above_by_seed=above(scores, examples, draws, metric, bars.constant),
        uncounted=uncounted,
        missing_reason=_missing_reason(rows, seeds, uncounted, reference)
        or _too_few(learned)
        or (f"not established: {unestablished}" if unestablished else ""),
        rows=tuple(sorted(int(row.at) for row in rows)),
        unestablished=unestablished,
        in_doubt=in_doubt(scores, learned, metric, bars),
        unsettled=sum(settled < 1 for settled in table.values("settled", [one.row.at for one in used])),
    )


def _kept(used: list[_Done], predictions: Predictions, metric: Metric) -> tuple[ExampleResults, ...] | None:
    """The predictions of each seed; None unless every seed has them, of the same examples."""
    found = []
    for one in used:
        name = one.row.artifacts.get("predictions")
        kept = predictions(name) if name else None
        if kept is None or not _matches_score(kept.values, one, metric):
            return None
        found.append(kept)
    return tuple(found) if found and len({len(kept.values) for kept in found}) == 1 else None


def _matches_score(kept: npt.NDArray[Any], one: _Done, metric: Metric) -> bool:
    # predictions that disagree with the score of their Record are not its own
    found = score_of(metric.name, kept)
    counts = (len(kept),) if metric.is_share else (0, len(kept))
    return found is not None and agrees(found, one.score) and one.examples in counts


def _draws(kept: tuple[npt.NDArray[Any], ...], metric: Metric) -> Draws:
    return np.stack([resampled_scores(metric.name, statistics) for statistics in kept], axis=1)


def _missing_reason(
    rows: list[ResultRow], seeds: tuple[int, ...], uncounted: tuple[int, ...], reference: set[int]
) -> str:
    tried = {row.seed for row in rows}
    failed = [row for row in rows if row.outcome != Outcome.OK]
    gap = _first_gap(tried)
    counted = [row for row in failed if row.seed <= gap]
    failed = counted or (failed if len(seeds) < LEAST_SEEDS else [])
    if failed:
        first = failed[0]
        also = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
        because = f": {first.reason}" if first.reason else ""
        return f"{describe_outcome(first.outcome)} at seed {first.seed}{also}{because}"
    if not reference:
        return f"no result of {REFERENCE}, the reference, to compare with"
    if len(seeds) < LEAST_SEEDS:
        if not uncounted:
            return f"fewer than {LEAST_SEEDS} seeds"
        missing = min(set(range(uncounted[0])) - tried)
        return f"seed {missing} is missing, so that seed {', '.join(map(str, uncounted))} does not count; run it"
    if len(reference & {*seeds}) < LEAST_SEEDS:
        return f"fewer than {LEAST_SEEDS} seeds in common with {REFERENCE}"
    return ""


def _too_few(learned: tuple[bool, ...]) -> str:
    """Why one that learned at a few seeds only has no rank: two trainings tell nothing of how far a third may lie."""
    count = sum(learned)
    if not 0 < count < LEAST_SEEDS or count == len(learned):
        return ""
    return f"learned at {count} of {len(learned)} seeds; a rank needs {LEAST_SEEDS}"


def describe_outcome(outcome: str) -> str:
    """
    >>> describe_outcome("out_of_memory")
    'out of memory'
    """
    return outcome.replace("_", " ")


def metric_of(table: ResultTable, board_key: BoardKey) -> Metric:
    """The metric that the newest Record of the task names.

    Records of version 0 name none: then the first ranking metric with a test measurement, accuracy where none has one.
    """
    runs = board_key.runs(table, "train", "baseline")
    for run in runs[::-1]:
        if run.metric is not None:
            return run.metric
    rows = [run.at for run in runs]
    for metric in RANKING_METRICS:
        if any(table.number(metric.name, at, split="test") is not None for at in rows):
            return metric
    return ACCURACY


def trivial_levels(
    table: ResultTable, board_key: BoardKey, metric: Metric, predictions: Predictions
) -> Iterator[tuple[ResultRow, Interval | None]]:
    """The newest run of each baseline, by name, with its level on the test split; None where it has none."""
    for run in sorted(newest(board_key.runs(table, "baseline"), "variant"), key=lambda run: run.variant):
        tested = table.number(metric.name, run.at, split="test") if run.outcome == Outcome.OK else None
        yield run, _level(tested, metric, run, predictions) if tested is not None else None


def _level(tested: Measurement, metric: Metric, run: ResultRow, predictions: Predictions) -> Interval | None:
    if metric.is_share:
        examples = tested.where.get("examples")
        return accuracy([tested.value], int(examples)) if examples else None
    name = run.artifacts.get("predictions")
    kept = predictions(name) if name else None
    if kept is None or not sound_statistics(metric.name, kept.values):
        return wording.point(tested.value)
    return corpus_level([tested.value], resampled_scores(metric.name, kept.values)[:, None])


def best_baseline(
    table: ResultTable, board_key: BoardKey, metric: Metric, predictions: Predictions
) -> tuple[str, Interval] | None:
    """The best trivial predictor of a task and its level."""
    levels = trivial_levels(table, board_key, metric, predictions)
    known = [(run.variant, level) for run, level in levels if level is not None]
    return max(known, key=lambda pair: metric.sign * pair[1].value, default=None)
