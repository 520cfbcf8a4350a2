"""Baselines: the scores of predictors without attention on the same data."""

from __future__ import annotations

from collections.abc import Iterator

from ..core.interval import Interval
from ..core.metrics import Metric
from ..core.record import Measurement, Outcome
from ..stats import format as wording
from ..stats.bootstrap import resampled_scores, sound_statistics
from ..stats.scoring import accuracy, corpus_level
from ..store.rows import ResultRow, newest
from ..store.table import ResultTable
from .key import BoardKey
from .quality import Predictions


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
