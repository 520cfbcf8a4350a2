"""Task context: all that the columns and footnotes of a task's board are made from, gathered once."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.cell import NO_ATTENTION, REFERENCE
from ..core.metrics import Metric
from ..core.record import Outcome
from ..score.contrasts import Contrasts
from ..score.cost import RelativeCost, costs_by_variant
from ..score.key import BoardKey
from ..score.learning import Reached, TrivialBaselines, bars_of, first_at
from ..score.pareto import Curves, frontier, frontier_shares
from ..score.quality import Predictions, SeedScores, metric_of, scores_by_variant
from ..store.rows import ResultRow, newest
from ..store.table import ResultTable
from .setting_tables import HIGH, SettingResults


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardContext:
    """The facts that the rows of a task's board share. `runs`: its current Records. `setting`: the preset in full.

    `contrasts`: the differences of `scores`. `bars`: what a training must be above.
    `without_attention`: scores of the model without attention, which are a baseline and not among `scores`, unless they
    are declared. `settings`: the results by length and difficulty. `reached`: by variant and seed, when validation
    first showed `HIGH`, None where it never did. `frontier`: who is on the Pareto frontier by the values shown.
    `state_bytes`: decode state by variant.
    `implementations`: which code ran, by variant.
    """

    table: ResultTable
    board_key: BoardKey
    metric: Metric
    runs: Sequence[ResultRow]
    scores: Mapping[str, SeedScores]
    contrasts: Contrasts
    without_attention: SeedScores | None
    reached: Mapping[str, Sequence[Reached | None]]
    settings: SettingResults
    bars: TrivialBaselines
    timings: dict[str, RelativeCost]
    margin: float
    setting: Mapping[str, Any]
    curves: Curves
    frontier: frozenset[str]
    frontier_shares: Mapping[str, float]
    state_bytes: Mapping[str, float]
    implementations: Mapping[str, str]

    @property
    def is_ranked(self) -> bool:
        """True if the preset is for results, and not only to show that the code runs."""
        return bool(self.setting.get("ranked", True))

    @property
    def trained_on(self) -> list[str]:
        """The machines of the trainings."""
        return sorted({run.machine for run in self.runs if run.lane == "train"})

    @classmethod
    def of(
        cls,
        table: ResultTable,
        board_key: BoardKey,
        predictions: Predictions,
        curves: Curves,
        margin: float | None,
        declared: Collection[str] | None = None,
    ) -> BoardContext:
        runs = board_key.runs(table, "train", "time", "baseline")
        metric = metric_of(table, board_key)
        every = scores_by_variant(table, board_key, predictions)
        competes = declared is not None and NO_ATTENTION in declared
        scores = {name: one for name, one in every.items() if name != NO_ATTENTION or competes}
        timings = costs_by_variant(table, board_key)
        compared = {name: one.compared for name, one in scores.items()}
        shares = frontier_shares(compared, timings)
        costs = {name: t.rank_cost.value for name, t in timings.items() if name in shares and t.rank_cost}
        # of a task without timings, those of the trainings
        holders = {name: own.rows[-1] for name, own in every.items() if own.rows}
        holders |= {name: timing.row for name, timing in timings.items()}
        states = {name: table.number("state_bytes", row) for name, row in holders.items()}
        setting: Mapping[str, Any] = next((run.setting for run in reversed(runs) if run.setting), {})
        return cls(
            table=table,
            board_key=board_key,
            metric=metric,
            runs=runs,
            scores=scores,
            contrasts=Contrasts(every, declared),
            without_attention=None if competes else every.get(NO_ATTENTION),
            settings=SettingResults.of(table, board_key, metric, every, setting),
            reached=_reached(every, curves) if metric.is_share else {},
            bars=bars_of(table, board_key.runs(table, "baseline"), metric),
            timings=timings,
            margin=metric.margin if margin is None else margin,
            setting=setting,
            curves=curves,
            frontier=frozenset(frontier({name: metric.sign * compared[name].mean for name in costs}, costs)),
            frontier_shares=shares,
            state_bytes={name: m.value for name, m in states.items() if m is not None and 0 <= m.value < math.inf},
            implementations=implementations(runs),
        )

    def seeds_of(self, name: str) -> tuple[int, ...]:
        """The seeds of a variant that count."""
        scores = self.contrasts.scores.get(name)
        return scores.seeds if scores else ()

    def rows_of(self, name: str) -> tuple[int, ...]:
        """The Records of a variant, as rows of the table: its trainings, then its timing."""
        scores, cost = self.contrasts.scores.get(name), self.timings.get(name)
        return (*(scores.rows if scores else ()), *((cost.row,) if cost else ()))

    def more_parameters(self, name: str) -> float:
        """The parameters that the variant has more than the reference, as a share of its; 0 where unknown."""
        own, usual = self.table.values("parameters", self.rows_of(name)), self.newest_of_reference("parameters")
        return own[-1] / usual - 1 if own and usual else 0.0

    def newest_of_reference(self, name: str) -> float | None:
        """The newest value of that name in a Record of the reference."""
        found = self.table.values(name, [run.at for run in self.runs if run.variant == REFERENCE])
        return found[-1] if found else None


def finished_runs(table: ResultTable, board_key: BoardKey) -> dict[str, list[ResultRow]]:
    """The newest finished Record of each cell, by name and then by seed; variants before baselines."""
    found: dict[str, list[ResultRow]] = {}
    for lane, field in (("train", "key"), ("baseline", "variant")):
        for run in sorted(newest(board_key.runs(table, lane), field), key=lambda run: (run.variant, run.seed)):
            if run.outcome == Outcome.OK:
                found.setdefault(run.variant, []).append(run)
    return found


def _reached(scores: Mapping[str, SeedScores], read: Curves) -> dict[str, list[Reached | None]]:
    """The first validation at `HIGH` by variant, for each seed that counts and whose curve is at hand."""
    found: dict[str, list[Reached | None]] = {}
    for name, own in scores.items():
        curves = [curve for each in own.curves if each and (curve := read(each))]
        found[name] = [first_at(curve, HIGH, own.metric) for curve in curves]
    return found


def implementations(runs: Iterable[ResultRow]) -> dict[str, str]:
    """The code of each variant that was timed, and the one that trained if another; by the newest Record of each."""
    named = newest((run for run in runs if run.implementation), "variant", "lane")
    by_lane = {(run.variant, run.lane): run.implementation for run in named}
    found = {}
    # an untrained model, a baseline, only decodes
    for variant in sorted({variant for variant, lane in by_lane if lane != "baseline"}):
        timed, trained = by_lane.get((variant, "time"), ""), by_lane.get((variant, "train"), "")
        differs = timed and trained and timed != trained
        found[variant] = f"{timed} (trained: {trained})" if differs else timed or trained
    return found
