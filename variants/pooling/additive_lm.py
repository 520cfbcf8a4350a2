"""Additive attention for language models: Fastformer's two rounds over prefixes."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..contract import (
    AttentionShape,
    Count,
    Mask,
    Range,
    SelectionError,
    Unsupported,
    Variant,
    Width,
    accumulator,
    masked_softmax,
    repeat_heads,
)
from ..kernels.dispatch import choose_implementation, refusal
from ..ops.prefix_scan import PrefixSoftmax, Remembered, extend, prefix_softmax, window_softmax, without


class AdditiveLM(Variant):
    """Additive attention for language models: the rounds of Fastformer over what came before, in linear time.

    Each round standardises its vectors per head (zero mean, unit deviation), scores them against a learned vector
    (heads, head_dim) standardised likewise, so that logits stay within `rescale`, and averages the standardised vectors
    of the prefix. Dropout falls on both averages; there is no map at the end. Without a causal mask both rounds average
    the whole sequence. Unlike the public code it adds no 1e-5 to the sum of weights: its softmax cannot underflow.

    `window`: layer l sees the last window·2^l positions, but the first and the last layer all (2 in that code); none:
    all layers see all. `kernel_size`: puts a causal convolution of so many positions in `groups` groups, after a layer
    normalisation and with a residual, before attention; none: no convolution. `impl`: auto takes the Triton scan in the
    causal form on a GPU that can run it, eager otherwise; eager is the definition.
    """

    crosses: ClassVar = False
    equation: ClassVar = (
        "x̂ = (x - mean)/std; l_j = rescale/d x̂_j·ŵ; pool(x)_i = sum_(j<=i) softmax_(j<=i)(l)_j x̂_j; "
        "o_i = pool(pool(q)*k)_i * v_i"
    )
    paper: ClassVar = "Tanghu 2022, Additive Attention for Causal Language Modeling (github.com/mtanghu/LEAP), eq. 3-10"
    time: ClassVar = "O(N d)"
    memory: ClassVar = "O(N d)"

    def __init__(
        self,
        shape: AttentionShape,
        *,
        rescale: Annotated[float, Range(1e-6, 1e6)] = 15.0,
        window: Count | None = None,
        kernel_size: Count | None = None,
        groups: Width = 1,
        impl: Literal["auto", "eager", "triton"] = "auto",
    ):
        super().__init__(shape)
        for name, number in (("window", window), ("kernel_size", kernel_size), ("groups", groups)):
            if number is not None and number < 1:
                raise SelectionError(f"additive-lm: expected {name} to be at least 1, got {number}")
        if shape.width % groups:
            raise SelectionError(f"additive-lm: expected groups to divide the width {shape.width}, got {groups}")
        self.rescale, self.kernel_size, self.groups = rescale, kernel_size, groups
        self.impl = impl
        # as in the public code: the first and the last layer see all
        outer = shape.layer in (0, shape.layers - 1)
        self.base = window
        self.window = None if window is None or outer else window * 2**shape.layer
        self.query_vector = nn.Parameter(torch.randn(shape.heads, shape.head_dim) * 0.02)
        self.key_vector = nn.Parameter(torch.randn(shape.heads, shape.head_dim) * 0.02)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        if query.shape[2] != key.shape[2]:
            raise Unsupported(
                f"additive-lm: expected one sequence, got {query.shape[2]} queries and {key.shape[2]} keys"
            )
        # both rounds are sums in float32, whatever the inputs
        impl = self.impl if mask.causal else "eager"
        self.implementation = choose_implementation(impl, query, dtype=accumulator(query.dtype))
        # first round: what the queries so far come to, one vector for each position
        pooled = self._drop(self._pool(query, self.query_vector, mask))
        # second round: the keys, each times what the first round found for its position
        pooled = self._drop(self._pool(pooled * key, self.key_vector, mask))
        return (pooled * value).to(value.dtype)

    def supports(self, shape: AttentionShape) -> str | None:
        if shape.head_dim < 2:
            return "it divides by the deviation within a head, so head_dim must be at least 2"
        if self.base is not None and not shape.causal:
            return "a window is one of the past, so it needs the causal form"
        if self.base is not None and shape.layers < 3:
            return "the first and the last layer see all, so a window needs at least 3 layers"
        if self.impl == "triton" and not shape.causal:
            return "impl=triton scans prefixes, so it needs the causal form"
        dtype = accumulator(getattr(torch, shape.dtype))
        return super().supports(shape) or refusal(self.impl, shape, dtype, drops=False)

    def density(self, shape: AttentionShape) -> float:
        """Two logits for each token, of all pairs."""
        length = shape.max_length
        return min(1.0, 4 / (length + 1) if shape.causal else 2 / length)

    def state_bytes(self, shape: AttentionShape) -> int | None:
        # one entry short of the window: the step itself brings the last
        entries = 1 if self.window is None else min(self.window - 1, shape.max_length)
        return 2 * shape.heads * entries * (shape.head_dim + 1) * max(4, shape.bytes_per_value)

    def step(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        state: tuple[Remembered, Remembered] | None = None,
    ) -> tuple[Tensor, tuple[Remembered, Remembered]]:
        """Decode one token; the state holds one entry for each round, or those of the window."""
        key, value = repeat_heads(key, query.shape[1]), repeat_heads(value, query.shape[1])
        first, second = state or (None, None)
        pooled, first = extend(first, *self._scored(query, self.query_vector), self.window)
        pooled, second = extend(second, *self._scored(self._drop(pooled) * key, self.key_vector), self.window)
        return (self._drop(pooled) * value).to(value.dtype), (first, second)

    def pre_layer(self, width: int) -> nn.Module | None:
        if self.kernel_size is None:
            return None
        return CausalConvolution(width, self.kernel_size, self.groups, self.shape.dropout)

    def _pool(self, x: Tensor, vector: Tensor, mask: Mask) -> Tensor:
        """(batch, heads, length | 1, head_dim): averages of the standardised `x`, one for all where not causal."""
        logits, x = self._scored(x, vector)
        valid = None if mask.valid is None else mask.valid[:, None]
        if not mask.causal:
            return masked_softmax(logits, valid)[:, :, None] @ x
        # a padded position has no weight, so every prefix is that of the real ones
        logits, x = without(logits, x, valid)
        if self.window is None:
            return self._prefixes(logits, x)[1]
        return window_softmax(logits, x, self.window, self._prefixes)[1]

    @property
    def _prefixes(self) -> PrefixSoftmax:
        if self.implementation == "eager":
            return prefix_softmax
        from ..kernels.gpu import prefix as triton_prefix

        return triton_prefix.prefix_softmax

    def _scored(self, x: Tensor, vector: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (batch, heads, length) and the standardised `x`."""
        dtype = accumulator(x.dtype)
        x = _standardise(x.to(dtype))
        # both of unit deviation, so the product divided by d is a correlation, and logits stay within `rescale`
        logits = x @ _standardise(vector.to(dtype))[..., None] * (self.rescale / x.shape[-1])
        return logits.squeeze(-1), x

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.shape.dropout, self.training)


class CausalConvolution(nn.Module):
    """Grouped convolution over the positions so far, (batch, length, width) to the same; the residual is the caller's.

    Padded positions count as zeros, so that padding on the left equals none.
    """

    def __init__(self, width: int, kernel_size: int, groups: int, dropout: float):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.convolution = nn.Conv1d(width, width, kernel_size, groups=groups, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, valid: Tensor | None) -> Tensor:
        """`valid`: (batch, length), True = a real position; None = all are."""
        # before the norm, whose gradient NaN would enter, and after it, since its bias moves zeros
        x = self._cleared(self.norm(self._cleared(x, valid)), valid)
        # zeros in front only: an output sees its own position and those before
        before = self.convolution.kernel_size[0] - 1
        mixed = self.convolution(F.pad(x.transpose(1, 2), (before, 0)))
        dropped: Tensor = self.dropout(mixed.transpose(1, 2))
        return dropped

    def _cleared(self, x: Tensor, valid: Tensor | None) -> Tensor:
        return x if valid is None else x.masked_fill(~valid[..., None], 0.0)


def _standardise(x: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-5)
