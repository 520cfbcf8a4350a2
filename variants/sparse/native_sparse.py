"""Native sparse attention (NSA): means of blocks, chosen blocks and a window, added by gates of the hidden state."""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..contract import AttentionShape, Count, Mask, Range, ScoredVariant, SelectionError
from ..mask import picked_range
from ..ops.key_blocks import block_means
from ..ops.nearest_first import highest
from ..ops.patterns import absent, pairs, whole
from ..ops.projection import projected


class NativeSparse(ScoredVariant):
    """Add three attentions, each by a gate of the hidden state: over means of past blocks, chosen blocks, and a window.

    The weights of the means choose the blocks: the `blocks` with the highest are seen token by token, always among them
    the first, the query's own and the one before. The gates are sigmoids, three of each head and token. The paper takes
    16 blocks of 64 and a window of 512; here `block` is a sixteenth of max_length where that is less, `blocks` a
    quarter of those there are, at least 3, and the window two blocks. Simpler than in the paper, as in
    flash-linear-attention: a block is its mean, not a network over overlapping blocks, and the three share keys and
    values. Each head chooses by itself; the paper lets heads that share a key choose together, which is the same where
    none do. Causal only. This code computes all scores and hides the others; density counts what the three see.
    """

    takes_hidden = True
    crosses: ClassVar = False
    grouped: ClassVar = True
    simplex: ClassVar = False
    maps_products = True
    equation: ClassVar = (
        "O = sum over c of sigmoid(w_c x) softmax(Q K_c^T / sqrt(d)) V_c; K_c: means of past blocks; blocks with the "
        "highest weights of means; the last window keys"
    )
    paper: ClassVar = "Yuan et al. 2025, Native Sparse Attention (arXiv 2502.11089), section 3"
    time: ClassVar = "O(N (N / block + blocks block + window) d)"

    def __init__(
        self,
        shape: AttentionShape,
        *,
        block: Count | None = None,
        blocks: Annotated[int, Range(3, 65_536)] | None = None,
        window: Count | None = None,
    ):
        super().__init__(shape)
        self.block = whole("block", block, min(64, shape.max_length // 16))
        self.blocks = whole("blocks", blocks, min(16, -(-shape.max_length // self.block) // 4), least=3)
        self.window = whole("window", window, min(512, 2 * self.block))
        self.gate = nn.Linear(shape.hidden_width, 3 * shape.heads, bias=False)

    def supports(self, shape: AttentionShape) -> str | None:
        refused = super().supports(shape)
        if refused is None and not shape.causal:
            return "its blocks lie before a query, so it needs the causal form"
        return refused

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, hidden: Tensor) -> Tensor:  # type: ignore[override]
        weights = F.dropout(self.weights(query, key, mask, hidden=hidden), self.weight_dropout)
        return self.average(weights.to(value.dtype), value)

    def weights(
        self, query: Tensor, key: Tensor, mask: Mask, rows: slice | None = None, *, hidden: Tensor | None = None
    ) -> Tensor:
        """The sum of all three, times their gates; the weight of a mean is shared by its keys."""
        if hidden is None:
            raise SelectionError("nsa takes the hidden state: expected hidden, got None")
        missing, keys = absent(query, key), key.shape[2]
        first, last = picked_range(rows, query.shape[2])
        at = torch.arange(first + missing, last + missing, device=query.device)[:, None]
        query = query[:, :, first:last]
        allowed = mask.allowed(keys, keys, query.device, slice(first + missing, last + missing))
        if allowed is None:
            raise SelectionError("nsa selects among past keys: expected the causal form")
        means, each = self._compressed(query, key, at, mask)
        real = mask.real(key)[:, None, None, :]
        spread = (means * each).repeat_interleave(self.block, -1)[..., :keys].masked_fill(~real, 0.0)
        near = allowed & (at - torch.arange(keys, device=query.device) < self.window)
        chosen = allowed & self._chosen(means, at).repeat_interleave(self.block, -1)[..., :keys]
        scores = self.score(query, key)
        gates = self._gates(hidden[:, first:last], scores.dtype)
        return gates[0] * spread + gates[1] * self.weigh(scores, chosen) + gates[2] * self.weigh(scores, near)

    def density(self, shape: AttentionShape) -> float:
        length, computed = shape.max_length, 0
        for number in range(-(-length // self.block)):
            queries = min(self.block, length - number * self.block)
            # the means of all blocks before, then whole blocks before, then the part of the own one
            computed += queries * (number + min(self.blocks - 1, number) * self.block) + queries * (queries + 1) // 2
        far = max(0, length - self.window)
        computed += pairs(length, True) - pairs(far, True)
        return min(1.0, computed / pairs(length, True))

    def _compressed(self, query: Tensor, key: Tensor, at: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
        """Weights of the means, (batch, heads, queries, blocks), of queries at `at`, (queries, 1); and the share of a
        key in the mean of its block, (batch, 1, 1, blocks)."""
        means, counts = block_means(key, mask.real(key), self.block)
        last = torch.arange(1, means.shape[2] + 1, device=key.device) * self.block - 1
        # a block is seen as a mean from its last token on
        seen = (last <= at) & (counts > 0)[:, None, None]
        return self.weigh(self.score(query, means), seen), 1 / counts.clamp(min=1)[:, None, None].to(means.dtype)

    def _chosen(self, weights: Tensor, at: Tensor) -> Tensor:
        """Boolean like the weights of the means, (batch, heads, queries, blocks)."""
        number = torch.arange(weights.shape[3], device=weights.device)
        own = at // self.block
        # what is always seen comes before any weight
        always = (number == 0) | (number == own) | (number == own - 1)
        return highest(weights.masked_fill(always, 2.0), number <= own, self.blocks)

    def _gates(self, hidden: Tensor, dtype: torch.dtype) -> Tensor:
        """(3, batch, heads, queries, 1), in (0, 1)."""
        gates = projected(self.gate, hidden.to(dtype)).sigmoid()
        return torch.unflatten(gates, -1, (3, -1, 1)).permute(2, 0, 3, 1, 4)
