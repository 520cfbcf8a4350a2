"""The board of cost over lengths: ratios to the reference at each, and from which length a variant pays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..core.cell import REFERENCE
from ..core.errors import SelectionError
from ..core.record import Outcome
from ..core.spec import Spec
from ..score.cost import Mode, costs_by_variant, floor_of
from ..score.key import BoardKey
from ..score.quality import outcome_words
from ..stats.format import speed
from ..stats.intervals import Estimate, mean_of
from ..stats.ranking import Advantage, Standing, difference_is_proven, standings
from ..stats.scoring import CAP, ratio
from ..store.table import ResultTable
from .board import NO_RIVAL, Board, Note, Row, split_by_rank
from .columns import cells_of, column_footnotes, plain_columns
from .conditions import CostsByPoint, condition_footnotes, point_words
from .footnotes import (
    FAILURES,
    PERCENT,
    RANKS,
    difference_words,
    resolution_in_brief,
    resolution_words,
    span_of,
    unit_of,
    version_footnotes,
)
from .headline import cost_headline, nothing_ranked
from .length_columns import ANSWERS, MODES, OPTIONAL, CostsByLength, LengthRow, length_columns
from .notes import NoteKind, footnote


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
    """The modes that were timed at one length or more."""
    return [mode for mode in MODES if _timings(table, sweep, mode)]


def boards_over_lengths(
    table: ResultTable, board_keys: list[BoardKey], mode: Mode | None = None, least: int = 2
) -> list[Board]:
    """A board for every sweep among `board_keys`, in `mode`, or in each mode that was timed where that is None."""
    return [
        board_for_lengths(table, sweep, found)
        for sweep in sweeps(table, board_keys, least)
        for found in modes_of(table, sweep)
        if mode is None or found == mode
    ]


def board_for_lengths(table: ResultTable, sweep: LengthSweep, mode: Mode = "step") -> Board:
    """Ranks by the geometric mean of the ratios over all lengths; a length that was not measured costs the rank.

    Raises SelectionError where the mode was not timed.
    """
    timings = _timings(table, sweep, mode)
    if not timings:
        raise SelectionError(f"{sweep.name} was not timed in the mode {mode!r}")
    lengths = list(timings)
    names = sorted({name for found in timings.values() for name in found})
    floor = max(floor_of(dict(found)) for found in timings.values())
    missing = {name: missing_words(name, timings) for name in names}
    complete = [name for name in names if not missing[name]]

    def gap(one: str, other: str) -> Estimate:
        return mean_of([timings[length][one].advantage_over(timings[length][other]) for length in lengths])

    rows_timed = [cost.row for found in timings.values() for cost in found.values()]
    measured = [name for name in OPTIONAL if table.values(name, rows_timed)]
    columns = [c for c in length_columns(lengths, mode, floor, sweep.max_length, measured) if c.present]
    variants = [LengthRow.of(table, name, timings, name in complete) for name in names]
    rows = {
        variant.name: Row(
            name=variant.name, entries=cells_of(columns, variant), reason=missing[variant.name] or NO_RIVAL
        )
        for variant in variants
    }
    order = standings(complete, gap, floor) if len(complete) > 1 else []
    ranked, unranked = split_by_rank(order, rows)
    keys = [key for key in (*sweep.board_keys.values(), sweep.max_length) if key is not None]
    runs = [run for board_key in keys for run in board_key.runs(table, "time")]
    several = len(lengths) > 1
    return Board(
        name=f"{sweep.name}/{sweep.machine}/{mode}",
        title=f"{sweep.name}: {MODES[mode].one} {'over lengths' if several else f'at length {lengths[0]:,}'}",
        question=f"How fast is {MODES[mode].one} on {sweep.name}"
        + (", by length?" if several else f", at length {lengths[0]:,}?"),
        headline=headline_of_costs(order, gap, floor) if order else nothing_ranked(unranked),
        ranked_by="mean" if several else "",
        columns=plain_columns(columns, (*ANSWERS, *(f"at_{length}" for length in lengths))),
        ranked=ranked,
        unranked=unranked,
        notes=(
            *timing_footnotes(sweep.machine, timings, floor, "length", "lengths"),
            *column_footnotes(columns, rows.values()),
            *condition_footnotes(table, timings),
            *version_footnotes(table, runs, [(key.task, key.preset) for key in keys]),
        ),
    )


def headline_of_costs(order: list[Standing], gap: Advantage, floor: float) -> str:
    """Who is faster than the reference on the mean over all points, corrected for all pairs of the ranks."""
    names, pairs = [standing.name for standing in order], len(order) * (len(order) - 1) // 2
    if REFERENCE not in names:
        return ""
    gaps = {name: gap(name, REFERENCE) for name in names if name != REFERENCE}
    proven = {
        name: found.value > 0 if abs(found.value) > floor and difference_is_proven(found, pairs) else None
        for name, found in gaps.items()
    }
    first = order[0].name
    alone = first != REFERENCE and order[0].last == 1
    return cost_headline(proven, f"{first}, {speed(ratio(gap(REFERENCE, first)))}" if alone else "")


def _timings(table: ResultTable, sweep: LengthSweep, mode: Mode) -> CostsByLength:
    """Costs by length and variant, at the lengths at which the mode was timed."""
    found = {length: costs_by_variant(table, board_key, mode) for length, board_key in sweep.board_keys.items()}
    return {length: costs for length, costs in found.items() if any(cost.cost is not None for cost in costs.values())}


def _without_length(text: str) -> str:
    spec = Spec.parse(text)
    return str(Spec(spec.name, tuple(p for p in spec.parameters if p[0] not in ("length", "memory_bytes"))))


def missing_words(name: str, timings: CostsByPoint) -> str:
    """Why the variant cannot be ranked; empty where it can. Points are lengths, or what tells itself as text."""
    missing = [point for point, found in timings.items() if name not in found]
    if missing:
        return f"not measured at {', '.join(map(point_words, missing))}"
    for point, found in timings.items():
        cost = found[name]
        if cost.outcome == Outcome.OK and cost.standing is None:
            return f"{cost.reason} at {point_words(point)}"
        if cost.outcome == Outcome.INCORRECT or cost.standing is None:
            return f"{outcome_words(cost.outcome)} at {point_words(point)}: {cost.reason}"
    return ""


def timing_footnotes(machine: str, timings: CostsByPoint, floor: float, point: str, points: str) -> Iterator[Note]:
    """How times were taken and ranked. `point`, `points`: what the board is over, such as length and lengths."""
    rounds = sorted({len(cost.seconds) for found in timings.values() for cost in found.values() if cost.seconds})
    of_these = f", for these {points} and not for others" if len(timings) > 1 else ""
    yield footnote(
        topic="speed",
        text=f"{span_of(rounds)} rounds a {point}, interleaved with {REFERENCE}, on machine {machine}; brackets: "
        f"{PERCENT} t intervals over {unit_of(rounds)}{of_these}",
    )
    text = f"{difference_words(floor)}, by the null control; a smaller difference makes no rank and no crossover"
    text += resolution_words(*(dict(found) for found in timings.values()))
    resolution = resolution_in_brief(*(dict(found) for found in timings.values()))
    brief = f"a difference below {difference_words(floor)} makes no rank{resolution}"
    yield footnote(topic="noise floor", text=text, kind=NoteKind.NOISE, brief=brief)
    yield footnote(topic="rank", text=RANKS)
    if any(cost.outcome != Outcome.OK for found in timings.values() for cost in found.values()):
        brief = f"out of memory and timeout count as {CAP:.0f} × {REFERENCE}"
        text = f"out of memory and timeout {FAILURES}"
        yield footnote(topic="failures", text=text, kind=NoteKind.MISSING, brief=brief)
