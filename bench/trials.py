"""Trials: what the seeds of one variant gave on one task, lined up with the reference's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .cell import REFERENCE
from .frame import Frame
from .intervals import Estimate, Interval
from .question import Question
from .record import Outcome
from .score import LEAST_SEEDS, Correct, accuracy, quality_gap

Predictions = Callable[[str], Correct | None]
"""Reads an artifact: which test examples were right, 0 or 1 each; None where it is not at hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """Test accuracy by seed; `correct`: per-example results by seed, None unless all are kept.

    `curves`: artifacts that hold the training curves, by seed, empty where there is none. `lack`: why these trials do
    not suffice for a rank; empty where they do. `rows`: of the Frame, the failed ones too.
    """

    variant: str
    seeds: tuple[int, ...] = ()
    shares: tuple[float, ...] = ()
    examples: int = 0
    correct: tuple[Correct, ...] | None = None
    curves: tuple[str, ...] = ()
    lack: str = ""
    rows: tuple[int, ...] = ()

    def accuracy(self) -> Interval:
        return accuracy(self.shares, self.examples, self.correct)

    def gap(self, other: Trials) -> Estimate:
        """How far these are above `other`, by the seeds that both have; raises ValueError where they have none."""
        both = sorted(set(self.seeds) & set(other.seeds))
        if not both:
            raise ValueError(f"{self.variant} and {other.variant} have no seed in common")
        ours, theirs = (
            ([t.shares[t.seeds.index(s)] for s in both], t.correct and [t.correct[t.seeds.index(s)] for s in both])
            for t in (self, other)
        )
        paired = ours[1] and theirs[1] and ours[1][0].shape == theirs[1][0].shape
        return quality_gap(
            ours[0],
            theirs[0],
            min(self.examples, other.examples),
            ours[1] if paired else None,
            theirs[1] if paired else None,
        )


def trials_of_all(frame: Frame, question: Question, predictions: Predictions) -> dict[str, Trials]:
    """Trials by variant. The reference's seeds are the question's: more are not used, with fewer there is no rank."""
    # a cell that was run on two machines counts once, the newer
    newest = {row.key: row for row in question.cells(frame, "train").itertuples()}
    by_variant: dict[str, list[Any]] = {}
    for row in sorted(newest.values(), key=lambda row: (row.variant, row.seed)):
        by_variant.setdefault(row.variant, []).append(row)
    done = {variant: _done(frame, rows) for variant, rows in by_variant.items()}
    wanted = {one.row.seed for one in done.get(REFERENCE, ())}
    return {variant: _trials(variant, rows, done[variant], wanted, predictions) for variant, rows in by_variant.items()}


class _Done(NamedTuple):
    row: Any
    share: float
    examples: int


def _done(frame: Frame, rows: list[Any]) -> list[_Done]:
    """The rows with a usable test accuracy."""
    found = []
    for row in rows:
        tested = frame.number("accuracy", row.Index, split="test") if row.outcome == Outcome.OK else None
        count = (tested.where.get("examples") or 0) if tested else 0
        if tested and 0 <= tested.value <= 1 and count > 0:
            found.append(_Done(row, tested.value, int(count)))
    return found


def _trials(variant: str, rows: list[Any], done: list[_Done], wanted: set[int], predictions: Predictions) -> Trials:
    used = [one for one in done if not wanted or one.row.seed in wanted]
    seeds = tuple(int(one.row.seed) for one in used)
    return Trials(
        variant=variant,
        seeds=seeds,
        shares=tuple(float(one.share) for one in used),
        examples=min((one.examples for one in used), default=0),
        correct=_correct(used, predictions),
        curves=tuple(one.row.artifacts.get("curve", "") for one in used),
        lack=_lack(rows, set(seeds), wanted),
        rows=tuple(sorted(int(row.Index) for row in rows)),
    )


def _correct(used: list[_Done], predictions: Predictions) -> tuple[Correct, ...] | None:
    found = []
    for one in used:
        name = one.row.artifacts.get("predictions")
        correct = predictions(name) if name else None
        # predictions that do not bear out their Record's accuracy are not its own
        if correct is None or len(correct) != one.examples or abs(float(np.mean(correct)) - one.share) > 1e-6:
            return None
        found.append(correct)
    return tuple(found) or None


def _lack(rows: list[Any], seeds: set[int], wanted: set[int]) -> str:
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
