"""A training step as a CUDA graph, on a fake device whose graphs repeat the operators that they were captured with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fake_cuda import FakeCuda, Redirected, install

from attnbench.bench.core.record import Provenance
from attnbench.bench.run.lanes.train import _costs
from attnbench.bench.train import captured_step
from attnbench.bench.train.captured_step import WARM_UP, why_not
from attnbench.bench.train.checkpoint import Training
from attnbench.bench.train.objectives.registry import objective_for
from attnbench.bench.train.trainer import Trainer
from attnbench.tasks.contract import Classification, Dataset, Recipe, Split
from attnbench.tasks.problems.token_prediction import (
    TokenBatch,
    TokenExamples,
    TokenPrediction,
    TokenRecipe,
    TokenStream,
)
from attnbench.variants import build

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
SMALL: dict[str, Any] = {"width": 16, "heads": 2, "feed_forward": 32, "layers": 1, "steps": 12, "batch": 4, "warmup": 2,
                         "evaluate_every": 6, "evaluate_batch": 8, "length": 12, "learning_rate": 1e-2}  # fmt: skip
PROVENANCE = Provenance(source="toy", fidelity="regenerated")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    monkeypatch.setattr(captured_step, "LEAST_STEPS", 5)
    fake = install(monkeypatch)
    with Redirected():
        yield fake


def trainer(
    device: torch.device, variant: str = "softmax", recipe: dict[str, Any] | None = None, **options: Any
) -> Trainer:
    draw = np.random.default_rng(0)
    split = Split.of_rows(draw.integers(1, 11, (40, 12)).astype(np.uint16), draw.integers(0, 2, 40))
    dataset = Dataset(
        train=split.subset(np.arange(24)), validation=split.subset(np.arange(24, 32)),
        test=split.subset(np.arange(32, 40)), provenance=PROVENANCE,
    )  # fmt: skip
    objective = objective_for(Classification(vocabulary=11, classes=2, padded=False), Recipe(**SMALL | (recipe or {})))
    model = objective.model(lambda shape: build(variant, shape), 0)
    return Trainer(objective, model, dataset, task="toy", seed=0, device=device, **options)


def same(found: Trainer, expected: Trainer, tolerance: float = 1e-5) -> None:
    for one, other in zip(found.state.curve, expected.state.curve, strict=True):
        assert one.train_loss == pytest.approx(other.train_loss, rel=tolerance)
    for name, value in expected.model.state_dict().items():
        if name.endswith("project_in.bias"):
            # the gradient of a key's bias is zero but for rounding, which AdamW blows up
            continue
        torch.testing.assert_close(found.model.state_dict()[name], value, rtol=1e-3, atol=1e-5, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "recipe"),
    [
        ("softmax[impl=eager]", {}),
        ("softmax", {"dropout": 0.0, "attention_dropout": 0.0, "clip": 0.0, "clip_value": 1e-3}),
        ("entmax15", {"accumulate": 2, "schedule": "cosine"}),
        ("routing", {}),
        ("performer", {"positions": "rope"}),
    ],
)
def test_replays_train_as_ordinary_steps_do(cuda: FakeCuda, variant: str, recipe: dict[str, Any]) -> None:
    """Dropout draws anew at each replay, the rate follows its schedule, and moments and centroids move on."""
    expected = trainer(CPU, variant, recipe)
    expected.run()
    found = trainer(CUDA, variant, recipe)
    state = found.run()
    assert found.uncaptured == "" and state.replays == 12 - WARM_UP
    # captured once; two replays are the trial
    assert [graph.replays for graph in cuda.graphs] == [12 - WARM_UP + 2]
    same(found, expected)
    costs = {measurement.name: measurement for measurement in _costs(found)}
    assert costs["captured_steps"].value == 0.75 and costs["captured_steps"].where == {}
    assert "host_seconds" in costs


def test_warm_up_and_capture_share_a_stream(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """What autograd keeps between steps belongs to the stream of its step, and a capture must wait for no other."""
    made: list[object] = []

    def new(device: object = None) -> object:
        made.append(SimpleNamespace(wait_stream=lambda other: None))
        return made[-1]

    monkeypatch.setattr(torch.cuda, "Stream", new)
    found = trainer(CUDA)
    found.run()
    assert found.uncaptured == "" and len(made) == 1 and cuda.capture_streams == made


def changed(run: Trainer, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Puts `change` behind the loss of the model."""
    loss = run.model.loss
    run.model.loss = lambda batch: change(loss(batch))  # type: ignore[method-assign]


def test_a_capture_that_fails_is_tried_once_and_leaves_no_trace(cuda: FakeCuda) -> None:
    expected = trainer(CPU)
    expected.run()
    found = trainer(CUDA)

    def waits(loss: torch.Tensor) -> torch.Tensor:
        torch.cuda.synchronize()
        return loss

    changed(found, waits)
    state = found.run()
    assert found.uncaptured == "AcceleratorError: CUDA error: operation not permitted when stream is capturing"
    assert state.replays == 0 and [graph.replays for graph in cuda.graphs] == [0]
    same(found, expected)
    costs = {measurement.name: measurement for measurement in _costs(found)}
    assert costs["captured_steps"].value == 0 and costs["captured_steps"].where == {"reason": found.uncaptured}


@pytest.mark.parametrize(
    ("in_place", "size", "finds", "moves"),
    [(True, 0.1, "", 12), (False, 0.1, "the loss of replay 2", 12), (False, 1e-7, "", WARM_UP)],
)
def test_a_buffer_that_is_assigned_anew_is_found_by_the_trial_where_the_loss_shows_it(
    cuda: FakeCuda, in_place: bool, size: float, finds: str, moves: int
) -> None:
    """A replay works on the addresses of the capture: what the loss does not show stands still there."""
    found = trainer(CUDA)
    found.model.register_buffer("average", torch.zeros(()))

    def move() -> None:
        if in_place:
            found.model.average.add_(size)
        else:
            found.model.average = found.model.average + size

    changed(found, lambda loss: loss * (1 + found.model.average))
    found.model.after_step = move
    state = found.run()
    assert found.uncaptured.startswith(finds) and bool(found.uncaptured) == bool(finds)
    assert bool(state.replays) == (not finds)
    assert float(found.model.average) == pytest.approx(moves * size), "so many of the twelve steps have moved it"


def test_a_step_that_draws_on_the_host_is_not_captured(cuda: FakeCuda) -> None:
    found = trainer(CUDA)

    def draws(loss: torch.Tensor) -> torch.Tensor:
        return loss * (1 + cuda.draw_on_host()) if found.model.training else loss

    changed(found, draws)
    found.run()
    assert found.uncaptured == "it draws random numbers on the host, which a replay would repeat"


def test_batches_of_several_lengths_stay_ordinary_steps(cuda: FakeCuda) -> None:
    def drawn(random: np.random.Generator, examples: int) -> TokenBatch:
        length = int(random.integers(4, 12))
        ids = random.integers(1, 9, (examples, length))
        return TokenBatch.of(ids, np.full((examples, 1), 2), ids[:, 1:2])

    examples = TokenExamples.joined([drawn(np.random.default_rng(0), 8)])
    dataset = Dataset(train=TokenStream.of(drawn), validation=examples, test=examples, provenance=PROVENANCE)
    objective = objective_for(TokenPrediction(vocabulary=9), TokenRecipe(**SMALL | {"longest": 12, "shortest": 4}))
    runs = []
    for device in (CPU, CUDA):
        model = objective.model(lambda shape: build("softmax", shape), 0)
        runs.append(Trainer(objective, model, dataset, task="toy", seed=0, device=device))
        runs[-1].run()
    assert runs[1].uncaptured == "batches differ in shape" and not cuda.graphs
    same(runs[1], runs[0])


def test_another_shape_behind_the_capture_is_one_ordinary_step(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the last windows of a text, which are shorter."""
    expected, found = trainer(CPU), trainer(CUDA)
    for run in (expected, found):
        taken = run._taken

        def shorter(source: Any, run: Trainer = run, taken: Any = taken) -> Iterator[Any]:
            for ids, lengths, labels in taken(source):
                yield (ids[..., :9].clone(), lengths - 3, labels) if run.state.step == 7 else (ids, lengths, labels)

        monkeypatch.setattr(run, "_taken", shorter)
        run.run()
    assert found.uncaptured == "" and found.state.replays == 12 - WARM_UP - 1
    same(found, expected)


class Killed(Exception):
    pass


def test_a_captured_training_that_is_killed_goes_on_where_it_was(
    cuda: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnbench.bench.train.trainer.CHECKPOINT_SECONDS", 0.0)
    expected = trainer(CPU)
    expected.run()

    def kill_at_eight(training: Training) -> None:
        if training.step == 8:
            raise Killed

    file = tmp_path / "cell.pt"
    with pytest.raises(Killed):
        trainer(CUDA, checkpoint=file, report=kill_at_eight).run()
    steps: list[int] = []
    found = trainer(CUDA, checkpoint=file, report=lambda training: steps.append(training.step))
    found.run()
    assert steps == [8, 9, 10, 11, 12]
    # seven steps were saved, four of them replays; each process warms up
    assert found.state.replays == (7 - WARM_UP) + (12 - 7 - WARM_UP)
    same(found, expected)


def test_large_models_short_trainings_and_other_devices_are_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    model = trainer(CPU).model
    recipe = Recipe(**SMALL)
    assert why_not(model, recipe, CPU) == "the device is no GPU"
    assert why_not(model, recipe, CUDA) == "the training has 12 steps, and from 50 on they are captured"
    assert why_not(model, replace(recipe, steps=50), CUDA) == ""
    monkeypatch.setattr(captured_step, "MOST_PARAMETERS", 100)
    assert "parameters, and up to 100 are captured" in why_not(model, recipe, CUDA)
    assert [measurement.name for measurement in _costs(trainer(CPU))] == ["train_seconds", "data_share"]
