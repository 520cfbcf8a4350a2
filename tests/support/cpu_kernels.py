"""C++ kernels of the maps on drawn inputs, and the eager definition that they are compared with in float64."""

from __future__ import annotations

import pytest
import torch
from error_budget import over_budget, runs
from seeds import seed
from torch import Tensor

from attnbench.variants import build
from attnbench.variants.contract import AttentionShape, Mask, Variant
from attnbench.variants.kernels.cpu import build as cpu_build

NAMES = ("rela", "sparsemax", "entmax15", "entmax[alpha=1.2]", "entmax[alpha=1.0]", "entmax[alpha=learned]", "asentmax",
         "topk[k=20]")  # fmt: skip
# queries of these sizes lead through short supports, supports too long to be kept, and dense products
SPREADS = (1.0, 0.3, 0.02)
DRAW = 77
"""The seed of the dropout of a pass."""

Inputs = tuple[Tensor, Tensor, Tensor]


def require_kernels() -> None:
    """Skips the test where the kernels cannot be built."""
    if cpu_build.failure():
        pytest.skip(f"no C++ kernels here: {cpu_build.failure()}")


def draw(*shape: int, salt: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed(salt)))


def inputs_of(
    queries: int, keys: int, head_dim: int, *, batch: int = 2, heads: int = 3, kv_heads: int = 0, spread: float = 1.0
) -> tuple[Inputs, Tensor]:
    """Query, key and value, and the gradient of the output."""
    sizes = ((heads, queries), (kv_heads or heads, keys), (kv_heads or heads, keys), (heads, queries))
    query, key, value, upstream = (draw(batch, h, n, head_dim, salt=at) for at, (h, n) in enumerate(sizes))
    return (spread * query, key, value), upstream


def forced(name: str, impl: str) -> str:
    """The selection `name` with an implementation."""
    return f"{name[:-1]},impl={impl}]" if name.endswith("]") else f"{name}[impl={impl}]"


def make(name: str, impl: str, head_dim: int, heads: int = 3, dropout: float = 0.0) -> Variant:
    """A variant in training mode."""
    torch.manual_seed(seed(5))
    shape = AttentionShape(heads=heads, head_dim=head_dim, max_length=512, dropout=dropout)
    return build(forced(name, impl), shape).train()


def passes(variant: Variant, inputs: Inputs | list[Tensor], upstream: Tensor, mask: Mask) -> list[Tensor]:
    """The output, and gradients of inputs and parameters; dropout is drawn by one and the same seed."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    torch.manual_seed(DRAW)
    output = variant(*leaves, mask)
    return [output.detach(), *torch.autograd.grad(output, [*leaves, *variant.parameters()], upstream)]


def eager_passes(
    name: str, inputs: Inputs, upstream: Tensor, mask: Mask, dropout: float = 0.0
) -> tuple[list, list[Tensor]]:
    """What the definition gives in float32, in several runs, and in float64."""
    definition = make(name, "eager", inputs[0].shape[3], inputs[0].shape[1], dropout)
    single = runs(lambda x: passes(definition, x, upstream, mask), inputs)
    return single, passes(definition.double(), [x.double() for x in inputs], upstream.double(), mask)


def assert_equals_eager(name: str, inputs: Inputs, upstream: Tensor, mask: Mask, dropout: float = 0.0) -> None:
    variant = make(name, "cpp", inputs[0].shape[3], inputs[0].shape[1], dropout)
    found = passes(variant, inputs, upstream, mask)
    assert variant.implementation == "cpp"
    assert not over_budget(found, *eager_passes(name, inputs, upstream, mask, dropout))


def masks_of(batch: int, keys: int) -> dict[str, Mask]:
    """Masks by name: keys with holes, of which one sequence has a single key."""
    valid = draw(batch, keys, salt=9) > -0.5
    valid[0], valid[1], valid[1, -1] = True, False, True
    at_end = valid.cummin(1).values
    return {
        "none": Mask(),
        "causal": Mask(causal=True),
        "padding at the end": Mask(valid=at_end),
        "padding at the end, causal": Mask(valid=at_end, causal=True),
        "holes": Mask(valid=valid),
        "holes, causal": Mask(valid=valid, causal=True),
    }
