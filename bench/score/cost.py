"""Cost: the time of a variant relative to the reference, in the same rounds on the same machine."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from ..core.cell import LEAST_ROUNDS, REFERENCE
from ..core.record import Outcome
from ..stats.intervals import LEVEL, Estimate, mean_estimate, minimal_detectable_effect
from ..stats.scoring import capped, log_ratio, log_ratios, noise_floor
from ..store.rows import ResultRow, disturbance, newest
from ..store.table import ResultTable
from .key import BoardKey

Samples = tuple[float, ...]
Mode = Literal["step", "forward", "decode"]

CAPPED = (Outcome.OUT_OF_MEMORY, Outcome.TIMEOUT, Outcome.INCORRECT)
"""Outcomes that count as the cap, so that failing where one is slow never pays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelativeCost:
    """`cost`: log-ratio to the reference, None where none could be measured; `logs`: the draws that it is the mean of.

    `null`: log-ratio of the A/A test, the reference under a second name, in the same rounds. `seconds`: one sample a
    round. `reason`: why `outcome` is not ok, or why there is no cost or no rank. `block`: the process whose rounds it
    shared. `disturbed`: whether other processes took its cores, so that it can be shown and not be ranked.
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
    disturbed: bool = False

    @property
    def rank_cost(self) -> Estimate | None:
        """The log-ratio that a rank uses: measured, or the cap for a failure; None where it cannot be ranked."""
        if self.outcome in CAPPED:
            return capped(None)
        return capped(self.cost) if self.cost is not None and not self.disturbed else None

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def change(self) -> Estimate | None:
        """The growth of the log-ratio from the first half of the rounds to the second; None for few rounds."""
        half = len(self.logs) // 2
        return mean_estimate(self.logs[half:]).minus(mean_estimate(self.logs[:half])) if half >= 2 else None

    def advantage_over(self, other: RelativeCost) -> Estimate:
        """The logarithm of `other`'s cost less that of this one, by rounds where they shared them.

        Raises ValueError where either has no cost to rank by.
        """
        mine, theirs = self.rank_cost, other.rank_cost
        if mine is None or theirs is None:
            raise ValueError(f"{self.variant} or {other.variant} has no cost to rank by")
        measured = mine.noise and theirs.noise
        if measured and self.block and self.block == other.block and len(self.seconds) == len(other.seconds):
            return log_ratio(other.seconds, self.seconds)
        return theirs.minus(mine)


def costs_by_variant(table: ResultTable, board_key: BoardKey, mode: Mode = "step") -> dict[str, RelativeCost]:
    """Costs by variant on the machine of the key; empty where it names none."""
    if not board_key.machine:
        return {}
    return dict(_costs(table, board_key, mode))


@lru_cache(maxsize=1024)
def _costs(table: ResultTable, board_key: BoardKey, mode: Mode) -> dict[str, RelativeCost]:
    # a page asks for the same costs once for each of its boards; two tables are never equal
    runs = newest(board_key.runs(table, "time"), "variant")
    return {run.variant: _timed(table, run, mode) for run in runs}


def floor_of(timings: dict[str, RelativeCost]) -> float:
    """The noise floor of the blocks that these timings come from, as a log-ratio."""
    return noise_floor(controls(timings))


def resolution_of(timings: dict[str, RelativeCost]) -> float | None:
    """The smallest difference to the reference that these timings could have told, as a log-ratio.

    Of the noisiest variant, corrected for all that are compared, and never below the noise floor; None where nothing
    was measured beside the reference.
    """
    measured = [t.cost.noise for t in timings.values() if t.cost is not None and t.cost.noise]
    if not measured:
        return None
    level = 1 - (1 - LEVEL) / len(measured)
    return max(floor_of(timings), *(minimal_detectable_effect(noise, level) for noise in measured))


def controls(timings: dict[str, RelativeCost]) -> list[Estimate]:
    """The A/A test of each block once."""
    blocks = {t.block or t.variant: t.null for t in timings.values() if t.null is not None}
    return list(blocks.values())


def _timed(table: ResultTable, run: ResultRow, mode: Mode) -> RelativeCost:
    named = (table.number(f"{prefix}{mode}_seconds", run.at) for prefix in ("", "reference_", "null_"))
    own, reference, null = (_positive(m.samples) if m else () for m in named)
    enough = len(own) >= LEAST_ROUNDS and len(own) == len(reference)
    reason, logs = run.reason, np.empty(0)
    cost: Estimate | None = None
    if run.outcome == Outcome.OK and not enough:
        reason = reason or f"fewer than {LEAST_ROUNDS} rounds beside the reference"
    elif run.outcome == Outcome.OK and run.variant == REFERENCE:
        # the reference is itself: its own samples divided by themselves say nothing
        cost = Estimate(0.0)
    elif run.outcome == Outcome.OK:
        logs = log_ratios(own, reference)
        cost = mean_estimate(logs)
    busy = disturbance(table.records[run.at]) if run.outcome == Outcome.OK else ""
    return RelativeCost(
        variant=run.variant,
        row=run.at,
        cost=cost,
        logs=logs,
        null=log_ratio(null, reference) if len(null) == len(reference) >= LEAST_ROUNDS else None,
        seconds=own,
        outcome=run.outcome,
        reason=reason or busy,
        block=run.block,
        disturbed=bool(busy),
    )


def _positive(samples: Samples) -> Samples:
    """The samples where all are times that can be; none at all otherwise."""
    return samples if all(0 < sample < math.inf for sample in samples) else ()
