"""Packing: tensors as the CPU kernels take them, the real keys first, so that masked ones cost nothing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ...contract import Mask
from ...ops.dropout import WeightDropout, threshold

# floats of the widest vector
_VECTOR = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """lowers, limits: (batch, queries), int32, the first packed key that each query may see, and the one after its
    last; neither ever falls. order: (batch, keys), the real keys first, each kind in its order; None where they stand
    so already.
    """

    lowers: Tensor
    limits: Tensor
    order: Tensor | None

    @classmethod
    def of(cls, mask: Mask, batch: int, queries: int, keys: int) -> Packing:
        """The packing of a mask over (batch, queries) and (batch, keys)."""
        lower, upper = (edge.expand(batch, -1) for edge in edges(mask, queries, keys))
        if mask.valid is None:
            return cls(lowers=lower.int().contiguous(), limits=upper.int().contiguous(), order=None)
        valid = mask.valid.expand(batch, -1)
        # the real keys among the first n, for every n from 0: what an edge becomes once padding is moved away
        before = F.pad(valid.cumsum(1, dtype=torch.int32), (1, 0))
        lowers, limits = before.gather(1, lower), before.gather(1, upper)
        # padding at the end only, the usual case: nothing has to move
        if bool((valid[:, 1:] <= valid[:, :-1]).all()):
            return cls(lowers=lowers, limits=limits, order=None)
        # stable, so that real keys keep their order and a causal limit stays a prefix
        order = valid.to(torch.int8).argsort(dim=1, descending=True, stable=True)
        return cls(lowers=lowers, limits=limits, order=order)

    def drop_arguments(self, drop: WeightDropout | None) -> tuple[Tensor | None, int, Tensor | None]:
        """Dropout as the C++ operators take it: seed, threshold, and which key lies at each place."""
        order = None if self.order is None else self.order.int()
        return (None, 0, order) if drop is None else (drop.seed, threshold(drop.rate), order)

    def pack(self, query: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        """All by `flat`, and the keys of the others, (batch, heads, keys, width), in their order."""
        order = None if self.order is None else self.order[:, None, :, None]
        return flat(query), *(flat(x if order is None else x.take_along_dim(order, 2)) for x in others)

    def unpack(self, x: Tensor, like: Tensor) -> Tensor:
        """The other way, in the shape and dtype of `like`."""
        x = unflat(x, like, like.shape[-1], like.dtype)
        return x if self.order is None else x.take_along_dim(self.order.argsort(dim=1)[:, None, :, None], 2)


def edges(mask: Mask, queries: int, keys: int) -> tuple[Tensor, Tensor]:
    """The first key that each query may see before padding is looked at, and the one after its last: (1, queries)."""
    # queries before the first key, where they are more than the keys, see none
    upper = (torch.arange(1, queries + 1) + mask.offset(queries, keys)).clamp(min=0)
    upper = upper if mask.causal else torch.full((queries,), keys)
    lower = torch.zeros_like(upper)
    if mask.bounds is None:
        return lower[None], upper[None]
    lower, upper = mask.bounds[..., 0].clamp(0, keys), torch.minimum(upper, mask.bounds[..., 1]).clamp(0, keys)
    return lower, torch.maximum(lower, upper)


def flat(x: Tensor) -> Tensor:
    """(batch, heads, positions, width) to (batch · heads, positions, multiple of 16), float32, contiguous."""
    # zero columns change no product, and spare the kernels a tail of single numbers
    return F.pad(x.float(), (0, -x.shape[-1] % _VECTOR)).flatten(0, 1).contiguous()


def unflat(x: Tensor, like: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """(batch · heads, positions, columns) to (batch, heads, positions, width), batch and heads as `like` has them."""
    return x.view(*like.shape[:2], *x.shape[1:])[..., :width].to(dtype)
