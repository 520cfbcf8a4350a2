"""The map of costs: many sweeps of one machine as one board."""

from dataclasses import replace

import pytest

from attnbench.bench.board.length_board import board_for_lengths, sweeps
from attnbench.bench.board.select import boards_of_sweeps
from attnbench.bench.core.record import Outcome
from attnbench.bench.score.key import board_keys
from attnbench.bench.store.table import table_of
from attnbench.bench.wings.cost_map.boards import board_for_map

TIMES = [1.0, 1.02, 0.98, 1.01, 0.99]


def swept(bench, tasks: dict[str, dict[str, float | None]], lengths=(256,), **more) -> object:
    """Timings of each task: how many times softmax's time each variant takes, None for out of memory."""
    b = bench(task="sweep", **more)
    for task, factors in tasks.items():
        for length in lengths:
            b.task = f"{task[:-1]},length={length}]" if task.endswith("]") else f"{task}[length={length}]"
            setting = {"setting": {"length": length}, "block": b.task}
            b.time("softmax", TIMES, TIMES, **setting)
            for name, factor in factors.items():
                if factor is None:
                    b.add(b.cell(name, lane="time"), outcome=Outcome.OUT_OF_MEMORY, **setting)
                else:
                    noisy = [factor * t * (1 + 0.01 * (-1) ** i) for i, t in enumerate(TIMES)]
                    b.time(name, noisy, TIMES, **setting)
    return b


THREE = {
    "sweep": {"linear": 0.5, "rela": 1.001, "additive": 30.0},
    "sweep[causal=true]": {"linear": 0.25, "rela": 0.5, "additive": None},
    "sweep[causal=true,input=local]": {"linear": 0.8, "rela": 2.0, "additive": 3.0},
}


def shown(board, name: str) -> dict[str, str]:
    row = next(row for _, row in board.rows if row.name == name)
    return {column.title: cell.text for column, cell in zip(board.columns, row.entries, strict=True)}


def test_many_sweeps_are_one_map_and_few_have_a_board_each(bench) -> None:
    table = table_of(swept(bench, THREE).records)
    (board,) = boards_of_sweeps(table, board_keys(table))
    assert board.name.startswith("cost-map/") and not board.ranked
    (part,) = board.parts
    assert [column.title for column in part.columns] == ["plain", "causal", "causal, local"]
    assert shown(part, "linear") == {"plain": "0.50", "causal": "0.25", "causal, local": "0.80"}
    assert shown(part, "additive") == {"plain": "30", "causal": "out of memory", "causal, local": "3.01"}
    few = table_of(swept(bench, dict(list(THREE.items())[:2])).records)
    assert len(boards_of_sweeps(few, board_keys(few))) == 2


def test_the_headline_says_who_is_faster_everywhere_and_counts_what_the_noise_leaves_open(bench) -> None:
    table = table_of(swept(bench, THREE).records)
    (board,) = boards_of_sweeps(table, board_keys(table))
    assert board.headline.startswith("Faster than softmax wherever timed: linear.")
    assert "By setting and length: " in board.headline and "rela" in board.headline.split("By setting")[1]
    assert shown(board, "rela") | {"ran as": ""} == {
        "faster": "1 of 3", "slower": "1 of 3", "at best": "0.50", "at worst": "2.00", "ran as": "",
    }  # fmt: skip
    assert shown(board.parts[0], "rela")["plain"].startswith("≈")


def test_lengths_of_one_setting_stand_side_by_side(bench) -> None:
    b = swept(bench, THREE, lengths=(256, 1024))
    table = table_of(b.records)
    (board,) = boards_of_sweeps(table, board_keys(table))
    assert [part.title for part in board.parts] == [
        "a training step on sweep, preset quick",
        "a training step on sweep[causal=true], preset quick",
        "a training step on sweep[causal=true,input=local], preset quick",
    ]
    assert [column.title for column in board.parts[0].columns] == ["256", "1,024"]


def test_a_number_of_the_map_is_that_of_the_sweeps_own_board(bench) -> None:
    table = table_of(swept(bench, THREE, lengths=(256, 1024)).records)
    found = sweeps(table, board_keys(table))
    board = board_for_map(table, found[0].machine, [(sweep, "step") for sweep in found])
    for part, sweep in zip(board.parts, sorted(found, key=lambda each: len(each.name)), strict=True):
        own = board_for_lengths(table, sweep)
        cell = own.cell(next(row for row in own.ranked if row.name == "linear"), "at_256")
        row = next(row for _, row in part.rows if row.name == "linear")
        assert row.entries[0] == replace(cell, text=row.entries[0].text, brief="", bare="", note=cell.text)
        assert float(row.entries[0].text) == pytest.approx(cell.value, abs=0.005)
