"""1.5-entmax attention."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from ..ops.entmax import entmax15
from .sparse_map import SparseMap


class Entmax15(SparseMap):
    """1.5-entmax attention: sparse like sparsemax, smooth like softmax."""

    equation: ClassVar = "P = [S / 2 - tau]_+^2 with rows of sum 1, S = Q K^T / sqrt(d); O = P V"
    paper: ClassVar = "Peters, Niculae & Martins 2019, Sparse Sequence-to-Sequence Models"
    fixed_alpha = 1.5

    def weigh(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return entmax15(scores, allowed=allowed)
