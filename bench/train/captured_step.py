"""The training step as a CUDA graph, for small models: launching its thousand kernels takes longer than they do."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from ...tasks.contract import Recipe
from ..measure.cuda_graph import capture
from ..models.blocks import Batch, Model

WARM_UP = 3
"""Ordinary steps before the capture: libraries and kernels allocate and compile at their first calls."""

MOST_PARAMETERS = 50_000_000
"""Most parameters of a model that is captured. A larger one keeps a GPU busy, and copying it takes memory."""

LEAST_STEPS = 50
"""Fewest steps of a training that is captured: a capture and its trial take as long as some ten steps."""

TOLERANCE = {"float32": 1e-4, "bfloat16": 1e-2}
"""Relative, of a replay's loss and the ordinary step's: both run the same kernels, some of which add in any order."""

OrdinaryStep = Callable[[Iterable[Batch]], Tensor]
"""A step on these batches; returns its loss."""


class CapturedStep:
    """Training steps that are replays of a CUDA graph once three ordinary ones have been made.

    A step is captured once. Every replay repeats the host's decisions in it, so a step that waits for the device, or
    draws random numbers on the host, is not captured. Before the graph is used, two replays are compared with two
    ordinary steps, which leave no trace. Wherever that fails, `reason` says why, and the steps stay ordinary ones.
    Batches of other shapes than the first ones are ordinary steps. Dropout draws on the device from torch's own
    generator, whose place a replay moves on; the learning rate is a number on the device.
    """

    def __init__(
        self, step: OrdinaryStep, model: Model, optimiser: torch.optim.Optimizer, recipe: Recipe, device: torch.device
    ):
        self.step, self.model, self.optimiser, self.device = step, model, optimiser, device
        self.tolerance = TOLERANCE[recipe.precision]
        self.reason = ""
        self.replays = 0
        self._ordinary = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._stream: torch.cuda.Stream | None = None
        self._batches: list[Batch] = []
        self._loss = torch.zeros((), device=device)
        self._shapes: list[Any] = []

    def __call__(self, batches: Iterable[Batch]) -> Tensor:
        """The loss, which the next step may overwrite."""
        if self.reason:
            return self.step(batches)
        batches = list(batches)
        shapes = [[(part.shape, part.dtype) for part in batch] for batch in batches]
        self._shapes = self._shapes or shapes
        if shapes != self._shapes:
            if self._graph is None:
                self.reason = "batches differ in shape"
            return self.step(batches)
        if self._graph is None and self._ordinary < WARM_UP:
            self._ordinary += 1
            return self._aside(batches)
        if self._graph is None:
            self.reason = self._capture(batches)
            if self.reason:
                # its memory, which no replay needs
                self._graph, self._batches = None, []
                return self.step(batches)
        self.replays += 1
        return self._replay(batches)

    def _replay(self, batches: list[Batch]) -> Tensor:
        assert self._graph is not None
        for held, batch in zip(self._batches, batches, strict=True):
            for own, part in zip(held, batch, strict=True):
                own.copy_(part)
        self._graph.replay()
        return self._loss

    def _aside(self, batches: list[Batch]) -> Tensor:
        """An ordinary step on the side stream of the capture, where what it leaves behind may be used again.

        Such as workspaces, and the nodes of autograd behind a loss that a variant keeps: a capture fails where it has
        to wait for another stream.
        """
        stream = self._stream = self._stream or torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            loss = self.step(batches)
        torch.cuda.current_stream(self.device).wait_stream(stream)
        return loss

    def _capture(self, batches: list[Batch]) -> str:
        """Makes the graph; returns why that failed, or nothing."""
        before = _Snapshot(self.model, self.optimiser, self.device)
        self._batches = [tuple(part.clone() for part in batch) for batch in batches]
        drawn = torch.get_rng_state()

        def work() -> None:
            self._loss = self.step(self._batches)

        try:
            self._graph = capture(work, self.device, self._stream)
            if not torch.equal(torch.get_rng_state(), drawn):
                return "it draws random numbers on the host, which a replay would repeat"
            return self._difference(before, batches)
        # whatever it is, the ordinary step goes on, or raises it where it belongs
        except Exception as error:
            return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
        finally:
            before.restore()

    def _difference(self, before: _Snapshot, batches: list[Batch]) -> str:
        """In which loss two replays differ from two ordinary steps, in words; the second one is after an update."""
        # floats, since the next replay overwrites the loss: only here the host waits for a step
        replayed = [float(self._replay(batches)) for _ in range(2)]
        before.restore()
        ordinary = [float(self.step(batches)) for _ in range(2)]
        for number, (one, other) in enumerate(zip(replayed, ordinary, strict=True), 1):
            same = math.isclose(one, other, rel_tol=self.tolerance) or (math.isnan(one) and math.isnan(other))
            if not same:
                return f"the loss of replay {number} is {one:.6g}, and {other:.6g} without a graph"
        return ""


class _Snapshot:
    """Copies of all that a step changes: parameters, buffers, moments, and the state of random generators."""

    def __init__(self, model: Model, optimiser: torch.optim.Optimizer, device: torch.device):
        moments = [value for kept in optimiser.state.values() for value in kept.values() if isinstance(value, Tensor)]
        self.tensors: list[Tensor] = [*model.parameters(), *model.buffers(), *moments]
        self.copies = [tensor.detach().clone() for tensor in self.tensors]
        # a step may have put others in their places, which hold what the trial left; some places are None at first
        self.owners = [
            (module, name, buffer) for module in model.modules() for name, buffer in vars(module)["_buffers"].items()
        ]
        self.device = device
        self.random, self.cuda_random = torch.get_rng_state(), torch.cuda.get_rng_state(device)

    @torch.no_grad()
    def restore(self) -> None:
        # in place: a graph holds addresses
        for tensor, copy in zip(self.tensors, self.copies, strict=True):
            tensor.copy_(copy)
        for module, name, buffer in self.owners:
            setattr(module, name, buffer)
        torch.set_rng_state(self.random)
        torch.cuda.set_rng_state(self.cuda_random, self.device)


def why_not(model: Model, recipe: Recipe, device: torch.device) -> str:
    """Why no step of this training is captured, in words; empty where one may be."""
    if device.type != "cuda":
        return "the device is no GPU"
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if parameters > MOST_PARAMETERS:
        return f"the model has {parameters:,} parameters, and up to {MOST_PARAMETERS:,} are captured"
    if recipe.steps < LEAST_STEPS:
        return f"the training has {recipe.steps} steps, and from {LEAST_STEPS} on they are captured"
    return ""


def adamw(model: Model, recipe: Recipe, device: torch.device, *, captured: bool) -> torch.optim.AdamW:
    """The optimiser of a recipe; `captured`: with its state and its rate on the device, where a graph reads them."""
    optimiser = torch.optim.AdamW(
        model.parameters(),
        lr=recipe.learning_rate,
        betas=(recipe.beta1, recipe.beta2),
        eps=recipe.epsilon,
        weight_decay=recipe.weight_decay,
        # one kernel for all parameters; the time lane makes the same step, so that its times are those of training
        fused=True,
    )
    prepare(optimiser, device, captured=captured)
    return optimiser


def prepare(optimiser: torch.optim.Optimizer, device: torch.device, *, captured: bool) -> None:
    """Sets where the rate lies and whether steps are captured, which a checkpoint of another device has otherwise."""
    if captured:
        # it warns at the steps before the capture, of which there must be some
        warnings.filterwarnings("ignore", message="This instance was constructed with capturable=True")
    for group in optimiser.param_groups:
        group["capturable"] = captured
        rate = float(group["lr"])
        group["lr"] = torch.tensor(rate, dtype=torch.float32, device=device) if captured else rate


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            # in place: a graph reads the rate where it lay at the capture
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
