"""The board of cost over lengths: ratios to the reference at each, and from which length a variant pays."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from ..core.cell import REFERENCE
from ..core.errors import SelectionError
from ..core.record import Outcome
from ..core.spec import Spec
from ..score.cost import CAPPED, Mode, RelativeCost, costs_by_variant
from ..score.key import BoardKey
from ..score.quality import describe_outcome
from ..stats.format import duration, joules, memory, percent, speed
from ..stats.intervals import Estimate
from ..stats.ranking import RankInterval, difference_is_proven, rank_intervals
from ..stats.scaling import exponent, log_cost
from ..stats.scoring import CAP, ratio
from ..store.rows import ResultRow
from ..store.table import ResultTable
from .board import NO_RIVAL, Board, Column, Row, TableCell, split_by_rank
from .cells import (
    EMPTY,
    Cell,
    cells_of,
    finished,
    interval_cell,
    number_cell,
    plain_columns,
    ratio_cell,
    reference_cell,
)
from .notes import cost_headline, nothing_ranked
from .timings import RAN_AS, Timings, timing_notes
from .version_notes import version_notes


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossover:
    """`length`: the smallest measured from which the variant beats the reference at every larger one, None for none.

    `between`: the log-log interpolation to the next smaller length, where that is not beaten.
    """

    length: int | None
    between: float | None = None
    text: str = ""


def crossover(costs: Mapping[int, Estimate | None], floor: float = 0.0) -> Crossover:
    """Find the length from which the cost stays below the reference's; a failure (None) beats nothing.

    >>> from attnbench.bench.stats.intervals import NoiseSource
    >>> slower, faster = Estimate(0.5, (NoiseSource(0.01),)), Estimate(-0.5, (NoiseSource(0.01),))
    >>> crossover({256: slower, 512: faster, 1024: faster}).text
    'from 512 on (about 362)'
    """
    lengths = sorted(costs)
    first = len(lengths)
    while first and _beats(costs[lengths[first - 1]], floor):
        first -= 1
    if first == len(lengths):
        return Crossover(length=None, text=f"not up to {lengths[-1]:,}" if lengths else "")
    if not first:
        return Crossover(length=lengths[0], text=f"from {lengths[0]:,} on, or sooner")
    before, length = lengths[first - 1], lengths[first]
    here, there = costs[before], costs[length]
    between = None
    if here is not None and there is not None and here.value > 0 > there.value:
        share = here.value / (here.value - there.value)
        between = math.exp(math.log(before) + share * (math.log(length) - math.log(before)))
    about = f" (about {between:,.0f})" if between else ""
    return Crossover(length=length, between=between, text=f"from {length:,} on{about}")


def _beats(cost: Estimate | None, floor: float) -> bool:
    return cost is not None and cost.value < -floor and difference_is_proven(cost)


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthSweep:
    """Boards that differ in length alone. `name`: task and preset without it; `machine`: where all were timed.

    `max_length`: the board of how long a sequence fits the memory, where that was measured for the same.
    """

    name: str
    machine: str
    board_keys: Mapping[int, BoardKey]
    max_length: BoardKey | None = None


def sweeps(table: ResultTable, board_keys: list[BoardKey], least: int = 2) -> list[LengthSweep]:
    """The sweeps among `board_keys` that have at least that many lengths."""
    found: dict[tuple[object, ...], dict[int, BoardKey]] = {}
    bounded: dict[tuple[object, ...], BoardKey] = {}
    for board_key in board_keys:
        settings = [run.setting for run in board_key.runs(table, "time") if run.setting.get("length")]
        if board_key.machine and settings:
            task, preset = _without_length(board_key.task), _without_length(board_key.preset)
            family = (task, preset, board_key.fidelity, board_key.protocol, board_key.machine)
            if settings[-1].get("memory_bytes"):
                bounded[family] = board_key
            else:
                found.setdefault(family, {})[int(settings[-1]["length"])] = board_key
    return [
        LengthSweep(
            name=f"{family[0]}, preset {family[1]}",
            machine=str(family[-1]),
            board_keys=dict(sorted(by_length.items())),
            max_length=bounded.get(family),
        )
        for family, by_length in found.items()
        if len(by_length) >= least
    ]


Swept = Sequence[tuple[LengthSweep, Mode]]
"""Sweeps, each with a mode that was timed at one of its lengths or more, or with its own where all failed."""


def with_modes(table: ResultTable, found: Sequence[LengthSweep], mode: Mode | None = None) -> Swept:
    """These sweeps in `mode`, or in each mode where that is None."""
    return [
        (sweep, each)
        for sweep in found
        for each in MODES
        if mode in (None, each) and timings_of(table, sweep, each).points
    ]


def board_for_lengths(table: ResultTable, sweep: LengthSweep, mode: Mode = "step") -> Board:
    """Ranks by the geometric mean of the ratios over all lengths; a length that was not measured costs the rank.

    Raises SelectionError where the mode was not timed.
    """
    timings = timings_of(table, sweep, mode)
    if not timings.points:
        raise SelectionError(f"{sweep.name} was not timed in the mode {mode!r}")
    lengths, names = timings.points, timings.names
    missing = {name: timings.missing_reason(name) for name in names}
    complete = [name for name in names if not missing[name]]
    columns = length_columns(timings, mode, sweep.max_length)
    rows = {name: Row(name=name, entries=cells_of(columns, name), reason=missing[name] or NO_RIVAL) for name in names}
    order = rank_intervals(complete, timings.advantage, timings.floor) if len(complete) > 1 else []
    ranked, unranked = split_by_rank(order, rows)
    keys = [key for key in (*sweep.board_keys.values(), sweep.max_length) if key is not None]
    runs = [run for board_key in keys for run in board_key.runs(table, "time")]
    several = len(lengths) > 1
    board = Board(
        name=f"{sweep.name}/{sweep.machine}/{mode}",
        title=f"{sweep.name}: {MODES[mode].one} {'over lengths' if several else f'at length {lengths[0]:,}'}",
        question=f"How fast is {MODES[mode].one} on {sweep.name}"
        + (", by length?" if several else f", at length {lengths[0]:,}?"),
        headline=headline_of_costs(order, timings) if order else nothing_ranked(unranked),
        ranked_by="mean" if several else "",
        columns=plain_columns(columns, (*ANSWERS, *(f"at_{length}" for length in lengths))),
        ranked=ranked,
        unranked=unranked,
        notes=(
            *timing_notes(timings, runs, sweep.machine, "length"),
            *version_notes(table, runs, [(key.task, key.preset) for key in keys]),
        ),
    )
    return finished(board)


def headline_of_costs(order: list[RankInterval], timings: Timings) -> str:
    """The variants that are faster than the reference on the mean over all points, corrected for all pairs of ranks."""
    names, pairs = [ranks.name for ranks in order], len(order) * (len(order) - 1) // 2
    if REFERENCE not in names:
        return ""
    gaps = {name: timings.advantage(name, REFERENCE) for name in names if name != REFERENCE}
    proven = {
        name: gap.value > 0 if abs(gap.value) > timings.floor and difference_is_proven(gap, pairs) else None
        for name, gap in gaps.items()
    }
    # plain code may be slow where the mechanism is not
    eager = {name for name, found in proven.items() if found is False and timings.implementation(name)[:5] == "eager"}
    said = {name: " (eager)" if name in eager else " (with projections)" * timings.projects(name) for name in proven}
    proven = {name + said[name]: found for name, found in proven.items()}
    first = order[0].name
    alone = first != REFERENCE and order[0].last == 1
    return cost_headline(proven, f"{first}, {speed(ratio(timings.advantage(REFERENCE, first)))}" if alone else "")


def timings_of(table: ResultTable, sweep: LengthSweep, mode: Mode) -> Timings:
    """The costs at the lengths at which the mode was timed; the failures at all lengths where the sweep only failed."""
    found = {length: costs_by_variant(table, board_key, mode) for length, board_key in sweep.board_keys.items()}
    timed = {length: costs for length, costs in found.items() if any(each.cost is not None for each in costs.values())}
    asked = {Spec.parse(board_key.task).get("mode") or "step" for board_key in sweep.board_keys.values()}
    failed = all(each.outcome != Outcome.OK for costs in found.values() for each in costs.values())
    return Timings(table=table, by_point=found if failed and mode in asked else timed)


def _without_length(text: str) -> str:
    spec = Spec.parse(text)
    return str(Spec(spec.name, tuple(p for p in spec.parameters if p[0] not in ("length", "memory_bytes"))))


TILE = 64

ANSWERS = ("mean", "implementation", "crossover", "peak_ratio", "longest")
"""Columns that are always shown, beside those of the lengths; all others are shown on request."""


class Work(NamedTuple):
    """The operation that a mode times, in words: one, with its article, and several."""

    one: str
    several: str


MODES: Mapping[Mode, Work] = {
    "step": Work("a training step", "training steps"),
    "forward": Work("a forward pass", "forward passes"),
    "decode": Work("a decoding step", "decoding steps"),
}


def part_timed(runs: Iterable[ResultRow]) -> str:
    """The part of a model that these timings are of: a sweep names its level, a task trains the whole model."""
    level = next((run.setting["level"] for run in runs if "level" in run.setting), "model")
    return "attention alone" if level == "attention" else f"the {level}"


def length_columns(timings: Timings, mode: Mode, max_length: BoardKey | None) -> list[tuple[Column, Cell]]:
    """The columns in the order in which they are shown, each with the function from a variant's name to its cell."""
    lengths = timings.points
    over_lengths: list[tuple[Column, Cell]] = [
        (Column(name="mean", title="mean", unit="× reference", better="lower", importance=0,
                description="geometric mean of the ratios over all lengths"),
         partial(mean_ratio_cell, timings)),
        (Column(name="crossover", title="crossover", unit="tokens", better="lower",
                description=f"smallest length from which its interval shows it faster than {REFERENCE} at every larger "
                "length"),
         partial(_crossover, timings)),
        (Column(name="exponent", title="time ~ N^", better="lower", importance=3,
                description="exponent of length, fitted over the upper half of the lengths, of time"),
         lambda name: _exponent({n: log_cost(cost.seconds) for n, cost in timings.measured(name).items()})),
        (Column(name="memory_exponent", title="memory ~ N^", better="lower", importance=6,
                description="exponent of length, fitted over the upper half of the lengths, of peak memory"),
         lambda name: _exponent({n: Estimate(math.log(peak)) for n, peak in _peaks(timings, name).items()})),
        (Column(name="memory_crossover", title="memory crossover", unit="tokens", better="lower", importance=6,
                description=f"smallest length from which it needs less memory than {REFERENCE} at all larger ones"),
         partial(_memory_crossover, timings)),
    ]  # fmt: skip
    return [
        *(
            (Column(name=f"at_{length}", title=f"{length:,}", unit="× reference", better="lower",
                    importance=len(lengths) - at,
                    description=f"time of {MODES[mode].one} at length {length:,} over {REFERENCE}'s"),
             partial(_time, timings, length))
            for at, length in enumerate(lengths)
        ),
        *(over_lengths if len(lengths) > 1 else []),
        (Column(name="peak_ratio", title="memory", unit="× reference", better="lower", importance=4,
                description=f"peak memory over {REFERENCE}'s, at the longest length that both ran at"),
         partial(_memory, timings)),
        (Column(name="implementation", title="ran as", importance=1, description=RAN_AS),
         lambda name: TableCell(text=timings.implementation(name))),
        (Column(name="density", title="density", unit="fraction", importance=4,
                description="share of allowed weights that are not zero on these inputs, at its longest length"),
         lambda name: number_cell(_complement(timings.number(name, "sparsity")), percent)),
        (Column(name="block_sparsity", title=f"zero {TILE} × {TILE}", unit="fraction", importance=5,
                description=f"share of {TILE} × {TILE} blocks without a positive weight on these inputs, at its "
                "longest length"),
         lambda name: number_cell(timings.number(name, "block_sparsity", block=TILE), percent)),
        (Column(name="dividend", title="dividend", better="higher", importance=5,
                description="speed-up × density, as declared or by blocks, at its longest length; 1: the promised "
                "saving was realised in full"),
         partial(_dividend, timings)),
        (Column(name="peak_share", title="of peak", unit="× peak", better="higher", importance=5,
                description="matrix products per second over the best measured here, at its longest length; ≤: "
                "products as declared, empty where those would be more than the best"),
         partial(_peak_share, timings)),
        (Column(name="compile", title="compile", unit="seconds", better="lower", importance=3,
                description="time that torch.compile took, from empty caches, at its longest length; part of no "
                "other time"),
         lambda name: number_cell(timings.number(name, "compile_seconds"), duration)),
        (Column(name="energy", title="energy", unit="J", better="lower", importance=4,
                description=f"energy of the whole device for {MODES[mode].one}, idle power included, at its "
                "longest length"),
         lambda name: number_cell(timings.number(name, "energy_joules"), joules)),
        (Column(name="longest", title="max length", unit="tokens", better="higher", importance=2,
                description="longest sequence that runs within the memory budget; +: the search ended before the "
                "memory did"),
         partial(_max_length, timings.table, max_length)),
    ]  # fmt: skip


def memory_ratios(timings: Timings, name: str) -> dict[int, Estimate | None]:
    """Log-ratio of peak memory to the reference by length, exact; None where the variant failed."""
    own, reference = _peaks(timings, name), _peaks(timings, REFERENCE)
    return {
        n: Estimate(math.log(own[n] / reference[n])) if n in own and n in reference else None
        for n in timings.costs_of(name)
    }


def _peaks(timings: Timings, name: str) -> dict[int, float]:
    return {length: peak for length, peak in timings.numbers(name, "peak_bytes").items() if peak > 0}


def _complement(share: float | None) -> float | None:
    return None if share is None else 1 - share


def _time(timings: Timings, length: int, name: str) -> TableCell:
    cost = timings.by_point[length].get(name)
    return EMPTY if cost is None else time_cell(name, cost)


def time_cell(name: str, cost: RelativeCost) -> TableCell:
    """The time of the reference, the ratio of another to it, or why there is none."""
    if cost.outcome != Outcome.OK or cost.cost is None:
        words = describe_outcome(cost.outcome) if cost.outcome != Outcome.OK else "too few rounds"
        return TableCell(text=words, value=CAP if cost.outcome in CAPPED else None, note=cost.reason)
    if name == REFERENCE:
        return TableCell(text=duration(cost.median), value=1.0)
    return ratio_cell(cost.cost)


def mean_ratio_cell(timings: Timings, name: str) -> TableCell:
    """The mean of its ratios over all points, where it has one at each."""
    if name == REFERENCE:
        return reference_cell(1.0)
    return EMPTY if timings.missing_reason(name) else ratio_cell(timings.mean_cost(name))


def _crossover(timings: Timings, name: str) -> TableCell:
    if name == REFERENCE:
        return EMPTY
    found = crossover({length: cost.cost for length, cost in timings.costs_of(name).items()}, timings.floor)
    return TableCell(text=found.text, value=found.length)


def _memory(timings: Timings, name: str) -> TableCell:
    own, reference = _peaks(timings, name), _peaks(timings, REFERENCE)
    shared = [length for length in own if length in reference]
    if not shared:
        return EMPTY
    times = own[shared[-1]] / reference[shared[-1]]
    return reference_cell(times) if name == REFERENCE else number_cell(times, memory)


def _memory_crossover(timings: Timings, name: str) -> TableCell:
    return EMPTY if name == REFERENCE else TableCell(text=crossover(memory_ratios(timings, name)).text)


def _exponent(costs: Mapping[int, Estimate]) -> TableCell:
    found = exponent(costs)
    if found is None:
        return EMPTY
    ends = found.interval()
    if not found.noise:
        return number_cell(ends.value, "{:.2f}".format)
    return interval_cell(ends, f"{ends.value:.2f} ({ends.low:.2f} to {ends.high:.2f})", f"{ends.value:.2f}")


def _dividend(timings: Timings, name: str) -> TableCell:
    """Speed-up × density at the longest length; for a map that makes its own zeros, density by blocks."""
    measured = timings.measured(name)
    cost = measured[max(measured)].cost if measured else None
    declared = timings.number(name, "declared_density")
    zero = timings.number(name, "block_sparsity", block=TILE)
    if cost is None or declared is None or name == REFERENCE:
        return EMPTY
    density = declared if declared < 1 or zero is None else 1 - zero
    return number_cell(math.exp(-cost.value) * density, "{:.2g}".format, note=f"density {density:.3g}")


def _peak_share(timings: Timings, name: str) -> TableCell:
    measured = timings.measured(name)
    flops = timings.table.number("flops", measured[max(measured)].row) if measured else None
    share = timings.number(name, "peak_share")
    # a kernel hides its products: the number that it declares is the most that it may have done
    declared = flops is not None and flops.where.get("how") == "declared"
    if declared and share is not None and share >= 1:
        return EMPTY  # it left out products of zeros, so the bound says nothing
    return number_cell(share, lambda value: ("≤ " if declared else "") + percent(value))


def _max_length(table: ResultTable, board_key: BoardKey | None, name: str) -> TableCell:
    runs = [run for run in board_key.runs(table, "time") if run.variant == name] if board_key else []
    if not runs:
        return EMPTY
    found = table.number("longest_length", runs[-1].at)
    if found is None:
        return TableCell(text=describe_outcome(runs[-1].outcome), note=runs[-1].reason)
    stopped = str(found.where.get("stopped", ""))
    more = {"time": "+ (time)", "last": "+"}.get(stopped, "")
    return number_cell(found.value, lambda value: f"{value:,.0f}{more}", note=f"stopped by {stopped}")
