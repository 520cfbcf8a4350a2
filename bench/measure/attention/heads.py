"""Heads: how different the heads of a layer are.

Weights are (heads, rows, keys) of one sentence, without padding; rows need not sum to one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Weights = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diversity:
    """Generalised Jensen-Shannon divergence, summed over the `rows` of `all_rows` in which two heads or more look."""

    total: float
    rows: int
    all_rows: int


def head_diversity(weights: Weights) -> Diversity:
    """H(mean over heads of P) - mean over heads of H(P) for each row, in nats: 0 to ln(heads).

    Weights are normalised first, and heads whose row is null are left out (Zhang et al. 2021, section 4.4, after
    Correia et al. 2019, section 5.2). A row with fewer than two heads left has no diversity.
    """
    sums = weights.sum(-1, keepdims=True)
    normal = np.divide(weights, sums, out=np.zeros_like(weights), where=sums > 0)
    live = (sums[..., 0] > 0).sum(0)
    used = live >= 2
    if not used.any():
        return Diversity(total=0.0, rows=0, all_rows=weights.shape[1])
    # Each head that looks weighs the same, however much weight its row had before.
    mixture = normal[:, used].sum(0) / live[used, None]
    # the entropy of a null row is 0, so that the sum over heads is that over live ones
    own = entropy(normal[:, used]).sum(0) / live[used]
    return Diversity(total=float((entropy(mixture) - own).sum()), rows=int(used.sum()), all_rows=weights.shape[1])


def entropy(weights: Weights) -> Weights:
    """- sum p ln p over the last dimension, 0 ln 0 = 0."""
    return np.asarray(-(weights * np.log(np.where(weights > 0, weights, 1.0))).sum(-1))
