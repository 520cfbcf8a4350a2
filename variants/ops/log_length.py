"""Logarithm of the number of keys, by which scalable maps scale their scores."""

from __future__ import annotations

from torch import Tensor

from ..contract import Mask


def log_length(mask: Mask, query: Tensor, keys: int, causal: bool) -> Tensor:
    """ln of the number of keys that each query may see, plus one where causal, in the dtype of `query`.

    query: (batch, heads, queries, head_dim). Returned: broadcastable to (batch, heads, queries, 1).
    """
    seen = mask.seen(query.shape[2], keys, query.device)[:, None, :, None].to(query.dtype)
    # ln 2 at least: a lone key has all the weight at any temperature, and ln 1 has no negative power
    return (seen + causal).clamp(min=2.0).log()
