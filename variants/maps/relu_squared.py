"""Squared ReLU attention."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from ..contract import AttentionShape, Range
from .elementwise import ElementwiseMap, elementwise_map


def _supports(self: ElementwiseMap, shape: AttentionShape) -> str | None:
    if shape.dtype == "float16":
        # scores of a trained model are ten times as large and more, and their squares a hundred times
        return "its sums leave the range of float16; take bfloat16"
    return ElementwiseMap.supports(self, shape)


@elementwise_map(
    supports=_supports,
    equation="P = ReLU(Q K^T / sqrt(d))^2 / n^power, n = number of keys; O = P V",
    paper="Wortsman et al. 2023, Replacing softmax with ReLU in Vision Transformers",
    simplex=False,
)
def relu_squared(scores: Tensor, count: Tensor, *, power: Annotated[float, Range(-10, 10)] = 1.0) -> Tensor:
    """Squared ReLU of the scores as weights, divided by the number of keys so that sums stay of order one.

    `power` is the exponent of that number: the paper finds about 1 best, 0 leaves the weights undivided. Counted are
    the keys that the query may see, so that padding and later keys change nothing.
    """
    return scores.relu().square() / count**power
