"""Sparse Sinkhorn attention: each block attends to itself and to the block that a sorting network puts beside it."""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ..contract import AttentionShape, Mask, Range, Unsupported, Variant, Width, accumulator, masked_softmax
from ..ops.chunks import cut, paired_density
from ..ops.per_head_mlp import HeadwiseMap


class Sinkhorn(Variant):
    """Attention over the local block and a soft permutation of all blocks of keys and values.

    The sorting network maps the mean key of a block, per head, to logits over blocks; `iterations` of row and column
    normalisation at `temperature` make them nearly a permutation. `gumbel` adds Gumbel noise to them in training.
    Causal: the network sees the mean of the keys up to the first one of the block, only earlier blocks may be moved,
    and columns are normalised by the rows so far, so that nothing depends on the future.

    Of released codes, one uses the sorted keys as values; in another the index of the blocks is summed away on both
    sides, so that each "sorted" block is the sum of all. A longer sequence than `max_length` raises Unsupported.
    """

    kind: ClassVar = "approximate"
    crosses: ClassVar = False
    equation: ClassVar = "O_b = softmax(Q_b [R K, K_b]^T / sqrt(d)) [R V, V_b]; R = sinkhorn(W2 relu(W1 mean(K_b)))"
    paper: ClassVar = "Tay et al. 2020, Sparse Sinkhorn Attention, section 3"
    time: ClassVar = "O(N c d + (N/c)^2 c d)"
    memory: ClassVar = "O(N c + (N/c)^2)"

    def __init__(
        self,
        shape: AttentionShape,
        *,
        block: Width = 64,
        iterations: Annotated[int, Range(0, 100)] = 7,
        temperature: Annotated[float, Range(1e-3, 1e3)] = 0.75,
        gumbel: bool = False,
    ):
        super().__init__(shape)
        self.block, self.iterations, self.temperature, self.gumbel = block, iterations, temperature, gumbel
        self.sorter = HeadwiseMap(shape.heads, shape.head_dim, -(-shape.max_length // block))

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        queries, keys, longest, size = query.shape[2], key.shape[2], self.shape.max_length, self.block
        if keys > longest:
            raise Unsupported(f"expected at most {longest} positions, got {keys}: build sinkhorn for a longer length")
        if queries > keys or (queries < keys and not mask.causal):
            raise Unsupported(
                "sinkhorn attends within one sequence: queries must be its tokens; if causal, the last ones"
            )
        dtype = accumulator(query.dtype)
        valid = mask.real(key)
        # padded keys are zeros before anything is averaged or moved: a soft permutation mixes whole blocks
        k, v = (x.to(dtype).masked_fill(~valid[:, None, :, None], 0.0) for x in (key, value))
        # fewer queries than keys are the last ones: their first block, and how far into it they begin
        first = (keys - queries) // size
        lead = keys - queries - first * size
        q = cut(F.pad(query.to(dtype), (0, 0, lead, 0)), size, 2)
        k, v, live = cut(k, size, 2), cut(v, size, 2), cut(valid, size, 1)

        # an empty block is not moved: it would take the place of one with keys
        movable = _movable(live, mask.causal)
        sorting = sinkhorn(self.sort_logits(k, live, mask.causal), movable, self.iterations, mask.causal)
        # only now: the normalisation needs the rows of all blocks
        sorting, movable = sorting[:, :, first:], movable[:, first:]
        moved_key, moved_value = (torch.unflatten(sorting @ x.flatten(3), 3, x.shape[3:]) for x in (k, v))
        # a place of the moved block counts where any block that may come there has a key at it
        moved_live = (movable.to(dtype) @ live.to(dtype)) > 0
        seen_key = torch.cat([moved_key, k[:, :, first:]], 3)
        seen_value = torch.cat([moved_value, v[:, :, first:]], 3)

        scores = q @ seen_key.transpose(-2, -1) * query.shape[-1] ** -0.5
        # within the own block a causal query sees what is at or before it; the moved block is earlier as a whole
        local = live[:, first:, None, :].expand(-1, -1, size, -1)
        if mask.causal:
            local = local.tril()
        allowed = torch.cat([moved_live[:, :, None, :].expand(-1, -1, size, -1), local], 3)[:, None]
        weights = F.dropout(masked_softmax(scores, allowed), self.weight_dropout)
        return (weights @ seen_value).flatten(2, 3)[:, :, lead : lead + queries].to(value.dtype)

    def sort_logits(self, key: Tensor, live: Tensor, causal: bool) -> Tensor:
        """Logits (batch, heads, blocks, blocks), row = where to; key (batch, heads, blocks, size, d), 0 if not live."""
        if causal:
            # the mean of the keys up to the first of the block: the last that every query of the block may see
            total, count = key.flatten(2, 3).cumsum(2), live.flatten(1).cumsum(1).clamp(min=1)
            pooled = (total / count[:, None, :, None])[:, :, :: self.block]
        else:
            pooled = key.sum(3) / live.sum(-1).clamp(min=1)[:, None, :, None]
        logits: Tensor = self.sorter(pooled, key.shape[2])
        if self.gumbel and self.training:
            # minus ln of an exponential draw is a Gumbel draw: sampling permutations in training, as the paper does
            logits = logits - torch.empty_like(logits).exponential_().log()
        # a low temperature comes nearer to a permutation, at the price of gradients
        return logits / self.temperature

    def density(self, shape: AttentionShape) -> float:
        return paired_density(shape, self.block)


def sinkhorn(logits: Tensor, movable: Tensor, iterations: int, causal: bool) -> Tensor:
    """Rows and columns of exp(logits) made to sum to 1 in turn; zero where not `movable` (batch, blocks, blocks).

    logits: (batch, heads, blocks, blocks). Causal columns are divided by the sum of the rows so far.
    """
    barred = ~movable[:, None]
    # finite, so that rows and columns without any entry keep a finite gradient; its exponential is 0
    lowest = -1e4
    # in the log domain, since exp(logits) may overflow before the first normalisation
    logits = logits.masked_fill(barred, lowest)
    for _ in range(iterations):
        logits = (logits - logits.logsumexp(-1, keepdim=True)).masked_fill(barred, lowest)
        # a column normalised over all rows would tell an early block of later ones
        columns = logits.logcumsumexp(-2) if causal else logits.logsumexp(-2, keepdim=True)
        logits = (logits - columns).masked_fill(barred, lowest)
    return logits.exp().masked_fill(barred, 0.0)


def _movable(live: Tensor, causal: bool) -> Tensor:
    """(batch, blocks, blocks): block of the column may be moved to that of the row; live (batch, blocks, size)."""
    filled = live.any(-1)
    movable = filled[:, :, None] & filled[:, None, :]
    # strictly earlier blocks: the own one is attended to anyway
    return movable.tril(-1) if causal else movable
