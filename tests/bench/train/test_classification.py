"""Classification: the batches of an evaluation, and that a GPU is waited for once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from fake_cuda import FakeCuda, Redirected, install
from torch import Tensor
from torch.overrides import TorchFunctionMode

from attnbench.bench.train.objectives.classification import ALIGNED, ClassificationObjective
from attnbench.tasks.contract import Classification, Recipe, Split, Subset
from attnbench.variants import build

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
LONGEST, SIZE = 1_024, 4


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    fake = install(monkeypatch)
    with Redirected():
        yield fake


def subset(towers: int = 1, count: int = 30) -> Subset:
    draw = np.random.default_rng(3)
    lengths = draw.integers(0, LONGEST // 3, count * towers)
    # two that are cut, and one without a token
    lengths[[1, 9]], lengths[4] = 2 * LONGEST, 0
    starts = np.append(0, lengths.cumsum())
    tokens = draw.integers(1, 11, starts[-1]).astype(np.uint16)
    return Split(tokens=tokens, starts=starts, labels=draw.integers(0, 3, count), towers=towers).all()


def objective(towers: int = 1, **changes: Any) -> ClassificationObjective:
    recipe = Recipe(width=8, heads=2, feed_forward=8, layers=1, length=LONGEST, evaluate_batch=SIZE, **changes)
    return ClassificationObjective(Classification(vocabulary=11, classes=3, towers=towers), recipe)


@pytest.mark.parametrize("towers", [1, 2])
@pytest.mark.parametrize("pooling", ["mean", "padded_mean", "cls"])
def test_batches_of_like_lengths_change_no_result(cuda: FakeCuda, towers: int, pooling: str) -> None:
    examples, asked = subset(towers), objective(towers, pooling=pooling, convolution=2)
    model = asked.model(lambda shape: build("softmax[impl=eager]", shape), 0)
    expected, found = (asked.evaluate(model, examples, device) for device in (CPU, CUDA))
    assert found.predicted.tolist() == expected.predicted.tolist()
    assert found.loss == pytest.approx(expected.loss, rel=1e-5)


def test_a_gpu_is_waited_for_at_the_end_alone(cuda: FakeCuda) -> None:
    reads: list[object] = []

    class Reads(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func in (Tensor.cpu, Tensor.item, Tensor.tolist, Tensor.__float__, Tensor.__int__, Tensor.__bool__):
                reads.append(func)
            return func(*args, **(kwargs or {}))

    asked = objective()
    model = asked.model(lambda shape: build("softmax[impl=eager]", shape), 0)
    beats: list[int] = []
    with Reads():
        asked.evaluate(model, subset(), CUDA, lambda: beats.append(len(reads)))
    # padding is looked at in memory of a CPU, where this device lies
    looked = [func for func in reads if func is not Tensor.__bool__]
    assert looked == [Tensor.tolist, Tensor.cpu] and len(beats) > 1


@pytest.mark.parametrize("towers", [1, 2])
def test_a_gpu_evaluates_short_texts_together(towers: int) -> None:
    """None is cut shorter than the preset does, and no batch has more tokens than one of the longest texts."""
    examples = subset(towers)
    batches = list(objective(towers)._batches(examples, CUDA))
    assert sorted(np.concatenate([at for at, _ in batches]).tolist()) == list(range(30))
    for at, length in batches:
        own = np.minimum(examples.layout(at, 4 * LONGEST).ids.lengths, LONGEST)
        assert max(own.max(), 1) <= length <= LONGEST and length % ALIGNED == 0
        assert len(at) * length <= SIZE * LONGEST
    assert len(batches) < 30 / SIZE and len({length for _, length in batches}) <= 8


def test_a_cpu_and_a_subset_with_batches_of_its_own_keep_theirs() -> None:
    class Own(Subset):
        __slots__ = ()

        def batch(self, at: Any, length: int) -> Any:
            raise AssertionError("not asked yet")

    examples = subset()
    own = Own(split=examples.split, indices=examples.indices)
    for device, each in ((CPU, examples), (CUDA, own)):
        batches = list(objective()._batches(each, device))
        assert [at.tolist() for at, _ in batches] == [list(range(at, min(at + SIZE, 30))) for at in range(0, 30, SIZE)]
        assert {length for _, length in batches} == {LONGEST}
