"""Mixture of block attention (MoBA): each query sees its own block of keys and the past blocks nearest to it."""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from torch import Tensor

from ..contract import AttentionShape, Count, Mask, Range, ScoredVariant
from ..mask import picked_range
from ..ops.key_blocks import block_means
from ..ops.nearest_first import highest
from ..ops.patterns import absent, pairs, whole
from ..products import by_group


class BlockSelection(ScoredVariant):
    """Softmax attention over each query's own block of keys and the past blocks whose mean key it scores highest.

    `blocks` counts the blocks that a query sees, its own among them; `block` is how many keys are in one. The paper
    takes 3 of 512; `block` is a sixteenth of max_length where that is less. Each head chooses by itself, without
    parameters, and no gradient of the choice reaches the model. Blocks begin at position 0; a past block is whole, so
    that its mean holds nothing later than the query. Of equal blocks the nearest is taken. Without a causal mask later
    blocks may be chosen too. This code computes all scores and hides the others; density counts the blocks seen, and
    the scores of means.
    """

    crosses: ClassVar = False
    grouped: ClassVar = True
    simplex: ClassVar = True
    maps_products = True
    equation: ClassVar = (
        "P = softmax of Q K^T / sqrt(d) over block(i) and the highest q_i·mean(K_b), b < block(i), 0 elsewhere; O = P V"
    )
    paper: ClassVar = "Lu et al. 2025, MoBA: Mixture of Block Attention for Long-Context LLMs (arXiv 2502.13189)"
    time: ClassVar = "O(N blocks block d + N^2 d / block)"

    def __init__(
        self,
        shape: AttentionShape,
        *,
        block: Count | None = None,
        blocks: Annotated[int, Range(1, 65_536)] = 3,
    ):
        super().__init__(shape)
        self.block = whole("block", block, min(512, shape.max_length // 16))
        self.blocks = blocks

    def weights(self, query: Tensor, key: Tensor, mask: Mask, rows: slice | None = None) -> Tensor:
        missing, keys = absent(query, key), key.shape[2]
        first, last = picked_range(rows, query.shape[2])
        own = torch.arange(first + missing, last + missing, device=query.device)[:, None] // self.block
        query = query[:, :, first:last]
        seen = self._seen(query, key, own, mask).repeat_interleave(self.block, -1)[..., :keys]
        causal = Mask(valid=mask.valid, causal=mask.causal)
        allowed = causal.allowed(keys, keys, query.device, slice(first + missing, last + missing))
        return self.weigh(self.score(query, key), seen if allowed is None else seen & allowed)

    def density(self, shape: AttentionShape) -> float:
        length, computed = shape.max_length, 0.0
        count = -(-length // self.block)
        for number in range(count):
            queries = min(self.block, length - number * self.block)
            others = number if shape.causal else count - 1
            computed += queries * (queries + 1) / 2 if shape.causal else queries**2
            # a mean is met by one product of head_dim, an entry by two
            computed += queries * (min(self.blocks - 1, others) * self.block + others / 2)
        return min(1.0, computed / pairs(length, shape.causal))

    def _seen(self, query: Tensor, key: Tensor, own: Tensor, mask: Mask) -> Tensor:
        """Boolean (batch, heads, queries, blocks): the blocks of each query; own: its block, (queries, 1)."""
        means, counts = block_means(key.detach(), mask.real(key), self.block)
        number = torch.arange(means.shape[2], device=query.device)
        itself = number == own
        if self.blocks == 1:
            return itself[None, None]
        others = (number < own if mask.causal else ~itself) & (counts > 0)[:, None, None]
        nearness = by_group(query.detach().to(means.dtype), means.transpose(-2, -1))
        return itself | highest(nearness, others, self.blocks - 1)
