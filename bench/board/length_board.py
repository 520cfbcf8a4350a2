"""The board of cost over lengths: ratios to the reference at each, and where a variant starts to pay."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..core.cell import REFERENCE
from ..core.errors import SelectionError
from ..core.record import Outcome
from ..core.spec import Spec
from ..score.cost import CAPPED, Mode, RelativeCost, costs_by_variant, floor_of
from ..score.key import BoardKey
from ..score.quality import outcome_words
from ..stats import format as wording
from ..stats.intervals import Estimate, NoiseSource
from ..stats.ranking import difference_is_proven, standings
from ..stats.scoring import BATCHES, CAP, ratio
from ..store.table import ResultTable
from .board import Board, Column, Footnote, Row, TableCell, in_order
from .conditions import surroundings
from .footnotes import PERCENT
from .length_columns import ByLength, memory_ratios, work_columns, work_entries

MODES: Mapping[Mode, str] = {"step": "a training step", "forward": "a forward pass", "decode": "a decoding step"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthTable:
    """Questions that differ in length alone. `name`: task and preset without it; `machine`: where all were timed.

    `longest`: the question how long a sequence fits the memory, where it was asked of the same.
    """

    name: str
    machine: str
    questions: Mapping[int, BoardKey]
    longest: BoardKey | None = None


def sweeps(table: ResultTable, questions: list[BoardKey], least: int = 2) -> list[LengthTable]:
    """The sweeps among `questions` that have at least that many lengths."""
    found: dict[tuple[object, ...], dict[int, BoardKey]] = {}
    bounded: dict[tuple[object, ...], BoardKey] = {}
    for board_key in questions:
        settings = [run.setting for run in board_key.runs(table, "time") if run.setting.get("length")]
        if board_key.machine and settings:
            task, preset = _without_length(board_key.task), _without_length(board_key.preset)
            family = (task, preset, board_key.fidelity, board_key.protocol, board_key.machine)
            if settings[-1].get("memory_bytes"):
                bounded[family] = board_key
            else:
                found.setdefault(family, {})[int(settings[-1]["length"])] = board_key
    return [
        LengthTable(
            name=f"{family[0]}, preset {family[1]}",
            machine=str(family[-1]),
            questions=dict(sorted(by_length.items())),
            longest=bounded.get(family),
        )
        for family, by_length in found.items()
        if len(by_length) >= least
    ]


def modes_of(table: ResultTable, sweep: LengthTable) -> list[Mode]:
    """The modes that were timed at one length or more."""
    questions = sweep.questions.values()
    return [
        mode
        for mode in MODES
        if any(t.cost is not None for board_key in questions for t in costs_by_variant(table, board_key, mode).values())
    ]


def boards_over_lengths(
    table: ResultTable, questions: list[BoardKey], mode: Mode | None = None, least: int = 2
) -> list[Board]:
    """A board for every sweep among `questions`, in `mode`, or in each mode that it was timed in where that is None."""
    return [
        board_for_lengths(table, sweep, found)
        for sweep in sweeps(table, questions, least)
        for found in modes_of(table, sweep)
        if mode is None or found == mode
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossover:
    """`length`: the smallest measured from which the variant beats the reference at every larger one, None for none.

    `between`: the log-log interpolation to the next smaller length, where that is not beaten.
    """

    length: int | None
    between: float | None = None
    text: str = ""


def crossover(costs: Mapping[int, Estimate | None], floor: float = 0.0) -> Crossover:
    """Where cost falls below the reference's for good; a failure (None) beats nothing.

    >>> slower, faster = Estimate(0.5, (NoiseSource(0.01),)), Estimate(-0.5, (NoiseSource(0.01),))
    >>> crossover({256: slower, 512: faster, 1024: faster}).text
    'from 512 on (about 362)'
    """
    lengths = sorted(costs)
    won = [length for length in lengths if _beats(costs[length], floor)]
    first = None
    for length in reversed(lengths):
        if length not in won:
            break
        first = length
    if first is None:
        return Crossover(length=None, text=f"not up to {lengths[-1]:,}" if lengths else "")
    if first == lengths[0]:
        return Crossover(length=first, text=f"from {first:,} on, or sooner")
    before = lengths[lengths.index(first) - 1]
    here, there = costs[before], costs[first]
    between = None
    if here is not None and there is not None and here.value > 0 > there.value:
        share = here.value / (here.value - there.value)
        between = math.exp(math.log(before) + share * (math.log(first) - math.log(before)))
    about = f" (about {between:,.0f})" if between else ""
    return Crossover(length=first, between=between, text=f"from {first:,} on{about}")


def board_for_lengths(table: ResultTable, sweep: LengthTable, mode: Mode = "step") -> Board:
    """Ranks by the geometric mean of the ratios over all lengths; a length that was not measured costs the rank.

    Raises SelectionError where the mode was not timed.
    """
    timings = {length: costs_by_variant(table, board_key, mode) for length, board_key in sweep.questions.items()}
    timings = {length: found for length, found in timings.items() if any(t.cost is not None for t in found.values())}
    if not timings:
        raise SelectionError(f"{sweep.name} was not timed in the mode {mode!r}")
    lengths = list(timings)
    names = sorted({name for found in timings.values() for name in found})
    floor = max(floor_of(found) for found in timings.values())
    lacks = {name: _lack(name, timings) for name in names}
    able = [name for name in names if not lacks[name]]

    def gap(one: str, other: str) -> Estimate:
        return mean_of([timings[length][one].gap(timings[length][other]) for length in lengths])

    where = "over lengths" if len(lengths) > 1 else f"at length {lengths[0]:,}"
    pays = ", and from which length does it pay" if len(lengths) > 1 else ""
    rows = {
        name: Row(
            name=name,
            entries=(
                *_entries(name, timings, not lacks[name], floor),
                *_beside(table, name, timings, sweep.longest),
            ),
            reason=lacks[name] or "nothing to be ranked against",
        )
        for name in names
    }
    order = standings(able, gap, floor) if len(able) > 1 else []
    return Board(
        name=f"{sweep.name}/{sweep.machine}/{mode}",
        title=f"{sweep.name}: {MODES[mode]} {where}",
        question=f"What does {MODES[mode]} cost against {REFERENCE}{pays}?",
        columns=(*_columns(lengths, mode), *work_columns(lengths, sweep.longest)),
        ranked=in_order(order, rows),
        unranked=tuple(row for name, row in rows.items() if name not in {s.name for s in order}),
        footnotes=(*_footnotes(sweep, timings, floor), *surroundings(table, timings)),
    )


def _columns(lengths: list[int], mode: Mode) -> Iterator[Column]:
    for at, length in enumerate(lengths):
        yield Column(name=f"at_{length}", title=f"{length:,}", unit="× reference", better="lower", importance=1 + at,
                     description=f"time of {MODES[mode]} at length {length:,}")  # fmt: skip
    if len(lengths) > 1:
        yield Column(name="mean", title="mean", unit="× reference", better="lower", importance=0,
                     description="geometric mean of the ratios over all lengths")  # fmt: skip
        yield Column(name="crossover", title="pays", unit="tokens", better="lower", importance=1,
                     description="smallest length from which it beats the reference at every larger one")  # fmt: skip


def mean_of(estimates: list[Estimate]) -> Estimate:
    """The mean of independent estimates: of these tasks or lengths, not of others like them.

    >>> mean_of([Estimate(1.0, (NoiseSource(0.3, 4),)), Estimate(3.0, (NoiseSource(0.4, 4),))])
    Estimate(value=2.0, noise=(NoiseSource(error=0.15, freedom=4), NoiseSource(error=0.2, freedom=4)))
    """
    count = len(estimates)
    noise = tuple(NoiseSource(n.error / count, n.freedom) for e in estimates for n in e.noise)
    return Estimate(math.fsum(e.value for e in estimates) / count, noise)


def _without_length(text: str) -> str:
    spec = Spec.parse(text)
    return str(Spec(spec.name, tuple(p for p in spec.parameters if p[0] not in ("length", "memory_bytes"))))


def _beats(cost: Estimate | None, floor: float) -> bool:
    return cost is not None and cost.value < -floor and difference_is_proven(cost)


def _lack(name: str, timings: ByLength) -> str:
    missing = [length for length, found in timings.items() if name not in found]
    if missing:
        return f"not measured at {', '.join(f'{n:,}' for n in missing)}"
    for length, found in timings.items():
        timing = found[name]
        if timing.outcome == Outcome.INCORRECT or timing.standing is None:
            words = outcome_words(timing.outcome) if timing.outcome != Outcome.OK else timing.reason
            return f"{words} at {length:,}" + (f": {timing.reason}" if timing.outcome != Outcome.OK else "")
    return ""


def _entries(name: str, timings: ByLength, able: bool, floor: float) -> tuple[TableCell, ...]:
    found = {length: by_name[name] for length, by_name in timings.items() if name in by_name}
    entries = [_entry(found.get(length)) for length in timings]
    costs = {length: timing.cost for length, timing in found.items()}
    if len(timings) == 1:
        return tuple(entries)
    if name == REFERENCE:
        return (*entries, TableCell(text="reference", value=1.0), TableCell())
    mean = TableCell()
    if able:
        over_all = ratio(mean_of([timing.standing for timing in found.values() if timing.standing]))
        mean = TableCell(text=wording.speed(over_all), brief=wording.speed(wording.point(over_all.value)),
                     value=over_all.value, low=over_all.low, high=over_all.high)  # fmt: skip
    pays = crossover(costs, floor)
    return (*entries, mean, TableCell(text=pays.text, value=pays.length))


def _beside(table: ResultTable, name: str, timings: ByLength, longest: BoardKey | None) -> Iterator[TableCell]:
    pays = crossover(memory_ratios(table, name, timings)).text if len(timings) > 1 else ""
    yield from work_entries(table, name, timings, pays, longest)


def _entry(timing: RelativeCost | None) -> TableCell:
    if timing is None:
        return TableCell()
    if timing.outcome != Outcome.OK or timing.cost is None:
        words = outcome_words(timing.outcome) if timing.outcome != Outcome.OK else "too few rounds"
        return TableCell(text=words, value=CAP if timing.outcome in CAPPED else None, note=timing.reason)
    if timing.variant == REFERENCE:
        return TableCell(text=wording.duration(timing.median), value=1.0)
    found = ratio(timing.cost)
    text = wording.speed(found)
    return TableCell(
        text=text, brief=wording.speed(wording.point(found.value)), value=found.value, low=found.low, high=found.high
    )


def _footnotes(sweep: LengthTable, timings: ByLength, floor: float) -> tuple[Footnote, ...]:
    rounds = sorted({len(t.seconds) for found in timings.values() for t in found.values() if t.seconds})
    span = f"{rounds[0]} to {rounds[-1]}" if len(rounds) > 1 else "".join(map(str, rounds))
    found = [
        Footnote(
            topic="speed",
            text=f"on machine {sweep.machine}, {span} rounds a length, interleaved with {REFERENCE}; "
            f"brackets: {PERCENT} intervals over rounds (in {BATCHES} batches from {2 * BATCHES} on)"
            + (", on these lengths" if len(timings) > 1 else ""),
        ),
        Footnote(
            topic="noise floor",
            text=f"{100 * math.expm1(floor):.1f} %, by the null control: nothing smaller makes a rank or a crossover",
        ),
        Footnote(topic="failures", text=f"out of memory and timeout count as {CAP:.0f} × {REFERENCE}"),
    ]
    if len(timings) > 1:
        pays = "needs an interval that leaves the reference behind at that length and at every larger one"
        found.append(Footnote(topic="pays", text=pays))
    return tuple(found)
