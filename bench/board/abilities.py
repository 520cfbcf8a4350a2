"""Abilities: the first answer of a page, one table of variants × what they are good at, with their cost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Literal

from ..core.cell import REFERENCE
from ..stats.format import point, speed
from .board import Board
from .preset_text import beside_rates
from .report import Ability, AbilityCell, AbilityTable, Report

MOST_TASKS = 10

COSTS = {"step": "training step", "forward": "forward pass", "decode": "decoding"}
"""Title of the column of a cost, by the mode of a sweep."""


def told(board: Board) -> float:
    """The share of the pairs of ranked variants that the board tells apart.

    >>> from attnbench.bench.board.board import Row
    >>> rows = [Row(name=name, entries=(), first=a, last=b) for name, a, b in (("a", 1, 1), ("b", 2, 3), ("c", 2, 3))]
    >>> round(told(Board(name="", title="", question="", columns=(), ranked=tuple(rows))), 2)
    0.67
    """
    pairs = [
        one.last < other.first or other.last < one.first
        for one, other in combinations(board.ranked, 2)
        if one.first is not None and one.last is not None and other.first is not None and other.last is not None
    ]
    return sum(pairs) / len(pairs) if pairs else 0.0


def ability_table(reports: Sequence[Report]) -> AbilityTable | None:
    """What each variant reaches on each task, and its cost at the longest length swept.

    `reports`: in order of what they tell. Other parameters are another variant, with a row of its own. None where no
    task compares with softmax.
    """
    single = [report for report in reports if report.board.ranked_by != "average" and report.newest]
    judged = [(_task_column(report), _task_cells(report.board)) for report in single]
    columns = [(column, cells) for column, cells in judged if cells][:MOST_TASKS]
    if not columns:
        return None
    names = dict.fromkeys(name for _, cells in columns for name in cells)
    for mode, title in COSTS.items():
        swept = [report for report in reports if report.name.endswith(f"/{mode}") and report.lengths]
        if swept:
            # of several sweeps the plain one: its name has the fewest parameters
            known = {report.name: _cost_cells(report) for report in swept}
            best = max(swept, key=lambda report: (len(known[report.name].keys() & names), -len(report.name)))
            length = max(point["length"] for point in best.lengths)
            unit = f"{best.timed}, against {REFERENCE}"
            column = Ability(title=f"{title}, {length:,} tokens", report=best.name, unit=unit)
            columns.append((column, known[best.name]))
    # those of one board alone would be a row of blanks
    least = min(2, len(columns))
    rows = [name for name in names if sum(name in cells for _, cells in columns) >= least]
    rows.sort(key=lambda name: name != REFERENCE)
    return AbilityTable(
        columns=tuple(column for column, _ in columns),
        rows=tuple((name, tuple(cells.get(name) for _, cells in columns)) for name in rows),
    )


def _task_column(report: Report) -> Ability:
    task, _, preset = report.board.title.partition(", preset ")
    # a part of a published task must not read as the task
    reduced = ["reduced"] * any(note.topic == "reduced" for note in report.board.notes)
    changed = ",".join([*reduced, *beside_rates(preset)])
    unit = report.quality + ("; lower is better" if report.better == "lower" else "")
    return Ability(title=f"{task} ({changed})" if changed else task, report=report.name, unit=unit)


def _task_cells(board: Board) -> dict[str, AbilityCell]:
    """The cells of variants with a result, and counts where some seeds did not learn; empty unless softmax learned."""
    if "gap" not in (column.name for column in board.columns):
        return {}
    at = next((at for at, column in enumerate(board.columns) if column.name == (board.ranked_by or column.name)), 0)
    found = {}
    for row in (*board.ranked, *board.unranked):
        cell, gap, counts = row.entries[at], board.cell(row, "gap"), board.cell(row, "learned").bare
        if row.name == REFERENCE and counts.startswith("0 of"):
            # a task that softmax itself did not learn tells no ability
            return {}
        first = board.cell(row, "verdict").text.partition(" ")[0]
        verdict: Literal["better", "worse", ""] = "better" if first == "better" else "worse" if first == "worse" else ""
        said = "" if row.name == REFERENCE or not gap.text else f"; against {REFERENCE}: {gap.text}"
        text = cell.shown("bare") + (f" ({counts})" if len(set(counts.split(" of "))) > 1 else "")
        if cell.text:
            hint = f"{row.name}: {cell.text}{said or (row.reason and f'; no rank: {row.reason}')}"
            text += " †" * bool(row.reason and counts)
            found[row.name] = AbilityCell(text=text, verdict=verdict, hint=hint)
    return found


def _cost_cells(report: Report) -> dict[str, AbilityCell]:
    last = max(point["length"] for point in report.lengths)
    found: dict[str, AbilityCell] = {}
    for at in report.lengths:
        name, ratio = at["variant"], at["ratio"]
        if at["length"] == last:
            verdict: Literal["better", "worse", ""] = "better" if at["high"] < 1 else "worse" if at["low"] > 1 else ""
            text = "1×" if name == REFERENCE else speed(point(ratio))
            found[name] = AbilityCell(text=text, verdict=verdict, hint=f"{name}: {ratio:.3g}× {REFERENCE}'s time")
    return found
