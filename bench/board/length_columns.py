"""Columns of a board over lengths: the one place to add, change or remove a displayed column."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from ..core.cell import REFERENCE
from ..core.record import Outcome
from ..score.cost import CAPPED, Mode, RelativeCost
from ..score.key import BoardKey
from ..score.quality import outcome_words
from ..stats.format import duration, joules, memory, percent
from ..stats.intervals import Estimate, mean_of
from ..stats.scaling import exponent, log_cost
from ..stats.scoring import CAP
from ..store.table import ResultTable
from .board import TableCell
from .cells import EMPTY, interval_cell, number_cell, ratio_cell, reference_cell
from .columns import BoardColumn
from .crossover import crossover

TILE = 64

ANSWERS = ("mean", "crossover", "peak_ratio", "longest")
"""Columns that are always shown, beside those of the lengths; all others are shown on request."""

OPTIONAL = ("compile_seconds", "energy_joules")
"""Metrics whose columns are there only where a Record has one: few machines or sweeps do."""


class Work(NamedTuple):
    """The operation that a mode times, in words: one, with its article, and several."""

    one: str
    several: str


MODES: Mapping[Mode, Work] = {
    "step": Work("a training step", "training steps"),
    "forward": Work("a forward pass", "forward passes"),
    "decode": Work("a decoding step", "decoding steps"),
}

CostsByLength = Mapping[int, Mapping[str, RelativeCost]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthRow:
    """What the cells of one variant are made from: its costs and peak bytes by length, and the reference's peaks.

    `complete`: whether it has a standing at every length.
    """

    table: ResultTable
    name: str
    costs: Mapping[int, RelativeCost]
    peaks: Mapping[int, float]
    reference_peaks: Mapping[int, float]
    complete: bool

    @classmethod
    def of(cls, table: ResultTable, name: str, timings: CostsByLength, complete: bool) -> LengthRow:
        costs, reference = (
            {length: found[each] for length, found in timings.items() if each in found} for each in (name, REFERENCE)
        )
        return cls(
            table=table, name=name, costs=costs, peaks=_peaks(table, costs), reference_peaks=_peaks(table, reference),
            complete=complete,
        )  # fmt: skip

    @property
    def measured(self) -> dict[int, RelativeCost]:
        """Its costs where it ran."""
        return {length: cost for length, cost in self.costs.items() if cost.outcome == Outcome.OK and cost.seconds}

    def number(self, name: str, **where: object) -> float | None:
        """The measurement of that name at the longest length at which it ran."""
        measured = self.measured
        found = self.table.number(name, measured[max(measured)].row, **where) if measured else None
        return None if found is None else found.value


def length_columns(
    lengths: list[int], mode: Mode, floor: float, max_length: BoardKey | None, measured: Collection[str] = ()
) -> tuple[BoardColumn[LengthRow], ...]:
    """The columns in the order in which they are shown. `floor`: the noise floor of the times, as a log-ratio.

    `measured`: those of `OPTIONAL` that any variant has.
    """
    several = len(lengths) > 1
    fitted = "exponent of length, fitted over the upper half of the lengths, of"
    return (
        *(
            BoardColumn(name=f"at_{length}", title=f"{length:,}", unit="× reference", better="lower",
                        importance=len(lengths) - at,
                        description=f"time of {MODES[mode].one} at length {length:,} over {REFERENCE}'s",
                        cell=partial(_time, length))
            for at, length in enumerate(lengths)
        ),
        BoardColumn(name="mean", title="mean", unit="× reference", better="lower", importance=0, present=several,
                    description="geometric mean of the ratios over all lengths", cell=_mean),
        BoardColumn(name="crossover", title="crossover", unit="tokens", better="lower", present=several,
                    description=f"smallest length from which it is faster than {REFERENCE} at every larger one",
                    cell=partial(_crossover, floor),
                    footnote=f"from there on, the interval at every length shows it faster than {REFERENCE}"),
        BoardColumn(name="exponent", title="time ~ N^", better="lower", importance=3, present=several,
                    description=f"{fitted} time",
                    cell=lambda row: _exponent({n: log_cost(cost.seconds) for n, cost in row.measured.items()})),
        BoardColumn(name="peak_ratio", title="memory", unit="× reference", better="lower", importance=4,
                    description=f"peak memory over {REFERENCE}'s, at the longest length that both ran at",
                    cell=_memory),
        BoardColumn(name="memory_exponent", title="memory ~ N^", better="lower", importance=6, present=several,
                    description=f"{fitted} peak memory",
                    cell=lambda row: _exponent({n: Estimate(math.log(peak)) for n, peak in row.peaks.items()})),
        BoardColumn(name="memory_crossover", title="memory crossover", unit="tokens", better="lower", importance=6,
                    present=several, cell=_memory_crossover,
                    description=f"smallest length from which it needs less memory than {REFERENCE} at all larger ones"),
        BoardColumn(name="density", title="density", unit="fraction", importance=4,
                    description="share of allowed weights that are not zero on these inputs, at its longest length",
                    cell=lambda row: number_cell(_complement(row.number("sparsity")), percent)),
        BoardColumn(name="block_sparsity", title=f"zero {TILE} × {TILE}", unit="fraction", importance=5,
                    description=f"share of {TILE} × {TILE} blocks without a positive weight on these inputs, at its "
                    "longest length",
                    cell=lambda row: number_cell(row.number("block_sparsity", block=TILE), percent)),
        BoardColumn(name="dividend", title="dividend", better="higher", importance=5, cell=_dividend,
                    description="speed-up × density, as declared or by blocks, at its longest length; 1: the promised "
                    "saving was realised in full"),
        BoardColumn(name="peak_share", title="of peak", unit="× peak", better="higher", importance=5, cell=_peak_share,
                    description="matrix products per second over the best measured here, at its longest length; ≤: "
                    "products as declared, empty where those would be more than the best"),
        BoardColumn(name="compile", title="compile", unit="seconds", better="lower", importance=3,
                    present="compile_seconds" in measured,
                    description="time that torch.compile took, from empty caches, at its longest length; part of no "
                    "other time",
                    cell=lambda row: number_cell(row.number("compile_seconds"), duration)),
        BoardColumn(name="energy", title="energy", unit="J", better="lower", importance=4,
                    present="energy_joules" in measured,
                    description=f"energy of the whole device for {MODES[mode].one}, idle power included, at its "
                    "longest length",
                    cell=lambda row: number_cell(row.number("energy_joules"), joules)),
        BoardColumn(name="longest", title="max length", unit="tokens", better="higher", importance=2,
                    present=max_length is not None, cell=partial(_max_length, max_length),
                    description="longest sequence that runs within the memory budget; +: the search ended before the "
                    "memory did"),
    )  # fmt: skip


def memory_ratios(row: LengthRow) -> dict[int, Estimate | None]:
    """Log-ratio of peak memory to the reference by length, exact; None where the variant failed."""
    both = row.peaks.keys() & row.reference_peaks.keys()
    return {n: Estimate(math.log(row.peaks[n] / row.reference_peaks[n])) if n in both else None for n in row.costs}


def _peaks(table: ResultTable, costs: Mapping[int, RelativeCost]) -> dict[int, float]:
    found = {n: table.number("peak_bytes", cost.row) for n, cost in costs.items() if cost.outcome == Outcome.OK}
    return {length: peak.value for length, peak in found.items() if peak is not None and peak.value > 0}


def _complement(share: float | None) -> float | None:
    return None if share is None else 1 - share


def _time(length: int, row: LengthRow) -> TableCell:
    cost = row.costs.get(length)
    if cost is None:
        return EMPTY
    if cost.outcome != Outcome.OK or cost.cost is None:
        words = outcome_words(cost.outcome) if cost.outcome != Outcome.OK else "too few rounds"
        return TableCell(text=words, value=CAP if cost.outcome in CAPPED else None, note=cost.reason)
    if row.name == REFERENCE:
        return TableCell(text=duration(cost.median), value=1.0)
    return ratio_cell(cost.cost)


def _mean(row: LengthRow) -> TableCell:
    if row.name == REFERENCE:
        return reference_cell(1.0)
    standings = [cost.standing for cost in row.costs.values() if cost.standing]
    return ratio_cell(mean_of(standings)) if row.complete else EMPTY


def _crossover(floor: float, row: LengthRow) -> TableCell:
    if row.name == REFERENCE:
        return EMPTY
    found = crossover({length: cost.cost for length, cost in row.costs.items()}, floor)
    return TableCell(text=found.text, value=found.length)


def _memory(row: LengthRow) -> TableCell:
    shared = [length for length in row.peaks if length in row.reference_peaks]
    if not shared:
        return EMPTY
    times = row.peaks[shared[-1]] / row.reference_peaks[shared[-1]]
    return reference_cell(times) if row.name == REFERENCE else number_cell(times, memory)


def _memory_crossover(row: LengthRow) -> TableCell:
    return EMPTY if row.name == REFERENCE else TableCell(text=crossover(memory_ratios(row)).text)


def _exponent(costs: Mapping[int, Estimate]) -> TableCell:
    found = exponent(costs)
    if found is None:
        return EMPTY
    ends = found.interval()
    if not found.noise:
        return number_cell(ends.value, "{:.2f}".format)
    return interval_cell(ends, f"{ends.value:.2f} ({ends.low:.2f} to {ends.high:.2f})", f"{ends.value:.2f}")


def _dividend(row: LengthRow) -> TableCell:
    """Speed-up × density at the longest length; for a map that makes its own zeros, density by blocks."""
    measured = row.measured
    cost = measured[max(measured)].cost if measured else None
    declared, zero = row.number("declared_density"), row.number("block_sparsity", block=TILE)
    if cost is None or declared is None or row.name == REFERENCE:
        return EMPTY
    density = declared if declared < 1 or zero is None else 1 - zero
    return number_cell(math.exp(-cost.value) * density, "{:.2g}".format, note=f"density {density:.3g}")


def _peak_share(row: LengthRow) -> TableCell:
    measured = row.measured
    flops = row.table.number("flops", measured[max(measured)].row) if measured else None
    share = row.number("peak_share")
    # a kernel hides its products: the number that it declares is the most that it may have done
    declared = flops is not None and flops.where.get("how") == "declared"
    if declared and share is not None and share >= 1:
        return EMPTY  # it left out products of zeros, so the bound says nothing
    return number_cell(share, lambda value: ("≤ " if declared else "") + percent(value))


def _max_length(board_key: BoardKey | None, row: LengthRow) -> TableCell:
    runs = [run for run in board_key.runs(row.table, "time") if run.variant == row.name] if board_key else []
    if not runs:
        return EMPTY
    found = row.table.number("longest_length", runs[-1].at)
    if found is None:
        return TableCell(text=outcome_words(runs[-1].outcome), note=runs[-1].reason)
    stopped = str(found.where.get("stopped", ""))
    more = {"time": "+ (time)", "last": "+"}.get(stopped, "")
    return number_cell(found.value, lambda value: f"{value:,.0f}{more}", note=f"stopped by {stopped}")
