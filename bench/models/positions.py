"""Positions: tables added to embeddings, rotations of queries and keys (RoPE), and biases by distance (ALiBi)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...tasks.contract import Problem, Recipe, SelectionError

ROPE_BASE = 10_000.0
"""The longest wavelength is about 2π times this many tokens (Su et al. 2021, section 3.2.2)."""

ALIBI_DIMENSIONS = 2
"""Dimensions that a head gets for the bias of ALiBi."""


def check_positions(problem: Problem, recipe: Recipe) -> None:
    """Raises SelectionError where positions of this kind cannot be had in the model of that problem."""
    if recipe.positions == "rope" and recipe.head_dim % 2:
        raise SelectionError(
            f"positions=rope turns pairs of dimensions: expected an even head_dim, got {recipe.head_dim} (width "
            f"{recipe.width}, {recipe.heads} heads)"
        )
    if recipe.positions == "alibi" and not problem.causal:
        raise SelectionError(
            "positions=alibi is for causal models: a bias -m |i - j| for both directions is no product of something of "
            "the query with something of the key; take positions=rope"
        )
    if recipe.convolution == 1:
        raise SelectionError("convolution=1 sees no token before: expected 0, for none, or a width of 2 or more")


def position_table(recipe: Recipe, length: int) -> Tensor | None:
    """(length, width): drawn now where it is learned, None where positions are none or brought in elsewhere."""
    if recipe.positions not in ("learned", "sinusoidal"):
        return None
    if recipe.positions == "learned":
        return nn.Parameter(torch.randn(length, recipe.width) * recipe.deviation)
    half = torch.exp(torch.arange(0, recipe.width, 2) * (-math.log(10_000.0) / recipe.width))
    angles = torch.arange(length)[:, None] * half[None, :]
    # the table of Vaswani et al. 2017, section 3.5, cut to an odd width where there is one
    return nn.Buffer(torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, : recipe.width], persistent=False)


def embedding_scale(recipe: Recipe) -> float:
    """The factor of a token's embedding before positions are added, so that both start with the same size.

    The table of sines has values near 1; learned positions start as embeddings do.
    """
    return 1 / recipe.deviation if recipe.positions == "sinusoidal" else 1.0


def rotated(x: Tensor, first: int = 0) -> Tensor:
    """Queries or keys (batch, heads, length, head_dim), turned by their positions, of which the first is `first`.

    Dimensions 2t and 2t + 1 turn by the position times base^(-2t / head_dim): products of a query and a key then
    depend on their distance alone (Su et al. 2021, RoFormer, eq. 34).
    """
    length, head_dim = x.shape[2:]
    # angles in float32 at least: a position of 2,048 has no exact half
    kind = torch.promote_types(x.dtype, torch.float32)
    frequency = ROPE_BASE ** (-torch.arange(0, head_dim, 2, device=x.device, dtype=kind) / head_dim)
    angle = torch.arange(first, first + length, device=x.device, dtype=kind)[:, None] * frequency
    cos, sin = angle.cos(), angle.sin()
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2).to(x.dtype)


@dataclass(frozen=True, slots=True)
class LinearBias:
    """ALiBi for any map of scores: two more dimensions of each head, so that its products hold the bias.

    The score of query i and key j becomes q·k / sqrt(d) - m (i - j), with slope m of each head as Press et al. 2022
    have it: 2^(-8h / heads) for head h from 1. With q' = [c q, -m i, 1] and k' = [k, 1, m j] the product is exact, also
    for maps that a constant added to a whole row would change. The variant divides by sqrt(d + 2) and not by
    sqrt(d), which the factors of q' make good.
    """

    heads: int

    def slopes(self, like: Tensor) -> Tensor:
        """(heads, 1)."""
        head = torch.arange(1, self.heads + 1, device=like.device, dtype=like.dtype)
        return (2.0 ** (-8.0 * head / self.heads))[:, None]

    def widened(self, query: Tensor, key: Tensor, value: Tensor, first: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value (batch, heads, length, head_dim) with two more dimensions, in float32 at least.

        `first`: the position of the first of them. The value gets zeros, so that its width is that of the others.
        """
        # positions times slopes have more digits than half precision holds
        kind = torch.promote_types(query.dtype, torch.float32)
        query, key, value = query.to(kind), key.to(kind), value.to(kind)
        head_dim = query.shape[-1]
        whole = head_dim + ALIBI_DIMENSIONS
        at = torch.arange(first, first + query.shape[2], device=query.device, dtype=kind)
        far = (self.slopes(query) * at).expand(*query.shape[:3])[..., None]
        one = torch.ones_like(far)
        query = torch.cat([query * math.sqrt(whole / head_dim), -far * math.sqrt(whole), one * math.sqrt(whole)], -1)
        return (
            query,
            torch.cat([key, one, far], -1),
            torch.cat([value, torch.zeros_like(one), torch.zeros_like(one)], -1),
        )
