"""Log-linear attention: a recurrence that keeps a state for each of log N spans of its past, short ones near."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..contract import AttentionShape, SelectionError, accumulator, repeat_heads
from ..ops.projection import projected
from ..ops.recurrences import CHUNK, Terms, recurrence, recurrence_by_token
from .delta import Delta
from .recurrent import Impl, RecurrentVariant, by_head
from .state_space_dual import StateSpaceDual


@dataclass(slots=True)
class Levels:
    """States of all levels side by side, (batch, heads, key_dim, levels · value_dim), and the tokens so far."""

    states: Tensor
    seen: int


class LogLinear(RecurrentVariant):
    """Log-linear attention: token t reads its past in spans of 1, 2, 4, … tokens, each through a weight of its own.

    The spans are those of a Fenwick tree, one for each 1 in the binary digits of t, the nearest the shortest; level 0
    is the token itself. Each has a state that decays and forgets as the one of `of`: `ssd`, Mamba-2, or `delta`, Gated
    DeltaNet (`delta[decay=scalar]`). The weight of level l is softplus(L (W x)) of the token's hidden state x, for each
    head and level, L from 1 as in released code. So its memory grows with log N. There are as many levels as
    `max_length` needs; a longer sequence has its oldest spans on the last. A position is a slot, padded or not. Causal
    only.
    """

    equation: ClassVar = (
        "o_t = norm(sum_l w_t^l q_t S_t^l), S_t^l the state of `of` that span l of the past wrote; "
        "w_t = softplus(L * W x_t)"
    )
    paper: ClassVar = "Guo, Yang, Goel, Xing, Dao & Kim 2025, Log-Linear Attention (arXiv 2506.04761), section 3"
    time: ClassVar = "O(N log N d^2)"
    memory: ClassVar = "O(N d + N d^2 / 32)"

    def __init__(self, shape: AttentionShape, *, of: Literal["ssd", "delta"] = "ssd", impl: Impl = "auto"):
        super().__init__(shape, impl=impl)
        # that of the inner one is used
        del self.norm
        self.inner = StateSpaceDual(shape) if of == "ssd" else Delta(shape, decay="scalar")
        self.levels = _levels(shape.max_length)
        self.weight = nn.Linear(shape.hidden_width, shape.heads * self.levels, bias=False)
        self.slope = nn.Parameter(torch.ones(shape.heads, 1, self.levels))

    def terms(self, query: Tensor, key: Tensor, value: Tensor, hidden: Tensor) -> Terms:
        return self.inner.terms(query, key, value, hidden)

    def read(self, terms: Terms, hidden: Tensor) -> Tensor:
        return read_by_level(terms, self._weights(hidden), self.recurrence)

    def finish(self, output: Tensor, hidden: Tensor) -> Tensor:
        return self.inner.finish(output, hidden)

    def density(self, shape: AttentionShape) -> float:
        # half of the levels above a chunk are read by a query, on average
        length = shape.max_length
        above = max(0, _levels(length) - _levels(CHUNK)) / 2
        return min(1.0, super().density(shape) + 2 * 2 * above * shape.head_dim / (length + 1))

    def state_bytes(self, shape: AttentionShape) -> int:
        return self.levels * super().state_bytes(shape)

    def step(  # type: ignore[override]
        self, query: Tensor, key: Tensor, value: Tensor, state: Levels | None = None, hidden: Tensor | None = None
    ) -> tuple[Tensor, Levels]:
        if hidden is None:
            raise SelectionError("log-linear takes the hidden state: expected hidden, got None")
        key, value = repeat_heads(key, query.shape[1]), repeat_heads(value, query.shape[1])
        dtype = accumulator(query.dtype)
        hidden = hidden.to(dtype)
        terms = self.terms(query.to(dtype), key.to(dtype), value.to(dtype), hidden)
        seen, width = (0, value.shape[-1]) if state is None else (state.seen, value.shape[-1])
        # the token writes level 0, which is empty, and all levels decay and forget with it
        written = F.pad(terms.value, (0, (self.levels - 1) * width))
        before = None if state is None else state.states
        found, states = recurrence_by_token(*terms._replace(value=written), before)
        read = (torch.unflatten(found, -1, (self.levels, width)) * self._weights(hidden)[..., None]).sum(-2)
        # as in counting: the levels below the lowest 0 of the digits become one, on that of this 0
        count = min(((seen + 1) & ~seen).bit_length(), self.levels - 1)
        spans = torch.unflatten(states, -1, (self.levels, width))
        joined = spans[..., : count + 1, :].sum(-2, keepdim=True)
        spans = torch.cat([torch.zeros_like(spans[..., :count, :]), joined, spans[..., count + 1 :, :]], -2)
        return self.finish(read, hidden).to(value.dtype), Levels(spans.flatten(-2), seen + 1)

    def _weights(self, hidden: Tensor) -> Tensor:
        """w, (batch, heads, length, levels)."""
        logits = by_head(projected(self.weight, hidden), self.shape.heads)
        return F.softplus(self.slope.to(logits.dtype) * logits)


def read_by_level(terms: Terms, weights: Tensor, recur: Callable[..., tuple[Tensor, Tensor]] = recurrence) -> Tensor:
    """The sum over levels of weights · what the state of that level gives, (batch, heads, length, value_dim).

    weights: (batch, heads, length, levels); recur: `recurrence`, or a fused form of it. Key s is on the level of query
    t that is the number of binary digits of t xor s; levels beyond the last count as the last. Inside a chunk the
    recurrence of unit values gives the weight of each pair, and that of unit states what a chunk reads of, and does to,
    any state before it.
    """
    batch, _, length, width = terms.query.shape
    count, last = terms.key.shape[2] // length, weights.shape[-1] - 1
    pad = -length % CHUNK
    chunks = (length + pad) // CHUNK

    def folded(x: Tensor, steps: int) -> Tensor:
        """(batch, heads, steps · length, …) -> (batch · chunks, heads, steps · CHUNK, …)"""
        x = F.pad(x, (0, 0) * (x.dim() - 3) + (0, pad * steps))
        return torch.unflatten(x, 2, (chunks, -1)).transpose(1, 2).flatten(0, 1)

    query, weights = folded(terms.query, 1), folded(weights, 1)
    key, value, decay, erase = (None if x is None else folded(x, count) for x in terms[1:])
    assert key is not None and value is not None
    lead, steps = key.shape[:2], key.shape[2]
    units = torch.eye(steps + width, dtype=key.dtype, device=key.device).expand(*lead, -1, -1)
    pairs, ends = recur(query, key, units[..., :steps, :], decay, erase, units[..., steps:, :])
    at = torch.arange(CHUNK, device=key.device)
    # as many binary digits as powers of two that are no larger
    digits = ((at[:, None] ^ at)[..., None] >= 1 << torch.arange(CHUNK.bit_length(), device=key.device)).sum(-1)
    level = digits.clamp(max=last).repeat_interleave(count, 1).expand(*lead, -1, -1)
    inside = (pairs[..., :steps] * weights.gather(-1, level)) @ value
    across = torch.unflatten(pairs[..., steps:], 0, (batch, chunks))
    turns, puts = (torch.unflatten(x, 0, (batch, chunks)) for x in (ends[..., steps:], ends[..., :steps] @ value))
    by_chunk = torch.unflatten(weights, 0, (batch, chunks))
    spans: dict[int, Tensor] = {}
    outputs = [torch.zeros_like(inside[:batch])]
    for number in range(chunks):
        if spans:
            read = [by_chunk[:, number, ..., on, None] * (across[:, number] @ span) for on, span in spans.items()]
            outputs.append(torch.stack(read).sum(0))
            spans = {on: turns[:, number] @ span for on, span in spans.items()}
        # as in counting: spans of equal length become one of twice that, up to the lowest 0 of the digits
        joined, place = puts[:, number], CHUNK.bit_length() - 1 + ((number + 1) & ~number).bit_length()
        for below in range(CHUNK.bit_length(), place + 1):
            joined = joined + spans.pop(min(below, last), 0.0)
        spans[min(place, last)] = joined
    output = torch.unflatten(inside, 0, (batch, chunks)) + torch.stack(outputs, 1)
    return output.transpose(1, 2).flatten(2, 3)[:, :, :length]


def _levels(length: int) -> int:
    """Levels of a sequence: the token itself, and one for each binary digit of the positions before `length`."""
    return 1 + (length - 1).bit_length()
