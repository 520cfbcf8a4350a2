"""The map of costs: all sweeps of one machine as one board, instead of a board for each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from ...board.board import Board, Column, Note, Row, TableCell
from ...board.cells import EMPTY, number_cell
from ...board.kinds import CostBoard
from ...board.length_board import MODES, LengthSweep, Swept, time_cell, timings_of
from ...board.report import COST_MAP
from ...board.timings import Timings, timing_notes
from ...board.version_notes import version_notes
from ...core.cell import REFERENCE
from ...core.spec import Spec
from ...score.cost import Mode, RelativeCost
from ...stats.scoring import CAP, ratio
from ...store.table import ResultTable

LEAST = 3
"""The least sweeps of a machine that are one map; fewer have a board each."""

EVEN = "≈"

PLAIN = "plain"

READING = (
    f"time over {REFERENCE}'s, below 1 is faster; ≈: within the 95 % interval or the noise floor; intervals, memory "
    "and ranks: `attnbench leaderboard --lengths`, or of one task"
)


@dataclass(slots=True)
class _Part:
    """Columns side by side, each a setting or a length, with a cell for each variant."""

    title: str
    columns: list[Column] = field(default_factory=list)
    cells: list[dict[str, TableCell]] = field(default_factory=list)


def summaries(table: ResultTable, swept: Swept) -> list[CostBoard]:
    """A map for each machine with `LEAST` sweeps or more, counting each mode that was timed."""
    by_machine: dict[str, list[tuple[LengthSweep, Mode]]] = {}
    for sweep, mode in swept:
        by_machine.setdefault(sweep.machine, []).append((sweep, mode))
    return [
        CostBoard(
            board=board_for_map(table, machine, members),
            keys=[key for sweep, _ in members for key in sweep.board_keys.values()],
            group=COST_MAP,
        )
        for machine, members in by_machine.items()
        if len(members) >= LEAST
    ]


def board_for_map(table: ResultTable, machine: str, swept: Swept) -> Board:
    """Time over the reference's for each variant at each setting and length; nobody is ranked."""
    parts: dict[str, _Part] = {}
    codes: dict[str, dict[str, None]] = {}
    warned: list[Note] = []
    # the plainest first
    for sweep, mode in sorted(swept, key=lambda member: (len(member[0].name), member[0].name)):
        timings = timings_of(table, sweep, mode)
        _add(parts, sweep, mode, timings)
        for name in timings.names:
            codes.setdefault(name, {}).setdefault(timings.implementation(name).partition(";")[0])
        runs = [run for key in sweep.board_keys.values() for run in key.runs(table, "time")]
        asked = [(key.task, key.preset) for key in sweep.board_keys.values()]
        notes = (*timing_notes(timings, runs, machine, "length"), *version_notes(table, runs, asked))
        warned += {one.topic: one for one in notes if one.warning}.values()
    filled = {name: list(_filled(parts, name)) for name in codes}
    names = sorted(filled, key=lambda name: (name != REFERENCE, _middle(filled[name]), name))
    topics, first = dict.fromkeys(one.topic for one in warned), swept[0][0]
    columns = (
        Column(name="faster", title="faster", better="higher", description=f"where it is faster than {REFERENCE}"),
        Column(name="slower", title="slower", better="lower", description=f"where it is slower than {REFERENCE}"),
        Column(name="least", title="at best", unit="× reference", better="lower", description="its lowest ratio"),
        Column(name="most", title="at worst", unit="× reference", better="lower", description="its highest ratio"),
        Column(name="implementation", title="ran as", description="code that was timed"),
    )
    words = table.machines[machine].words
    return Board(
        name=f"cost-map/{machine}",
        title=f"cost by setting and length, {words}",
        question=f"Where is each attention faster than {REFERENCE}, on {words}?",
        headline=_headline(filled, codes),
        ranked_by="faster",
        columns=columns,
        ranked=(),
        unranked=tuple(Row(name=name, entries=_entries(name, filled[name], codes[name])) for name in names),
        parts=tuple(_board(part, names) for part in parts.values()),
        notes=(
            Note(topic="reading", text=f"{READING} as `--task '{first.board_keys[min(first.board_keys)].task}'`"),
            *(_warning(topic, sum(one.topic == topic for one in warned), len(swept)) for topic in topics),
        ),
    )


def _warning(topic: str, count: int, every: int) -> Note:
    return Note(
        topic=topic, kind="warning", text=f"a warning on {count} of these {every} sweeps, whose own boards say more"
    )


def _add(parts: dict[str, _Part], sweep: LengthSweep, mode: Mode, timings: Timings) -> None:
    """Lengths of one setting are a part; settings that were timed at one length share a part."""
    key = next(iter(sweep.board_keys.values()))
    spec = Spec.parse(key.task)
    kept = tuple(p for p in spec.parameters if p[0] not in ("length", "memory_bytes", "mode"))
    preset = Spec.parse(key.preset)
    preset = Spec(preset.name, tuple(p for p in preset.parameters if p[0] != "length"))
    setting = str(Spec(spec.name, kept))
    several = len(timings.points) > 1
    where = f" on {setting}" if several else f" on {spec.name} at length {timings.points[0]:,}"
    title = f"{MODES[mode].one}{where}, preset {preset}"
    part = parts.setdefault(title, _Part(title))
    for length in timings.points:
        named = f"{length:,}" if several else ", ".join(_words(*parameter) for parameter in kept) or PLAIN
        part.columns.append(
            Column(
                name=f"at_{len(part.columns)}", title=named, unit="× reference", better="lower",
                description=f"time of {MODES[mode].one} over {REFERENCE}'s, length {length:,}",
            )
        )  # fmt: skip
        costs = timings.by_point[length]
        part.cells.append({name: _cell(name, cost, timings) for name, cost in costs.items()})


def _words(name: str, value: object) -> str:
    """
    >>> _words("causal", True), _words("input", "local"), _words("head_dim", 128)
    ('causal', 'local', 'head_dim=128')
    """
    return name if value is True else value if isinstance(value, str) else f"{name}={value}"


def _cell(name: str, cost: RelativeCost, timings: Timings) -> TableCell:
    """The ratio as a number; marked where neither the interval nor the noise floor leaves a difference."""
    told = time_cell(name, cost)
    if name == REFERENCE or cost.cost is None or told.low is None:
        return told
    found = ratio(cost.cost)
    even = abs(cost.cost.value) <= max(timings.floor, cost.cost.half_width())
    # a time beyond the cap counts as the cap, and is not known to be that
    sign = EVEN if even else "≥ " if found.value >= CAP else ""
    return replace(told, text=sign + _digits(found.value), brief="", bare="", note=told.text)


def _digits(times: float) -> str:
    return f"{times:.{2 if times < 10 else 0}f}"


def _filled(parts: dict[str, _Part], name: str) -> Iterator[TableCell]:
    return (cells[name] for part in parts.values() for cells in part.cells if name in cells)


def _middle(cells: Sequence[TableCell]) -> float:
    logs = [math.log(cell.value) for cell in cells if cell.value]
    return math.fsum(logs) / len(logs) if logs else math.inf


def _told(cells: Sequence[TableCell]) -> tuple[int, int]:
    """The numbers of settings at which it is faster and slower."""
    apart = [cell.value for cell in cells if cell.value and not cell.text.startswith(EVEN)]
    return sum(value < 1 for value in apart), sum(value > 1 for value in apart)


def _entries(name: str, cells: Sequence[TableCell], codes: dict[str, None]) -> tuple[TableCell, ...]:
    ran = TableCell(text=", ".join(filter(None, codes)))
    if name == REFERENCE:
        return TableCell(text="reference"), *[EMPTY] * 3, ran
    values = [cell.value for cell in cells if cell.value]
    counts = [TableCell(text=f"{count} of {len(cells)}", value=float(count)) for count in _told(cells)]
    ends = [number_cell(end(values) if values else None, _digits) for end in (min, max)]
    return *counts, *ends, ran


def _headline(filled: dict[str, list[TableCell]], codes: dict[str, dict[str, None]]) -> str:
    """The variants that are faster or slower wherever timed; plain code may be slow where the mechanism is not."""
    groups: dict[str, list[str]] = {"Faster": [], "Slower": [], "depends": []}
    settings = max(map(len, filled.values()))
    for name in sorted(set(filled) - {REFERENCE}):
        (faster, slower), every = _told(filled[name]), len(filled[name])
        slow_code = bool(slower) and set(codes[name]) == {"eager"}
        remarks = [f"timed in {every}"] * (every < settings) + ["eager"] * slow_code
        said_of = f"{name} ({'; '.join(remarks)})" if remarks else name
        groups["Faster" if faster == every else "Slower" if slower == every else "depends"].append(said_of)
    said = [f"{word} than {REFERENCE} wherever timed: {', '.join(groups[word])}." for word in ("Faster", "Slower")
            if groups[word]]  # fmt: skip
    if groups["depends"]:
        said.append(f"By setting and length: {', '.join(groups['depends'])}.")
    said.append(f"No number: timed in all {settings}. Cells are time over {REFERENCE}'s: 0.25 is four times as fast.")
    return " ".join(said)


def _board(part: _Part, names: Sequence[str]) -> Board:
    rows = [
        Row(name=name, entries=tuple(cells.get(name, EMPTY) for cells in part.cells))
        for name in names
        if any(name in cells for cells in part.cells)
    ]
    return Board(
        name=part.title, title=part.title, question="", columns=tuple(part.columns), ranked=(), unranked=tuple(rows)
    )
