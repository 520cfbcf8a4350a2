"""The boards of prefill and decoding over batch × cache length: tokens a second, and the bytes that a state holds.

Both come from sweeps of several batches: `mode=decode`, whose length is that of the cache, and `mode=forward` with
`causal=true`, whose length is that of the prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from ...board.board import NO_RIVAL, Board, Column, Note, Row, TableCell, split_by_rank
from ...board.cells import EMPTY, Cell, cells_of, finished, plain_columns
from ...board.kinds import CostBoard
from ...board.length_board import headline_of_costs, mean_ratio_cell
from ...board.notes import nothing_ranked
from ...board.timings import RAN_AS, Timings, timing_notes
from ...board.version_notes import version_notes
from ...core.cell import REFERENCE
from ...core.record import Outcome
from ...core.spec import Spec
from ...score.cost import Mode, costs_by_variant
from ...score.key import BoardKey
from ...score.quality import describe_outcome
from ...stats.format import count, memory, size, speed
from ...stats.ranking import rank_intervals
from ...stats.scoring import ratio
from ...store.table import ResultTable

MODES: Mapping[Mode, str] = {"forward": "prefill", "decode": "decoding"}

TOKENS: Mapping[Mode, str] = {
    "forward": "one causal pass over the prompts without gradients; writing the state is no part of it",
    "decode": "the last 16 up to the length, one at a time, from a state that holds all before them",
}

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


def cost_boards(table: ResultTable, keys: list[BoardKey]) -> list[CostBoard]:
    """A board for each sweep over batch and length: that of a single batch over lengths would repeat its numbers."""
    return [
        CostBoard(board=board_for_serving(table, sweep), keys=list(sweep.board_keys.values()), mode=sweep.mode)
        for sweep in serving_sweeps(table, keys)
    ]


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
    costs = {point: costs_by_variant(table, key, sweep.mode) for point, key in sweep.board_keys.items()}
    timings = Timings(table=table, by_point=costs)
    # a variant that ran everywhere and keeps no state cannot serve
    reasons = {
        name: timings.missing_reason(name) or ("" if timings.numbers(name, "state_bytes") else NO_STATE)
        for name in timings.names
    }
    complete = [name for name, reason in reasons.items() if not reason]
    columns = serving_columns(timings, sweep.mode)
    rows = {
        name: Row(name=name, entries=cells_of(columns, name), reason=reason or NO_RIVAL)
        for name, reason in reasons.items()
    }
    order = rank_intervals(complete, timings.advantage, timings.floor) if len(complete) > 1 else []
    ranked, unranked = split_by_rank(order, rows)
    runs = [run for key in sweep.board_keys.values() for run in key.runs(table, "time")]
    work, axes = MODES[sweep.mode], f"batch × {'cache' if sweep.mode == 'decode' else 'prompt'} length"
    held = "the bytes that are held, of buffers that double when they are full"
    held = held if sweep.mode == "decode" else "declared"
    board = Board(
        name=f"{sweep.name}/{sweep.machine}/{work} by batch",
        title=f"{sweep.name}: {work} over {axes}",
        question=f"How many tokens a second does {work} make on {sweep.name}, over {axes}?",
        headline=headline_of_costs(order, timings) if order else nothing_ranked(unranked),
        ranked_by="mean",
        columns=plain_columns(columns),
        ranked=ranked,
        unranked=unranked,
        notes=(
            Note(topic="tokens", kind="method", text=TOKENS[sweep.mode]),
            Note(topic="state", kind="method", text=f"of one sequence, all layers, {held}"),
            *timing_notes(timings, runs, sweep.machine, "point"),
            *version_notes(table, runs, [(key.task, key.preset) for key in sweep.board_keys.values()]),
        ),
        parts=(_states(sweep, timings, [row.name for row in (*ranked, *unranked)]),),
    )
    return finished(board)


def serving_columns(timings: Timings, mode: Mode) -> list[tuple[Column, Cell]]:
    """A column for each point, batch by batch, then the mean of the ratios."""
    points, words = timings.points, "prompts of {} tokens" if mode == "forward" else "caches of {} tokens"
    return [
        *(
            (Column(name=f"at_{point.batch}_{point.length}", title=str(point), unit="tokens/second",
                    better="higher", importance=len(points) - at,
                    description=f"tokens a second of {point.batch:,} sequences with "
                    f"{words.format(f'{point.length:,}')}, and the time of them over {REFERENCE}'s"),
             partial(_tokens, timings, point))
            for at, point in enumerate(points)
        ),
        (Column(name="mean", title="mean", unit="× reference", better="lower", importance=0,
                description="geometric mean of the ratios of time over all points"),
         partial(mean_ratio_cell, timings)),
        (Column(name="implementation", title="ran as", importance=1, description=RAN_AS),
         lambda name: TableCell(text=timings.implementation(name))),
    ]  # fmt: skip


def _tokens(timings: Timings, point: Served, name: str) -> TableCell:
    cost = timings.by_point[point].get(name)
    if cost is None:
        return EMPTY
    rate = timings.numbers(name, "tokens_per_second").get(point)
    if rate is None or cost.cost is None:
        words = describe_outcome(cost.outcome) if cost.outcome != Outcome.OK else "too few rounds"
        return TableCell(text=words, note=cost.reason)
    if name == REFERENCE:
        return TableCell(text=count(rate), value=rate)
    shown = ratio(cost.cost)
    brief = speed(replace(shown, low=shown.value, high=shown.value))
    return TableCell(
        text=f"{count(rate)}, {speed(shown)}", brief=f"{count(rate)}, {brief}", bare=count(rate), value=rate
    )


def _states(sweep: ServingSweep, timings: Timings, names: list[str]) -> Board:
    """Bytes of the state of one sequence, by length: keys and values, or what a recurrence keeps."""
    lengths, most = sorted({point.length for point in timings.points}), max(point.batch for point in timings.points)
    columns: list[tuple[Column, Cell]] = [
        *(
            (Column(name=f"state_{length}", title=f"{length:,}", unit="bytes", better="lower",
                    description=f"state of one sequence after {length:,} tokens, and that of {REFERENCE} over it"),
             partial(_state, timings, length, 1))
            for length in lengths
        ),
        (Column(name="state_of_batch", title=f"{most:,} × {lengths[-1]:,}", unit="bytes", better="lower",
                importance=0, description="states of all sequences of the largest point"),
         partial(_state, timings, lengths[-1], most)),
    ]  # fmt: skip
    board = Board(
        name=f"{sweep.name}/{sweep.machine}/state of {MODES[sweep.mode]}",
        title="state of one sequence, by length",
        question="How many bytes does decoding keep?",
        columns=plain_columns(columns),
        ranked=(),
        unranked=tuple(Row(name=name, entries=cells_of(columns, name)) for name in names),
    )
    return finished(board)


def _state(timings: Timings, length: int, batch: int, name: str) -> TableCell:
    """The state of so many sequences after `length` tokens; that of one does not depend on the batch."""
    own, reference = (
        [kept for point, kept in timings.numbers(each, "state_bytes").items() if point.length == length]
        for each in (name, REFERENCE)
    )
    if not own:
        return EMPTY
    held = max(own)
    beside = max(reference, default=0) if batch == 1 and name != REFERENCE else 0
    times = f", {memory(held / beside)}" if beside else ""
    return TableCell(text=size(batch * held) + times, bare=size(batch * held), value=batch * held)
