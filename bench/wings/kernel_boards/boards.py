"""The board of kernels on a GPU: times and rates by shape, beside the best dense kernel of that card.

Nothing is ranked on a card that is slower than others found it, at kernels that they published.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import quantiles

from ...board.board import NO_RIVAL, Board, Column, Note, Row, TableCell, split_by_rank
from ...board.cells import EMPTY, Cell, cells_of, finished, number_cell, plain_columns, ratio_cell
from ...board.kinds import CostBoard
from ...board.notes import nothing_ranked
from ...board.timings import RAN_AS, Timings, timing_notes
from ...board.version_notes import version_notes
from ...core.record import Outcome
from ...score.key import BoardKey
from ...score.quality import describe_outcome
from ...stats.format import listed, percent, size
from ...stats.intervals import Estimate, mean_of
from ...stats.ranking import rank_intervals
from ...stats.scoring import ratio
from ...store.table import ResultTable
from .calibration import calibrated
from .shapes import BLOCK, MODES, WORK, KernelShape, claimed, kernel_shapes

KERNELS = "Kernels on a GPU"
"""The heading of these boards on a page."""

UNRANKED = "so nothing is ranked; is another process on the GPU?"

NOMINAL = (
    "FLOPs of a forward pass: 4 × batch × heads × length² × width of a head, half of them where it is causal; of a "
    "backward pass 2.5 times that; executed: times the share of the scores that are computed, in 64 × 64 blocks with a "
    "positive weight"
)

BEST = TableCell(text="best dense", bare="best", value=1.0)


def cost_boards(table: ResultTable, keys: Sequence[BoardKey]) -> list[CostBoard]:
    """A board for each machine and preset that timed known kernels too."""
    return [
        CostBoard(board=board_for_kernels(table, *group, shapes), keys=sorted(claimed(shapes)), group=KERNELS)
        for group, shapes in kernel_shapes(table, keys).items()
    ]


def board_for_kernels(table: ResultTable, machine: str, preset: str, shapes: Sequence[KernelShape]) -> Board:
    """Ranks by the geometric mean of the times, forward and both, over all shapes."""
    keys = sorted(claimed(shapes))
    by_point = {
        f"{shape.title}, {work}, process {at}": costs
        for shape in shapes for work in shape.keys for at, costs in enumerate(shape.costs(work), start=1)
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
        parts=(*(_shape_board(shape, names) for shape in shapes), calibration),
        notes=(
            *([Note(topic="calibration", kind="warning", text=f"{slow}; {UNRANKED}")] if slow else []),
            Note(topic="nominal", kind="method", text=NOMINAL),
            *timing_notes(timings, runs, machine, "shape"),
            *version_notes(table, runs, [(key.task, key.preset) for key in keys]),
        ),
    )
    return finished(board)


def _columns(timings: Timings, shapes: Sequence[KernelShape]) -> list[tuple[Column, Cell]]:
    over = "geometric mean over the shapes of its time over that of the best dense kernel at each"

    def mean(works: Sequence[str], name: str) -> TableCell:
        points = [(shape, work) for shape in shapes for work in works if work in shape.keys]
        found = [cost for shape, work in points if (cost := shape.over_best(work, name)) is not None]
        if not points or len(found) < len(points):
            return EMPTY
        return _over_best(mean_of(found), all(shape.best(work) == name for shape, work in points))

    return [
        (Column(name="mean", title="mean", unit="× best dense", better="lower", importance=0, description=over),
         partial(mean, list(MODES))),
        *((Column(name=work, title=work, unit="× best dense", better="lower", description=f"{over}, {work}"),
           partial(mean, [work])) for work in MODES),
        (Column(name="implementation", title="ran as", importance=2, description=RAN_AS),
         lambda name: TableCell(text=timings.implementation(name))),
    ]  # fmt: skip


def _headline(shapes: Sequence[KernelShape], names: Sequence[str]) -> str:
    """The variants that are faster or slower than the best dense kernel wherever timed."""
    points = [(shape, work) for shape in shapes for work in shape.keys]
    dense = {shape.best(work) for shape, work in points} - {""}
    groups: dict[str, list[str]] = {"Faster": [], "Slower": [], "By shape": []}
    for name in sorted(set(names) - dense):
        found = [ratio(cost) for shape, work in points if (cost := shape.over_best(work, name)) is not None]
        faster, slower = all(each.high < 1 for each in found), all(each.low > 1 for each in found)
        groups["By shape" if faster == slower else "Faster" if faster else "Slower"].append(name)
    told = " ".join(f"{side}: {', '.join(members)}." for side, members in groups.items() if members)
    return f"Beside the best dense kernel ({listed(sorted(dense))}), forward and both, at all shapes. {told}"


def _shape_board(shape: KernelShape, names: Sequence[str]) -> Board:
    """Times, rates, sparsity, memory and clocks at one shape, a row for each variant."""
    columns = [column for work in WORK for column in _work_columns(shape, work)]
    columns += [
        (Column(name="empty", title=f"empty {BLOCK} × {BLOCK}", unit="fraction",
                description=f"share of {BLOCK} × {BLOCK} blocks without a positive weight on these inputs"),
         lambda name: number_cell(shape.number(name, "block_sparsity", block=BLOCK), percent)),
        (Column(name="peak", title="peak", unit="bytes", better="lower",
                description="peak of allocated memory, inputs included"),
         lambda name: number_cell(shape.number(name, "peak_bytes"), size)),
        (Column(name="clock", title="clock and power", unit="MHz",
                description="from beginning to end, of the process that ended slowest, and what throttled it"),
         partial(_clock, shape)),
    ]  # fmt: skip
    rows = [Row(name=name, entries=cells_of(columns, name)) for name in names]
    rows = [row for row in rows if any(cell.text for cell in row.entries)]
    heads = tuple(column for column, _ in columns)
    return finished(
        Board(name=shape.title, title=shape.title, question="", columns=heads, ranked=(), unranked=tuple(rows))
    )


def _work_columns(shape: KernelShape, work: str) -> list[tuple[Column, Cell]]:
    """The columns of a forward pass, a backward pass, or both; the backward pass and what few ask for on request."""
    shown, best = work in MODES, shape.best(work) if work in MODES else ""
    middle = "20th and 80th percentile of all samples" if shown else "both less forward"
    return [
        (Column(name=f"{work}_ms", title=f"{work}, ms", unit="ms", better="lower", shown=shown,
                description=f"median of the processes' medians; {middle}"),
         partial(_ms, shape, work)),
        (Column(name=f"{work}_ratio", title=f"{work}, ratio", unit="× best dense", better="lower",
                description=f"time over that of the best dense kernel here, {best}, in the same rounds"),
         lambda name: _over_best(shape.over_best(work, name), name == best)),
        (Column(name=f"{work}_rate", title=f"{work}, TFLOP/s", unit="TFLOP/s", better="higher", shown=shown,
                description="nominal FLOPs over time"),
         lambda name: number_cell(shape.rate(work, name), "{:.0f}".format)),
        (Column(name=f"{work}_executed", title=f"{work}, executed", unit="TFLOP/s", better="higher", shown=False,
                description="nominal FLOPs of the scores that it computes, in blocks that are not empty"),
         lambda name: number_cell(shape.executed(work, name), "{:.0f}".format)),
        (Column(name=f"{work}_of_product", title=f"{work}, of product", unit="fraction", better="higher", shown=False,
                description="nominal rate over that of a large product in the same process"),
         lambda name: number_cell(shape.of_product(work, name), percent)),
        (Column(name=f"{work}_between", title=f"{work}, between", unit="fraction", better="lower", shown=False,
                description="medians of the processes: the largest less the smallest, over their median"),
         lambda name: number_cell(shape.between(work, name), percent)),
    ]  # fmt: skip


def _ms(shape: KernelShape, work: str, name: str) -> TableCell:
    seconds, costs = shape.seconds(work, name), [each[name] for each in shape.costs(work) if name in each]
    if seconds is None:
        failed = next((cost for cost in costs if cost.outcome != Outcome.OK), None)
        return TableCell(text=describe_outcome(failed.outcome), note=failed.reason) if failed else EMPTY
    shown = f"{1e3 * seconds:.4g}"
    samples = [1e3 * each for cost in costs for each in cost.seconds]
    if len(samples) < 2:
        return TableCell(text=shown, value=1e3 * seconds)
    low, *_, high = quantiles(samples, n=5, method="inclusive")
    return TableCell(text=f"{shown} ({low:.4g}–{high:.4g})", bare=shown, value=1e3 * seconds, low=low, high=high)


def _over_best(cost: Estimate | None, is_best: bool) -> TableCell:
    return EMPTY if cost is None else BEST if is_best else ratio_cell(cost)


def _clock(shape: KernelShape, name: str) -> TableCell:
    found = min(shape.measured(name, "gpu_clock"), key=lambda clock: clock.value, default=None)
    if found is None:
        return EMPTY
    ends = (found.where.get("before_mhz"), found.value, found.where.get("before_watts"), found.where.get("watts"))
    # a stranger's Record may have words for numbers, of any length
    words = [f"{end:.0f}" if isinstance(end, int | float) else "?" for end in ends]
    throttled = str(found.where.get("throttled", "nothing"))[:80]
    text = "{} → {} MHz, {} → {} W, throttled by {}".format(*words, throttled)
    return TableCell(text=text, bare=f"{words[1]} MHz", value=found.value)
