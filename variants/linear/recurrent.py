"""Recurrent variants: those that read a matrix as state, written step by step, by the one equation of a family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..contract import AttentionShape, Mask, SelectionError, Unsupported, Variant, accumulator, repeat_heads
from ..kernels.dispatch import choose_implementation, refusal
from ..ops.recurrences import CHUNK, Terms, recurrence, recurrence_by_token

Impl = Literal["auto", "eager", "cpp"]


class RecurrentVariant(Variant):
    """A variant that reads a state (heads, head_dim, head_dim); a subclass says by `terms` how it is written.

        S_t = D_t S_(t-1) + k_t^T (v_t - e_t D_t S_(t-1));  o_t = q_t S_t

    Whole sequences, decoding and padding follow from the terms (`ops/recurrences.py`, which lists members). Causal
    only: a recurrence over the past has no form that sees both sides. There is no weight matrix, hence no dropout on
    it. Padded tokens neither write nor decay. Each head's output is divided by its root mean square, with a scale for
    each dimension that the heads share, as in the released codes.

    `impl`: auto takes the C++ kernel on a CPU, eager otherwise; eager is the definition. Decoding is eager. A
    constructor ends with `impl` and hands it on: `super().__init__(shape, impl=impl)`. A subclass with states of
    another size overrides `state_bytes` and `density`.
    """

    uses_dropout = False
    crosses: ClassVar = False
    #: where False, `terms` and `finish` get None for it
    takes_hidden = True
    time: ClassVar = "O(N d^2)"
    memory: ClassVar = "O(N d + N d^2 / 32)"

    def __init__(self, shape: AttentionShape, *, impl: Impl = "auto"):
        super().__init__(shape)
        self.impl = impl
        self.norm = nn.Parameter(torch.ones(shape.head_dim))

    def terms(self, query: Tensor, key: Tensor, value: Tensor, hidden: Tensor) -> Terms:
        """The recurrence of these tokens, one or many, each by itself.

        query, key, value: (batch, heads, length, head_dim) and hidden (batch, length, hidden_width), float32 or more.
        """
        raise TypeError(f"{type(self).__name__} defines no terms(query, key, value, hidden)")

    def read(self, terms: Terms, hidden: Tensor) -> Tensor:
        """The reads of queries from the states, (batch, heads, length, head_dim), of a whole sequence."""
        return self.recurrence(*terms)[0]

    @property
    def recurrence(self) -> Callable[..., tuple[Tensor, Tensor]]:
        """`recurrence` of `ops/recurrences`, in the implementation that `forward` chose."""
        if self.implementation == "eager":
            return recurrence
        from ..kernels.cpu.recurrences import recurrence as in_cpp

        return in_cpp

    def finish(self, output: Tensor, hidden: Tensor) -> Tensor:
        """The output of each head, normalised; hidden: (batch, length, hidden_width)."""
        return F.rms_norm(output, output.shape[-1:], self.norm.to(output.dtype), eps=1e-5)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, hidden: Tensor | None = None) -> Tensor:
        queries, keys = query.shape[2], key.shape[2]
        if not mask.causal or queries != keys:
            name = type(self).__name__
            raise Unsupported(f"{name}: expected a causal mask over one sequence, got {queries} queries, {keys} keys")
        dtype = accumulator(query.dtype)
        states: Any = hidden if hidden is None else hidden.to(dtype)
        self.implementation = choose_implementation(self.impl, query, key, value, kernels=frozenset({"cpp"}))
        terms = self.terms(query.to(dtype), key.to(dtype), value.to(dtype), states)
        terms = terms if mask.valid is None else terms.without(~mask.valid)
        return self.finish(self.read(terms, states), states).to(value.dtype)

    def supports(self, shape: AttentionShape) -> str | None:
        refused = super().supports(shape)
        if refused is None and not shape.causal:
            return "it is a recurrence over the past, so it needs the causal form"
        return refused or refusal(self.impl, shape, drops=False)

    def density(self, shape: AttentionShape) -> float:
        # scores inside chunks, and what is read from and written to states, (head_dim) each, as if all were scores
        length = shape.max_length
        computed = length * min(CHUNK, length) + 2 * length * shape.head_dim
        return min(1.0, 2 * computed / (length * (length + 1)))

    def state_bytes(self, shape: AttentionShape) -> int:
        itemsize = accumulator(getattr(torch, shape.dtype)).itemsize
        return shape.heads * shape.head_dim**2 * itemsize

    def step(
        self, query: Tensor, key: Tensor, value: Tensor, state: Tensor | None = None, hidden: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        if hidden is None and self.takes_hidden:
            raise SelectionError(f"{type(self).__name__} takes the hidden state: expected hidden, got None")
        key, value = repeat_heads(key, query.shape[1]), repeat_heads(value, query.shape[1])
        dtype = accumulator(query.dtype)
        q, k, v = (each.to(dtype) for each in (query, key, value))
        x: Any = hidden if hidden is None else hidden.to(dtype)
        output, state = recurrence_by_token(*self.terms(q, k, v, x), state)
        return self.finish(output, x).to(value.dtype), state


def by_head(x: Tensor, heads: int) -> Tensor:
    """(batch, length, heads * d) -> (batch, heads, length, d)."""
    return torch.unflatten(x, -1, (heads, -1)).transpose(1, 2)
