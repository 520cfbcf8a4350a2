"""Published: numbers printed in papers, as boards of their own, shown beside ours and never ranked with them."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from ...board.board import Board, Column, Note, Row, TableCell
from ...board.cells import EMPTY, number_cell
from ...core.errors import StoreError
from ...core.files import PACKAGE
from ...core.metrics import METRICS
from ...plan.suite_file import read_suite

FOLDER = PACKAGE / "tasks" / "published"
FAILED = "FAIL"
UNLIKE = "sizes, steps and data differ from the papers': no ranks"
FIVE = ("lra-listops", "lra-text", "lra-retrieval", "lra-image", "lra-pathfinder")
SIX = (*FIVE, "lra-pathx")
CHANCE = 50.0
"""Accuracy that a model that fails on Path-X counts as, where six tasks are averaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table of a paper: `rows` holds model → a cell for each of `columns`, text where it is no number.

    `ours`: the paper's name of a model → our variant of the same mechanism. `read`: where the numbers were read.
    `quantity`: of `METRICS` where boards of ours may have it too, else in words. `tasks`: those beside whose
    boards it stands in full, where no `suite` names them.
    """

    paper: str
    short: str
    year: int
    title: str
    source: str
    suite: str
    tasks: tuple[str, ...]
    quantity: str
    unit: str
    better: Literal["higher", "lower"]
    read: str
    columns: tuple[str, ...]
    rows: dict[str, tuple[float | str, ...]]
    ours: dict[str, str]
    notes: tuple[str, ...] = ()
    protocol: tuple[str, ...] = ()

    def cells(self, model: str) -> dict[str, float | str]:
        return dict(zip(self.columns, self.rows[model], strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """A paper on the same tasks none of whose numbers is shown, with the reason."""

    paper: str
    source: str
    suite: str
    tasks: tuple[str, ...]
    reason: str


@lru_cache(maxsize=1)
def published() -> tuple[tuple[Table, ...], tuple[Absent, ...]]:
    """All tables by year, and the papers that are left out. Raises StoreError where a file of ours is damaged."""
    tables: list[Table] = []
    absent: list[Absent] = []
    for path in sorted(FOLDER.glob("*.toml")):
        try:
            paper = tomllib.loads(path.read_text(encoding="utf-8"))
            tables += (_table(paper, table) for table in paper.get("tables", ()))
            if "absent" in paper:
                absent.append(Absent(reason=paper["absent"], **_paper(paper)))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{path} does not read as published numbers ({error}); install attnbench again") from error
    return tuple(sorted(tables, key=lambda table: table.year)), tuple(absent)


def average(table: Table, model: str, tasks: Sequence[str]) -> float | None:
    """Mean of the model's accuracies on these tasks, a failed Path-X counting as chance; None where one is missing.

    >>> lra = next(table for table in published()[0] if table.paper == "Long Range Arena")
    >>> round(average(lra, "Transformer", FIVE), 2), round(average(lra, "Transformer", SIX), 2)
    (54.39, 53.66)
    """
    cells = table.cells(model)
    found = [CHANCE if cells.get(task) == FAILED and task == "lra-pathx" else cells.get(task) for task in tasks]
    numbers = [value for value in found if isinstance(value, float)]
    return sum(numbers) / len(tasks) if len(numbers) == len(tasks) else None


def with_published(boards: Sequence[Board], suite: str | None) -> list[Board]:
    """Our boards, each followed by published numbers on its task; for a suite, by all tables on its tasks.

    Tasks outside a suite have all tables of their papers at the end.
    """
    if suite is not None:
        return [*boards, *boards_for_suite(suite)]
    tasks = [board.name.partition("/")[0] for board in boards]
    pairs = [(board, published_board(board, task)) for board, task in zip(boards, tasks, strict=True)]
    return [*(each for pair in pairs for each in pair if each is not None), *boards_for_tasks(tasks)]


def boards_for_suite(suite: str) -> list[Board]:
    """Every table of the papers that share a task with that suite, in full; averages are ours, of the cells."""
    tasks = _tasks(suite)
    return _in_full(lambda paper: not tasks.isdisjoint(paper.tasks or _tasks(paper.suite)))


def boards_for_tasks(tasks: Sequence[str]) -> list[Board]:
    """Every table of the papers that name one of these tasks, which need no suite, in full."""
    names = {task.partition("[")[0] for task in tasks}
    return _in_full(lambda paper: not names.isdisjoint(paper.tasks))


def _tasks(suite: str) -> set[str]:
    return {task.name for task in read_suite(suite).tasks}


def published_board(board: Board, task: str) -> Board | None:
    """Published numbers on `task`, by our names of variants, beside those of our `board` in the same metric.

    None where no paper has any. Nothing on it is ranked.
    """
    name = task.partition("[")[0]
    tables = [table for table in published()[0] if name in table.columns]
    quantities = {table.quantity for table in tables}
    at = next((at for at, column in enumerate(board.columns) if column.name in quantities), None)
    if at is None:
        return None
    column = board.columns[at]
    tables = [table for table in tables if table.quantity == column.name]
    ours = {row.name: row.entries[at] for row in (*board.ranked, *board.unranked)}
    rows = []
    for known in dict.fromkeys(table.ours.get(model, model) for table in tables for model in table.rows):
        same = [variant for variant in ours if variant.partition("[")[0] == known] or [known]
        theirs = [
            next((_printed(t, m, t.columns.index(name)) for m in t.rows if t.ours.get(m, m) == known), EMPTY)
            for t in tables
        ]
        rows += [Row(name=each, entries=(ours.get(each, EMPTY), *theirs)) for each in same]
    own = replace(column, name="ours", title="ours", importance=0, description=board.title)
    columns = [
        replace(
            column,
            name=table.title.lower().replace(",", "").replace(" ", "_"),
            title=table.short,
            unit=table.unit,
            importance=1,
            description=table.source,
        )
        for table in tables
    ]
    notes = [
        Note(topic="ours", kind="warning", text=f"{board.title}; {UNLIKE}"),
        *(Note(topic=table.paper, kind="method", text=_origin(table)) for table in tables),
    ]
    return Board(
        name=f"published/{board.name}",
        title=f"{name}, published numbers beside ours",
        question=f"Which numbers did papers report on {name}?",
        columns=(own, *columns),
        ranked=(),
        unranked=tuple(rows),
        notes=tuple(notes),
    )


def _table(paper: dict[str, Any], table: dict[str, Any]) -> Table:
    rows = {
        model: tuple(cell if isinstance(cell, str) else float(cell) for cell in cells)
        for model, cells in table["rows"].items()
    }
    columns = tuple(table["columns"])
    uneven = [model for model, cells in rows.items() if len(cells) != len(columns)]
    if uneven or table["better"] not in ("higher", "lower"):
        raise ValueError(f"{paper['title']}, {table['title']}: expected {len(columns)} cells of {', '.join(uneven)}")
    return Table(
        **_paper(paper),
        short=paper["short"],
        year=paper["year"],
        title=f"{paper['title']}, {table['title']}",
        quantity=table["quantity"],
        unit=table["unit"],
        better=table["better"],
        read=table["read"],
        columns=columns,
        rows=rows,
        ours=dict(paper.get("ours", {})),
        notes=tuple(table.get("notes", ())),
        protocol=tuple(paper["protocol"]),
    )


def _paper(paper: dict[str, Any]) -> dict[str, Any]:
    """The paper and the boards that its numbers are shown with; raises ValueError where there are none."""
    suite, tasks = paper.get("suite", ""), tuple(paper.get("tasks", ()))
    if not suite and not tasks:
        raise ValueError(f"{paper['title']}: expected a suite, or tasks")
    return {"paper": paper["title"], "source": paper["source"], "suite": suite, "tasks": tasks}


def _in_full(chosen: Callable[[Table | Absent], bool]) -> list[Board]:
    """The tables of papers that are `chosen`; what is absent stands under the last."""
    tables, absent = published()
    boards = [_board(table) for table in tables if chosen(table)]
    left_out = [
        Note(topic=paper.paper, kind="method", text=f"{paper.reason}; {paper.source}")
        for paper in absent
        if chosen(paper)
    ]
    return [*boards[:-1], *(replace(last, notes=(*last.notes, *left_out)) for last in boards[-1:])]


def _board(table: Table) -> Board:
    averages = [
        (f"average of {len(tasks)}", tasks)
        for tasks in (FIVE, SIX)
        if table.quantity == "accuracy" and set(tasks) <= set(table.columns)
    ]
    columns = [
        *(
            Column(name=each, title=each.removeprefix("lra-"), unit=table.unit, better=table.better, importance=1,
                   description=table.quantity)
            for each in table.columns
        ),
        *(
            Column(name=title, title=title, unit=table.unit, better=table.better, importance=0,
                   description="mean of the cells before it")
            for title, _ in averages
        ),
    ]  # fmt: skip
    rows = [
        Row(
            name=model,
            entries=(
                *(_printed(table, model, at) for at in range(len(table.columns))),
                *(number_cell(average(table, model, tasks), "{:.2f}".format) for _, tasks in averages),
            ),
        )
        for model in table.rows
    ]
    notes = [Note(topic="source", kind="method", text=_origin(table))]
    notes += [Note(topic="note", kind="method", text=text) for text in table.notes]
    failed = f" with {FAILED} as {CHANCE:.0f}" if len(averages) > 1 else ""
    computed = f"; averages are of these cells{failed}, not as printed" if averages else ""
    measured = METRICS[table.quantity].title if table.quantity in METRICS else table.quantity
    unit = f", {table.unit}" if table.unit not in ("", measured) else ""
    return Board(
        name=f"published/{table.title}",
        title=f"published: {table.title}",
        question=f"Which numbers did {table.title} report?",
        headline=f"{measured[0].upper()}{measured[1:]}{unit}, as printed{computed}; never ranked with ours.",
        columns=tuple(columns),
        ranked=(),
        unranked=tuple(rows),
        notes=tuple(notes),
    )


def _printed(table: Table, model: str, at: int) -> TableCell:
    """A cell of the table, with as many decimals as any cell of its column needs."""
    cell = table.rows[model][at]
    numbers = [cells[at] for cells in table.rows.values() if not isinstance(cells[at], str)]
    decimals = max((len(f"{number:g}".partition(".")[2]) for number in numbers), default=0)
    return TableCell(text=cell) if isinstance(cell, str) else number_cell(cell, f"{{:.{decimals}f}}".format)


def _origin(table: Table) -> str:
    return f"{table.source}; read in {table.read}; " + "; ".join(table.protocol)
