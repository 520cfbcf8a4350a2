"""Bands: blocks of queries beside the spans of keys around them, and the attention between the two.

Work and memory are those of the blocks; nothing here is of size queries by keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ..contract import AttentionShape, accumulator, masked_softmax, repeat_heads
from .dropout import KeptPairs, WeightDropout
from .fused_softmax import choice, keep_layout
from .relative_positions import RankPositions


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Blocks of `block` queries; block g sees the keys from g·block - before up to (g + 1)·block + after.

    `length` is that of the sequence, from which block and neighbours are cut to what can be used.
    """

    length: int
    block: int
    before: int
    after: int

    @classmethod
    def fit(cls, length: int, block: int, before: int, after: int) -> Band:
        """The band of a sequence of `length`, with a block no longer and neighbours no further than it is."""
        block = min(block, length)
        # the other blocks hold so many keys: a wider span would be padding alone
        others = (-(-length // block) - 1) * block
        return cls(length=length, block=block, before=min(before, others), after=min(after, others))

    @property
    def blocks(self) -> int:
        """Blocks of the sequence; the last may be filled up."""
        return -(-self.length // self.block)

    @property
    def span(self) -> int:
        """Keys that a block of queries meets."""
        return self.before + self.block + self.after

    def split(self, query: Tensor) -> Tensor:
        """(…, length, d) -> (…, blocks, block, d), zeros past the end."""
        # the queries past the end are dropped by `merge`, so what they see does not matter
        padded = F.pad(query, (0, 0, 0, self.blocks * self.block - self.length))
        return padded.reshape(*query.shape[:-2], self.blocks, self.block, query.shape[-1])

    def merge(self, output: Tensor) -> Tensor:
        """(…, blocks, block, d) -> (…, length, d), the inverse of `split`."""
        return output.flatten(-3, -2)[..., : self.length, :]

    def spans(self, key: Tensor) -> Tensor:
        """(…, length, d) -> (…, blocks, span, d), zeros outside the sequence."""
        # the last block is filled up, and has `after` more behind it
        tail = self.blocks * self.block - self.length + self.after
        padded = F.pad(key, (0, 0, self.before, tail))
        # overlapping windows as a view: nothing is copied before the product reads it
        return padded.unfold(-2, self.span, self.block).transpose(-1, -2)

    def at(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Positions of the queries (blocks, block, 1) and of the keys (blocks, 1, span) they meet."""
        # positions of padded places are below 0 or from `length` on: `allowed` finds them by that
        first = torch.arange(self.blocks, device=device)[:, None, None] * self.block
        queries = first + torch.arange(self.block, device=device)[:, None]
        return queries, first - self.before + torch.arange(self.span, device=device)

    def allowed(self, valid: Tensor | None, causal: bool, device: torch.device) -> Tensor:
        """(batch | 1, 1, blocks, block, span), True = within the sequence, real, and not later where causal.

        `valid`: (batch, length) as in a Mask.
        """
        query_at, key_at = self.at(device)
        allowed = (key_at >= 0) & (key_at < self.length)
        if causal:
            allowed = allowed & (key_at <= query_at)
        if valid is None:
            return allowed[None, None]
        # the mask is cut like the keys, and its padding is False as theirs is zero
        return allowed & self.spans(valid[:, None, :, None]).transpose(-1, -2)

    def kept(self, drop: WeightDropout | None, batch: int, heads: int, missing: int = 0) -> KeptPairs | None:
        """The pairs that `drop` keeps, (batch, heads, blocks, block, span), numbered as in the whole sequence.

        The first `missing` rows are padding; query 0 of the call is the row after them. Entries for pairs outside the
        sequence have no meaning. None where nothing is dropped.
        """
        if drop is None:
            return None
        query_at, key_at = self.at(drop.seed.device)
        return drop.kept(batch, heads, query_at[None, ..., 0] - missing, self.span, key_at[None, ..., 0])


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    allowed: Tensor | None,
    *,
    scale: float,
    dropout: float = 0.0,
    kept: KeptPairs | None = None,
    positions: RankPositions | None = None,
    before: int = 0,
) -> Tensor:
    """Softmax attention (…, queries, d) over (…, keys, d) in groups; zeros where nothing is allowed.

    Keys and values may have fewer heads than queries, the second dimension of all, where there are no blocks behind it.
    `positions` adds its vectors by rank; query r has the rank of key `before` + r. Weights are dropped at the rate
    `dropout` by torch's generator, or by the mask `kept` where it is given.
    """
    dead = None
    if allowed is not None:
        # a row without an allowed key may see everything here, and is set to zero below: what kernels give on it
        # differs from one to the next
        dead = ~allowed.any(-1, keepdim=True)
        allowed = allowed | dead
    # a kernel of PyTorch can neither add vectors by rank nor mix dtypes, nor take a mask of dropped weights
    if positions is None and kept is None and query.dtype == key.dtype == value.dtype:
        output = _fused(query, key, value, allowed, scale, dropout)
    else:
        output = _unfused(query, key, value, allowed, scale, dropout, kept, positions, before)
    return output if dead is None else output.masked_fill(dead, 0.0)


def _fused(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None, scale: float, dropout: float) -> Tensor:
    """`attend` without positions by PyTorch's kernels, the groups as further heads."""
    groups = query.shape[1:-2]
    # each group is a head of its own to the kernel
    heads = query.flatten(1, -3), key.flatten(1, -3), value.flatten(1, -3)
    with choice(heads[0]):
        output = F.scaled_dot_product_attention(
            heads[0],
            heads[1],
            heads[2],
            attn_mask=None if allowed is None else allowed.expand(-1, *groups, -1, -1).flatten(1, -3),
            dropout_p=dropout,
            scale=scale,
            enable_gqa=key.shape[1] != query.shape[1],
        )
    if output.device.type == "cuda":
        # which may be cuDNN's
        keep_layout(output)
    return output.reshape(*query.shape[:-1], value.shape[-1])


def _unfused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    allowed: Tensor | None,
    scale: float,
    dropout: float,
    kept: KeptPairs | None,
    positions: RankPositions | None,
    before: int,
) -> Tensor:
    """`attend` by plain operators."""
    key, value = repeat_heads(key, query.shape[1]), repeat_heads(value, query.shape[1])
    scores = scaled(query, scale) @ key.to(accumulator(key.dtype)).transpose(-2, -1)
    if positions is not None:
        # the score of a rank is the product of the scaled query with its vector: q (k + a) = q k + q a
        scores = scores + positions.scores(scaled(query, scale), key.shape[-2], before)
    if allowed is not None:
        # a selection, not a sum: NaN of a key stays out of rows that do not see it
        scores = scores.masked_fill(~allowed, -torch.inf)
    weights = scores.softmax(-1)
    weights = F.dropout(weights, dropout) if kept is None else weights.masked_fill(~kept.mask, 0.0)
    output = weights.to(value.dtype) @ value
    if positions is not None:
        # the same on the side of the values: sum p (v + b) = sum p v + sum p b
        output = output + positions.values(weights, before).to(value.dtype)
    # the output has fewer numbers than the weights
    return output if kept is None else output * kept.scale


def group_weights(
    query: Tensor, key: Tensor, allowed: Tensor | None, *, scale: float, bias: Tensor | None = None
) -> Tensor:
    """Weights (…, queries, keys) of `attend`, at least float32; `bias` is added to the scaled scores."""
    scores = scaled(query, scale) @ key.to(accumulator(key.dtype)).transpose(-2, -1)
    return masked_softmax(scores if bias is None else scores + bias, allowed)


def scaled(query: Tensor, scale: float) -> Tensor:
    """`query` times `scale`, at least float32."""
    return query.to(accumulator(query.dtype)) * scale


@dataclass(slots=True)
class RecentCache:
    """The keys and values that a decoder can still see, (batch, heads, kept, head_dim), and how many it has seen."""

    key: Tensor
    value: Tensor
    seen: int = 0

    @classmethod
    def empty(cls, key: Tensor, value: Tensor) -> RecentCache:
        """A cache without tokens, in the dtypes and on the device of key and value."""
        return cls(key[:, :, :0], value[:, :, :0])

    def trim(self, first: int, last: int) -> None:
        """Forgets all but the `first` oldest and the `last` newest of what it keeps."""
        kept = self.key.shape[2]
        # nothing to forget yet
        if first + last < kept:
            self.key = torch.cat([self.key[:, :, :first], self.key[:, :, kept - last :]], 2)
            self.value = torch.cat([self.value[:, :, :first], self.value[:, :, kept - last :]], 2)

    def append(self, key: Tensor, value: Tensor) -> None:
        """Adds keys and values (batch, heads, new, head_dim)."""
        self.key = torch.cat([self.key, key], 2)
        self.value = torch.cat([self.value, value], 2)
        self.seen += key.shape[2]


def cached_bytes(shape: AttentionShape, tokens: int) -> int:
    """Bytes of the keys and values of at most `tokens` tokens, for one sequence."""
    return 2 * shape.kv_width * min(shape.max_length, tokens) * shape.bytes_per_value
