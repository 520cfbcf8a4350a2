"""Facts: what the rows of a task's board share, gathered once for its columns and its footnotes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.cell import REFERENCE
from ..core.record import Machine
from ..score.cost import Timing, floor_of
from ..score.key import Question
from ..score.matched_budget import Curves, Rival, gap_at_equal_state, gap_at_equal_time
from ..score.pareto import frontier, frontier_shares
from ..score.quality import Trials
from ..stats.intervals import Estimate
from ..stats.metric import Yardstick
from ..store.rows import Run, newest
from ..store.table import Frame


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the rows of a task's board share. `setting`: the preset in full; `stale`: counts by reason.

    `floor`: the noise floor of its speeds, as a log-ratio. `implementations`: which code ran, by variant.
    `signatures`: how the scores were computed, where Records say.
    """

    question: Question
    yardstick: Yardstick
    trials: Mapping[str, Trials]
    timings: dict[str, Timing]
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
        frame: Frame,
        question: Question,
        yardstick: Yardstick,
        trials: Mapping[str, Trials],
        timings: dict[str, Timing],
        curves: Curves,
        margin: float | None,
    ) -> Facts:
        runs = question.runs(frame, "train", "time", "baseline")
        reference = [run.at for run in runs if run.variant == REFERENCE]
        placed = [run for run in runs if not run.unplaced]
        bytes_found = frame.values("peak_bytes", reference)
        parameters = frame.values("parameters", reference)
        load = frame.values("foreign_load", [run.at for run in runs])
        shares = frontier_shares(trials, timings)
        states = {name: frame.number("state_bytes", timing.row) for name, timing in timings.items()}
        state_bytes = {name: m.value for name, m in states.items() if m is not None and 0 <= m.value < math.inf}
        rivals = {name: gap_at_equal_state(name, trials, state_bytes) for name in state_bytes}
        return cls(
            question=question,
            yardstick=yardstick,
            trials=trials,
            timings=timings,
            floor=floor_of(timings),
            margin=yardstick.margin if margin is None else margin,
            setting=next((run.setting for run in reversed(runs) if run.setting), {}),
            sources=tuple(sorted({run.source for run in placed} - {""})),
            notes=tuple(dict.fromkeys(note for run in placed for note in run.notes)),
            counts=next((run.counts for run in reversed(placed) if run.counts), {}),
            trained_on=tuple(sorted({run.machine for run in runs if run.lane == "train"})),
            machine=frame.machines.get(question.machine),
            foreign_load=max(load) if load else None,
            reference_bytes=bytes_found[-1] if bytes_found else None,
            reference_parameters=parameters[-1] if parameters else None,
            stale={
                why: count
                for (task, preset, why), count in frame.replaced.items()
                if (task, preset) == (question.task, question.preset)
            },
            frontier=_frontier(trials, timings, frozenset(shares)),
            frontier_shares=shares,
            at_equal_time=_at_equal_time(trials, timings, curves),
            state_bytes=state_bytes,
            at_equal_state={name: rival for name, rival in rivals.items() if rival is not None},
            implementations=_implementations(runs),
            signatures=_signatures(frame, trials, yardstick),
        )


def _frontier(trials: Mapping[str, Trials], timings: Mapping[str, Timing], names: frozenset[str]) -> frozenset[str]:
    costs = {name: timing.standing.value for name, timing in timings.items() if name in names and timing.standing}
    quality = {name: trials[name].yardstick.sign * trials[name].mean for name in costs}
    return frozenset(frontier(quality, costs))


def _implementations(runs: Sequence[Run]) -> dict[str, str]:
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


def _signatures(frame: Frame, trials: Mapping[str, Trials], yardstick: Yardstick) -> tuple[str, ...]:
    tested = (frame.number(yardstick.name, at, split="test") for one in trials.values() for at in one.rows)
    return tuple(sorted({str(m.where["signature"]) for m in tested if m is not None and m.where.get("signature")}))


def _at_equal_time(
    trials: Mapping[str, Trials], timings: Mapping[str, Timing], curves: Curves
) -> Mapping[str, Estimate]:
    reference = trials.get(REFERENCE)
    found = {}
    for name, own in trials.items():
        if name != REFERENCE and reference is not None and name in timings and not own.lack:
            gap = gap_at_equal_time(own, reference, timings[name], curves)
            if gap is not None:
                found[name] = gap
    return found
