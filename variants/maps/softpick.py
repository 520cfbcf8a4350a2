"""Softpick: a rectified softmax, whose rows need not sum to one."""

from __future__ import annotations

from torch import Tensor

from .elementwise import elementwise_map


@elementwise_map(
    normaliser="sum",
    # a sink of score 0 adds nothing to the sum, and holds the largest score at 0 or above
    sink=0.0,
    epsilon=1e-8,
    equation="P_ij = ReLU(exp(s_ij) - 1) / (sum_j |exp(s_ij) - 1| + epsilon), s = Q K^T / sqrt(d); O = P V",
    paper="Zuhri, Fuadi & Aji 2025, Softpick: No Attention Sink, No Massive Activations with Rectified Softmax "
    "(arXiv 2504.20966)",
    simplex=False,
)
def softpick(scores: Tensor, top: Tensor) -> tuple[Tensor, Tensor]:
    """Exponentials less one, rectified, over the sum of their sizes: a key of score 0 or less gets no weight.

    Keys without weight stay in the sum below, so that gradients reach them, and a row of them sums to less than one.
    """
    # both terms are divided by the exponential of the largest score, but never multiplied: that is at least 0
    above = (scores - top).exp() - (-top).exp()
    return above.relu(), above.abs()
