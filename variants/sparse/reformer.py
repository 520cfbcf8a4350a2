"""Reformer: attention among keys that a locality-sensitive hash puts near the query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ..contract import AttentionShape, Mask, Range, Unsupported, Variant, Width, accumulator, masked_softmax
from ..ops.chunks import cut, paired_density, with_previous

_SELF_SCORE = -5e4
"""A token attends to itself only where it may see nothing else."""


@dataclass(frozen=True, slots=True)
class Order:
    """Tokens sorted by hash, (batch, heads, rounds, length): `position` lists them, `rank` says where each one is."""

    position: Tensor
    rank: Tensor


class Reformer(Variant):
    """Attention among tokens that a locality-sensitive hash sorts near one another.

    Queries serve as keys: the projected keys are not used, a key is the query at unit length. Tokens are sorted by
    their hash, padded ones last, and cut into chunks of `bucket`; a query sees its chunk and the one before, whatever
    the bucket, as in the released code; `hashes` rounds. A pair met in several rounds counts once. The first chunk has
    none before it, as in the paper's index set; released codes wrap around, across rounds. The number of hash buckets
    follows the real length of each sequence, so that padding changes nothing. Rotations are drawn at construction,
    for all passes, and saved; released codes draw in each.

    Causal: values never come from the future, but it decides which past keys share a chunk. Hence no decoding that
    equals the parallel form. A longer sequence than `max_length` raises Unsupported.
    """

    kind: ClassVar = "approximate"
    causality: ClassVar = "selection"
    crosses: ClassVar = False
    decodes: ClassVar = False
    ignores = frozenset({"key"})
    simplex: ClassVar = True
    equation: ClassVar = (
        "P_i = softmax of q_i·q_j / (|q_j| sqrt(d)) over j != i with chunk(i) - 1 <= chunk(j) <= chunk(i)"
    )
    paper: ClassVar = "Kitaev et al. 2020, Reformer: The Efficient Transformer, section 2"
    time: ClassVar = "O(r N (c d + log N))"
    memory: ClassVar = "O(r N c)"

    rotations: Tensor

    def __init__(self, shape: AttentionShape, *, bucket: Width = 64, hashes: Annotated[int, Range(1, 64)] = 2):
        super().__init__(shape)
        self.bucket, self.hashes = bucket, hashes
        # as many directions as half the buckets: each gives two, r and -r
        half = -(-shape.max_length // (2 * bucket))
        rotations = torch.randn(hashes, shape.head_dim, half)
        self.register_buffer("rotations", rotations.to(torch.get_default_dtype()))

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        # the keys are not looked at: the paper shares queries and keys, or a token would not hash to where it is
        # sought
        order = self.order(query, mask.valid)
        _, heads, length, width = query.shape
        dtype = accumulator(query.dtype)
        shared = query.to(dtype)
        # (batch, heads, rounds, chunks, bucket, …) in the order of each round
        at = cut(order.position, self.bucket, 3)
        live = cut(torch.ones_like(order.position, dtype=torch.bool), self.bucket, 3)
        if mask.valid is not None:
            live = live & _gather(mask.valid[:, None, :, None].expand(-1, heads, -1, -1), at)[..., 0]
        # queries and values in the order of each round; chunks of it are what a token sees
        q, v = _gather(shared, at), _gather(value.to(dtype), at)
        seen_at, seen_live = with_previous(at, 3), with_previous(live, 3)
        # unit length for keys only: with both at unit length no score could exceed 1 / sqrt(d)
        seen_key, seen_value = with_previous(F.normalize(q, dim=-1), 3), with_previous(v, 3)

        scores = q @ seen_key.transpose(-2, -1) * width**-0.5
        scores = scores.masked_fill(at[..., :, None] == seen_at[..., None, :], _SELF_SCORE)
        # a pair that meets in m rounds gets the weight 1/m in each, so that all rounds together count it once
        scores = scores - self._rounds_met(order, at, seen_at).to(dtype).log()
        allowed = seen_live[..., None, :]
        if mask.causal:
            # by positions: in hashed order a later place may be an earlier token
            allowed = allowed & (seen_at[..., None, :] <= at[..., :, None])
        weights = F.dropout(masked_softmax(scores, allowed), self.weight_dropout)
        # the mass of each round, by which the rounds are merged: a softmax over all keys of all rounds
        total = scores.masked_fill(~allowed, torch.finfo(dtype).min).logsumexp(-1)

        # out of the chunks, and by rank back to the positions of the sequence
        output = (weights @ seen_value).flatten(3, 4)[:, :, :, :length]
        output = output.gather(3, order.rank[..., None].expand(-1, -1, -1, -1, value.shape[-1]))
        share = total.flatten(3, 4)[:, :, :, :length].gather(3, order.rank).softmax(2)
        joined: Tensor = (output * share[..., None]).sum(2).to(value.dtype)
        return joined

    def weights(self, query: Tensor, key: Tensor, mask: Mask, rows: slice | None = None) -> Tensor:
        """Softmax over the union of the keys met in any round: what the rounds add up to."""
        # which chunk each token is in, for each round: all that decides who meets whom
        chunk = self.order(query, mask.valid).rank // self.bucket
        length, chosen = query.shape[2], rows or slice(None)
        gap = chunk[..., chosen, None] - chunk[..., None, :]
        allowed = ((gap == 0) | (gap == 1)).any(2)
        masked = mask.allowed(length, length, query.device, rows)
        allowed = allowed if masked is None else allowed & masked
        shared = query.to(accumulator(query.dtype))
        scores = shared[:, :, chosen] @ F.normalize(shared, dim=-1).transpose(-2, -1) * query.shape[-1] ** -0.5
        itself = torch.eye(length, dtype=torch.bool, device=query.device)[chosen]
        return masked_softmax(scores.masked_fill(itself, _SELF_SCORE), allowed)

    def order(self, query: Tensor, valid: Tensor | None) -> Order:
        """Raises Unsupported for a sequence longer than the rotations serve."""
        length, longest = query.shape[2], self.shape.max_length
        if length > longest:
            raise Unsupported(f"expected at most {longest} positions, got {length}: build reformer for a longer length")
        # sorting has no gradient; without a graph the rotations cost no memory in training
        with torch.no_grad():
            dtype = accumulator(query.dtype)
            turned = query.to(dtype)[:, :, None] @ self.rotations.to(dtype)
            half = self.rotations.shape[-1]
            index = torch.arange(half, device=query.device)
            # by the real length, so that a sequence hashes alike whatever it is padded to
            real = torch.full((1,), length, device=query.device) if valid is None else valid.sum(-1)
            used = (real + 2 * self.bucket - 1) // (2 * self.bucket)
            turned = turned.masked_fill((index >= used[:, None])[:, None, None, None, :], 0.0)
            # the buckets are the directions ±r; an unused one ties with nothing that is positive
            bucket = torch.cat([turned, -turned], -1).argmax(-1)
            if valid is not None:
                # pads form a bucket behind all others, so no chunk of real tokens is broken by them
                bucket = bucket.masked_fill(~valid[:, None, None, :], 2 * half)
            # bucket and position in one number: sorted by hash, and by position within it
            position = (bucket * length + torch.arange(length, device=query.device)).argsort(-1)
        return Order(position, position.argsort(-1))

    def density(self, shape: AttentionShape) -> float:
        return paired_density(shape, self.bucket, self.hashes)

    def step(self, query: Tensor, key: Tensor, value: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        raise Unsupported("reformer sorts all tokens anew with each one, so its steps do not equal its parallel form")

    def _rounds_met(self, order: Order, at: Tensor, seen_at: Tensor) -> Tensor:
        """The number of rounds in which each pair (…, bucket, 2 bucket) meets: at least one."""
        count = torch.zeros(*at.shape, seen_at.shape[-1], dtype=torch.int32, device=at.device)
        # one round at a time: all rounds at once would be rounds times the memory of the scores
        for rank in order.rank.unbind(2):
            chunk = (rank // self.bucket)[..., None]
            gap = _gather(chunk, at) - _gather(chunk, seen_at).transpose(-2, -1)
            count += (gap == 0) | (gap == 1)
        return count.clamp(min=1)


def _gather(x: Tensor, at: Tensor) -> Tensor:
    """x (batch, heads, length, width) at positions (batch, heads, …) -> (batch, heads, …, width)."""
    flat = at.flatten(2)
    found = x.gather(2, flat[..., None].expand(-1, -1, -1, x.shape[-1]))
    return torch.unflatten(found, 2, at.shape[2:])
