"""Overview: what a page of many boards opens with, a pure function of their Reports.

It answers which attention is good for what in one table, names who leads each board, and leaves the reasons to the
boards behind it. Boards that are not learned, or whose Records are of another version, are folded below the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Literal

from ..core.cell import REFERENCE
from ..core.spec import Spec
from ..score.key import BoardKey
from ..score.settings import LENGTH
from ..stats.format import counted, listed, point, speed
from .board import Board, Row, TableCell
from .quality_notes import beside_rates
from .report import (
    COST_MAP,
    Ability,
    AbilityCell,
    AbilityTable,
    BoardSummary,
    FigureRow,
    FigureRows,
    Overview,
    Report,
    SummaryGroup,
)

MOST_VARIANTS = 12
"""The most variants in a picture of points; more cannot be told apart."""

MOST_LINES = 6

FIRST_LINES = ("softmax", "entmax15", "scalable-softmax", "indexer", "linear", "delta")
"""The lines of a picture where they are there: one of each kind of mechanism, as the field knows them."""

NAME_HEIGHT = 0.07
"""The least distance of two names at the ends of lines, as a share of a panel's height."""

NOT_LEARNED = "Not learned here"
OLDER = "Made by older versions"
COST = "Cost alone, without training"

MOST_PANELS = 8

Declaration = tuple[str, tuple[str, ...], tuple[str, ...], str]
"""Name, tasks, variants and preset of a suite."""


def suites_with_boards(
    declarations: Iterable[Declaration], board_keys: Sequence[BoardKey]
) -> list[tuple[Declaration, list[BoardKey]]]:
    """The suites of which every task has a board, with those boards: one preset, selection and protocol at a time.

    A suite of one task has no average, one whose tasks are all in a larger suite here adds nothing, and of two with the
    same tasks that counts whose preset is most like that of the boards. A task with several fidelities has no single
    board, so its suites are left out.
    """
    alike: dict[tuple[str, str, int], dict[str, set[BoardKey]]] = {}
    for key in board_keys:
        tasks = alike.setdefault((key.preset, key.selection, key.protocol), {})
        tasks.setdefault(key.task, set()).add(replace(key, machine=""))
    declared = list(declarations)
    found: list[tuple[Declaration, list[BoardKey]]] = []
    for (preset, _, _), tasks in sorted(alike.items()):
        single = {task for task, keys in tasks.items() if len(keys) == 1}
        whole = [each for each in declared if len(each[1]) > 1 and single >= set(each[1])]
        whole.sort(key=lambda each: _unlike(each[3], preset))
        for at, each in enumerate(whole):
            inside = any(
                set(each[1]) < set(other[1]) or (set(each[1]) == set(other[1]) and number < at)
                for number, other in enumerate(whole)
            )
            if not inside:
                found.append((each, sorted(key for task in each[1] for key in tasks[task])))
    return found


def _unlike(one: str, other: str) -> tuple[bool, int]:
    """True if the names of two presets differ, and the number of their parameters that do."""
    first, second = Spec.parse(one or other), Spec.parse(other)
    return first.name != second.name, len({*first.parameters} ^ {*second.parameters})


def overview_of(reports: Sequence[Report]) -> Overview:
    """The suites, then all other boards; first what tells most variants apart."""
    newest_day = max((_day(report) for report in reports), default="")
    groups: dict[str, list[Report]] = {}
    for report in sorted(reports, key=_order):
        groups.setdefault(_group_of(report), []).append(report)
    suites = {report.group for report in reports}
    # of two suites the sort above has put first what tells more
    ordered = sorted(
        groups.items(),
        key=lambda item: (_is_folded(item[0]), item[0] == COST, item[0] == COST_MAP, item[0] not in suites),
    )
    shown = [report for title, members in ordered if not _is_folded(title) for report in members]
    quality, by_length, length_words = _by_length(shown)
    pareto, pareto_words = _pareto(shown)
    keys = {record["key"] for report in reports for record in report.records}
    folded = len(reports) - len(shown)
    lead = f"{counted(len(reports), 'board')} from {counted(len(keys), 'Record')}, the newest of {newest_day}."
    if folded:
        lead += f" {folded} of them, of older versions or not learned, {'is' if folded == 1 else 'are'} folded below."
    return Overview(
        lead=lead,
        answer=ability_table(shown),
        groups=tuple(
            SummaryGroup(
                title=title,
                boards=tuple(_summary(report, newest_day) for report in members),
                # where there is nothing else, it is what the reader came for
                folded=(bool(shown) and _is_folded(title)) or (title == COST and len(groups) > 1),
            )
            for title, members in ordered
        ),
        quality=quality,
        by_length=by_length,
        pareto=pareto,
        left_out=(length_words, pareto_words),
    )


def _order(report: Report) -> tuple[bool, float]:
    """Sort key: suite averages first, then boards that separate more variants."""
    return report.board.ranked_by != "average", -told(report.board)


def _is_folded(title: str) -> bool:
    return title.startswith((NOT_LEARNED, OLDER))


def _day(report: Report) -> str:
    return report.newest[:10]


def _group_of(report: Report) -> str:
    if not report.board.learned:
        return NOT_LEARNED
    if report.stale:
        return OLDER
    if report.group:
        return report.group
    if report.lengths or {record["lane"] for record in report.records} == {"time"}:
        return COST
    return "Single tasks" if report.newest else "Published by others"


def _summary(report: Report, newest_day: str) -> BoardSummary:
    board = report.board
    # ranks are corrected for more comparisons than verdicts are, and who is worse than the reference does not lead
    behind = {row.name for row in board.ranked if board.cell(row, "verdict").text.startswith("worse")}
    leaders = [row for row in board.ranked if row.first == 1 and row.name not in behind]
    reference = [row for row in board.ranked if row.name == REFERENCE]
    # the ranks of the leaders all begin with 1, and may end at different places
    place = max((row.place for row in leaders), key=lambda place: int(place.rpartition("–")[2]), default="")
    return BoardSummary(
        report=report.name,
        title=board.title.removesuffix(f", {report.group.partition(', ')[2]}") if report.group else board.title,
        leaders=listed([row.name for row in leaders]),
        place=f"rank {place}" if place else "",
        result=_span(board, leaders),
        reference=_span(board, reference),
        headline=board.headline or ("" if board.ranked else "No variant has been measured yet."),
        newest=_day(report),
        state=f"stale: {report.stale}" if report.stale else "new" if newest_day and _day(report) == newest_day else "",
        data=_data_words(board),
        is_average=board.ranked_by == "average",
    )


def _data_words(board: Board) -> str:
    """The words for data that a board warns of, such as `data: surrogate`; else empty."""
    warned = next((note.text for note in board.notes if note.topic == "data" and note.warning), "")
    if not warned:
        return ""
    return "data: surrogate in part" if board.ranked_by == "average" else f"data: {warned.partition(':')[0]}"


def _span(board: Board, rows: Sequence[Row]) -> str:
    """The score of one row in short, or from the lowest to the highest of several, with the unit."""
    at = next((at for at, column in enumerate(board.columns) if column.name == board.ranked_by), 0)
    cells = sorted((row.entries[at] for row in rows if row.entries[at].value is not None), key=_value)
    if not cells or cells[0].text == "reference":
        return ""
    if len(cells) == 1:
        return cells[0].shown("brief") + _unit_of(board, at)
    low, high = cells[0].shown("bare"), cells[-1].shown("bare")
    number, _, direction = high.partition(" ")
    if direction and low.endswith(f" {direction}"):
        # costs in words: the lower ratio is the greater speed
        return f"{number} to {low}"
    return (low if low == high else f"{low} to {high}") + _unit_of(board, at)


def _unit_of(board: Board, at: int) -> str:
    """The unit after a number; ratios name it themselves."""
    unit = board.columns[at].unit
    return f" {unit}" if unit and not unit.startswith("×") else ""


def _value(cell: TableCell) -> float:
    return 0.0 if cell.value is None else cell.value


def _by_length(reports: Sequence[Report]) -> tuple[str, FigureRows, str]:
    """The quality, the points, and what is left out: tasks of one metric, variants without baselines."""
    found: list[FigureRow] = []
    with_lengths = [
        (report, curves)
        for report in reports
        for curves in report.settings
        if curves.axis == LENGTH and curves.quantity == "quality" and len({point["at"] for point in curves.points}) > 1
    ]
    with_lengths = [pair for pair in with_lengths if _variants(pair[0])]
    if not with_lengths:
        return "", (), ""
    quality = with_lengths[0][0].quality
    shown = [pair for pair in with_lengths if pair[0].quality == quality][:MOST_PANELS]
    names = list(dict.fromkeys(name for report, _ in shown for name in _variants(report)))
    wanted = [name for first in FIRST_LINES for name in names if name.partition("[")[0] == first]
    kept = [*wanted, *(name for name in names if name not in wanted)][:MOST_LINES]
    titles = _titles([report for report, _ in shown])
    for (report, curves), title in zip(shown, titles, strict=True):
        trained = report.trained[0]["length"] if report.trained else None
        own = {(point["variant"], point["at"]): point for point in curves.points if point["chosen"]}
        points = [(name, at, own[name, at]) for name in kept for (one, at) in sorted(own) if one == name]
        last = max((at for _, at, _ in points), default=0)
        ends = _beside({name: point["value"] for name, at, point in points if at == last}, quality)
        found += [
            {
                "task": title,
                "variant": name, "at": at, **{each: point[each] for each in ("value", "low", "high")},
                "trained": trained,
                "name": name if at == last else "",
                "name_at": ends.get(name) if at == last else None,
            }
            for name, at, point in points
        ]  # fmt: skip
    words = f"{len(kept)} of {len(names)} variants; the boards have all." if len(names) > len(kept) else ""
    return quality, tuple(found), words


def _beside(ends: dict[str, float], quality: str) -> dict[str, float]:
    """The height of each line's name: beside its end, and so far from the next that both can be read."""
    low, high = (
        (0.0, 100.0) if quality.endswith("%") else (min(ends.values(), default=0), max(ends.values(), default=1))
    )
    gap = NAME_HEIGHT * (high - low)
    places: dict[str, float] = {}
    above = math.inf
    for name, value in sorted(ends.items(), key=lambda item: -item[1]):
        places[name] = above = min(value, above - gap)
    # names that went below the panel push those above them up again
    below = low - gap
    for name in reversed(places):
        places[name] = below = max(places[name], below + gap)
    return places


def _variants(report: Report) -> list[str]:
    """The ranked and unranked variants, in the order of the board; no baselines."""
    return [row.name for kind, row in report.board.rows if kind != "baseline"]


def _pareto(reports: Sequence[Report]) -> tuple[FigureRows, str]:
    """The points of each board with three or more, and what is left out in words."""
    shown = [report for report in reports if len(report.pareto) > 2][:MOST_PANELS]
    names = list(dict.fromkeys(point["variant"] for report in shown for point in report.pareto))
    kept = names[:MOST_VARIANTS]
    found = []
    for report, title in zip(shown, _titles(shown), strict=True):
        better = " (lower is better)" if report.better == "lower" else ""
        points = {point["variant"]: point for point in report.pareto}
        found += [{"task": f"{title}: {report.quality}{better}", **points[name]} for name in kept if name in points]
    return tuple(found), f"{len(kept)} of {len(names)} variants." if len(names) > len(kept) else ""


def _titles(reports: Sequence[Report]) -> list[str]:
    """The task of each; with its preset, or by its whole name, where that alone names several."""
    forms = [(report.board.title.partition(", preset ")[0], report.board.title, report.name) for report in reports]
    return [
        next((form for at, form in enumerate(own) if sum(other[at] == form for other in forms) == 1), own[-1])
        for own in forms
    ]


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
    """The score of each variant on each task, and its cost at the longest length swept.

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
            column = Ability(title=f"{title}, {length:,} tokens", report=best.name, unit=unit, is_cost=True)
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
