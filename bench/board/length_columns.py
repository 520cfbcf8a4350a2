"""Work columns: what stands on a board of lengths beside the times: growth, memory, sparsity, distance to the limit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from ..core.cell import REFERENCE
from ..core.record import Outcome
from ..score.cost import RelativeCost
from ..score.key import BoardKey
from ..stats import format as wording
from ..stats.intervals import Estimate
from ..stats.scaling import exponent, log_cost
from ..store.table import ResultTable
from .board import Column, TableCell

TILE = 64
FITTED = "exponent of length, fitted over the upper half of the lengths, of"

ByLength = Mapping[int, Mapping[str, RelativeCost]]


def work_columns(lengths: Sequence[int], longest: BoardKey | None) -> Iterator[Column]:
    """In the order of `work_entries`; growth only over two lengths or more."""
    grows = len(lengths) > 1
    if grows:
        yield Column(name="exponent", title="time ~ N^", better="lower", importance=3, description=f"{FITTED} time")
    yield Column(
        name="peak_ratio", title="memory", unit="× reference", better="lower", importance=4,
        description="peak memory over the reference's, at the longest length that both were measured at",
    )  # fmt: skip
    if grows:
        yield Column(
            name="memory_exponent", title="memory ~ N^", better="lower", importance=6,
            description=f"{FITTED} peak memory",
        )  # fmt: skip
        yield Column(
            name="memory_crossover", title="saves memory", unit="tokens", better="lower", importance=6,
            description="smallest length from which it takes less memory than the reference at every larger one",
        )  # fmt: skip
    yield Column(
        name="density", title="density", unit="fraction", importance=4,
        description="share of allowed weights that are not zero on these inputs, at its longest length",
    )  # fmt: skip
    yield Column(
        name="block_sparsity", title=f"empty {TILE} × {TILE}", unit="fraction", importance=5,
        description=f"share of {TILE} × {TILE} blocks without a positive weight on these inputs, at its longest length",
    )  # fmt: skip
    yield Column(
        name="dividend", title="dividend", better="higher", importance=5,
        description="speed-up over the reference × density, as declared or by blocks; 1: all it promises was saved",
    )  # fmt: skip
    yield Column(
        name="peak_share", title="of peak", unit="× peak", better="higher", importance=5,
        description="matrix products per second over the best measured here, at its longest length; ≤ where declared",
    )  # fmt: skip
    if longest is not None:
        yield Column(
            name="longest", title="longest", unit="tokens", better="higher", importance=2,
            description="longest sequence that runs within the memory budget; + where time ended the search",
        )  # fmt: skip


def work_entries(
    table: ResultTable, name: str, timings: ByLength, pays: str, longest: BoardKey | None
) -> Iterator[TableCell]:
    """`pays`: the memory crossover in words."""
    grows = len(timings) > 1
    mine = {length: found[name] for length, found in timings.items() if name in found}
    measured = {length: t for length, t in mine.items() if t.outcome == Outcome.OK and t.seconds}
    if grows:
        yield _slope(exponent({length: log_cost(t.seconds) for length, t in measured.items()}))
    peaks = peaks_of(table, name, timings)
    theirs = peaks_of(table, REFERENCE, timings)
    shared = [length for length in peaks if length in theirs]
    if shared:
        times = peaks[shared[-1]] / theirs[shared[-1]]
        yield TableCell(text="reference" if name == REFERENCE else wording.memory(times), value=times)
    else:
        yield TableCell()
    if grows:
        yield _slope(exponent({length: Estimate(math.log(peak)) for length, peak in peaks.items()}))
        yield TableCell(text="" if name == REFERENCE else pays)
    row = measured[max(measured)].row if measured else None
    zeros = None if row is None else table.number("sparsity", row)
    yield TableCell() if zeros is None else TableCell(text=wording.percent(1 - zeros.value), value=1 - zeros.value)
    empty = None if row is None else table.number("block_sparsity", row, block=TILE)
    yield TableCell() if empty is None else TableCell(text=wording.percent(empty.value), value=empty.value)
    yield _dividend(table, measured)
    share = None if row is None else table.number("peak_share", row)
    flops = None if row is None else table.number("flops", row)
    # a kernel hides its products: what it declares is the most that it may have done
    most = "≤ " if flops is not None and flops.where.get("how") == "declared" else ""
    yield TableCell() if share is None else TableCell(text=most + wording.percent(share.value), value=share.value)
    if longest is not None:
        yield _longest(table, name, longest)


def peaks_of(table: ResultTable, name: str, timings: ByLength) -> dict[int, float]:
    """Peak bytes by length, where they were measured."""
    found = {}
    for length, by_name in timings.items():
        timing = by_name.get(name)
        peak = table.number("peak_bytes", timing.row) if timing and timing.outcome == Outcome.OK else None
        if peak is not None and peak.value > 0:
            found[length] = peak.value
    return found


def memory_ratios(table: ResultTable, name: str, timings: ByLength) -> dict[int, Estimate | None]:
    """Log-ratio of peak memory to the reference by length, exact; None where the variant failed."""
    own, theirs = peaks_of(table, name, timings), peaks_of(table, REFERENCE, timings)
    return {
        length: Estimate(math.log(own[length] / theirs[length])) if length in own and length in theirs else None
        for length in timings
        if name in timings[length]
    }


def _dividend(table: ResultTable, measured: Mapping[int, RelativeCost]) -> TableCell:
    """Speed-up × density at the longest length; for a map that makes its own zeros, density by blocks."""
    if not measured:
        return TableCell()
    timing = measured[max(measured)]
    declared = table.number("declared_density", timing.row)
    empty = table.number("block_sparsity", timing.row, block=TILE)
    if timing.cost is None or declared is None or timing.variant == REFERENCE:
        return TableCell()
    density = declared.value if declared.value < 1 or empty is None else 1 - empty.value
    dividend = math.exp(-timing.cost.value) * density
    return TableCell(text=f"{dividend:.2g}", value=dividend, note=f"density {density:.3g}")


def _slope(found: Estimate | None) -> TableCell:
    if found is None:
        return TableCell()
    ends = found.interval()
    if not found.noise:
        return TableCell(text=f"{ends.value:.2f}", value=ends.value)
    return TableCell(text=f"{ends.value:.2f} ({ends.low:.2f} to {ends.high:.2f})", brief=f"{ends.value:.2f}",
                 value=ends.value, low=ends.low, high=ends.high)  # fmt: skip


def _longest(table: ResultTable, name: str, board_key: BoardKey) -> TableCell:
    cells = board_key.cells(table, "time")
    rows: Sequence[int] = cells[cells["variant"] == name].index.tolist()
    for row in reversed(rows):
        found = table.number("longest_length", row)
        if found is not None:
            stopped = str(found.where.get("stopped", ""))
            more = {"time": "+ (time)", "last": "+"}.get(stopped, "")
            return TableCell(text=f"{found.value:,.0f}{more}", value=found.value, note=f"stopped by {stopped}")
        return TableCell(text=str(cells.loc[row, "outcome"]).replace("_", " "), note=str(cells.loc[row, "reason"]))
    return TableCell()
