"""Sparsemax and entmax: maps from scores to weights that sum to one and are exactly zero for low scores."""

from __future__ import annotations

import torch
from torch import Tensor

from ..contract import SelectionError, accumulator
from .sparse_autograd import Simplex
from .thresholds import may_look


def sparsemax(x: Tensor, dim: int = -1, allowed: Tensor | None = None) -> Tensor:
    """Euclidean projection of `x` onto the simplex along `dim`: p = [x - tau]_+, sum p = 1.

    x: any floating dtype, computed in float32 at least; -inf marks a masked entry, and a row of -inf yields zeros with
    zero gradient. `allowed` masks as well: Boolean, broadcastable to x, True = may have weight. NaN and +inf make their
    row NaN; what a mask hides may be anything. No entries make no weights. Differentiable once. Raises SelectionError
    for integers and for a missing dimension.
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
    only and in no compiled graph, elsewhere values below 1 count as 1) and for one that does not broadcast.
    Peters, Niculae & Martins 2019, Sparse Sequence-to-Sequence Models; gradient in alpha: Correia, Niculae & Martins
    2019, Adaptively Sparse Transformers.
    """
    if isinstance(alpha, Tensor):
        # where its values may not be looked at, every tensor of alphas is bisected
        small = may_look(alpha) and bool((alpha <= 2.0).all())
        return _weights(x, _rows_of(alpha, x, dim), dim, allowed, newton=small)
    if not 1.0 <= alpha < float("inf"):
        raise SelectionError(f"expected alpha of 1 or more, got {alpha}; 1 is softmax, 2 is sparsemax")
    return _weights(x, float(alpha), dim, allowed, newton=alpha <= 2.0)


def _weights(x: Tensor, alpha: float | Tensor, dim: int, allowed: Tensor | None, newton: bool = True) -> Tensor:
    _check(x, dim)
    # half precision would lose the threshold, which is a difference of scores
    scores = x.to(accumulator(x.dtype)).movedim(dim, -1)
    if allowed is not None:
        # not expanded: a mask shared by heads or queries is worked on once
        allowed = allowed[(None,) * (x.dim() - allowed.dim())].movedim(dim, -1)
    if not isinstance(alpha, Tensor) and alpha not in (1.5, 2.0):
        # the two special alphas stay numbers: their solvers have no power and no logarithm
        alpha = torch.full((), alpha, dtype=scores.dtype, device=x.device)
    if isinstance(alpha, Tensor):
        alpha = alpha.to(scores.dtype).expand(*scores.shape[:-1], 1)
    weights: Tensor = Simplex.apply(scores, alpha, allowed, newton)  # type: ignore[no-untyped-call]
    return weights.movedim(-1, dim).to(x.dtype)


def _check(x: Tensor, dim: int) -> None:
    if not x.is_floating_point():
        raise SelectionError(f"expected scores of a floating dtype, got {x.dtype}")
    if not -x.dim() <= dim < x.dim():
        raise SelectionError(f"expected scores with a dimension {dim}, got {tuple(x.shape)}")


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
    if may_look(alpha) and not bool(((alpha >= 1.0) & alpha.isfinite()).all()):
        raise SelectionError(f"expected alpha of 1 or more everywhere, got {alpha.tolist()}")
    return expanded.movedim(dim, -1)
