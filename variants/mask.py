"""The mask of attention: which keys a query may see."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


def picked_range(rows: slice | None, queries: int) -> tuple[int, int]:
    """The first of the queries that `rows` picks, and the one after the last; of all where it is None."""
    # not by `slice.indices`, which Dynamo of torch 2.11 cannot trace
    picked = range(queries)[rows or slice(None)]
    return picked.start, picked.stop


@dataclass(frozen=True, slots=True)
class Mask:
    """The keys that a query may see: a key is seen where all four parts allow it.

    PyTorch's `key_padding_mask` is the opposite of `valid`: there True is a padded key.
    """

    #: (batch, keys), True = a real key; None = all are real
    valid: Tensor | None = None
    #: query i sees keys <= i, aligned at the last key where queries are fewer than keys (decoding)
    causal: bool = False
    #: integers (batch | 1, queries, 2): the first key that each query may see and the first key after its last, such
    #: as those of a sliding window; for variants whose class says `takes_bounds`
    bounds: Tensor | None = None
    #: lengths of several sequences that stand one behind the other in each row, without padding; a query sees its own
    #: sequence alone, and the lengths make up all queries and all keys
    lengths: tuple[int, ...] | None = None

    def offset(self, queries: int, keys: int) -> int:
        """Position of the first query among the keys: causal queries end where the keys end, others begin there."""
        return keys - queries if self.causal else 0

    def real(self, key: Tensor) -> Tensor:
        """(batch, keys), True = a real key, where `valid` is None too; of the keys (batch, heads, keys, head_dim)."""
        return key.new_ones(key.shape[0], key.shape[2], dtype=torch.bool) if self.valid is None else self.valid

    def allowed(self, queries: int, keys: int, device: torch.device, rows: slice | None = None) -> Tensor | None:
        """Boolean (batch | 1, 1, rows, keys), True = may be seen; None where everything may.

        `queries` counts all queries, `rows` picks some of them. The third dimension is 1 where all rows are alike.
        """
        # None and not a mask of True: kernels take a faster way without one
        allowed = None if self.valid is None else self.valid[:, None, None, :]
        if self.causal:
            first, last = picked_range(rows, queries)
            # the place of each query among the keys; fewer queries are the last ones, as in decoding
            at = torch.arange(first, last, device=device) + self.offset(queries, keys)
            past = torch.arange(keys, device=device)[None, :] <= at[:, None]
            allowed = past[None, None] if allowed is None else allowed & past
        if self.bounds is not None:
            lower, upper = self.bounds[:, rows or slice(None), :, None].unbind(2)
            key_at = torch.arange(keys, device=device)
            inside = ((key_at >= lower) & (key_at < upper))[:, None]
            allowed = inside if allowed is None else allowed & inside
        if self.lengths is not None:
            lengths = torch.tensor(self.lengths, device=device)
            sequence = torch.arange(len(self.lengths), device=device).repeat_interleave(lengths)
            same = (sequence[rows or slice(None), None] == sequence)[None, None]
            allowed = same if allowed is None else allowed & same
        return allowed

    def seen(self, queries: int, keys: int, device: torch.device) -> Tensor:
        """The number of keys that each query may see, (batch | 1, queries | 1), in memory of keys and queries alone."""
        lower = torch.zeros(1, 1, dtype=torch.long, device=device)
        upper = torch.full((1, 1), keys, device=device)
        if self.causal:
            upper = torch.arange(1, queries + 1, device=device)[None] + self.offset(queries, keys)
        if self.bounds is not None:
            lower, upper = torch.maximum(lower, self.bounds[..., 0]), torch.minimum(upper, self.bounds[..., 1])
        if self.lengths is not None:
            lengths = torch.tensor(self.lengths, device=device)
            end = lengths.cumsum(0)
            lower = torch.maximum(lower, (end - lengths).repeat_interleave(lengths)[None])
            upper = torch.minimum(upper, end.repeat_interleave(lengths)[None])
        if self.valid is None:
            return (upper - lower).clamp(min=0)
        # real keys before each place; more queries than keys reach back before the first
        before = F.pad(self.valid.cumsum(1), (1, 0))
        size = max(x.shape[0] for x in (self.valid, lower, upper)), max(lower.shape[1], upper.shape[1])
        before = before.expand(size[0], -1)
        lower, upper = (edge.clamp(0, keys).expand(size) for edge in (lower, upper))
        return (before.gather(1, upper) - before.gather(1, lower)).clamp(min=0)
