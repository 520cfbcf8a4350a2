"""alpha-entmax attention, alpha fixed or learned for each head."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn

from ..contract import AttentionShape, Range, SelectionError, accumulator
from ..ops.entmax import _weights, entmax
from .sparse_map import SparseMap


class Entmax(SparseMap):
    """alpha-entmax attention, with alpha fixed or learned per head.

    `alpha=learned` gives each head alpha = clamp(1 + sigmoid(a), 1.01, 2) with a drawn from N(0, 1), shared over batch
    and queries, as in Correia, Niculae & Martins 2019, Adaptively Sparse Transformers.
    """

    equation: ClassVar = "P = [e S - tau]_+^(1/e), rows of sum 1, e = alpha - 1, S = Q K^T / sqrt(d); O = P V"
    paper: ClassVar = (
        "Peters, Niculae & Martins 2019, Sparse Sequence-to-Sequence Models; "
        "Correia, Niculae & Martins 2019, Adaptively Sparse Transformers"
    )

    def __init__(
        self,
        shape: AttentionShape,
        *,
        alpha: Annotated[float, Range(1, 1e6)] | Literal["learned"] = 1.5,
        impl: Literal["auto", "eager", "cpp", "triton"] = "auto",
    ):
        super().__init__(shape, impl=impl)
        # drawn, so that the heads differ from the start
        if isinstance(alpha, str):
            self.raw_alpha = nn.Parameter(torch.randn(shape.heads))
        elif not 1.0 <= alpha < float("inf"):
            raise SelectionError(f"variant 'entmax': expected alpha of 1 or more, or `learned`, got {alpha}")
        self.fixed_alpha = None if isinstance(alpha, str) else float(alpha)

    def learned_alpha(self) -> Tensor | None:
        """alpha of each head, (heads,), from 1.01 to 2; None where it is fixed."""
        if self.fixed_alpha is not None:
            return None
        return (1.0 + torch.sigmoid(self.raw_alpha.to(accumulator(self.raw_alpha.dtype)))).clamp(1.01, 2.0)

    def weigh(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        alpha = self.learned_alpha()
        if alpha is not None:
            return _weights(scores, alpha[:, None, None], -1, allowed)
        assert self.fixed_alpha is not None
        return entmax(scores, self.fixed_alpha, allowed=allowed)
