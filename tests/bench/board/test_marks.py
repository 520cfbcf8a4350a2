"""Variants that are not established have no place; those that were still improving are never called worse."""

from dataclasses import replace

import numpy as np
import pytest
from boards import entry, row, text

from attnbench.bench.board.board import Board
from attnbench.bench.board.compare import compare
from attnbench.bench.board.suite_board import board_for_suite
from attnbench.bench.board.task_board import board_for_task
from attnbench.bench.core.record import Measurement
from attnbench.bench.score.key import board_keys
from attnbench.bench.store.table import ResultTable, table_of

SHARES = {"softmax": 0.7, "rela": 0.8, "linear": 0.4, "local": 0.3}
NEVER_RUN = {"local": "its control was never run"}


def correct(share: float) -> list[np.ndarray]:
    rng = np.random.default_rng(int(1000 * share))
    return [(rng.random(2000) < share + shift).astype(np.uint8) for shift in (0.0, 0.01, -0.01)]


def trained(bench: object, unsettled: dict[str, int], tasks: tuple[str, ...] = ("lra-text",)) -> object:
    """Three seeds of each; so many of a variant's ended while validation improved."""
    b = bench()
    for b.task in tasks:
        for name, share in SHARES.items():
            before = len(b.records)
            b.train(name, [], correct=correct(share))
            for at, record in enumerate(b.records[before:]):
                settled = Measurement.of("settled", float(at >= unsettled.get(name, 0)))
                b.records[before + at] = replace(record, measurements=(*record.measurements, settled))
    return b


def task_board(b: object, table: ResultTable) -> Board:
    return board_for_task(table, board_keys(table)[0], predictions=b.predictions)


def test_a_variant_that_is_not_established_has_no_place_and_no_verdict(bench) -> None:
    b = trained(bench, {})
    without, marked = table_of(b.records), replace(table_of(b.records), unestablished=NEVER_RUN)
    assert "local" in without_marks(task_board(b, without))
    found = task_board(b, marked)
    assert "local" not in without_marks(found) and {r.name for r in found.ranked} == {"softmax", "rela", "linear"}
    assert row(found, "local").reason == "not established: its control was never run"
    assert entry(found, "local", "verdict").text == ""
    assert "by more than 1 point: linear." in found.headline
    assert found.headline.endswith("Not established: local.")
    # the other three keep their intervals
    assert entry(found, "linear", "gap") == entry(task_board(b, without), "linear", "gap")


def without_marks(board: Board) -> list[str]:
    return [each.name for each in board.ranked]


def test_the_mark_outlives_a_choice_of_rows(bench) -> None:
    marked = replace(table_of(trained(bench, {}).records), unestablished=NEVER_RUN)
    assert marked.only(lambda one: True).unestablished == NEVER_RUN


@pytest.mark.parametrize("count", [1, 3])
def test_a_variant_that_was_still_improving_is_never_worse(bench, count: int) -> None:
    b = trained(bench, {"linear": count})
    table = table_of(b.records)
    found = task_board(b, table)
    assert "Worse than softmax by more than 1 point: local. Not settled: linear." in found.headline
    assert entry(found, "linear", "verdict").text == "not settled"
    assert f"linear at {count} of 3 seeds" in text(found, "not settled")
    # it may turn out the best; that softmax is behind rela stays
    assert row(found, "linear").first == 1 and row(found, "softmax").first == 2
    assert "linear" not in text(found, "undecided")
    (said,) = {compare(table, key, "linear", "softmax", b.predictions).sentences[0] for key in board_keys(table)}
    assert said.endswith("Undecided: linear is not established, or was still improving when its training ended.")


def test_an_unsettled_reference_does_not_hold_a_better_variant_up(bench) -> None:
    found = task_board(b := trained(bench, {"softmax": 3}), table_of(b.records))
    assert entry(found, "rela", "verdict").text == "undecided"
    assert entry(found, "linear", "verdict").text == "worse by > 1 point"


def test_marks_of_one_task_hold_for_the_average(bench) -> None:
    b = trained(bench, {}, ("lra-text", "lra-listops"))
    of_other = trained(bench, {"linear": 2}, ("lra-image",))
    b.records += of_other.records
    table = replace(table_of(b.records), unestablished=NEVER_RUN)
    found = board_for_suite(table, "lra", board_keys(table), predictions=b.predictions)
    assert found.headline.endswith("Not settled: linear. Not established: local.")
    assert row(found, "local").reason.endswith("not established: its control was never run")
    assert {r.name: (r.first, r.last) for r in found.ranked}["linear"] == (1, 3)
    assert "lra-image: linear at 2 of 3 seeds" in text(found, "not settled")
