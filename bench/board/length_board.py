"""The board of cost over lengths: ratios to the reference at each, and from which length a variant pays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..core.cell import REFERENCE
from ..core.errors import SelectionError
from ..core.record import Outcome
from ..core.spec import Spec
from ..score.cost import Mode, costs_by_variant
from ..score.key import BoardKey
from ..stats.format import speed
from ..stats.ranking import RankInterval, difference_is_proven, rank_intervals
from ..stats.scoring import ratio
from ..store.table import ResultTable
from .board import NO_RIVAL, Board, Row, split_by_rank
from .columns import cells_of, finished, plain_columns
from .headline import cost_headline, nothing_ranked
from .length_columns import ANSWERS, MODES, length_columns
from .timing_notes import timing_notes
from .timings import Timings
from .version_notes import version_notes


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


def modes_of(table: ResultTable, sweep: LengthSweep) -> list[Mode]:
    """The modes that were timed at one length or more; the sweep's own where all failed."""
    return [mode for mode in MODES if timings_of(table, sweep, mode).points]


def boards_over_lengths(table: ResultTable, board_keys: list[BoardKey], mode: Mode | None = None) -> list[Board]:
    """A board for every sweep among `board_keys`, in `mode`, or in each mode that was timed where that is None."""
    return [
        board_for_lengths(table, sweep, found)
        for sweep in sweeps(table, board_keys)
        for found in modes_of(table, sweep)
        if mode is None or found == mode
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
    """Who is faster than the reference on the mean over all points, corrected for all pairs of the ranks."""
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
    proven = {f"{name} (eager)" if name in eager else name: found for name, found in proven.items()}
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
