"""Timings: what one variant costs against the reference, in the same rounds on the same machine."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .cell import REFERENCE
from .frame import Frame
from .intervals import Estimate
from .question import Question
from .record import Outcome
from .score import LEAST_ROUNDS, capped, log_ratio, log_ratios, noise_floor

Samples = tuple[float, ...]
Mode = Literal["step", "forward", "decode"]

CAPPED = (Outcome.OUT_OF_MEMORY, Outcome.TIMEOUT, Outcome.INCORRECT)
"""Outcomes that count as the cap, so that failing where one is slow never pays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """`cost`: log-ratio to the reference, None where none could be measured; `logs`: the draws that it is the mean of.

    `seconds`: one sample a round.

    `failure`: the outcome in words where it is not ok, `reason` its own words. `block`: whose rounds it shared.
    """

    variant: str
    row: int
    cost: Estimate | None = None
    null: Estimate | None = None
    logs: npt.NDArray[np.float64] = field(default_factory=lambda: np.empty(0), compare=False)
    seconds: tuple[float, ...] = ()
    outcome: str = Outcome.OK
    reason: str = ""
    block: str = ""

    @property
    def standing(self) -> Estimate | None:
        """The log-ratio that a rank uses: measured, or the cap for a failure; None where it cannot be ranked."""
        if self.outcome in CAPPED:
            return capped(None)
        return capped(self.cost) if self.cost is not None else None

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def gap(self, other: Timing) -> Estimate:
        """How far this is ahead of `other` (lower log cost), by rounds where they shared them.

        Raises ValueError where either has no standing.
        """
        mine, theirs = self.standing, other.standing
        if mine is None or theirs is None:
            raise ValueError(f"{self.variant} or {other.variant} has no standing")
        measured = mine.noise and theirs.noise
        if measured and self.block and self.block == other.block and len(self.seconds) == len(other.seconds):
            return log_ratio(other.seconds, self.seconds)
        return theirs.minus(mine)


def timings_of_all(frame: Frame, question: Question, mode: Mode = "step") -> dict[str, Timing]:
    """Timings by variant on the question's machine; empty where the question names none."""
    if not question.machine:
        return {}
    cells = question.cells(frame, "time").drop_duplicates("variant", keep="last")
    found = {}
    for row in cells.itertuples():
        named = (frame.number(f"{prefix}{mode}_seconds", row.Index) for prefix in ("", "reference_", "null_"))
        own, reference, null = (_positive(m.samples) if m else () for m in named)
        found[str(row.variant)] = _timing(row, own, reference, null)
    return found


def floor_of(timings: dict[str, Timing]) -> float:
    """The noise floor of the blocks that these timings come from, as a log-ratio."""
    return noise_floor(controls(timings))


def controls(timings: dict[str, Timing]) -> list[Estimate]:
    """The null control of each block once."""
    blocks = {t.block or t.variant: t.null for t in timings.values() if t.null is not None}
    return list(blocks.values())


def _timing(row: Any, own: Samples, reference: Samples, null: Samples) -> Timing:
    enough = len(own) >= LEAST_ROUNDS and len(own) == len(reference)
    if row.outcome == Outcome.OK and not enough:
        reason = row.reason or f"fewer than {LEAST_ROUNDS} rounds beside the reference"
    else:
        reason = row.reason
    # the reference is itself: its own samples divided by themselves say nothing
    cost = None
    if enough and row.outcome == Outcome.OK:
        cost = Estimate(0.0) if row.variant == REFERENCE else log_ratio(own, reference)
    return Timing(
        variant=row.variant,
        row=int(row.Index),
        cost=cost,
        logs=log_ratios(own, reference) if cost is not None and row.variant != REFERENCE else np.empty(0),
        null=log_ratio(null, reference) if len(null) == len(reference) >= LEAST_ROUNDS else None,
        seconds=own,
        outcome=row.outcome,
        reason=reason,
        block=row.block,
    )


def _positive(samples: Samples) -> Samples:
    """The samples where all are times that can be; none at all otherwise."""
    values = np.asarray(samples, dtype=np.float64)
    return tuple(values.tolist()) if np.isfinite(values).all() and (values > 0).all() else ()
