"""Workload: one variant ready to be timed; Workloads: the inputs and settings that those of a Block share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ....tasks.contract import Recipe
from ....variants.contract import Variant
from ...core.record import Measurement
from ...core.spec import Spec
from ...measure.timer import Work


@dataclass(slots=True, kw_only=True)
class Workload:
    """`work` is one sample. `prepare` goes before each, untimed. `owners` and `inputs` hold memory between samples.

    `state`: of decoding, where it decodes. `attention`: statistics of its weights on these inputs.
    `parameters`: trainable ones of all that runs, and of them those that the variant brings. `flops`,
    `traffic_bytes`: counted over one sample, once it has run.
    """

    variants: list[Variant]
    work: Work
    prepare: Callable[[], None] | None = None
    owners: tuple[torch.nn.Module | torch.optim.Optimizer, ...] = ()
    inputs: tuple[Tensor, ...] = ()
    state: list[Any] = field(default_factory=list)
    parameters: tuple[int, int]
    flops: float = 0.0
    traffic_bytes: float = 0.0
    attention: Callable[[], Iterator[Measurement]] = field(default=lambda: iter(()))

    def once(self) -> object:
        """One sample with what goes before it."""
        if self.prepare is not None:
            self.prepare()
        return self.work()


@dataclass(slots=True, kw_only=True)
class Workloads(ABC):
    """Inputs and settings that all workloads of one Block share.

    `mode`: which of the times is measured. `units`: in one sample, such as tokens decoded. `sequences`: processed at
    once. `real`, `padded`: tokens in one unit, without padding and with it. `limit_seconds`: a sample that takes
    longer is a timeout, None for no such limit. `bare`: nothing but attention runs.
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

    @abstractmethod
    def workload(self, variant: Spec) -> Workload:
        """A variant ready to be timed. Raises Unsupported, and Incorrect where the gate is red."""

    @property
    def dtype(self) -> torch.dtype:
        """That of the matrix products."""
        mixed = self.recipe.precision == "bfloat16" and self.device.type == "cuda"
        return torch.bfloat16 if mixed else torch.float32
