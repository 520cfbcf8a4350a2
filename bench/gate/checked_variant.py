"""The variant that the gate examines, in the precisions it is examined in, with inputs that depend on a seed alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, get_args

import torch
from torch import Tensor

from ...variants.contract import AttentionShape, Mask, ScoredVariant, Variant
from ..core.errors import Unsupported
from ..core.registry import VARIANTS, parameters
from ..core.spec import Spec
from .distance import own_error

BASE_LENGTH = 96
LONG_LENGTH = 384
INTERPRETED_LENGTH = 70
"""Two or three tiles of the kernels; Triton's interpreter takes a thousand times as long as the CPU."""
INTERPRETED_SHORT = 8

VariantSource = Spec | str | type[Variant] | Callable[[AttentionShape], Variant]


@dataclass(frozen=True, slots=True)
class VariantFactory:
    """How instances come to be: `make(shape, **parameters)`. `implementations` are the values of a parameter `impl`;
    `forced`, which of them a selection asks for."""

    name: str
    make: Callable[..., Variant]
    implementations: tuple[str, ...] = ()
    forced: str = ""

    @classmethod
    def of(cls, given: VariantSource) -> VariantFactory:
        """Raises SelectionError for an unknown name or parameter."""
        if isinstance(given, str):
            given = Spec.parse(given)
        if isinstance(given, Spec):
            spec = VARIANTS.resolve(given)

            def make(shape: AttentionShape, **more: Any) -> Variant:
                variant: Variant = VARIANTS.build(Spec.of(spec.name, **(dict(spec.parameters) | more)), shape)
                return variant

            forced = str(spec.get("impl", ""))
            return cls(str(spec), make, _implementations(VARIANTS.load(spec.name)), forced)
        if isinstance(given, type):
            return cls(given.__name__, given, _implementations(given))
        return cls(getattr(given, "__name__", "variant"), given)


@dataclass(frozen=True, slots=True)
class Inputs:
    """(batch, heads, queries | keys, head_dim)."""

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
        """Copies that gather gradients."""
        return self.map(lambda x: x.detach().clone().requires_grad_())

    def all(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.query, self.key, self.value


@dataclass(frozen=True, slots=True)
class VariantInDtype:
    """A variant in one precision. `tolerance`: what rounding explains, relative to the largest entry of the output."""

    module: Variant
    shape: AttentionShape
    tolerance: float
    seed: int

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.shape.dtype)
        return dtype

    @property
    def interpreted(self) -> bool:
        """Whether Triton's interpreter runs it: kernels that were asked for, without a GPU."""
        return torch.device(self.shape.device).type == "cpu" and any(
            getattr(module, "impl", "") == "triton" for module in self.module.modules()
        )

    @property
    def steps(self) -> int:
        """How many tokens to decode one by one."""
        return min(self.lengths[-1], INTERPRETED_SHORT) if self.interpreted else self.lengths[-1]

    @property
    def lengths(self) -> tuple[int, ...]:
        """One length that is no multiple of a block, and a longer one where the shape has room for more blocks."""
        if self.interpreted:
            return (min(self.shape.max_length, INTERPRETED_LENGTH),)
        # One less than a multiple of every block: an error at the edge of the last block needs a block that is not
        # full.
        base = min(self.shape.max_length, BASE_LENGTH - 1)
        long = min(self.shape.max_length, LONG_LENGTH)
        return (base, long) if long > 2 * base else (base,)

    def inputs(self, queries: int, keys: int | None = None, *, batch: int = 2, salt: int = 0) -> Inputs:
        """Standard normal entries, fewer keys than queries where the shape is cross; drawn in float32 on the CPU."""
        if keys is None:
            keys = max(1, 2 * queries // 3) if self.shape.cross and not self.shape.causal else queries
        # Drawn on the CPU in float32 and then moved: every device and precision sees the same numbers.
        generator = torch.Generator().manual_seed(1000 * self.seed + salt)
        return Inputs(
            *(
                torch.randn(batch, self.shape.heads, n, self.shape.head_dim, generator=generator).to(
                    self.shape.device, self.dtype
                )
                for n in (queries, keys, keys)
            )
        )

    def forward(self, inputs: Inputs, keep: Tensor | None = None) -> Tensor:
        return self.module(*inputs.all(), self.mask(keep))

    def mask(self, keep: Tensor | None = None) -> Mask:
        return Mask(keep=None if keep is None else keep.to(self.shape.device), causal=self.shape.causal)

    def run(self, inputs: Inputs, keep: Tensor | None = None) -> Tensor:
        """The output, without gradients."""
        with torch.no_grad():
            return self.forward(inputs, keep)

    def gradients(self, inputs: Inputs, keep: Tensor | None = None, salt: int = 0) -> list[Tensor]:
        """Gradients of query, key and value for a random direction of the output; zeros where none arrives."""
        leaves = inputs.leaves()
        output = self.forward(leaves, keep)
        grad_output = torch.randn(output.shape, generator=torch.Generator().manual_seed(7 + salt)).to(output)
        if not output.requires_grad:
            return [torch.zeros_like(x) for x in leaves.all()]
        found = torch.autograd.grad(output, leaves.all(), grad_output, allow_unused=True)
        return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves.all(), found, strict=True)]


class CheckedVariant:
    """A variant built for one shape, in evaluation mode; every instance of it holds the same parameters and buffers.

    `thorough`: implementations that nothing here would choose by itself are examined too, which may take minutes.
    """

    def __init__(self, source: VariantSource, shape: AttentionShape, seed: int = 0, thorough: bool = True):
        self.source, self.shape, self.seed, self.thorough = VariantFactory.of(source), shape, seed, thorough

    def build(self, shape: AttentionShape, **more: Any) -> Variant:
        """A new instance; parameters stay in float32 under half precision. Raises Unsupported."""
        return build(self.source, shape, self.seed, **more)

    @cached_property
    def module(self) -> Variant:
        return self.build(self.shape)

    def like(self, *, dtype: str | None = None, dropout: float | None = None, **more: Any) -> Variant:
        """An instance with other numbers inside, or another implementation, and the state of `module`."""
        shape = replace(self.shape, dtype=dtype or self.shape.dtype, dropout=dropout or self.shape.dropout)
        twin = self.build(shape, **more)
        twin.load_state_dict(self.module.state_dict())
        return twin

    @cached_property
    def native(self) -> VariantInDtype:
        """The variant in the precision that will be measured."""
        epsilon = torch.finfo(getattr(torch, self.shape.dtype)).eps
        # float16 and bfloat16: the sums are made in float32 there, so fewer roundings stand behind an output.
        half = epsilon > 1e-4
        view = VariantInDtype(self.module, self.shape, (4 if half else 64) * epsilon, self.seed)
        if self.double is None:
            return replace(view, tolerance=4 * view.tolerance)
        inputs = view.inputs(view.lengths[0])
        # A variant that rounds more, such as a long recurrence, gets more room, measured against itself in float64, but
        # never more than hides a leak.
        own = own_error(view.run(inputs), self.double.run(inputs.map(Tensor.double)))
        return replace(view, tolerance=min(view.tolerance + 16 * own, max(5e-4, 8 * epsilon)))

    @cached_property
    def double(self) -> VariantInDtype | None:
        """The same in float64, where leaks stand out from rounding; None where the variant refuses float64."""
        try:
            module = self.like(dtype="float64")
        except Unsupported:
            return None
        # 1e-9: far above the rounding of float64 and far below any leak through a real path.
        return VariantInDtype(module, replace(self.shape, dtype="float64"), 1e-9, self.seed)

    @property
    def views(self) -> list[VariantInDtype]:
        return [self.native] if self.double is None else [self.native, self.double]


class SoftmaxReference(ScoredVariant):
    """Softmax from elementary operations: its rounding error is what others are compared with."""


def build(source: VariantFactory, shape: AttentionShape, seed: int, **more: Any) -> Variant:
    """A new instance in evaluation mode, on the shape's device. Raises Unsupported where it refuses the shape."""
    # Random projections and patterns are part of a variant: two instances are compared only if they drew the same.
    torch.manual_seed(seed)
    variant = source.make(shape, **more)
    reason = variant.supports(shape)
    if reason:
        raise Unsupported(reason)
    variant.to(shape.device)
    return (variant.double() if shape.dtype == "float64" else variant).eval()


def _implementations(variant: type[Any]) -> tuple[str, ...]:
    known = parameters(variant)
    return tuple(get_args(known["impl"].kind)) if "impl" in known else ()
