"""Explicit top-k attention."""

from __future__ import annotations

from torch import Tensor

from ..contract import Count, masked_softmax, score_map


@score_map(
    equation="P = softmax of the scores not below the k-th largest of their row, 0 elsewhere; O = P V",
    paper="Zhao et al. 2019, Explicit Sparse Transformer: Concentrated Attention Through Explicit Selection",
    time="O(N^2 (d + log k))",
    simplex=True,
)
def topk(scores: Tensor, allowed: Tensor | None, *, k: Count = 32) -> Tensor:
    """Softmax over the k highest scores of each query.

    Keys that tie with the k-th highest are all kept, so that the order of keys does not matter: a row may then have
    more than k weights. A row that may see at most k keys is plain softmax. Which keys are kept passes no gradient.
    """
    if not scores.numel():
        return scores
    # the choice passes no gradient; the scores that are kept do
    visible = scores.detach()
    if allowed is not None:
        visible = visible.masked_fill(~allowed, float("-inf"))
    # the k-th largest as a bound, and not the indices: ties at it are kept, whatever the order of the keys
    least = visible.topk(min(k, scores.shape[-1]), sorted=False).values.amin(-1, keepdim=True)
    kept = visible >= least
    return masked_softmax(scores, kept if allowed is None else kept & allowed)
