"""Softpick: a rectified softmax, whose rows need not sum to one."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from ..contract import Range, score_map


@score_map(
    equation="P_ij = ReLU(exp(s_ij) - 1) / (sum_j |exp(s_ij) - 1| + epsilon), s = Q K^T / sqrt(d); O = P V",
    paper="Zuhri, Fuadi & Aji 2025, Softpick: No Attention Sink, No Massive Activations with Rectified Softmax "
    "(arXiv 2504.20966)",
    simplex=False,
)
def softpick(scores: Tensor, allowed: Tensor | None, *, epsilon: Annotated[float, Range(1e-30, 1)] = 1e-8) -> Tensor:
    """Exponentials less one, rectified, over the sum of their sizes: a key of score 0 or less gets no weight.

    Keys without weight stay in the sum below, so that gradients reach them, and a row of them sums to less than one.
    """
    if allowed is not None:
        # a score of 0 adds nothing above nor below
        scores = scores.masked_fill(~allowed, 0.0)
    # both terms are divided by the exponential of the largest score, but never multiplied: that is at least 0
    top = scores.detach().amax(-1, keepdim=True).clamp(min=0.0)
    above = (scores - top).exp() - (-top).exp()
    return above.relu() / (above.abs().sum(-1, keepdim=True) + epsilon)
