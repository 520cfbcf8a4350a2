"""A short causal convolution of queries, keys and values, each dimension by itself."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..contract import AttentionShape, Mask, Range, Unsupported, Variant, Wrapper


@dataclass(slots=True)
class ConvolvedState:
    """The state of the variant inside, and the last size - 1 queries, keys and values before their convolution."""

    inner: Any
    recent: list[Tensor]


class ShortConvolution(Wrapper):
    """Convolve queries, keys and values over the last `size` tokens, each dimension by itself, before attention.

    Without it a token's key tells of that token alone; linear and recurrent models put it before their mixers. `size`:
    4 as in Mamba. `activation`: SiLU after it, as there; `none` for variants that begin with a SiLU of their own, as
    `delta` does. Also without a causal mask it looks back alone. Padded tokens count as zeros. Decoding keeps size - 1
    tokens more. Rotary positions, where a model has them, come before it.
    """

    equation: ClassVar = (
        "o = attention(c(q), c(k), c(v)); c(x)_i = SiLU(sum_{u < size} w_u * x_{i-u}), w of each of them"
    )
    paper: ClassVar = "Gu & Dao 2023, Mamba (arXiv 2312.00752); Yang et al. 2024 (arXiv 2406.06484), section 3.4"

    def __init__(
        self,
        shape: AttentionShape,
        inner: Variant,
        *,
        size: Annotated[int, Range(1, 1024)] = 4,
        activation: Literal["silu", "none"] = "silu",
    ):
        super().__init__(shape, inner)
        self.crosses, self.takes_bounds = False, False  # type: ignore[misc]
        # keys and values come as the model makes them: a filter belongs to a dimension of theirs
        self.grouped = True  # type: ignore[misc]
        # a bias of positions is not to be convolved
        self.maps_products = False
        self.activation = activation
        # the start of a depthwise convolution of PyTorch; heads start alike, so that heads that share keys and heads
        # with the same keys repeated are one function
        bound = 1.0 / math.sqrt(size)
        self.filters = nn.ParameterList(
            torch.empty(size, 1, 1, shape.head_dim).uniform_(-bound, bound).repeat(1, heads, 1, 1)
            for heads in (shape.heads, shape.kv_heads, shape.kv_heads)
        )

    def supports(self, shape: AttentionShape) -> str | None:
        if shape.cross:
            return "it convolves queries and keys of one sequence"
        return super().supports(shape)

    def state_bytes(self, shape: AttentionShape) -> int | None:
        inner = self.inner.state_bytes(shape)
        if inner is None:
            return None
        return inner + (len(self.filters[0]) - 1) * (shape.width + 2 * shape.kv_width) * shape.bytes_per_value

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, hidden: Tensor | None = None) -> Tensor:
        if query.shape[2] != key.shape[2]:
            raise Unsupported(f"conv: expected one sequence, got {query.shape[2]} queries and {key.shape[2]} keys")
        given = [query, key, value]
        if mask.valid is not None:
            given = [x.masked_fill(~mask.valid[:, None, :, None], 0.0) for x in given]
        before = len(self.filters[0]) - 1
        query, key, value = self._convolved([F.pad(x, (0, 0, before, 0)) for x in given])
        return self.inner(query, key, value, mask, hidden)

    def step(
        self, query: Tensor, key: Tensor, value: Tensor, state: Any = None, hidden: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        before = len(self.filters[0]) - 1
        given = [query, key, value]
        if state is None:
            seen = [F.pad(x, (0, 0, before, 0)) for x in given]
        else:
            seen = [torch.cat(pair, 2) for pair in zip(state.recent, given, strict=True)]
        query, key, value = self._convolved(seen)
        output, inner = super().step(query, key, value, None if state is None else state.inner, hidden)
        # a copy: a slice would hold the oldest token too
        return output, ConvolvedState(inner, [x[:, :, 1:].clone() for x in seen])

    def _convolved(self, inputs: list[Tensor]) -> list[Tensor]:
        """Convolve query, key and value with size - 1 tokens in front, (batch, heads, size - 1 + length, head_dim)."""
        outputs = []
        for x, taps in zip(inputs, self.filters, strict=True):
            length = x.shape[2] - len(taps) + 1
            # the first tap is that of the token itself; a token's sum has the same order at any length
            parts = [x[:, :, len(taps) - 1 - u :][:, :, :length] * tap.to(x.dtype) for u, tap in enumerate(taps)]
            total = torch.stack(parts).sum(0)
            outputs.append(F.silu(total) if self.activation == "silu" else total)
        return outputs
