"""Columns of a board over lengths: the one place to add, change or remove a displayed column."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import partial
from typing import NamedTuple

from ..core.cell import REFERENCE
from ..core.record import Outcome
from ..score.cost import CAPPED, Mode, RelativeCost
from ..score.key import BoardKey
from ..score.quality import describe_outcome
from ..stats.format import duration, joules, memory, percent
from ..stats.intervals import Estimate
from ..stats.scaling import exponent, log_cost
from ..stats.scoring import CAP
from ..store.rows import ResultRow
from ..store.table import ResultTable
from .board import Column, TableCell
from .cells import EMPTY, interval_cell, number_cell, ratio_cell, reference_cell
from .columns import Cell
from .crossover import crossover
from .timings import RAN_AS, Timings

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
