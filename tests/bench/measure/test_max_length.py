"""The longest length that fits is found in few attempts."""

import pytest

from attnbench.bench.core.errors import SelectionError
from attnbench.bench.core.spec import Spec, parse_selection
from attnbench.bench.measure.max_length import GRAIN, PRECISION, MaxLength, search_max_length
from attnbench.bench.plan.options import with_longest


def attempts(limit: int, why: str = "memory", **bounds: int) -> tuple[MaxLength, list[int]]:
    tried: list[int] = []

    def attempt(length: int) -> str:
        tried.append(length)
        return "fits" if length <= limit else why

    return search_max_length(attempt, **bounds), tried


@pytest.mark.parametrize("limit", [256, 300, 700, 4096, 5000, 131_071, 700_001])
def test_it_lies_within_a_sixteenth_below_the_truth(limit: int) -> None:
    found, tried = attempts(limit)
    assert found.stopped == "memory"
    assert limit - max(GRAIN, PRECISION * found.length) - GRAIN <= found.length <= limit
    assert len(tried) == len(set(tried)) <= 20
    assert all(length % GRAIN == 0 for length in tried)


def test_nothing_fits() -> None:
    assert attempts(100)[0] == MaxLength(length=0, stopped="memory")


def test_it_says_when_time_and_not_memory_was_the_end() -> None:
    assert attempts(1000, "time")[0] == MaxLength(length=512, stopped="time")


def test_it_says_when_nothing_failed_at_all() -> None:
    assert attempts(10**9, last=2048)[0] == MaxLength(length=2048, stopped="last")


def test_a_budget_asks_once_for_each_sweep_whatever_its_lengths() -> None:
    tasks = parse_selection("sweep[length=256..1024,mode=forward],lra-text")
    assert with_longest(tasks, 1000)[len(tasks) :] == (Spec.of("sweep", memory_bytes=1000, mode="forward"),)


def test_a_budget_without_a_sweep_is_refused() -> None:
    with pytest.raises(SelectionError, match="none is among lra-text"):
        with_longest(parse_selection("lra-text"), 1000)
