"""Quality: test scores of a variant by seed, lined up with those of the reference."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..core.cell import REFERENCE
from ..core.interval import Interval
from ..core.metrics import ACCURACY, RANKING_METRICS, Metric
from ..core.protocol import LEAST_SEEDS
from ..core.record import Outcome
from ..stats.bootstrap import resampled_scores, resampled_shares
from ..stats.intervals import Estimate
from ..stats.scoring import Correct, Draws, Shares, accuracy, accuracy_difference, corpus_difference, corpus_level
from ..store.artifacts import agrees, score_of
from ..store.rows import ResultRow
from ..store.table import ResultTable
from .key import BoardKey

Predictions = Callable[[str], npt.NDArray[Any] | None]
"""Reads an artifact: which test examples were right, 0 or 1 each, or their statistics (examples, k) as
`stats.bootstrap` names them; None where it is missing."""


@dataclass(frozen=True, kw_only=True)
class SeedScores:
    """Test scores by seed, in the unit of the metric.

    Of what is known of each example, None unless it is kept for every seed: `correct`, for accuracy, by seed; `draws`,
    for all else, (draws, seeds), the scores of resampled examples. `curves`: artifacts that hold the training curves,
    by seed, empty where there is none. `missing_reason`: why these do not suffice for a rank; empty where they do.
    `rows`: places in the ResultTable, of failed Records too.
    """

    variant: str
    metric: Metric = ACCURACY
    seeds: tuple[int, ...] = ()
    scores: tuple[float, ...] = ()
    examples: int = 0
    correct: tuple[Correct, ...] | None = None
    draws: Draws | None = None
    curves: tuple[str, ...] = ()
    missing_reason: str = ""
    rows: tuple[int, ...] = ()

    @property
    def mean(self) -> float:
        return math.fsum(self.scores) / len(self.scores)

    @property
    def keeps_examples(self) -> bool:
        return self.correct is not None or self.draws is not None

    def level(self) -> Interval:
        """The mean score with its interval."""
        if self.metric.is_share:
            return accuracy(self.scores, self.examples, self.correct)
        return corpus_level(self.scores, self.draws)

    @cached_property
    def right_by_example(self) -> Shares | None:
        """(examples,): the share of seeds that were right; None where that is not kept."""
        return None if self.correct is None else np.mean(np.stack(self.correct), axis=0)

    def on_seeds(self, seeds: tuple[int, ...]) -> SeedScores:
        """The part of these that is of `seeds`, in their order."""
        if seeds == self.seeds:
            return self
        at = [self.seeds.index(seed) for seed in seeds]
        return replace(
            self,
            seeds=seeds,
            scores=tuple(self.scores[i] for i in at),
            correct=None if self.correct is None else tuple(self.correct[i] for i in at),
            draws=None if self.draws is None else self.draws[:, at],
            curves=tuple(self.curves[i] for i in at) if self.curves else (),
        )

    def advantage_over(self, other: SeedScores) -> Estimate:
        """How much better these are than `other`, whichever way the metric points, by the seeds that both have.

        Raises ValueError where they have none.
        """
        both = tuple(sorted(set(self.seeds) & set(other.seeds)))
        if not both:
            raise ValueError(f"{self.variant} and {other.variant} have no seed in common")
        ours, theirs = self.on_seeds(both), other.on_seeds(both)
        if self.metric.sign < 0:
            ours, theirs = theirs, ours
        same_examples = self.examples == other.examples
        if self.metric.is_share:
            right = [scores.right_by_example if same_examples else None for scores in (ours, theirs)]
            return accuracy_difference(ours.scores, theirs.scores, min(self.examples, other.examples), *right)
        draws = [scores.draws if same_examples else None for scores in (ours, theirs)]
        return corpus_difference(ours.scores, theirs.scores, *draws)

    def resampled(self) -> Draws | None:
        """Scores in every draw of examples, (draws, seeds), for every metric; None where these are not kept."""
        return resampled_shares(self.correct) if self.correct else self.draws


def scores_by_variant(table: ResultTable, board_key: BoardKey, predictions: Predictions) -> dict[str, SeedScores]:
    """Scores by variant. Only the seeds of the reference are used; a variant without one of them has no rank."""
    # a cell that was run on two machines counts once, the newer
    runs = {run.key: run for run in board_key.runs(table, "train")}
    by_variant: dict[str, list[ResultRow]] = {}
    for row in sorted(runs.values(), key=lambda run: (run.variant, run.seed)):
        by_variant.setdefault(row.variant, []).append(row)
    metric = metric_of(table, board_key)
    done = {variant: _done(table, rows, metric) for variant, rows in by_variant.items()}
    wanted = {one.row.seed for one in done.get(REFERENCE, ())}
    return {
        variant: _seed_scores(variant, rows, done[variant], wanted, predictions, metric)
        for variant, rows in by_variant.items()
    }


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


def _seed_scores(
    variant: str,
    rows: list[ResultRow],
    done: list[_Done],
    wanted: set[int],
    predictions: Predictions,
    metric: Metric,
) -> SeedScores:
    used = [one for one in done if not wanted or one.row.seed in wanted]
    seeds = tuple(int(one.row.seed) for one in used)
    kept = _kept(used, predictions, metric)
    counted = min((one.examples for one in used), default=0)
    return SeedScores(
        variant=variant,
        metric=metric,
        seeds=seeds,
        scores=tuple(float(one.score) for one in used),
        examples=counted if metric.is_share or kept is None else len(kept[0]),
        correct=kept if metric.is_share else None,
        draws=None if metric.is_share or kept is None else _draws(kept, metric),
        curves=tuple(one.row.artifacts.get("curve", "") for one in used),
        missing_reason=_missing_reason(rows, set(seeds), wanted),
        rows=tuple(sorted(int(row.at) for row in rows)),
    )


def _kept(used: list[_Done], predictions: Predictions, metric: Metric) -> tuple[npt.NDArray[Any], ...] | None:
    """The predictions of each seed; None unless every seed has them, of the same examples."""
    found = []
    for one in used:
        name = one.row.artifacts.get("predictions")
        kept = predictions(name) if name else None
        if kept is None or not _matches_score(kept, one, metric):
            return None
        found.append(kept)
    return tuple(found) if found and len({len(kept) for kept in found}) == 1 else None


def _matches_score(kept: npt.NDArray[Any], one: _Done, metric: Metric) -> bool:
    # predictions that disagree with the score of their Record are not its own
    found = score_of(metric.name, kept)
    counts = (len(kept),) if metric.is_share else (0, len(kept))
    return found is not None and agrees(found, one.score) and one.examples in counts


def _draws(kept: tuple[npt.NDArray[Any], ...], metric: Metric) -> Draws:
    return np.stack([resampled_scores(metric.name, statistics) for statistics in kept], axis=1)


def _missing_reason(rows: list[ResultRow], seeds: set[int], wanted: set[int]) -> str:
    failed = [row for row in rows if row.outcome != Outcome.OK and (not wanted or row.seed in wanted)]
    if failed:
        first = failed[0]
        also = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
        because = f": {first.reason}" if first.reason else ""
        return f"{outcome_words(first.outcome)} at seed {first.seed}{also}{because}"
    if not wanted:
        return f"no result of {REFERENCE}, the reference, to compare with"
    missing = sorted(wanted - seeds)
    if missing:
        return f"seed {', '.join(map(str, missing))} of the reference is missing here; run it to be ranked"
    if len(seeds) < LEAST_SEEDS:
        return f"fewer than {LEAST_SEEDS} seeds"
    return ""


def outcome_words(outcome: str) -> str:
    """
    >>> outcome_words("out_of_memory")
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
