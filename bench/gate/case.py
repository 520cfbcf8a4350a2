"""A variant in one setting: a length, a batch, a precision and a mode, with inputs that depend on a seed alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor

from ...variants.contract import AttentionShape, Mask, Variant

INTERPRETED_SHORT = 8
"""Tokens to decode where Triton's interpreter runs: it takes a thousand times as long as the CPU."""

PARTS = ("output", "gradient of query", "gradient of key", "gradient of value")
"""Of `Case.passes`."""

T = TypeVar("T")
Mode = Literal["evaluation", "training", "after step"]


@dataclass(frozen=True, slots=True)
class RunSetting:
    """`length` and `batch` of the inputs; `mode`: evaluation, training without dropout, or evaluation after steps of
    training; `own`: the length that is to be measured; `double`: in float64 too."""

    length: int
    batch: int = 2
    mode: Mode = "evaluation"
    own: bool = False
    double: bool = True

    @property
    def repeats(self) -> bool:
        """Whether it differs from the usual setting in the batch alone."""
        return self.mode == "evaluation" and not self.own and not self.double

    @property
    def brief(self) -> bool:
        """Whether a test makes one pass of a kind here: all but the usual setting differ from it in one thing."""
        return self.own or not self.double

    def __str__(self) -> str:
        mode = {"evaluation": "", "training": " in training", "after step": " after after_step()"}[self.mode]
        return f"{self.length} long{mode}"


class Memo:
    """Values that several tests need, each computed once."""

    def __init__(self) -> None:
        self._values: dict[Any, Any] = {}

    def once(self, key: Any, compute: Callable[[], T]) -> T:
        """The value of `key`, computed where it is not known yet."""
        if key not in self._values:
            self._values[key] = compute()
        return cast(T, self._values[key])


def with_heads(shape: AttentionShape, heads: int) -> AttentionShape:
    """`shape` with at most `heads` heads, or one group of them where that is more; as many of them share a key."""
    group = shape.heads // shape.kv_heads
    groups = max(1, min(heads, shape.heads) // group)
    return replace(shape, heads=groups * group, kv_heads=groups)


def permuted(x: Tensor) -> Tensor:
    """The same values, laid out in memory as (batch, length, heads, head_dim), which is how models pass them."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


@dataclass(frozen=True, slots=True)
class Inputs:
    """(batch, heads | kv_heads, queries | keys, head_dim)."""

    query: Tensor
    key: Tensor
    value: Tensor

    def map(self, change: Callable[[Tensor], Tensor]) -> Inputs:
        return Inputs(change(self.query), change(self.key), change(self.value))

    def part(self, first: int | None, last: int | None = None) -> Inputs:
        """Positions first .. last - 1 of all three."""
        return self.map(lambda x: x[:, :, first:last])

    def example(self, at: int) -> Inputs:
        return self.map(lambda x: x[at : at + 1])

    def leaves(self) -> Inputs:
        """The same tensors, strides included, gathering gradients."""
        return self.map(lambda x: x.detach().requires_grad_())

    def all(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.query, self.key, self.value

    def padded_from(self, first: int) -> Tensor:
        """A mask of the keys, (batch, keys), True = real: the first sequence is padding from key `first` on."""
        valid = torch.ones(self.key.shape[0], self.key.shape[2], dtype=torch.bool)
        valid[0, first:] = False
        return valid


@dataclass(frozen=True, slots=True)
class Case:
    """`shape.dtype`: the precision. `tolerance`: what rounding explains, relative to the largest output."""

    module: Variant
    shape: AttentionShape
    tolerance: float
    seed: int
    setting: RunSetting
    _shared: Memo = field(default_factory=Memo, compare=False, repr=False)

    def with_module(self, module: Variant, dtype: str | None = None) -> Case:
        """Another variant in the same setting."""
        shape = replace(self.shape, dtype=dtype or self.shape.dtype)
        return Case(module, shape, self.tolerance, self.seed, self.setting)

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.shape.dtype)
        return dtype

    @property
    def interpreted(self) -> bool:
        """Whether Triton's interpreter runs it: kernels that were asked for, without a GPU."""
        return interpreted(self.module, self.shape)

    @property
    def length(self) -> int:
        return self.setting.length

    @property
    def steps(self) -> int:
        """How many tokens to decode one by one."""
        return min(self.length, INTERPRETED_SHORT) if self.interpreted else self.length

    @property
    def place(self) -> str:
        """Where a test failed, for its detail."""
        return f"{self.setting} ({self.shape.dtype})"

    def inputs(
        self, queries: int | None = None, keys: int | None = None, *, batch: int | None = None, salt: int = 0
    ) -> Inputs:
        """Standard normal entries, fewer keys than queries where the shape is cross; drawn in float32 on the CPU.

        Slices of joined projections, so that no tensor is contiguous. Drawn once: tests share them.
        """
        queries = self.length if queries is None else queries
        if keys is None:
            keys = max(1, 2 * queries // 3) if self.shape.cross and not self.shape.causal else queries
        batch = self.setting.batch if batch is None else batch
        wanted = (queries, keys, batch, salt)
        return self._shared.once(wanted, lambda: self._draw(*wanted))

    def _draw(self, queries: int, keys: int, batch: int, salt: int) -> Inputs:
        # Drawn on the CPU in float32 and then moved: every device and precision sees the same numbers.
        generator = torch.Generator().manual_seed(1000 * self.seed + salt)
        heads, width = self.shape.heads, self.shape.head_dim

        def joined(length: int, parts: int) -> Tensor:
            drawn = torch.randn(batch, length, parts, heads, width, generator=generator)
            return drawn.to(self.shape.device, self.dtype).permute(2, 0, 3, 1, 4)

        query, key, value = joined(queries, 3) if queries == keys else [*joined(queries, 1), *joined(keys, 2)]
        shared = self.shape.kv_heads
        return Inputs(query, key[:, :shared], value[:, :shared])

    def output(self) -> Tensor:
        """The output for `inputs()` without a mask of keys, computed once."""
        # a copy: a variant that writes to one buffer is found by `no state`, and not by all that share this
        return self._shared.once("output", lambda: self.run(self.inputs()).clone())

    def first_passes(self) -> list[Tensor]:
        """`passes(inputs())`, computed once."""
        return self._shared.once("passes", lambda: [x.clone() for x in self.passes(self.inputs())])

    def forward(self, inputs: Inputs, valid: Tensor | None = None) -> Tensor:
        if self.setting.mode == "training":
            # noise of training must not look like a leak
            torch.manual_seed(self.seed)
        return self.module(*inputs.all(), self.mask(valid))

    def mask(self, valid: Tensor | None = None) -> Mask:
        return Mask(valid=None if valid is None else valid.to(self.shape.device), causal=self.shape.causal)

    def run(self, inputs: Inputs, valid: Tensor | None = None) -> Tensor:
        """The output, without gradients."""
        with torch.no_grad():
            return self.forward(inputs, valid)

    def grad_output(self, like: Tensor, salt: int = 0) -> Tensor:
        """A random gradient of the output `like`, laid out as a model's output projection passes it."""
        batch, heads, queries, width = like.shape
        generator = torch.Generator().manual_seed(7 + salt)
        return torch.randn(batch, queries, heads, width, generator=generator).transpose(1, 2).to(like)

    def gradients(self, inputs: Inputs, valid: Tensor | None = None, grad_output: Tensor | None = None) -> list[Tensor]:
        """Gradients of query, key and value for a random direction of the output; zeros where none arrives."""
        return self.passes(inputs, valid, grad_output)[1:]

    def passes(self, inputs: Inputs, valid: Tensor | None = None, grad_output: Tensor | None = None) -> list[Tensor]:
        """The output, and the gradients of query, key and value."""
        with torch.enable_grad():
            leaves = inputs.leaves()
            output = self.forward(leaves, valid)
            arriving = self.grad_output(output) if grad_output is None else grad_output
            if not output.requires_grad:
                return [output, *(torch.zeros_like(x) for x in leaves.all())]
            found = torch.autograd.grad(output, leaves.all(), arriving, allow_unused=True)
        gradients = [torch.zeros_like(x) if g is None else g for x, g in zip(leaves.all(), found, strict=True)]
        return [output.detach(), *gradients]


def interpreted(module: Variant, shape: AttentionShape) -> bool:
    """Whether Triton's interpreter runs it: kernels that were asked for, without a GPU."""
    return torch.device(shape.device).type == "cpu" and any(
        getattr(part, "impl", "") == "triton" for part in module.modules()
    )
