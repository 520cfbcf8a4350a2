"""Rows of scores with a large size in common, exact in float32, and the errors of a map on them.

A map onto the simplex does not see a constant that is added to all scores of a row, so its error may not grow with it.
Scores are one entry of the key times a power of two, so that float32 holds them as given and float64 sees the same.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from attnbench.variants import build
from attnbench.variants.contract import AttentionShape, Mask

MAPS = ("sparsemax", "entmax15", "entmax[alpha=1.25]", "entmax[alpha=1.0]")
# 1,000 and 3,000 are no powers of two: 1 / n of those is exact in float32 and hides what rounding does
COUNTS = (1, 3, 1000, 3000, 9000)
SIZES = (0.0, 10.3, 1e3, 1e4, 1e6)
Rows = Literal["sparse", "dense"]
KINDS: tuple[Rows, ...] = ("sparse", "dense")

HEADS = 2
HEAD_DIM = 16
# where a key lies so near the threshold, the derivative jumps: float32 and float64 may choose different sides
_MARGIN = 1e-6


def make(name: str, impl: str, keys: int) -> torch.nn.Module:
    """The variant on the path `impl`, for one head size and as many keys."""
    selection = f"{name[:-1]},impl={impl}]" if name.endswith("]") else f"{name}[impl={impl}]"
    return build(selection, AttentionShape(heads=HEADS, head_dim=HEAD_DIM, max_length=max(keys, 16), cross=True))


def rows(name: str, keys: int, size: float, kind: Rows, queries: int = 16, seed: int = 0) -> list[Tensor]:
    """query, key, value and upstream, float32; the scores of each query are key[..., 0], those near `size`.

    value[..., 0] is 1, so that the first entry of an output is the sum of its row of weights.
    """
    for attempt in range(50):
        generator = torch.Generator().manual_seed(1000 * seed + attempt)
        query, upstream = (
            torch.zeros(1, HEADS, queries, HEAD_DIM),
            torch.randn(1, HEADS, queries, HEAD_DIM, generator=generator),
        )
        # times 1 / sqrt(16): the score is the entry of the key itself
        query[..., 0] = 4.0
        key, value = torch.randn(2, 1, HEADS, keys, HEAD_DIM, generator=generator)
        spread = key[..., 0] if kind == "sparse" else torch.rand(1, HEADS, keys, generator=generator) / (2 * keys)
        key[..., 0] = size + spread
        value[..., 0] = 1.0
        if _margin(name, key[..., 0].double()) > _MARGIN:
            return [query, key, value, upstream]
    raise RuntimeError(f"expected scores away from the threshold of {name} within 50 draws")


def errors(name: str, impl: str, inputs: list[Tensor]) -> tuple[float, float]:
    """Largest |sum of a row - 1|, and the largest error of a gradient relative to its largest entry, from float64."""
    variant, definition = make(name, impl, inputs[1].shape[2]), make(name, "eager", inputs[1].shape[2]).double()
    output, *found = passes(variant, inputs)
    assert variant.implementation == impl
    _, *exact = passes(definition, [x.double() for x in inputs])
    worst = 0.0
    for ours, true in zip(found, exact, strict=True):
        # of one key nothing depends on the scores: their gradients are zero, and an error is not relative to them
        scale = true.abs().max().item() if true.abs().max() > 1e-12 else 1.0
        worst = max(worst, ((ours.double() - true).abs().max() / scale).nan_to_num(torch.inf).item())
    return (output[..., 0].double() - 1.0).abs().max().nan_to_num(torch.inf).item(), worst


def passes(variant: torch.nn.Module, inputs: list[Tensor]) -> list[Tensor]:
    """Output, and gradients of the query but for the entry that meets the common size, of the key and of the value.

    That entry is `size` times a sum that is zero: in any arithmetic its error is `size` times a rounding.
    """
    leaves = [x.detach().requires_grad_() for x in inputs[:3]]
    output = variant(*leaves, Mask())
    to_query, to_key, to_value = torch.autograd.grad(output, leaves, inputs[3])
    return [output.detach(), to_query[..., 1:], to_key, to_value]


def _margin(name: str, scores: Tensor) -> float:
    """How near a score comes to the threshold of sparsemax, the one map whose derivative jumps there."""
    if name != "sparsemax":
        return torch.inf
    ordered = scores.sort(-1, descending=True).values
    ordered = ordered - ordered[..., :1]
    sums, counts = ordered.cumsum(-1) - 1.0, torch.arange(1, scores.shape[-1] + 1)
    support = (ordered * counts > sums).sum(-1, keepdim=True)
    threshold = sums.gather(-1, support - 1) / support
    return (ordered - threshold).abs().min().item() * scores.shape[-1]
