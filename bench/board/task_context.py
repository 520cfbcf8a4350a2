"""Facts: what the rows of a task's board share, gathered once for its columns and its footnotes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.cell import REFERENCE
from ..core.metrics import Metric
from ..core.record import Machine
from ..score.cost import RelativeCost, floor_of
from ..score.key import BoardKey
from ..score.matched_budget import Curves, Rival, gap_at_equal_state, gap_at_equal_time
from ..score.pareto import frontier, frontier_shares
from ..score.quality import SeedScores
from ..stats.intervals import Estimate
from ..store.rows import ResultRow, newest
from ..store.table import ResultTable


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardContext:
    """What the rows of a task's board share. `setting`: the preset in full; `stale`: counts by reason.

    `floor`: the noise floor of its speeds, as a log-ratio. `implementations`: which code ran, by variant.
    `signatures`: how the scores were computed, where Records say.
    """

    board_key: BoardKey
    metric: Metric
    scores: Mapping[str, SeedScores]
    timings: dict[str, RelativeCost]
    floor: float
    margin: float
    setting: Mapping[str, Any]
    sources: tuple[str, ...]
    notes: tuple[str, ...]
    counts: Mapping[str, int]
    trained_on: tuple[str, ...]
    machine: Machine | None
    foreign_load: float | None
    reference_bytes: float | None
    reference_parameters: float | None
    stale: Mapping[str, int]
    frontier: frozenset[str]
    frontier_shares: Mapping[str, float]
    at_equal_time: Mapping[str, Estimate]
    state_bytes: Mapping[str, float]
    at_equal_state: Mapping[str, Rival]
    implementations: Mapping[str, str]
    signatures: tuple[str, ...]

    @property
    def implementations_differ(self) -> bool:
        return len(set(self.implementations.values())) > 1

    @classmethod
    def of(
        cls,
        table: ResultTable,
        board_key: BoardKey,
        metric: Metric,
        scores: Mapping[str, SeedScores],
        timings: dict[str, RelativeCost],
        curves: Curves,
        margin: float | None,
    ) -> BoardContext:
        runs = board_key.runs(table, "train", "time", "baseline")
        reference = [run.at for run in runs if run.variant == REFERENCE]
        placed = [run for run in runs if not run.unplaced]
        bytes_found = table.values("peak_bytes", reference)
        parameters = table.values("parameters", reference)
        load = table.values("foreign_load", [run.at for run in runs])
        shares = frontier_shares(scores, timings)
        states = {name: table.number("state_bytes", timing.row) for name, timing in timings.items()}
        state_bytes = {name: m.value for name, m in states.items() if m is not None and 0 <= m.value < math.inf}
        rivals = {name: gap_at_equal_state(name, scores, state_bytes) for name in state_bytes}
        return cls(
            board_key=board_key,
            metric=metric,
            scores=scores,
            timings=timings,
            floor=floor_of(timings),
            margin=metric.margin if margin is None else margin,
            setting=next((run.setting for run in reversed(runs) if run.setting), {}),
            sources=tuple(sorted({run.source for run in placed} - {""})),
            notes=tuple(dict.fromkeys(note for run in placed for note in run.notes)),
            counts=next((run.counts for run in reversed(placed) if run.counts), {}),
            trained_on=tuple(sorted({run.machine for run in runs if run.lane == "train"})),
            machine=table.machines.get(board_key.machine),
            foreign_load=max(load) if load else None,
            reference_bytes=bytes_found[-1] if bytes_found else None,
            reference_parameters=parameters[-1] if parameters else None,
            stale={
                why: count
                for (task, preset, why), count in table.replaced.items()
                if (task, preset) == (board_key.task, board_key.preset)
            },
            frontier=_frontier(scores, timings, frozenset(shares)),
            frontier_shares=shares,
            at_equal_time=_at_equal_time(scores, timings, curves),
            state_bytes=state_bytes,
            at_equal_state={name: rival for name, rival in rivals.items() if rival is not None},
            implementations=_implementations(runs),
            signatures=_signatures(table, scores, metric),
        )


def _frontier(
    scores: Mapping[str, SeedScores], timings: Mapping[str, RelativeCost], names: frozenset[str]
) -> frozenset[str]:
    costs = {name: timing.standing.value for name, timing in timings.items() if name in names and timing.standing}
    quality = {name: scores[name].metric.sign * scores[name].mean for name in costs}
    return frozenset(frontier(quality, costs))


def _implementations(runs: Sequence[ResultRow]) -> dict[str, str]:
    """Which code of each variant was timed, and which trained where that is another; the newest Record of each."""
    named = newest((run for run in runs if run.implementation), "variant", "lane")
    by_lane = {(run.variant, run.lane): run.implementation for run in named}
    found = {}
    for variant in sorted({variant for variant, _ in by_lane}):
        timed, trained = by_lane.get((variant, "time"), ""), by_lane.get((variant, "train"), "")
        found[variant] = timed or trained
        if timed and trained and timed != trained:
            found[variant] = f"{timed} (trained: {trained})"
    return found


def _signatures(table: ResultTable, scores: Mapping[str, SeedScores], metric: Metric) -> tuple[str, ...]:
    tested = (table.number(metric.name, at, split="test") for one in scores.values() for at in one.rows)
    return tuple(sorted({str(m.where["signature"]) for m in tested if m is not None and m.where.get("signature")}))


def _at_equal_time(
    scores: Mapping[str, SeedScores], timings: Mapping[str, RelativeCost], curves: Curves
) -> Mapping[str, Estimate]:
    reference = scores.get(REFERENCE)
    found = {}
    for name, own in scores.items():
        if name != REFERENCE and reference is not None and name in timings and not own.missing_reason:
            gap = gap_at_equal_time(own, reference, timings[name], curves)
            if gap is not None:
                found[name] = gap
    return found
