"""Kernel-feature attention: weights phi(q)·phi(k), normalised by row, at a cost linear in the length.

Keys carry a log scale, so that features of any size fit float32: key j stands for `features_j * exp(log_scale_j)`.
Sums are kept relative to the largest scale *seen so far*, never to a maximum over the whole sequence, so nothing
after a query touches its output, not even by rounding. A scale common to a row cancels in the normalisation.

Density counts the entries of the two feature matrices, (N + S) m, and in the causal form those of the diagonal
chunks, as if they were scores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ..contract import AttentionShape, Mask, Variant, accumulator, repeat_heads
from ..mask import picked_range

_LOWEST = -1e30
"""Log scale of an absent key: below all, yet finite, so that differences are never NaN."""


@dataclass(frozen=True, slots=True)
class KeyFeatures:
    """features (batch, heads, keys, features) >= 0, to be read times exp(log_scale); log_scale (batch, heads, keys)."""

    features: Tensor
    log_scale: Tensor | None = None

    def masked(self, valid: Tensor | None) -> KeyFeatures:
        """Absent keys, False in `valid` (batch, keys), become zero."""
        if valid is None:
            return self
        absent = ~valid[:, None, :]
        scale = None if self.log_scale is None else self.log_scale.masked_fill(absent, _LOWEST)
        return KeyFeatures(self.features.masked_fill(absent[..., None], 0.0), scale)


@dataclass(frozen=True, slots=True)
class FeatureState:
    """sums (batch, heads, features, head_dim + 1), relative to exp(log_scale); log_scale (batch, heads)."""

    sums: Tensor
    log_scale: Tensor | None
    length: int


class FeatureVariant(Variant):
    """A kernel-feature attention; a subclass defines its features.

    There is no weight matrix, hence no dropout on it: none of the papers drops any.
    """

    uses_dropout = False

    time: ClassVar = "O(N m d)"
    memory: ClassVar = "O(N m + m d)"
    floor: ClassVar[float] = 0.0
    """Least denominator; 0 where features are positive and only a row without keys can have none."""

    @property
    def feature_count(self) -> int:
        """Features of one head."""
        return self.shape.head_dim

    def query_features(self, query: Tensor, first: int) -> Tensor:
        """(batch, heads, queries, features), each row up to a positive factor; `first` is the first position."""
        raise TypeError(f"{type(self).__name__} defines no query_features(query, first)")

    def key_features(self, key: Tensor, first: int) -> KeyFeatures:
        """Features of (batch, heads, keys, head_dim); `first` is the position of the first key."""
        raise TypeError(f"{type(self).__name__} defines no key_features(key, first)")

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        left = self.query_features(query, mask.offset(query.shape[2], key.shape[2]))
        right = self.key_features(key, 0).masked(mask.valid)
        # a column of ones beside the values: its sum is the denominator, with the rounding of the numerator
        sums = (attend_past if mask.causal else attend_all)(left, right, _with_ones(value))
        return self._normalise(sums).to(value.dtype)

    def weights(self, query: Tensor, key: Tensor, mask: Mask, rows: slice | None = None) -> Tensor:
        """The implied matrix, normalised by row; forward never builds it."""
        queries, keys = query.shape[2], key.shape[2]
        key = repeat_heads(key, query.shape[1])
        chosen = rows or slice(None)
        first = picked_range(rows, queries)[0] + mask.offset(queries, keys)
        right = self.key_features(key, 0).masked(mask.valid)
        scores = self.query_features(query[:, :, chosen], first) @ right.features.transpose(-2, -1)
        allowed = mask.allowed(queries, keys, query.device, rows)
        if right.log_scale is not None:
            scale = right.log_scale[:, :, None, :]
            # the maximum is taken over what the row may see, so a huge key of the future is not even in a difference
            scale = scale if allowed is None else scale.masked_fill(~allowed, _LOWEST)
            scores = scores * (scale - scale.amax(-1, keepdim=True)).exp()
        scores = scores if allowed is None else scores.masked_fill(~allowed, 0.0)
        return scores / self._guard(scores.sum(-1, keepdim=True))

    def step(self, query: Tensor, key: Tensor, value: Tensor, state: Any = None) -> tuple[Tensor, FeatureState]:
        key, value = repeat_heads(key, query.shape[1]), repeat_heads(value, query.shape[1])
        at = 0 if state is None else state.length
        left, right = self.query_features(query, at), self.key_features(key, at)
        sums = right.features.transpose(-2, -1) @ _with_ones(value)
        scale = None if right.log_scale is None else right.log_scale[:, :, 0]
        if state is not None:
            if scale is None:
                sums = state.sums + sums
            else:
                # the running maximum: the state is brought to it, never the other way, so nothing overflows
                top = torch.maximum(scale, state.log_scale)
                old, new = ((s - top).exp()[:, :, None, None] for s in (state.log_scale, scale))
                sums, scale = state.sums * old + sums * new, top
        return self._normalise(left @ sums).to(value.dtype), FeatureState(sums, scale, at + 1)

    def density(self, shape: AttentionShape) -> float:
        length = shape.max_length
        if not shape.causal:
            return min(1.0, 2 * self.feature_count / length)
        # features of queries and keys, and the scores inside the diagonal chunks
        computed = 2 * length * self.feature_count + length * chunk_for(length)
        return min(1.0, 2 * computed / (length * (length + 1)))

    def state_bytes(self, shape: AttentionShape) -> int | None:
        itemsize = accumulator(getattr(torch, shape.dtype)).itemsize
        return shape.heads * self.feature_count * (shape.head_dim + 1) * itemsize

    def _normalise(self, sums: Tensor) -> Tensor:
        return sums[..., :-1] / self._guard(sums[..., -1:])

    def _guard(self, total: Tensor) -> Tensor:
        if self.floor:
            return total.clamp(min=self.floor)
        # where no feature is large in both query and key the estimate is noise, and its gradient 1 / total overflows
        return total.masked_fill(total <= torch.finfo(total.dtype).tiny ** 0.5, 1.0)


def attend_all(query: Tensor, key: KeyFeatures, value: Tensor) -> Tensor:
    """Sums over all keys (batch, heads, queries, value_dim), each row up to a positive factor."""
    features = key.features
    if key.log_scale is not None:
        # not causal: every query sees the largest key, so one maximum serves all
        features = features * (key.log_scale - key.log_scale.amax(-1, keepdim=True)).exp()[..., None]
    return query @ (features.transpose(-2, -1) @ value)


def attend_past(query: Tensor, key: KeyFeatures, value: Tensor, chunk: int | None = None) -> Tensor:
    """Sums over keys at or before each query, aligned at the last key, (batch, heads, queries, value_dim).

    Chunk by chunk: scores inside a chunk, one state (features, value_dim) per chunk for all that lies before it.
    """
    queries, keys = query.shape[2], key.features.shape[2]
    length = max(queries, keys)
    chunk = chunk or chunk_for(length)
    tail = -length % chunk
    # both sequences are aligned at their ends, and the shorter one gets empty positions in front
    q = _chunks(query, length - queries, tail, chunk)
    k = _chunks(key.features, length - keys, tail, chunk)
    v = _chunks(value, length - keys, tail, chunk)
    # scores within a chunk only: length times chunk of them, not length squared
    inside = q @ k.transpose(-2, -1)
    if key.log_scale is None:
        local = k.transpose(-2, -1) @ v
        # the sum of all chunks before, never the total less a part: a later key would enter by rounding
        before = F.pad(local, (0, 0, 0, 0, 1, 0))[:, :, :-1].cumsum(2)
        sums = inside.tril() @ v + q @ before
    else:
        sums = _scaled_past(q, k, v, inside, F.pad(key.log_scale, (length - keys, tail), value=_LOWEST))
    return sums.flatten(2, 3)[:, :, length - queries : length]


def _scaled_past(q: Tensor, k: Tensor, v: Tensor, inside: Tensor, log_scale: Tensor) -> Tensor:
    chunks, chunk = inside.shape[2], inside.shape[3]
    # for each key the largest scale up to it: what a query at that place measures by
    seen = torch.unflatten(log_scale.cummax(-1).values, -1, (chunks, chunk))
    scale = torch.unflatten(log_scale, -1, (chunks, chunk))
    future = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).triu(1)
    # at most 0 for all that a query may see
    relative = scale[..., None, :] - seen[..., :, None]
    # masked before exp: a huge key in the future must not even overflow
    sums = inside * relative.masked_fill(future, -torch.inf).exp() @ v

    # the state of a chunk is kept relative to its own largest scale
    top = scale.amax(-1)
    local = (k * (scale - top[..., None]).exp()[..., None]).transpose(-2, -1) @ v
    # the largest scale before the chunk, by which all states before it are read
    seen_before = F.pad(seen[..., :-1, -1], (1, 0), value=_LOWEST)
    not_before = torch.ones(chunks, chunks, dtype=torch.bool, device=q.device).triu()
    # chunks by chunks: the weight of each earlier state, again at most 1
    decay = (top[..., None, :] - seen_before[..., :, None]).masked_fill(not_before, -torch.inf).exp()
    before = torch.unflatten(decay @ local.flatten(-2), -1, local.shape[-2:])
    return sums + (seen_before[..., None] - seen).exp()[..., None] * (q @ before)


def chunk_for(length: int) -> int:
    """Chunk that balances work inside chunks with the number of states: about sqrt(length), at least 64.

    >>> chunk_for(10), chunk_for(4096), chunk_for(65536)
    (10, 64, 256)
    """
    return min(length, max(64, 1 << math.ceil(math.log2(length) / 2)))


def _chunks(x: Tensor, front: int, tail: int, chunk: int) -> Tensor:
    return torch.unflatten(F.pad(x, (0, 0, front, tail)), 2, (-1, chunk))


def _with_ones(value: Tensor) -> Tensor:
    """A column of ones, so that one product yields numerator and denominator."""
    return F.pad(value.to(accumulator(value.dtype)), (0, 1), value=1.0)
