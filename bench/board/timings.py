"""Timings: the costs that a board over lengths, or over batch and length, is made from; and the notes on times."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, geometric_mean, median
from typing import Any

from ..core.cell import REFERENCE
from ..core.record import Measurement, Outcome
from ..score.cost import RelativeCost, controls, floor_of, resolution_of
from ..score.quality import describe_outcome
from ..stats.format import percent
from ..stats.intervals import Estimate, mean_of
from ..stats.ranking import difference_is_proven
from ..stats.scoring import BATCHES, ratio
from ..store.rows import MUCH_LOAD, ResultRow
from ..store.table import ResultTable
from .board import Note
from .notes import note, some
from .task_context import BoardContext, implementations

RAN_AS = (
    "code that was timed, fused or eager, and the share of the scores that the mechanism says it computes, if not all; "
    "an eager time is that of plain PyTorch code, not of the mechanism"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Costs by point and then by variant, at the points at which a mode was timed, in order.

    A point is a length, or a value that tells itself as text.
    """

    table: ResultTable
    by_point: Mapping[Any, Mapping[str, RelativeCost]]

    @property
    def points(self) -> list[Any]:
        return list(self.by_point)

    @property
    def names(self) -> list[str]:
        """Every variant that was timed at one point or more."""
        return sorted({name for costs in self.by_point.values() for name in costs})

    @property
    def floor(self) -> float:
        """The noise floor of all points, as a log-ratio."""
        return max(floor_of(dict(costs)) for costs in self.by_point.values())

    def costs_of(self, name: str) -> dict[Any, RelativeCost]:
        return {point: costs[name] for point, costs in self.by_point.items() if name in costs}

    def measured(self, name: str) -> dict[Any, RelativeCost]:
        """The costs of a variant where it ran."""
        return {at: cost for at, cost in self.costs_of(name).items() if cost.outcome == Outcome.OK and cost.seconds}

    def number(self, name: str, quantity: str, **where: object) -> float | None:
        """The measurement of that quantity at the last point at which the variant ran."""
        measured = self.measured(name)
        found = self.table.number(quantity, measured[max(measured)].row, **where) if measured else None
        return None if found is None else found.value

    def numbers(self, name: str, quantity: str) -> dict[Any, float]:
        """The measurements of that quantity by point, where the variant did not fail."""
        found = {
            point: self.table.number(quantity, cost.row)
            for point, cost in self.costs_of(name).items()
            if cost.outcome == Outcome.OK
        }
        return {point: measured.value for point, measured in found.items() if measured is not None}

    def implementation(self, name: str) -> str:
        """The code that ran at the last point, as `ran_as` says it; empty where the variant ran nowhere."""
        measured = self.measured(name)
        code = self.table.records[measured[max(measured)].row].implementation if measured else ""
        ran = ran_as(code, self.number(name, "declared_density"))
        return f"{ran}; its projections too" if self.projects(name) else ran

    def projects(self, name: str) -> bool:
        """True if the time of a variant holds projections of its own, while others are timed as attention alone."""
        measured = self.measured(name)
        alone = measured and self.table.rows[measured[max(measured)].row].setting.get("level") == "attention"
        return bool(alone) and self.number(name, "own_projections") is not None

    def advantage(self, one: str, other: str) -> Estimate:
        """The mean over all points of how much lower the logarithm of one cost is."""
        return mean_of([costs[one].advantage_over(costs[other]) for costs in self.by_point.values()])

    def mean_cost(self, name: str) -> Estimate:
        """The mean over all points of the log-ratio to the reference."""
        return mean_of([cost.rank_cost for cost in self.costs_of(name).values() if cost.rank_cost])

    def missing_reason(self, name: str) -> str:
        """Why the variant cannot be ranked; empty where it can."""
        missing = [point for point, costs in self.by_point.items() if name not in costs]
        if missing:
            return f"not measured at {', '.join(map(format_point, missing))}"
        for point, costs in self.by_point.items():
            cost = costs[name]
            if cost.outcome == Outcome.OK and cost.rank_cost is None:
                return f"{cost.reason} at {format_point(point)}"
            if cost.outcome == Outcome.INCORRECT or cost.rank_cost is None:
                return f"{describe_outcome(cost.outcome)} at {format_point(point)}: {cost.reason}"
        return ""


def ran_as(code: str, density: float | None) -> str:
    """The code that ran, and the share of the scores that the mechanism says it computes.

    >>> ran_as("eager", 0.344), ran_as("cpp", 1.0), ran_as("", 0.5)
    ('eager; computes 34 % of the scores', 'cpp', '')
    """
    share = f"; computes {percent(density)} of the scores" if density is not None and density < 1 else ""
    return code and code + share


def format_point(point: object) -> str:
    """
    >>> format_point(1024)
    '1,024'
    """
    return f"{point:,}" if isinstance(point, int) else str(point)


DRIFT = 0.1
"""Share by which the drift probe may slow down within a block, or differ between blocks, before there is a warning."""

HOST_BOUND = 0.5

_UNEVEN = 1.25


def task_timing_notes(context: BoardContext) -> Iterator[Note]:
    """The way in which the speeds of a task's board were measured, and whether they can be trusted."""
    if len(context.trained_on) > 1:
        yield note("machines", machines=some(context.trained_on))
    yield from code_notes(context.runs)
    machine = context.table.machines.get(context.board_key.machine)
    if not context.timings or machine is None:
        return
    rounds = sorted({len(cost.seconds) for cost in context.timings.values() if cost.seconds})
    processor = f"{machine.processor}, {machine.threads} of {machine.cores} cores"
    version = f", torch {machine.versions['torch']}" if "torch" in machine.versions else ""
    where = machine.accelerators[0] if machine.accelerators else processor
    yield note(
        "speed", work="one training step", rounds=span_of(rounds), unit=unit_of(rounds),
        machine=f"{where} (machine {context.board_key.machine}{version})",
    )  # fmt: skip
    load = max(context.table.values("foreign_load", [run.at for run in context.runs]), default=0.0)
    if load > MUCH_LOAD:
        yield _disturbed("load", f"other processes used {load:.1f} cores: trust ratios more than times")
    yield from _control_notes({"": context.timings}, "")
    yield from _power_notes([context.timings])


def timing_notes(timings: Timings, runs: Sequence[ResultRow], machine: str, point: str) -> Iterator[Note]:
    """The way in which the times of a board over lengths or other points were taken, and what disturbed them.

    `point`: what the board is over, such as length.
    """
    by_variant = [dict(costs) for costs in timings.by_point.values()]
    rounds = sorted({len(cost.seconds) for costs in by_variant for cost in costs.values() if cost.seconds})
    yield from code_notes(runs)
    if own := [name for name in timings.names if timings.projects(name)]:
        like = "the others are timed as attention alone; `sweep[level=layer]` times all with projections"
        yield note("unlike", what=f"the time of {some(own)} holds projections of its own: {like}")
    yield from _power_notes(by_variant)
    yield note("speed", work=f"at each {point}", rounds=span_of(rounds), machine=machine, unit=unit_of(rounds))
    yield note("ranks", corrected="corrected for all pairs")
    yield from _control_notes({at: dict(costs) for at, costs in timings.by_point.items()}, point)
    yield from _load(_largest(timings, "foreign_load"), point)
    yield from _drift(_largest(timings, "canary_seconds"), point)
    bound = [at for at, measured in _largest(timings, "host_bound").items() if measured.value > HOST_BOUND]
    if bound:
        late = f"at {_where(point, bound)} launching took as long as the work: these are times of the host"
        yield _disturbed("host bound", late)


def code_notes(runs: Iterable[ResultRow]) -> Iterator[Note]:
    """The code of each variant that ran, if it is not the same for all."""
    by_code: dict[str, list[str]] = {}
    for name, code in implementations(runs).items():
        by_code.setdefault(code, []).append(name)
    if len(by_code) > 1:
        yield note("code", code="; ".join(f"{code} for {some(names)}" for code, names in sorted(by_code.items())))


def _uneven(costs: Mapping[str, RelativeCost]) -> dict[str, float]:
    """The mean time over the geometric mean that is compared, where it is large beside that of the reference.

    Of work at every third call alone, the mean of logarithms has the third root: 30 times the time there is 3.1 times.
    """
    shares = {name: fmean(cost.seconds) / geometric_mean(cost.seconds) for name, cost in costs.items() if cost.seconds}
    usual = shares.get(REFERENCE, 1.0)
    return {name: share / usual for name, share in shares.items() if share > _UNEVEN * usual}


def _power_notes(timings: Sequence[dict[str, RelativeCost]]) -> Iterator[Note]:
    """The smallest difference that these times could tell, and whose calls or ratios change within the rounds."""
    found = [resolution for resolution in map(resolution_of, timings) if resolution is not None]
    uneven = [f"{name} {share:.1f}×" for costs in timings for name, share in _uneven(costs).items()]
    if uneven:
        yield note("uneven", names=some(uneven))
    if found:
        yield note("power", of="in time", span=format_log_difference(max(found), decimals=0))
    measured = [(name, cost.change) for costs in timings for name, cost in costs.items()]
    changes = [(name, change) for name, change in measured if change is not None]
    # corrected for all that are compared
    moved = [(name, change) for name, change in changes if difference_is_proven(change, len(changes))]
    if moved:
        most = format_log_difference(max(abs(change.value) for _, change in moved))
        names = some(sorted({name for name, _ in moved}))
        more = "the second half of the rounds differs from the first by more than its interval"
        yield _disturbed("halves", f"{more} for {names}, at most {most}: trust no smaller difference of theirs")


def _disturbed(cause: str, what: str) -> Note:
    return note("disturbed", cause=cause, what=what)


def format_log_difference(log: float, decimals: int = 1) -> str:
    """A difference of times, from its log-ratio: a percentage, or a factor from twice the time on.

    >>> format_log_difference(0.04), format_log_difference(0.04, decimals=0), format_log_difference(9.0)
    ('4.1 %', '4 %', 'a factor of 8103.1')
    """
    factor = math.exp(log)
    return f"{100 * (factor - 1):.{decimals}f} %" if factor < 2 else f"a factor of {factor:.1f}"


def span_of(counts: Sequence[int]) -> str:
    """
    >>> span_of([3, 5, 9]), span_of([5]), span_of([])
    ('3–9', '5', 'no')
    """
    return f"{counts[0]}–{counts[-1]}" if len(counts) > 1 else "".join(map(str, counts)) or "no"


def unit_of(rounds: Sequence[int]) -> str:
    """The unit that the intervals of times are over, for these numbers of rounds, ascending.

    >>> unit_of([3, 5]), unit_of([20, 30]), unit_of([19, 30])
    ('rounds', 'rounds in 10 batches', 'rounds, in 10 batches from 20 on')
    """
    if not rounds or rounds[-1] < 2 * BATCHES:
        return "rounds"
    return (
        f"rounds in {BATCHES} batches"
        if rounds[0] >= 2 * BATCHES
        else f"rounds, in {BATCHES} batches from {2 * BATCHES} on"
    )


def _control_notes(timings: Mapping[Any, dict[str, RelativeCost]], point: str) -> Iterator[Note]:
    """The noise floor, and the A/A test: the reference under a second name against itself at each point.

    `point`: what the board is over, such as length; empty for the board of a task, which has one point.
    """
    nulls = {at: controls(costs) for at, costs in timings.items()}
    every = [null for found in nulls.values() for null in found]
    # every block and every timed variant is one more chance to find a difference where there is none
    chances = sum(map(len, timings.values())) + len(every)
    apart = {at: null for at, found in nulls.items() for null in found if difference_is_proven(null, chances)}
    if apart:
        worst = max(apart.values(), key=lambda null: abs(null.value))
        where = f" at {_where(point, apart)}" if point else ""
        yield note("aa", what=f"{REFERENCE} under a second name is {_interval_words(worst)}{where}, which is proven")
    elif not every and not point:
        yield note("aa", what="no A/A test was measured, so that the noise floor of these speeds is unknown")
    if point or (every and not apart):
        shown = max(every, key=lambda null: abs(null.value) + null.half_width(), default=None)
        control = f"; {REFERENCE} under a second name is {_interval_words(shown)}" if shown else ""
        floor = format_log_difference(max(floor_of(costs) for costs in timings.values()))
        yield note("floor", floor=floor, control=control)


def _interval_words(log: Estimate) -> str:
    found = ratio(log)
    return f"{found.value:.3f}× ({found.low:.3f}–{found.high:.3f})"


def _load(loads: Mapping[Any, Measurement], point: str) -> Iterator[Note]:
    noted = {at: measured for at, measured in loads.items() if measured.where.get("note")}
    if noted:
        worst = max(noted.values(), key=lambda measured: measured.value)
        yield _disturbed("load", f"at {_where(point, noted)}; at the worst, {worst.where['note']}")


def _drift(probes: Mapping[Any, Measurement], point: str) -> Iterator[Note]:
    """Warn if the machine changed its speed: the drift probe is a fixed piece of work, run before and after a block."""
    work = "a fixed piece of work"
    drifts = {at: measured.where.get("drift", 0.0) for at, measured in probes.items()}
    moved = {at: float(drift) for at, drift in drifts.items() if isinstance(drift, int | float) and abs(drift) > DRIFT}
    if moved:
        change = 100 * max(moved.values(), key=abs)
        yield _disturbed("machine speed", f"at {_where(point, moved)} {work} changed its time by {change:+.0f} %")
    usual = median(measured.value for measured in probes.values()) if probes else 1.0
    shares = {at: measured.value / usual for at, measured in probes.items()}
    differing = [f"{100 * share:.0f} % at {format_point(at)}" for at, share in shares.items() if abs(share - 1) > DRIFT]
    if differing:
        took = f"{work} took {some(differing)} of its usual time: trust no times and exponents, but ratios"
        yield _disturbed("machine speed", took)


def _largest(timings: Timings, name: str) -> dict[Any, Measurement]:
    """The largest value of that name at each point."""
    found = {}
    for at, by_name in timings.by_point.items():
        measured = [m for t in by_name.values() if (m := timings.table.number(name, t.row)) is not None]
        if measured:
            found[at] = max(measured, key=lambda m: m.value)
    return found


def _where(point: str, points: Iterable[object]) -> str:
    return f"{point} {some(list(map(format_point, points)))}"
