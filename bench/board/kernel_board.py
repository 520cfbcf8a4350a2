"""The board of kernels on a GPU: times and rates by shape, beside the best dense kernel of that card.

Nothing is ranked on a card that is slower than others found it, at kernels that they published.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import median, quantiles
from typing import Literal

from ..core.record import Outcome
from ..score.quality import describe_outcome
from ..stats.format import listed, percent, size
from ..stats.intervals import mean_of
from ..stats.ranking import rank_intervals
from ..stats.scoring import ratio
from ..store.rows import newest
from ..store.table import ResultTable
from .board import NO_RIVAL, Board, Column, Row, TableCell, split_by_rank
from .calibration_table import calibrated
from .cells import EMPTY, number_cell, ratio_cell
from .columns import Cell, cells_of, finished, plain_columns
from .headline import nothing_ranked
from .kernel_shapes import BLOCK, MODES, WORK, KernelShape
from .notes import note
from .timing_notes import timing_notes
from .timings import RAN_AS, Timings
from .version_notes import version_notes

Number = Callable[[str], float | None]
Better = Literal["higher", "lower", ""]

BEST = TableCell(text="best dense", bare="best", value=1.0)


def board_for_kernels(table: ResultTable, machine: str, preset: str, shapes: Sequence[KernelShape]) -> Board:
    """Ranks by the geometric mean of the times, forward and both, over all shapes."""
    keys = [key for shape in shapes for members in shape.keys.values() for key in members]
    by_point = {
        f"{shape.title}, {work}, process {at}": costs
        for shape in shapes for work, members in shape.costs.items() for at, costs in enumerate(members, start=1)
    }  # fmt: skip
    timings = Timings(table=table, by_point=by_point)
    calibration, told, slow = calibrated(table, machine, keys)
    reasons = {name: slow or timings.missing_reason(name) for name in timings.names}
    complete = [name for name, reason in reasons.items() if not reason]
    order = rank_intervals(complete, timings.advantage, timings.floor) if len(complete) > 1 else []
    columns = _columns(timings, shapes)
    rows = {
        name: Row(name=name, entries=cells_of(columns, name), reason=why or NO_RIVAL) for name, why in reasons.items()
    }
    ranked, unranked = split_by_rank(order, rows)
    runs = [run for key in keys for run in key.runs(table, "time")]
    words, names = table.machines[machine].words, [row.name for row in (*ranked, *unranked)]
    board = Board(
        name=f"kernels/{machine}/{preset}",
        title=f"attention kernels beside the best dense one, {words}, preset {preset}",
        question=f"How fast is each attention beside the best dense kernel, on {words}?",
        headline=f"{told} {_headline(shapes, complete) if order else nothing_ranked(unranked)}",
        ranked_by="mean",
        columns=plain_columns(columns),
        ranked=ranked,
        unranked=unranked,
        parts=(*(_shape_board(shape, names) for shape in shapes), calibration, _clocks(shapes)),
        notes=(
            *([note("slow_card", why=slow)] if slow else []),
            note("nominal"),
            *timing_notes(timings, runs, machine, "shape"),
            *version_notes(table, runs, [(key.task, key.preset) for key in keys]),
        ),
    )
    return finished(board)


def _columns(timings: Timings, shapes: Sequence[KernelShape]) -> list[tuple[Column, Cell]]:
    over = "geometric mean over the shapes of its time over that of the best dense kernel at each"

    def mean(works: Sequence[str], name: str) -> TableCell:
        points = [(shape, work) for shape in shapes for work in works if work in shape.costs]
        found = [cost for shape, work in points if (cost := shape.over_best(work, name)) is not None]
        if not points or len(found) < len(points):
            return EMPTY
        return BEST if all(shape.best(work) == name for shape, work in points) else ratio_cell(mean_of(found))

    return [
        (Column(name="mean", title="mean", unit="× best dense", better="lower", importance=0, description=over),
         partial(mean, list(MODES))),
        *((Column(name=work, title=work, unit="× best dense", better="lower", description=f"{over}, {work}"),
           partial(mean, [work])) for work in MODES),
        (Column(name="implementation", title="ran as", importance=2, description=RAN_AS),
         lambda name: TableCell(text=timings.implementation(name))),
    ]  # fmt: skip


def _headline(shapes: Sequence[KernelShape], names: Sequence[str]) -> str:
    """Who is faster or slower than the best dense kernel wherever it was timed."""
    points = [(shape, work) for shape in shapes for work in shape.costs]
    dense = {shape.best(work) for shape, work in points} - {""}
    groups: dict[str, list[str]] = {"Faster": [], "Slower": [], "By shape": []}
    for name in sorted(set(names) - dense):
        found = [ratio(cost) for shape, work in points if (cost := shape.over_best(work, name)) is not None]
        sides = {"Faster": all(each.high < 1 for each in found), "Slower": all(each.low > 1 for each in found)}
        groups[next((side for side, holds in sides.items() if holds and found), "By shape")].append(name)
    told = " ".join(f"{side}: {', '.join(members)}." for side, members in groups.items() if members)
    return f"Beside the best dense kernel ({listed(sorted(dense))}), forward and both, at all shapes. {told}"


def _shape_board(shape: KernelShape, names: Sequence[str]) -> Board:
    """Times, rates, sparsity and memory at one shape, a row for each variant."""
    columns: list[tuple[Column, Cell]] = []
    for work in WORK:
        best = f"the best dense kernel here, {shape.best(work) or 'of which none ran'}"
        middle = "20th and 80th percentile of all samples" if work in MODES else "both less forward"
        kinds: list[tuple[str, str, str, Better, str, Cell]] = [
            ("ms", work, "ms", "lower", f"median of the processes' medians; {middle}", partial(_ms, shape, work)),
            ("ratio", f"{work}, ratio", "× best dense", "lower", f"time over that of {best}, in the same rounds",
             partial(_over_best, shape, work)),
            ("rate", f"{work}, TFLOP/s", "TFLOP/s", "higher", "nominal FLOPs over time",
             _rate(partial(shape.rate, work))),
            ("executed", f"{work}, executed", "TFLOP/s", "higher",
             "nominal FLOPs of the scores that it computes, in blocks that are not empty",
             _rate(partial(shape.rate, work, executed=True))),
            ("of_product", f"{work}, of product", "fraction", "higher",
             "nominal rate over that of a large product in the same process",
             _share(partial(shape.of_product, work))),
            ("between", f"{work}, between", "fraction", "lower",
             "medians of the processes: the largest less the smallest, over their median",
             _share(partial(_between, shape, work))),
        ]  # fmt: skip
        columns += [
            (Column(name=f"{work}_{name}", title=title, unit=unit, better=better, description=text,
                    shown=work in MODES and name in ("ms", "ratio", "rate")), cell)
            for name, title, unit, better, text, cell in kinds
        ]  # fmt: skip
    columns += [
        (Column(name="empty", title=f"empty {BLOCK} × {BLOCK}", unit="fraction",
                description=f"share of {BLOCK} × {BLOCK} blocks without a positive weight on these inputs"),
         _share(partial(shape.number, quantity="block_sparsity", block=BLOCK))),
        (Column(name="peak", title="peak", unit="bytes", better="lower",
                description="peak of allocated memory, inputs included"),
         lambda name: number_cell(shape.number(name, "peak_bytes"), size)),
    ]  # fmt: skip
    rows = [Row(name=name, entries=cells_of(columns, name)) for name in names]
    return finished(_part(shape.title, shape.title, [column for column, _ in columns], rows))


def _part(name: str, title: str, columns: Sequence[Column], rows: Sequence[Row]) -> Board:
    rows = [row for row in rows if any(cell.text for cell in row.entries)]
    return Board(name=name, title=title, question="", columns=tuple(columns), ranked=(), unranked=tuple(rows))


def _ms(shape: KernelShape, work: str, name: str) -> TableCell:
    seconds = shape.seconds(work, name)
    if seconds is None:
        costs = [each[name] for each in shape.costs.get(work, ()) if name in each]
        failed = next((cost for cost in costs if cost.outcome != Outcome.OK), None)
        return TableCell(text=describe_outcome(failed.outcome), note=failed.reason) if failed else EMPTY
    shown = f"{1e3 * seconds:.4g}"
    samples = [1e3 * each for cost in shape.processes(work, name) for each in cost.seconds]
    if len(samples) < 2:
        return TableCell(text=shown, value=1e3 * seconds)
    low, *_, high = quantiles(samples, n=5, method="inclusive")
    return TableCell(text=f"{shown} ({low:.4g}–{high:.4g})", bare=shown, value=1e3 * seconds, low=low, high=high)


def _rate(rate: Number) -> Cell:
    def cell(name: str) -> TableCell:
        found = rate(name)
        return number_cell(None if found is None else found / 1e12, "{:.0f}".format)

    return cell


def _share(share: Number) -> Cell:
    return lambda name: number_cell(share(name), percent)


def _over_best(shape: KernelShape, work: str, name: str) -> TableCell:
    cost = shape.over_best(work, name)
    return EMPTY if cost is None else BEST if name == shape.best(work) else ratio_cell(cost)


def _between(shape: KernelShape, work: str, name: str) -> float | None:
    medians = [each.median for each in shape.processes(work, name)]
    return (max(medians) - min(medians)) / median(medians) if len(medians) > 1 else None


def _clocks(shapes: Sequence[KernelShape]) -> Board:
    """Clock and power when the samples began and when they ended, of the process of each shape that ended slowest."""
    heads = (("clock", "SM clock", "MHz"), ("power", "power", "W"), ("throttled", "throttled by", ""))
    columns = [Column(name=name, title=title, unit=unit) for name, title, unit in heads]
    rows = []
    for one, work in [(shape, work) for shape in shapes for work in shape.keys]:
        runs = [run for key in one.keys[work] for run in newest(key.runs(one.table, "time"), "variant")]
        clocks = [found for run in runs if (found := one.table.number("gpu_clock", run.at)) is not None]
        if clocks:
            slowest = min(clocks, key=lambda clock: clock.value)
            where = slowest.where
            entries = (
                _from_to(where.get("before_mhz"), slowest.value),
                _from_to(where.get("before_watts"), where.get("watts")),
                TableCell(text=str(where.get("throttled", "nothing"))[:80]),
            )
            rows.append(Row(name=f"{one.title}, {work}", entries=entries))
    return _part("clocks", "clock and power from beginning to end, of the process that ended slowest", columns, rows)


def _from_to(*ends: object) -> TableCell:
    numbers = [float(end) for end in ends if isinstance(end, int | float)]
    return TableCell(text=" → ".join(f"{end:.0f}" for end in numbers), value=numbers[-1] if numbers else None)
