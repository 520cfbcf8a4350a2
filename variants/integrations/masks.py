"""Masks of other libraries, one Boolean for each pair of query and key, as a `Mask` of the contract."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..contract import Mask, Unsupported


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadMask:
    """`mask` over the first `keys` keys: those behind them no query may see, such as free places of a cache."""

    mask: Mask
    keys: int


def boolean(mask: Tensor) -> Tensor:
    """`mask` as Booleans, True = may be seen: one to be added to scores has zeros there, and hides everything else.

    Raises Unsupported for numbers that neither let pass nor hide, such as those of ALiBi.
    """
    if mask.dtype == torch.bool:
        return mask
    if not mask.is_floating_point():
        raise Unsupported(f"expected a mask of Booleans, or of numbers to add to scores, got {mask.dtype}")
    allowed = mask == 0
    # libraries hide by the lowest number of some dtype, by -inf or by -10000, which a softmax makes exactly 0 of
    if not bool((allowed | (mask <= -10_000)).all()):
        raise Unsupported("the mask adds a bias to scores, which a variant has no place for")
    return allowed


def read_mask(allowed: Tensor, *, causal: bool) -> ReadMask:
    """The `Mask` that allows exactly the pairs of `allowed`, bool (batch | 1, 1, queries, keys), True = may be seen.

    Kernels take causal masks and padding, so these are looked for first; then sequences side by side; then bounds for
    each query. `causal` decides for a single query, of which both readings are right. Raises Unsupported for a mask
    that differs between heads, or in which the keys of a query are no interval.
    """
    if allowed.dim() != 4 or allowed.shape[1] != 1:
        raise Unsupported(f"expected a mask (batch, 1, queries, keys), alike for all heads, got {tuple(allowed.shape)}")
    pairs = allowed[:, 0]
    queries, keys = pairs.shape[1:]
    if not pairs.numel():
        return ReadMask(mask=Mask(causal=causal), keys=keys)
    seen = pairs.any(1)
    behind = int(seen.any(0).nonzero().amax()) + 1 if bool(seen.any()) else 0
    # free places of a cache lie behind: without them causal masks are aligned at the last key again
    ends = (keys,) if behind == keys else (keys, max(behind, min(queries, keys)))
    for end in ends:
        valid = seen[:, :end]
        kept = None if bool(valid.all()) else valid
        for is_causal in (True, False) if causal or queries > 1 else (False, True):
            mask = Mask(valid=kept, causal=is_causal)
            if _allows(mask, pairs[:, :, :end]):
                # nothing behind `end` may be seen
                return ReadMask(mask=mask, keys=end)
    return _intervals(pairs, seen)


def _allows(mask: Mask, pairs: Tensor) -> bool:
    """True if `mask` allows exactly those pairs, (batch, queries, keys)."""
    allowed = mask.allowed(pairs.shape[1], pairs.shape[2], pairs.device)
    return bool(pairs.all()) if allowed is None else bool((allowed[:, 0] == pairs).all())


def _intervals(pairs: Tensor, seen: Tensor) -> ReadMask:
    queries, keys = pairs.shape[1:]
    at = torch.arange(keys, device=pairs.device)
    # both 0 for a query without a key
    lower = torch.where(pairs, at, keys).amin(-1).where(pairs.any(-1), 0)
    upper = torch.where(pairs, at + 1, 0).amax(-1)
    kept = None if bool(seen.all()) else seen
    bounds = torch.stack([lower, upper], -1)
    if bool((bounds == bounds[:1]).all()):
        bounds = bounds[:1]
    if not _allows(Mask(valid=kept, bounds=bounds), pairs):
        raise Unsupported("the keys that a query may see are no interval of the sequence")
    past = torch.arange(queries, device=pairs.device) + (keys - queries)
    is_causal = bool((upper <= past + 1).all())
    if kept is None and len(bounds) == 1 and queries == keys:
        lengths = torch.unique_consecutive(lower[0], return_counts=True)[1].tolist()
        packed = Mask(causal=is_causal, lengths=tuple(lengths))
        if _allows(packed, pairs):
            return ReadMask(mask=packed, keys=keys)
    return ReadMask(mask=Mask(valid=kept, causal=is_causal, bounds=bounds), keys=keys)
