"""Sparsemax and entmax: maps from scores to weights that sum to one and are exactly zero for low scores."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from ..bench.errors import SelectionError
from .contract import AttentionShape, Mask, ScoredVariant, accumulator
from .simplex import Simplex


def sparsemax(x: Tensor, dim: int = -1, allowed: Tensor | None = None) -> Tensor:
    """Euclidean projection of `x` onto the simplex along `dim`: p = [x - tau]_+, sum p = 1.

    x: any floating dtype, computed in float32 at least; -inf marks a masked entry, and a row of -inf yields zeros with
    zero gradient. `allowed` masks as well: Boolean, broadcastable to x, True = may have weight. NaN and +inf make their
    row NaN. Differentiable once. Raises SelectionError for integers and for an empty or missing dimension.
    Martins & Astudillo 2016, From Softmax to Sparsemax, eq. 2 and alg. 1.
    """
    return _weights(x, 2.0, dim, allowed)


def entmax15(x: Tensor, dim: int = -1, allowed: Tensor | None = None) -> Tensor:
    """1.5-entmax along `dim`: p = [x / 2 - tau]_+^2, sum p = 1; arguments as in `sparsemax`.

    Peters, Niculae & Martins 2019, Sparse Sequence-to-Sequence Models.
    """
    return _weights(x, 1.5, dim, allowed)


def entmax(x: Tensor, alpha: float | Tensor, dim: int = -1, allowed: Tensor | None = None) -> Tensor:
    """alpha-entmax along `dim`: p = [(alpha - 1) x - tau]_+^(1 / (alpha - 1)), sum p = 1; softmax at alpha = 1.

    alpha: a number >= 1, or a tensor that broadcasts to x with size 1 on `dim`; differentiable in both. The other
    arguments as in `sparsemax`. Raises SelectionError for alpha below 1 or not finite (a tensor is looked at on CPU
    only, elsewhere values below 1 count as 1) and for one that does not broadcast.
    Peters, Niculae & Martins 2019, Sparse Sequence-to-Sequence Models; gradient in alpha: Correia, Niculae & Martins
    2019, Adaptively Sparse Transformers.
    """
    if isinstance(alpha, Tensor):
        small = alpha.device.type == "cpu" and bool((alpha <= 2.0).all())
        return _weights(x, _rows_of(alpha, x, dim), dim, allowed, newton=small)
    if not 1.0 <= alpha < float("inf"):
        raise SelectionError(f"expected alpha of 1 or more, got {alpha}; 1 is softmax, 2 is sparsemax")
    return _weights(x, float(alpha), dim, allowed, newton=alpha <= 2.0)


class _Sparse(ScoredVariant):
    """What the three have in common: they differ in alpha alone, and go through the same kernels."""

    time: ClassVar = "O(N^2 d) and a solve per query"
    memory: ClassVar = "O(N d); eager O(N^2)"
    simplex: ClassVar = True
    fixed_alpha: float | None

    def __init__(
        self,
        shape: AttentionShape,
        *,
        impl: Literal["auto", "eager", "blocked", "compiled", "cpp", "triton"] = "auto",
    ):
        super().__init__(shape)
        self.impl = impl

    def alpha(self) -> Tensor:
        """alpha of each head, (heads,)."""
        assert self.fixed_alpha is not None
        return torch.full((self.shape.heads,), self.fixed_alpha)

    def supports(self, shape: AttentionShape) -> str | None:
        from .kernels.cpu_choice import refusal

        return super().supports(shape) or refusal(self.impl, shape, self.fixed_alpha or 2.0)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        """`impl` forces one way to compute it, `eager` is the definition; while dropout is active `auto` is eager."""
        from .kernels.cpu_choice import chosen

        solved_exactly = self.fixed_alpha is not None and self.fixed_alpha > 2.0
        dropout = self.training and self.shape.dropout > 0
        self.implementation = "eager" if solved_exactly else chosen(self.impl, query, key, dropout=dropout)
        if self.implementation == "eager":
            return super().forward(query, key, value, mask)
        alpha = self.alpha() if self.fixed_alpha is None else self.fixed_alpha
        if self.implementation == "triton":
            from .kernels import triton_entmax

            return triton_entmax.entmax_attention(query, key, value, alpha, mask.keep, mask.causal)
        if self.implementation == "cpp":
            from .kernels import cpu_entmax

            return cpu_entmax.entmax_attention(query, key, value, alpha, mask)
        from .kernels import cpu_block_maps, cpu_blocks

        form, each = cpu_block_maps.form_of(alpha), None
        if form is cpu_block_maps.ENTMAX:
            each = self.alpha()
        compiled = self.implementation == "compiled"
        return cpu_blocks.attention(query, key, value, mask, form, each, compiled=compiled).to(value.dtype)


class Sparsemax(_Sparse):
    """Sparsemax attention: the projection of the scores onto the simplex, so that low scores get exactly no weight."""

    equation: ClassVar = "P = [S - tau]_+ with rows of sum 1, S = Q K^T / sqrt(d); O = P V"
    paper: ClassVar = "Martins & Astudillo 2016, From Softmax to Sparsemax, eq. 2"
    fixed_alpha = 2.0

    def weigh(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return sparsemax(scores, allowed=allowed)


class Entmax15(_Sparse):
    """1.5-entmax attention: sparse like sparsemax, smooth like softmax."""

    equation: ClassVar = "P = [S / 2 - tau]_+^2 with rows of sum 1, S = Q K^T / sqrt(d); O = P V"
    paper: ClassVar = "Peters, Niculae & Martins 2019, Sparse Sequence-to-Sequence Models"
    fixed_alpha = 1.5

    def weigh(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return entmax15(scores, allowed=allowed)


class Entmax(_Sparse):
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
        alpha: float | Literal["learned"] = 1.5,
        impl: Literal["auto", "eager", "blocked", "compiled", "cpp", "triton"] = "auto",
    ):
        super().__init__(shape, impl=impl)
        if isinstance(alpha, str):
            self.raw_alpha = nn.Parameter(torch.randn(shape.heads))
        elif not 1.0 <= alpha < float("inf"):
            raise SelectionError(f"variant 'entmax': expected alpha of 1 or more, or `learned`, got {alpha}")
        self.fixed_alpha = None if isinstance(alpha, str) else float(alpha)

    def alpha(self) -> Tensor:
        if self.fixed_alpha is not None:
            return super().alpha()
        return (1.0 + torch.sigmoid(self.raw_alpha.to(accumulator(self.raw_alpha.dtype)))).clamp(1.01, 2.0)

    def learned_alpha(self) -> Tensor | None:
        return self.alpha() if self.fixed_alpha is None else None

    def weigh(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        if self.fixed_alpha is not None:
            return entmax(scores, self.fixed_alpha, allowed=allowed)
        return _weights(scores, self.alpha()[:, None, None], -1, allowed)


def _weights(x: Tensor, alpha: float | Tensor, dim: int, allowed: Tensor | None, newton: bool = True) -> Tensor:
    _check(x, dim)
    scores = x.to(accumulator(x.dtype)).movedim(dim, -1)
    if allowed is not None:
        # not expanded: a mask shared by heads or queries is worked on once
        allowed = allowed[(None,) * (x.dim() - allowed.dim())].movedim(dim, -1)
    if not isinstance(alpha, Tensor) and alpha not in (1.5, 2.0):
        alpha = torch.full((), alpha, dtype=scores.dtype, device=x.device)
    if isinstance(alpha, Tensor):
        alpha = alpha.to(scores.dtype).expand(*scores.shape[:-1], 1)
    weights: Tensor = Simplex.apply(scores, alpha, allowed, newton)  # type: ignore[no-untyped-call]
    return weights.movedim(-1, dim).to(x.dtype)


def _check(x: Tensor, dim: int) -> None:
    if not x.is_floating_point():
        raise SelectionError(f"expected scores of a floating dtype, got {x.dtype}")
    if not -x.dim() <= dim < x.dim() or not x.shape[dim]:
        raise SelectionError(f"expected scores with at least one entry along dimension {dim}, got {tuple(x.shape)}")


def _rows_of(alpha: Tensor, x: Tensor, dim: int) -> Tensor:
    """alpha with one value per row of `x`, that row's dimension last."""
    _check(x, dim)
    rows = list(x.shape)
    rows[dim] = 1
    try:
        expanded = alpha.expand(rows)
    except RuntimeError as error:
        raise SelectionError(
            f"expected alpha to broadcast to {tuple(rows)}, size 1 on dimension {dim}, got {tuple(alpha.shape)}"
        ) from error
    if alpha.device.type == "cpu" and not bool(((alpha >= 1.0) & alpha.isfinite()).all()):
        raise SelectionError(f"expected alpha of 1 or more everywhere, got {alpha.tolist()}")
    return expanded.movedim(dim, -1)
