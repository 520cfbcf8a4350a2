"""Attention with the `entmax` package on dense scores, as its users write it: what our kernels are held against."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import entmax
from torch import Tensor

from attnbench.variants.contract import ScoredVariant


class _Package(ScoredVariant):
    map_of_package: ClassVar[Callable[..., Tensor]]

    def weigh(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        if allowed is None:
            return self.map_of_package(scores, dim=-1)
        # the package makes NaN of a row that is -inf throughout
        some = allowed.any(-1, keepdim=True)
        weights = self.map_of_package(scores.masked_fill(~allowed & some, float("-inf")), dim=-1)
        return weights * some


class SparsemaxPackage(_Package):
    """Sparsemax attention through the entmax package, on scores in full, as it is called without options."""

    equation: ClassVar = "P = sparsemax(Q K^T / sqrt(d)); O = P V"
    paper: ClassVar = "Martins & Astudillo 2016, From Softmax to Sparsemax"
    map_of_package = staticmethod(entmax.sparsemax)


class Entmax15Package(_Package):
    """1.5-entmax attention through the entmax package."""

    equation: ClassVar = "P = entmax15(Q K^T / sqrt(d)); O = P V"
    paper: ClassVar = "Peters, Niculae & Martins 2019, Sparse Sequence-to-Sequence Models"
    map_of_package = staticmethod(entmax.entmax15)
