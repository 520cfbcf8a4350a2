"""Batches wherever they are made: the same tensors from the host, from a thread, and from tokens on a (fake) GPU."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_cuda import FakeCuda, Redirected, install

from attnbench.bench.core.record import Provenance
from attnbench.bench.train.batch_source import SHARE, DeviceTokens, batch_source
from attnbench.bench.train.checkpoint import Training
from attnbench.bench.train.objectives.objective import Objective
from attnbench.bench.train.objectives.registry import objective_for
from attnbench.bench.train.trainer import Trainer
from attnbench.tasks.contract import Classification, Dataset, Recipe, Split, Subset
from attnbench.tasks.problems.language_modeling import Language, LanguageRecipe, Windows
from attnbench.tasks.problems.token_prediction import TokenBatch, TokenPrediction, TokenRecipe, TokenStream
from attnbench.variants import build

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
SMALL: dict[str, Any] = {"width": 16, "heads": 2, "feed_forward": 32, "layers": 1, "steps": 7, "batch": 4, "warmup": 2,
                         "evaluate_every": 3, "evaluate_batch": 5, "length": 20}  # fmt: skip


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    fake = install(monkeypatch)
    with Redirected():
        yield fake


def split_of(towers: int, longest: int = 40) -> Split:
    draw = np.random.default_rng(0)
    starts = np.append(0, draw.integers(1, longest, 30 * towers).cumsum()).astype(np.int64)
    # ids of all 16 bits: on the device they are kept as signed numbers
    tokens = draw.integers(1, 2**16, starts[-1]).astype(np.uint16)
    return Split(tokens=tokens, starts=starts, labels=draw.integers(0, 3, 30), towers=towers)


def drawn(random: np.random.Generator, examples: int) -> TokenBatch:
    length = int(random.integers(4, 20))
    return TokenBatch.of(random.integers(1, 9, (examples, length)), np.full((examples, 1), 2), np.ones((examples, 1)))


def kinds() -> dict[str, tuple[Objective, Subset]]:
    pairs, texts = split_of(2), split_of(1, longest=200)
    return {
        "classification": (
            objective_for(Classification(vocabulary=2**16, classes=3), Recipe(**SMALL)), split_of(1).all(),
        ),
        "retrieval": (
            objective_for(Classification(vocabulary=2**16, classes=3, towers=2), Recipe(**SMALL)), pairs.all(),
        ),
        "language": (
            objective_for(Language(vocabulary=2**16), LanguageRecipe(stride=10, **SMALL)), Windows.over(texts, 20, 10),
        ),
        "tokens": (
            objective_for(TokenPrediction(vocabulary=9), TokenRecipe(longest=20, **SMALL)), TokenStream.of(drawn),
        ),
    }  # fmt: skip


def collected(objective: Objective, train: Subset, device: torch.device) -> list[tuple[torch.Tensor, ...]]:
    with batch_source(objective, train, "toy", 1, device, range(2, 30)) as source:
        return [source(number) for number in range(2, 30)]


@pytest.mark.parametrize("free", [80 * 2**30, 0])
@pytest.mark.parametrize("kind", list(kinds()))
def test_batches_of_a_gpu_are_those_of_the_host(cuda: FakeCuda, kind: str, free: int) -> None:
    """With memory the tokens are on the device, without it a thread makes batches ahead; fresh ones it always does."""
    objective, train = kinds()[kind]
    cuda.free = free
    feed = objective.feed(train, "toy", 1)
    expected = [feed(number, CPU) for number in range(2, 30)]
    before = set(threading.enumerate())
    for one, other in zip(collected(objective, train, CUDA), expected, strict=True):
        for found, wanted in zip(one, other, strict=True):
            assert found.dtype == wanted.dtype and torch.equal(found, wanted)
    assert set(threading.enumerate()) == before
    assert kind == "tokens" or DeviceTokens.fit(train, CUDA) is (free > 0)


def test_tokens_are_kept_on_the_device_up_to_a_share_of_its_free_memory(cuda: FakeCuda) -> None:
    train = kinds()["classification"][1]
    needed = 2 * len(train.split.tokens)
    for cuda.free, fits in ((int(needed / SHARE) + 1, True), (int(needed / SHARE) - 40, False)):
        assert DeviceTokens.fit(train, CUDA) is fits


class Reversed(Subset):
    """A subset of a plugin, which makes its batches in a way of its own."""

    def batch(self, at, length):  # type: ignore[no-untyped-def]
        ids, lengths, labels = super().batch(at, length)
        return ids[:, :, ::-1], lengths, labels


def test_a_subset_with_batches_of_its_own_makes_them_itself(cuda: FakeCuda) -> None:
    objective, train = kinds()["classification"]
    own = Reversed(split=train.split, indices=train.indices)
    for one, other in zip(collected(objective, own, CUDA), collected(objective, train, CUDA), strict=True):
        assert torch.equal(one[0], other[0].flip(-1))


def trainer(device: torch.device, **options: Any) -> Trainer:
    objective, train = kinds()["classification"]
    # another recipe in each test, but the same data
    objective.recipe = replace(objective.recipe, **options.pop("recipe", {}))
    parts = [train.split.subset(at) for at in np.split(np.arange(30), [16, 24])]
    provenance = Provenance(source="toy", fidelity="regenerated")
    dataset = Dataset(train=parts[0], validation=parts[1], test=parts[2], provenance=provenance)
    model = objective.model(lambda shape: build("softmax", shape), 0)
    return Trainer(objective, model, dataset, task="toy", seed=0, device=device, **options)


class Killed(Exception):
    pass


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_training_fed_by_a_thread_is_resumed_at_the_batches_it_has_taken(
    cuda: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accumulate: int
) -> None:
    monkeypatch.setattr("attnbench.bench.train.trainer.CHECKPOINT_SECONDS", 0.0)
    recipe = {"accumulate": accumulate}
    expected = trainer(CPU, recipe=recipe).run()
    cuda.free = 0

    def kill_at_four(training: Training) -> None:
        if training.step == 4:
            raise Killed

    file = tmp_path / "cell.pt"
    with pytest.raises(Killed):
        trainer(CUDA, recipe=recipe, checkpoint=file, report=kill_at_four).run()
    steps: list[int] = []
    found = trainer(CUDA, recipe=recipe, checkpoint=file, report=lambda training: steps.append(training.step)).run()
    assert steps == [4, 5, 6, 7]
    assert [point.step for point in found.curve] == [3, 6, 7]
    for one, other in zip(found.curve, expected.curve, strict=True):
        assert one.train_loss == pytest.approx(other.train_loss, rel=1e-6)
        assert one.validation_loss == pytest.approx(other.validation_loss, rel=1e-6)


def test_times_of_host_and_data_are_parts_of_the_training_time() -> None:
    state = trainer(CPU).run()
    assert 0 < state.data_seconds < state.seconds and 0 < state.host_seconds < state.seconds
    assert state.data_seconds + state.host_seconds <= state.seconds
    assert state.data_share == pytest.approx(state.data_seconds / state.seconds)
    assert state.host_seconds_a_step == pytest.approx(state.host_seconds / 7)
