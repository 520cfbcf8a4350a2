"""Workload: one variant ready to be timed; Workloads: the inputs and settings that those of a job share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ....tasks.contract import Recipe
from ....variants.contract import Variant
from ...core.record import Measurement
from ...core.spec import Spec
from ...measure.timer import Work, captured
from ..context import implementation_of
from .compiled import Compilation


@dataclass(slots=True, kw_only=True)
class Workload:
    """`work` is one sample. `prepare` goes before each, untimed. `owners` and `inputs` hold memory between samples.

    `graph_on`: the CUDA device on which samples that are timed are replays of a graph of `work`, or None. `work` itself
    stays as it is, since nothing of a replay can be counted.
    `contents`: inputs whose numbers may be others for a moment.
    `state`: of decoding, where it decodes. `attention`: statistics of its weights on these inputs.
    `parameters`: trainable ones of all that runs, and of them those that the variant brings. `flops`,
    `traffic_bytes`: counted over one sample, once it has run; `counted_as`: the implementation that ran while counting.
    `uncounted`: operators of foreign code whose FLOPs nobody can count.
    `compilation`: of what went through torch.compile, None where nothing does.
    """

    variants: list[Variant]
    work: Work
    prepare: Callable[[], None] | None = None
    owners: tuple[torch.nn.Module | torch.optim.Optimizer, ...] = ()
    inputs: tuple[Tensor, ...] = ()
    contents: tuple[Tensor, ...] = ()
    state: list[Any] = field(default_factory=list)
    parameters: tuple[int, int]
    flops: float = 0.0
    traffic_bytes: float = 0.0
    counted_as: str = ""
    uncounted: str = ""
    compilation: Compilation | None = None
    attention: Callable[[], Iterator[Measurement]] = field(default=lambda: iter(()))
    graph_on: torch.device | None = None
    replay: Work | None = field(init=False, default=None)

    @property
    def timed(self) -> Work:
        """The function that is timed: `work`, or the replay of its graph, which is captured at the first call.

        Raises RuntimeError where it cannot be captured.
        """
        if self.graph_on is not None and self.replay is None:
            self.replay = captured(self.work, self.graph_on)
        return self.replay or self.work

    @property
    def whole(self) -> Work:
        """The function that takes all the memory of a sample: `work`, or its capture, with the memory of replays."""
        device = self.graph_on
        return self.work if device is None else lambda: captured(self.work, device)

    @property
    def implementation(self) -> str:
        """The code that the last forward went through."""
        found = implementation_of(self.variants)
        return found if self.compilation is None else f"compiled+{found}"

    @property
    def eager(self) -> AbstractContextManager[object]:
        """Inside, compiled work runs as plain operators: what runs in a graph can be neither counted nor watched."""
        if self.compilation is None:
            return nullcontext()
        stance: AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
        return stance

    def once(self) -> object:
        """One sample with what goes before it."""
        if self.prepare is not None:
            self.prepare()
        return self.work()


@dataclass(slots=True, kw_only=True)
class Workloads(ABC):
    """Inputs and settings that all workloads of one job share.

    `mode`: which of the times is measured. `units`: in one sample, such as tokens decoded. `sequences`: processed at
    once. `real`, `padded`: tokens in one unit, without padding and with it. `limit_seconds`: a longer sample is a
    timeout, None = no limit. `bare`: nothing but attention runs. `progress`: of filling a state, tokens so far and all.
    """

    recipe: Recipe
    device: torch.device
    mode: str = "step"
    units: int = 1
    sequences: int
    real: float
    padded: float
    limit_seconds: float | None = None
    bare: bool = False
    progress: Callable[[int, int], None] = lambda done, of: None

    @abstractmethod
    def workload(self, variant: Spec) -> Workload:
        """A variant ready to be timed. Raises Unsupported, and Incorrect where the gate is red."""

    def null_control(self, reference: Spec, ready: Workload) -> Workload:
        """The reference's own code once more; `ready`: the workload that stands for it already."""
        return self.workload(reference)

    def steady(self) -> AbstractContextManager[object]:
        """Inside, samples are taken; what would be no part of a sample, such as compiling once more, raises."""
        return nullcontext()

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the matrix products."""
        mixed = self.recipe.precision == "bfloat16" and self.device.type == "cuda"
        return torch.bfloat16 if mixed else torch.float32
