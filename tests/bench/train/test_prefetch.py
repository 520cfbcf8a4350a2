"""Prefetching: the same results in the same order, a bound, errors where they are met, and no thread left behind."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Iterator

import pytest

from attnbench.bench.train.batch_source import Prefetcher


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) == before


def wait_until(condition: object, seconds: float = 5.0) -> None:
    ends = time.monotonic() + seconds
    while not condition() and time.monotonic() < ends:  # type: ignore[operator]
        time.sleep(0.001)


def test_results_come_once_each_and_in_order() -> None:
    with Prefetcher(lambda number: number * number, range(3, 40)) as prefetcher:
        assert [prefetcher(number) for number in range(3, 40)] == [number * number for number in range(3, 40)]


def test_each_one_that_is_taken_makes_room_for_another() -> None:
    made: list[int] = []

    def make(number: int) -> int:
        made.append(number)
        return number

    with Prefetcher(make, range(100), ahead=2) as prefetcher:
        for taken in range(1, 6):
            prefetcher(taken - 1)
            wait_until(lambda taken=taken: len(made) >= taken + 2)
            assert len(made) == taken + 2


def broken(number: int) -> int:
    if number == 2:
        raise KeyError("row 17")
    return number


def test_an_error_is_raised_where_its_result_is_asked_for_with_its_traceback() -> None:
    with Prefetcher(broken, range(5)) as prefetcher:
        assert [prefetcher(0), prefetcher(1)] == [0, 1]
        with pytest.raises(KeyError, match="row 17") as found:
            prefetcher(2)
    assert traceback.extract_tb(found.value.__traceback__)[-1].name == "broken"


def test_a_thread_that_waits_for_room_ends_with_the_block() -> None:
    started = time.monotonic()
    with pytest.raises(RuntimeError, match="training"), Prefetcher(lambda number: number, range(10**6)):
        raise RuntimeError("training")
    assert time.monotonic() - started < 60


def test_another_number_than_the_next_is_refused() -> None:
    refused = pytest.raises(ValueError, match="batch 0, which is the next one, got 3")
    with Prefetcher(lambda number: number, range(5)) as prefetcher, refused:
        prefetcher(3)
