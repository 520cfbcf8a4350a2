"""The boards of prefill and decoding over batch × cache length: tokens a second, and the bytes that a state holds.

Both come from sweeps of several batches: `mode=decode`, whose length is that of the cache, and `mode=forward` with
`causal=true`, whose length is that of the prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from ..core.cell import REFERENCE
from ..core.record import Outcome
from ..core.spec import Spec
from ..score.cost import Mode, RelativeCost, costs_by_variant, floor_of
from ..score.key import BoardKey
from ..score.quality import outcome_words
from ..stats.format import count, memory, size, speed
from ..stats.intervals import Estimate, mean_of
from ..stats.ranking import standings
from ..stats.scoring import ratio
from ..store.table import ResultTable
from .board import NO_RIVAL, Board, Note, Row, TableCell, split_by_rank
from .cells import EMPTY, ratio_cell, reference_cell
from .columns import BoardColumn, cells_of, column_footnotes, plain_columns
from .conditions import condition_footnotes
from .footnotes import version_footnotes
from .headline import nothing_ranked
from .length_board import headline_of_costs, missing_words, timing_footnotes
from .notes import NoteKind, footnote

MODES: Mapping[Mode, str] = {"forward": "prefill", "decode": "decoding"}

NO_STATE = "it cannot decode, so that it keeps no state to be filled"


@dataclass(frozen=True, slots=True, order=True)
class Served:
    """A point of the board: `batch` sequences with a prompt, or a cache, of `length` tokens."""

    batch: int
    length: int

    def __str__(self) -> str:
        return f"{self.batch:,} × {self.length:,}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSweep:
    """Boards that differ in batch and length alone. `name`: task and preset without them; `machine`: of all timings."""

    name: str
    machine: str
    mode: Mode
    board_keys: Mapping[Served, BoardKey]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingRow:
    """What the cells of one variant are made from: its costs by point. `complete`: it has a standing at every one.

    `reference_states`: bytes of the reference's state by length.
    """

    table: ResultTable
    name: str
    costs: Mapping[Served, RelativeCost]
    complete: bool
    reference_states: Mapping[int, float] = field(default_factory=dict)

    def number(self, name: str, point: Served) -> float | None:
        """Its measurement of that name at that point; None where it did not run."""
        cost = self.costs.get(point)
        if cost is None or cost.outcome != Outcome.OK:
            return None
        found = self.table.number(name, cost.row)
        return None if found is None else found.value

    @property
    def states(self) -> dict[int, float]:
        """Bytes of the state of one sequence by length, where it has one."""
        found = {point.length: self.state(point.length) for point in self.costs}
        return {length: held for length, held in found.items() if held is not None}

    def state(self, length: int) -> float | None:
        """Bytes of the state of one sequence after `length` tokens, which do not depend on the batch."""
        held = [self.number("state_bytes", point) for point in self.costs if point.length == length]
        return max((each for each in held if each is not None), default=None)


def serving_sweeps(table: ResultTable, board_keys: list[BoardKey]) -> list[ServingSweep]:
    """The sweeps among `board_keys` that decode, or pass causally without gradients, in two batches or more."""
    found: dict[tuple[object, ...], dict[Served, BoardKey]] = {}
    for board_key in board_keys:
        settings = [run.setting for run in board_key.runs(table, "time")]
        if not board_key.machine or not settings:
            continue
        setting, task = settings[-1], Spec.parse(board_key.task)
        mode = setting.get("mode")
        serves = mode == "decode" or (mode == "forward" and setting.get("causal"))
        serves = serves and setting.get("level") == "attention" and not setting.get("memory_bytes")
        # of a fixed number of tokens the batch follows the length: no two lengths share one
        if serves and not task.get("tokens"):
            rest = str(Spec(task.name, tuple(p for p in task.parameters if p[0] not in ("length", "batch"))))
            family = (rest, board_key.preset, board_key.fidelity, board_key.protocol, board_key.machine, mode)
            point = Served(int(setting["batch"]), int(setting["length"]))
            found.setdefault(family, {})[point] = board_key
    return [
        ServingSweep(
            name=f"{family[0]}, preset {family[1]}", machine=str(family[4]),
            mode="decode" if family[5] == "decode" else "forward", board_keys=dict(sorted(by_point.items())),
        )
        for family, by_point in found.items()
        if len({point.batch for point in by_point}) > 1
    ]  # fmt: skip


def board_for_serving(table: ResultTable, sweep: ServingSweep) -> Board:
    """Ranks by the geometric mean of the ratios over all points; a point that was not measured costs the rank."""
    timings = {point: costs_by_variant(table, key, sweep.mode) for point, key in sweep.board_keys.items()}
    points = list(timings)
    floor = max(floor_of(found) for found in timings.values())
    names = sorted({name for found in timings.values() for name in found})
    rows_of = {
        name: ServingRow(
            table=table, name=name, costs={p: found[name] for p, found in timings.items() if name in found},
            complete=not missing_words(name, timings),
        )
        for name in names
    }  # fmt: skip
    if REFERENCE in rows_of:
        beside = rows_of[REFERENCE].states
        rows_of = {name: replace(row, reference_states=beside) for name, row in rows_of.items()}
    reasons = {name: missing_words(name, timings) or _without_state(row) for name, row in rows_of.items()}
    complete = [name for name in names if not reasons[name]]

    def gap(one: str, other: str) -> Estimate:
        return mean_of([timings[point][one].advantage_over(timings[point][other]) for point in points])

    columns = serving_columns(points, sweep.mode)
    rows = {
        name: Row(name=name, entries=cells_of(columns, row), reason=reasons[name] or NO_RIVAL)
        for name, row in rows_of.items()
    }
    order = standings(complete, gap, floor) if len(complete) > 1 else []
    ranked, unranked = split_by_rank(order, rows)
    runs = [run for key in sweep.board_keys.values() for run in key.runs(table, "time")]
    work, axes = MODES[sweep.mode], f"batch × {_length_words(sweep.mode)}"
    return Board(
        name=f"{sweep.name}/{sweep.machine}/{work} by batch",
        title=f"{sweep.name}: {work} over {axes}",
        question=f"How many tokens a second does {work} make on {sweep.name}, over {axes}?",
        headline=headline_of_costs(order, gap, floor) if order else nothing_ranked(unranked),
        ranked_by="mean",
        columns=plain_columns(columns),
        ranked=ranked,
        unranked=unranked,
        notes=(
            *_footnotes(sweep.mode),
            *timing_footnotes(sweep.machine, timings, floor, "point", "points"),
            *column_footnotes(columns, rows.values()),
            *condition_footnotes(table, timings, "point"),
            *version_footnotes(table, runs, [(key.task, key.preset) for key in sweep.board_keys.values()]),
        ),
        parts=(_states(sweep, points, [rows_of[row.name] for row in (*ranked, *unranked)]),),
    )


def serving_columns(points: list[Served], mode: Mode) -> tuple[BoardColumn[ServingRow], ...]:
    """A column for each point, batch by batch, then the mean of the ratios."""
    words = "prompts of {} tokens" if mode == "forward" else "caches of {} tokens"
    return (
        *(
            BoardColumn(name=f"at_{point.batch}_{point.length}", title=str(point), unit="tokens/second",
                        better="higher", importance=len(points) - at,
                        description=f"tokens a second of {point.batch:,} sequences with "
                        f"{words.format(f'{point.length:,}')}, and the time of them over {REFERENCE}'s",
                        cell=partial(_tokens, point))
            for at, point in enumerate(points)
        ),
        BoardColumn(name="mean", title="mean", unit="× reference", better="lower", importance=0,
                    description="geometric mean of the ratios of time over all points", cell=_mean),
    )  # fmt: skip


def _tokens(point: Served, row: ServingRow) -> TableCell:
    cost = row.costs.get(point)
    if cost is None:
        return EMPTY
    rate = row.number("tokens_per_second", point)
    if rate is None or cost.cost is None:
        words = outcome_words(cost.outcome) if cost.outcome != Outcome.OK else "too few rounds"
        return TableCell(text=words, note=cost.reason)
    if row.name == REFERENCE:
        return TableCell(text=count(rate), value=rate)
    shown = ratio(cost.cost)
    brief = speed(replace(shown, low=shown.value, high=shown.value))
    return TableCell(
        text=f"{count(rate)}, {speed(shown)}", brief=f"{count(rate)}, {brief}", bare=count(rate), value=rate
    )


def _mean(row: ServingRow) -> TableCell:
    if row.name == REFERENCE:
        return reference_cell(1.0)
    found = [cost.standing for cost in row.costs.values() if cost.standing]
    return ratio_cell(mean_of(found)) if row.complete else EMPTY


def _states(sweep: ServingSweep, points: list[Served], rows: list[ServingRow]) -> Board:
    """Bytes of the state of one sequence, by length: keys and values, or what a recurrence keeps."""
    lengths, most = sorted({point.length for point in points}), max(point.batch for point in points)
    columns: tuple[BoardColumn[ServingRow], ...] = (
        *(
            BoardColumn(name=f"state_{length}", title=f"{length:,}", unit="bytes", better="lower",
                        cell=partial(_state, length, 1),
                        description=f"state of one sequence after {length:,} tokens, and that of {REFERENCE} over it")
            for length in lengths
        ),
        BoardColumn(name="state_of_batch", title=f"{most:,} × {lengths[-1]:,}", unit="bytes", better="lower",
                    importance=0, cell=partial(_state, lengths[-1], most),
                    description="states of all sequences of the largest point"),
    )  # fmt: skip
    return Board(
        name=f"{sweep.name}/{sweep.machine}/state of {MODES[sweep.mode]}",
        title="state of one sequence, by length",
        question="How many bytes does decoding keep?",
        columns=plain_columns(columns),
        ranked=(),
        unranked=tuple(Row(name=row.name, entries=cells_of(columns, row)) for row in rows),
    )


def _state(length: int, batch: int, row: ServingRow) -> TableCell:
    held = row.state(length)
    if held is None:
        return EMPTY
    beside = row.reference_states.get(length) if batch == 1 and row.name != REFERENCE else None
    ratio_words = f", {memory(held / beside)}" if beside else ""
    return TableCell(text=size(batch * held) + ratio_words, bare=size(batch * held), value=batch * held)


def _without_state(row: ServingRow) -> str:
    """Why a variant that ran everywhere cannot serve; empty where it can."""
    return "" if any(row.number("state_bytes", point) is not None for point in row.costs) else NO_STATE


def _length_words(mode: Mode) -> str:
    return "cache length" if mode == "decode" else "prompt length"


def _footnotes(mode: Mode) -> Iterator[Note]:
    text = (
        "the last 16 tokens up to the length, one at a time, each sequence from a state that holds all before them"
        if mode == "decode"
        else "one causal pass over the prompts without gradients; writing the state is no part of it, since variants "
        "have no common way to do so"
    )
    yield footnote(topic="tokens", text=text)
    measured = "the bytes that are held, of buffers that double when they are full" if mode == "decode" else "declared"
    yield footnote(topic="state", text=f"of one sequence, all layers, {measured}", kind=NoteKind.METHOD)
