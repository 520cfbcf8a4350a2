"""Sigmoid attention."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from ..contract import Range
from .elementwise import elementwise_map


@elementwise_map(
    equation="P = sigmoid(Q K^T / sqrt(d) + b), b = -ln n, n = number of keys; O = P V",
    paper="Ramapuram et al. 2024, Theory, Analysis, and Best Practices for Sigmoid Self-Attention",
    simplex=False,
)
def sigmoid(scores: Tensor, count: Tensor, *, bias: Annotated[float, Range(-1e4, 1e4)] | None = None) -> Tensor:
    """Sigmoid of each score as weight, without competition between keys.

    `bias` is added to every score; by default -ln n with n the number of keys that the query may see, the paper's
    choice, with which a row starts with a sum near one.
    """
    return (scores + (-count.log() if bias is None else bias)).sigmoid()
