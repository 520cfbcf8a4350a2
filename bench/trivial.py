"""Trivial: what predictors that know no attention reach on the very data of a question."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from . import wording
from .aggregate import resampled_scores, sound_statistics
from .board import Footnote
from .frame import Frame
from .intervals import Interval
from .question import Question
from .record import Measurement, Outcome
from .runs import Run, newest
from .score import accuracy, corpus_level
from .trials import Predictions, Trials
from .yardstick import Yardstick


def trivial_levels(
    frame: Frame, question: Question, yardstick: Yardstick, predictions: Predictions
) -> Iterator[tuple[Run, Interval | None]]:
    """The newest run of each baseline, by name, with its level on the test split; None where it has none."""
    for run in sorted(newest(question.runs(frame, "baseline"), "variant"), key=lambda run: run.variant):
        tested = frame.number(yardstick.name, run.at, split="test") if run.outcome == Outcome.OK else None
        yield run, _level(tested, yardstick, run, predictions) if tested is not None else None


def footnotes_of_trivial(
    levels: Iterable[tuple[Run, Interval | None]], trials: Mapping[str, Trials], yardstick: Yardstick
) -> tuple[Footnote, ...]:
    """A warning where a variant that was trained is no better than the best predictor that was not."""
    known = {run.variant: yardstick.sign * level.value for run, level in levels if level is not None}
    reached = {name: yardstick.sign * one.level().value for name, one in trials.items() if one.seeds}
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
    return (Footnote(topic="baseline", text=text, warning=True, column=yardstick.name),)


def _level(tested: Measurement, yardstick: Yardstick, run: Run, predictions: Predictions) -> Interval | None:
    if yardstick.is_share:
        examples = tested.where.get("examples")
        return accuracy([tested.value], int(examples)) if examples else None
    name = run.artifacts.get("predictions")
    kept = predictions(name) if name else None
    if kept is None or not sound_statistics(yardstick.name, kept):
        return wording.point(tested.value)
    return corpus_level([tested.value], resampled_scores(yardstick.name, kept)[:, None])
