"""Sparsemax attention."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from ..ops.entmax import sparsemax
from .sparse_map import SparseMap


class Sparsemax(SparseMap):
    """Sparsemax attention: the projection of the scores onto the simplex, so that low scores get exactly no weight."""

    equation: ClassVar = "P = [S - tau]_+ with rows of sum 1, S = Q K^T / sqrt(d); O = P V"
    paper: ClassVar = "Martins & Astudillo 2016, From Softmax to Sparsemax, eq. 2"
    fixed_alpha = 2.0

    def weigh(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return sparsemax(scores, allowed=allowed)
