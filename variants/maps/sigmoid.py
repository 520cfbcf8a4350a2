"""Sigmoid attention."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from ..contract import Range, allowed_keys, score_map


@score_map(
    equation="P = sigmoid(Q K^T / sqrt(d) + b), b = -ln n, n = number of keys; O = P V",
    paper="Ramapuram et al. 2024, Theory, Analysis, and Best Practices for Sigmoid Self-Attention",
    simplex=False,
)
def sigmoid(
    scores: Tensor, allowed: Tensor | None, *, bias: Annotated[float, Range(-1e4, 1e4)] | None = None
) -> Tensor:
    """Sigmoid of each score as weight, without competition between keys.

    `bias` is added to every score; by default -ln n with n the number of keys that the query may see, the paper's
    choice, with which a row starts with a sum near one.
    """
    shift = -allowed_keys(scores, allowed).clamp(min=1.0).log() if bias is None else bias
    weights = (scores + shift).sigmoid()
    return weights if allowed is None else weights.masked_fill(~allowed, 0.0)
