"""PaTH attention: softmax attention whose positions are products of Householder-like factors of the tokens between."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..contract import (
    AttentionShape,
    Count,
    KeyValueCache,
    Mask,
    ScoredVariant,
    SelectionError,
    Unsupported,
    Width,
    accumulator,
    repeat_heads,
)  # fmt: skip
from ..mask import picked_range
from ..ops.projection import projected

_CHUNK = 32


@dataclass(slots=True)
class TurnedCache:
    """Keys, turned by all tokens behind them, and values; the last inputs of the convolution; sums of log gates."""

    seen: KeyValueCache
    #: (batch, size - 1, width)
    recent: Tensor
    #: (batch, heads, length)
    sums: Tensor


class PaTH(ScoredVariant):
    """PaTH attention: between key and query the score meets I - b w w^T of every token, the query's own included.

    w of each token is W2 W1 x of its hidden state x, through `rank` dimensions, convolved over the last `size` tokens
    with SiLU, of length 1; b = 2 sigmoid(u x + c) in (0, 2), so that a factor may turn a sign. Heads that share a key
    turn it each by its own w and b. With `forget` the scores also fall by the log forget gates of FoX, which is
    PaTH-FoX. In the paper it takes the place of rotary positions. Padded tokens neither turn nor forget; to the
    convolution they are zeros. Causal only.
    """

    takes_hidden = True
    brings_positions = True
    crosses: ClassVar = False
    simplex: ClassVar = True
    equation: ClassVar = (
        "P_ij = softmax_j(q_i H_i H_(i-1) ... H_(j+1) k_j / sqrt(d) + c_i - c_j); H_t = I - b_t w_t w_t^T; c = 0, or "
        "as in fox; O = P V"
    )
    paper: ClassVar = (
        "Yang, Shen, Wen, Tan, Mishra, Ren, Panda & Kim 2025, PaTH Attention: Position Encoding via Accumulating "
        "Householder Transformations (arXiv 2505.16381), section 3"
    )

    def __init__(self, shape: AttentionShape, *, forget: bool = False, rank: Width = 32, size: Count = 3):
        super().__init__(shape)
        self.down = nn.Linear(shape.hidden_width, rank, bias=False)
        self.up = nn.Linear(rank, shape.width, bias=False)
        # the first tap is that of the token itself
        self.taps = nn.Parameter(torch.empty(size, shape.width).uniform_(-1.0, 1.0) / math.sqrt(size))
        self.strength = nn.Linear(shape.hidden_width, shape.heads)
        self.gate = nn.Linear(shape.hidden_width, shape.heads) if forget else None
        for linear in (self.strength, self.gate):
            if linear is not None:
                nn.init.zeros_(linear.bias)

    def supports(self, shape: AttentionShape) -> str | None:
        refused = super().supports(shape)
        if refused is None and not shape.causal:
            return "it turns a key by what comes after it, so it needs the causal form"
        return refused

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, hidden: Tensor) -> Tensor:  # type: ignore[override]
        weights = F.dropout(self.weights(query, key, mask, hidden=hidden), self.weight_dropout)
        return self.average(weights.to(value.dtype), value)

    def weights(
        self, query: Tensor, key: Tensor, mask: Mask, rows: slice | None = None, *, hidden: Tensor | None = None
    ) -> Tensor:
        length = query.shape[2]
        if hidden is None or not mask.causal or length != key.shape[2]:
            raise Unsupported(
                "path: expected a causal mask over one sequence with its hidden state, got "
                f"{length} queries, {key.shape[2]} keys"
            )
        real = mask.real(key)
        hidden = hidden.to(accumulator(hidden.dtype))
        inputs = projected(self.up, projected(self.down, hidden)).masked_fill(~real[..., None], 0.0)
        w, b = self._factors(F.pad(inputs, (0, 0, len(self.taps) - 1, 0)), hidden)
        b = b.masked_fill(~real[:, None], 0.0)
        first, last = picked_range(rows, length)
        turned = _turned_scores(query.to(w.dtype), repeat_heads(key, query.shape[1]).to(w.dtype), w, b)
        # the chunks that hold a row that is asked for, each over all keys
        picked = (block for at, block in turned if at < last and at + _CHUNK > first)
        blocks = [F.pad(block, (0, length - block.shape[-1])) for block in picked]
        begin = first // _CHUNK * _CHUNK
        scores = torch.cat(blocks, 2)[:, :, first - begin : last - begin] / math.sqrt(query.shape[-1])
        if self.gate is not None:
            sums = self._log_gates(hidden).masked_fill(~real[:, None], 0.0).cumsum(-1)
            scores = scores + sums[:, :, first:last, None] - sums[:, :, None]
        return self.weigh(scores, mask.allowed(length, length, query.device, rows))

    def state_bytes(self, shape: AttentionShape) -> int:
        itemsize = accumulator(getattr(torch, shape.dtype)).itemsize
        # keys change at each token, in each head by itself, so they are kept as sums are
        sums = shape.heads * itemsize if self.gate is not None else 0
        each = shape.width * itemsize + shape.kv_width * shape.bytes_per_value + sums
        return shape.max_length * each + (len(self.taps) - 1) * shape.width * itemsize

    def step(
        self, query: Tensor, key: Tensor, value: Tensor, state: TurnedCache | None = None, hidden: Tensor | None = None
    ) -> tuple[Tensor, TurnedCache]:
        if hidden is None:
            raise SelectionError("path takes the hidden state: expected hidden, got None")
        hidden = hidden.to(accumulator(hidden.dtype))
        key = repeat_heads(key, query.shape[1]).to(hidden.dtype)
        inputs = projected(self.up, projected(self.down, hidden))
        if state is None:
            before = inputs.new_zeros(len(inputs), len(self.taps) - 1, inputs.shape[-1])
            state = TurnedCache(KeyValueCache.empty(key, value), before, inputs.new_zeros(*query.shape[:2], 0))
        inputs = torch.cat([state.recent, inputs], 1)
        w, b = self._factors(inputs, hidden)
        past = state.seen.key[:, :, : state.seen.length]
        past -= (past @ w.transpose(-2, -1)) * (b[..., None] * w)
        keys, values = state.seen.append(key, value)
        # a copy: a slice would hold the oldest token too
        state.recent = inputs[:, 1:].clone()
        scores = self.score(query.to(hidden.dtype), keys)
        if self.gate is not None:
            now = self._log_gates(hidden) + (state.sums[..., -1:] if state.sums.shape[-1] else 0.0)
            state.sums = torch.cat([state.sums, now], -1)
            scores = scores + now[..., None] - state.sums[..., None, :]
        weights = F.dropout(self.weigh(scores, None), self.weight_dropout)
        return self.average(weights.to(values.dtype), values), state

    def _factors(self, inputs: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """w (batch, heads, length, head_dim) of length 1 and b (batch, heads, length), in the dtype of `hidden`.

        inputs: (batch, size - 1 + length, width), with those of the tokens before in front.
        """
        length, late = hidden.shape[1], len(self.taps) - 1
        # a token's sum has the same order at any length
        parts = [inputs[:, late - u : late - u + length] * tap.to(inputs.dtype) for u, tap in enumerate(self.taps)]
        w = torch.unflatten(F.silu(torch.stack(parts).sum(0)), -1, (self.shape.heads, -1)).transpose(1, 2)
        # smooth at zero, where a division by the length itself has no gradient
        w = w * torch.rsqrt(w.square().sum(-1, keepdim=True) + 1e-6)
        return w, 2.0 * projected(self.strength, hidden).transpose(1, 2).sigmoid()

    def _log_gates(self, hidden: Tensor) -> Tensor:
        """(batch, heads, length), below 0."""
        assert self.gate is not None
        return F.logsigmoid(projected(self.gate, hidden)).transpose(1, 2)


def _turned_scores(query: Tensor, key: Tensor, w: Tensor, b: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Yields the first position of each chunk and its scores q_i H_i ... H_(j+1) k_j, zeros where j > i, unscaled.

    query, key, w: (batch, heads, length, head_dim); b: (batch, heads, length). Scores: (batch, heads, chunk, keys up to
    its end). The product of a chunk's factors is I - W^T (I + tril(b W W^T, -1))^-1 b W (the UT transform; the paper's
    section 3.2); each chunk meets keys that are turned to its begin, and turns them on.
    """
    past = key[:, :, :0]
    for first in range(0, query.shape[2], _CHUNK):
        q, k, v = (x[:, :, first : first + _CHUNK] for x in (query, key, w))
        scaled = b[:, :, first : first + _CHUNK, None] * v
        inside = (scaled @ v.transpose(-2, -1)).tril(-1)
        # what the factors take from each key of the chunk, and from a vector that comes from before it
        taken, whole = torch.linalg.solve_triangular(
            inside, torch.cat([(scaled @ k.transpose(-2, -1)).tril(-1), scaled], -1), upper=False, unitriangular=True
        ).split([k.shape[2], k.shape[3]], -1)
        met = (q @ v.transpose(-2, -1)).tril()
        own = (q @ k.transpose(-2, -1)).tril() - met @ taken
        yield first, torch.cat([(q - met @ whole) @ past.transpose(-2, -1), own], -1)
        past = torch.cat([past - (past @ whole.transpose(-2, -1)) @ v, k - taken.transpose(-2, -1) @ v], 2)
