"""Multi-head latent attention (MLA): keys and values of all heads are read out of one short vector of each token."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..contract import AttentionShape, KeyValueCache, Layer, Mask, Width, accumulator, masked_softmax
from ..ops.fused_softmax import fused_softmax
from ..ops.rotation import angles_of_positions, turned


class LatentAttention(Layer):
    """MLA: a layer whose keys and values are W c of a normalised vector c of `rank` numbers that all heads share.

    Each head's query and key have `rotary` dimensions more, which turn with the position; those of the key are one
    vector of the token for all heads. Decoding keeps c and this vector alone, rank + rotary numbers a token, and reads
    both as they are: the maps from c to keys and values are taken by the query and the output. `rank` is 4 head_dim and
    `rotary` head_dim / 2 where None, as in DeepSeek-V2; its compressed queries, which save no state, are left out, as
    in V2-Lite. It has projections of its own, so that kv_heads do not matter to it, and brings its positions.
    """

    brings_positions = True
    decodes = True
    uses_dropout = True
    equation: ClassVar = (
        "c = RMSNorm(W_c x); k = [W_k c; R W_r x], v = W_v c; q = [W_q x; R W_p x]; "
        "O = softmax(q k^T / sqrt(d + rotary)) v; R turns by the position"
    )
    paper: ClassVar = (
        "DeepSeek-AI 2024, DeepSeek-V2: A Strong, Economical, and Efficient Mixture-of-Experts Language Model "
        "(arXiv 2405.04434), section 2.1"
    )
    memory: ClassVar = "O(N d); a state of N (rank + rotary)"

    def __init__(self, shape: AttentionShape, *, rank: Width | None = None, rotary: Width | None = None):
        super().__init__(shape)
        self.rank = rank or 4 * shape.head_dim
        # turned in pairs
        self.rotary = rotary or max(2, shape.head_dim // 4 * 2)
        width, heads, each = shape.hidden_width, shape.heads, shape.head_dim
        self.query = nn.Linear(width, heads * (each + self.rotary), bias=False)
        self.compress = nn.Linear(width, self.rank + self.rotary, bias=False)
        self.norm = nn.Parameter(torch.ones(self.rank))
        # of each head, so that a step may take them one by one
        self.key_of = nn.Parameter(torch.empty(heads, each, self.rank))
        self.value_of = nn.Parameter(torch.empty(heads, each, self.rank))
        for weight in (self.key_of, self.value_of):
            # as nn.Linear(rank, …) starts
            nn.init.uniform_(weight, -(self.rank**-0.5), self.rank**-0.5)
        self.output = nn.Linear(heads * each, width, bias=False)

    def supports(self, shape: AttentionShape) -> str | None:
        if self.rotary % 2:
            return f"rotary={self.rotary}: it turns pairs of dimensions; take an even number"
        return super().supports(shape)

    def transform(self, x: Tensor, mask: Mask) -> Tensor:
        query, kept, shared = self._projected(x, 0)
        key = kept @ self.key_of.to(kept.dtype).transpose(-2, -1)
        value = kept @ self.value_of.to(kept.dtype).transpose(-2, -1)
        key = torch.cat([key, shared.expand(-1, key.shape[1], -1, -1)], -1)
        output, self.implementation = fused_softmax(query, key, value, mask, self.weight_dropout)
        return self._joined(output)

    def state_bytes(self, shape: AttentionShape) -> int:
        return shape.max_length * (self.rank + self.rotary) * shape.bytes_per_value

    def step(
        self, query: Tensor, key: Tensor, value: Tensor, state: Any = None, hidden: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        if state is None:
            # in the dtype of the run, whatever that of the parameters is
            latent, place = (value.new_empty(value.shape[0], 1, 1, width) for width in (self.rank, self.rotary))
            state = KeyValueCache.empty(latent, place)
        return super().step(query, key, value, state, hidden)

    def advance(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        query, kept, shared = self._projected(x, state.length)
        every, dtype = state.append(kept, shared), accumulator(x.dtype)
        latent, places = (part.to(dtype) for part in every)
        own, turning = torch.split_with_sizes(query.to(dtype), [self.shape.head_dim, self.rotary], -1)
        scores = (own @ self.key_of.to(dtype)) @ latent.transpose(-2, -1) + turning @ places.transpose(-2, -1)
        weights = masked_softmax(scores / query.shape[-1] ** 0.5, None)
        output = (F.dropout(weights, self.weight_dropout) @ latent) @ self.value_of.to(dtype).transpose(-2, -1)
        return self._joined(output.to(x.dtype)), state

    def _projected(self, x: Tensor, first: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (batch, heads, length, head_dim + rotary), c (batch, 1, length, rank), the shared part of keys."""
        angle = angles_of_positions(first, x.shape[1], self.rotary, x)
        query = torch.unflatten(self.query(x), -1, (self.shape.heads, -1)).transpose(1, 2)
        own, turning = torch.split_with_sizes(query, [self.shape.head_dim, self.rotary], -1)
        kept, shared = torch.split_with_sizes(self.compress(x)[:, None], [self.rank, self.rotary], -1)
        kept = F.rms_norm(kept, (self.rank,), self.norm.to(kept.dtype), eps=1e-6)
        return torch.cat([own, turned(turning, angle)], -1), kept, turned(shared, angle)

    def _joined(self, output: Tensor) -> Tensor:
        joined: Tensor = self.output(output.transpose(1, 2).flatten(2))
        return joined
