"""Speed of the generators: `pytest tests/perf`; nothing here asserts a time."""

import numpy as np
import pytest

from attnbench.tasks.lra._listops.grammar import TREES, Sizes, generate, grow

pytest.importorskip("pytest_benchmark", reason="pytest-benchmark is not installed")


def test_growing_a_batch_of_trees(benchmark: object) -> None:
    assert callable(benchmark)
    tokens, starts, values = benchmark(lambda: grow(np.random.PCG64(0), TREES, 500, 2_000))
    assert len(starts) == len(values) + 1 and len(tokens) == starts[-1]


def test_generating_a_tenth_of_listops(benchmark: object) -> None:
    sizes = Sizes(train=9_600, validation=200, test=200)
    splits = benchmark.pedantic(generate, (sizes,), rounds=3)  # type: ignore[attr-defined]
    assert len(splits["train"]) == 9_600
