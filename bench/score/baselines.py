"""Trivial: what predictors that know no attention reach on the very data of a question."""

from __future__ import annotations

from collections.abc import Iterator

from ..core.record import Measurement, Outcome
from ..stats import format as wording
from ..stats.bootstrap import resampled_scores, sound_statistics
from ..stats.intervals import Interval
from ..stats.metric import Yardstick
from ..stats.scoring import accuracy, corpus_level
from ..store.rows import Run, newest
from ..store.table import Frame
from .key import Question
from .quality import Predictions


def trivial_levels(
    frame: Frame, question: Question, yardstick: Yardstick, predictions: Predictions
) -> Iterator[tuple[Run, Interval | None]]:
    """The newest run of each baseline, by name, with its level on the test split; None where it has none."""
    for run in sorted(newest(question.runs(frame, "baseline"), "variant"), key=lambda run: run.variant):
        tested = frame.number(yardstick.name, run.at, split="test") if run.outcome == Outcome.OK else None
        yield run, _level(tested, yardstick, run, predictions) if tested is not None else None


def _level(tested: Measurement, yardstick: Yardstick, run: Run, predictions: Predictions) -> Interval | None:
    if yardstick.is_share:
        examples = tested.where.get("examples")
        return accuracy([tested.value], int(examples)) if examples else None
    name = run.artifacts.get("predictions")
    kept = predictions(name) if name else None
    if kept is None or not sound_statistics(yardstick.name, kept):
        return wording.point(tested.value)
    return corpus_level([tested.value], resampled_scores(yardstick.name, kept)[:, None])
