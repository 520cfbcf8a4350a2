"""Logarithm of the number of keys, by which scalable maps scale their scores."""

from __future__ import annotations

from torch import Tensor

from ..contract import allowed_keys


def log_length(scores: Tensor, allowed: Tensor | None, causal: bool) -> Tensor:
    """ln of the number of keys that each query may see, plus one where causal; broadcastable to (…, queries, 1)."""
    # ln 2 at least: a lone key has all the weight at any temperature, and ln 1 has no negative power
    return (allowed_keys(scores, allowed) + causal).clamp(min=2.0).log()
