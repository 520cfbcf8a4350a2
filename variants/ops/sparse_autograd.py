"""The autograd function of the sparse maps: it cuts the scores into pieces that stay in the cache, and masks them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from . import thresholds
from .first_derivative import OF_SIMPLEX, first_derivative_only

Piece = tuple[Any, ...]

# per thread: two scratch buffers and the rows read and written then stay in its share of the second-level cache
_BYTES_PER_THREAD = 2**19


class Simplex(torch.autograd.Function):
    """Weights of each row of `scores`, (..., n), float32 or float64.

    alpha: 1.5, 2.0, or a tensor of one value per row, (..., 1), solved by Newton's method where `newton` says that all
    are at most 2. allowed: Boolean, broadcastable to the scores, or None. Only the weights are kept for the backward.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, alpha: float | Tensor, allowed: Tensor | None, newton: bool) -> Tensor:
        ceiling = None if allowed is None else _ceiling(allowed, scores)
        # the backward takes the same pieces: what a mask leaves out costs nothing there either
        ctx.pieces = list(_pieces(scores, ceiling))
        # columns behind the last allowed one are in no piece and stay zero
        weights = _blank(scores, ctx.pieces)
        for piece, z, other in _with_scratch(scores, ctx.pieces):
            part, out = scores[piece], weights[piece]
            part, top = (part, _top(part)) if ceiling is None else _masked(part, ceiling[piece], z)
            # a row of -inf has no finite maximum to take away
            top = top.clamp_(min=torch.finfo(part.dtype).min)
            if isinstance(alpha, float):
                # (alpha - 1) (x - max) in one pass over the piece
                torch.add(top.mul_(1.0 - alpha), part, alpha=alpha - 1.0, out=z)
                (thresholds.sparsemax if alpha == 2.0 else thresholds.entmax15)(z, out, other)
                continue
            torch.sub(part, top, out=z)
            if newton:
                thresholds.entmax(z, alpha[_rows(piece)], out, other)
            else:
                thresholds.entmax_by_bisection(z, alpha[_rows(piece)], out)
        # a tensor goes with the saved ones, where autograd notices a change in place; a number needs no watching
        ctx.fixed_alpha = alpha if isinstance(alpha, float) else None
        ctx.save_for_backward(weights, None if isinstance(alpha, float) else alpha)
        return weights

    @staticmethod
    @first_derivative_only(OF_SIMPLEX)
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        weights, alpha = ctx.saved_tensors
        downstream = _blank(weights, ctx.pieces)
        to_alpha = None
        if alpha is not None and ctx.needs_input_grad[1]:
            to_alpha = torch.zeros_like(alpha, memory_format=torch.contiguous_format)
        for piece, factors, products in _with_scratch(weights, ctx.pieces):
            p, grad_weights = weights[piece], grad_output[piece]
            piece_alpha = None if alpha is None else alpha[_rows(piece)]
            thresholds.gradient_factors(p, ctx.fixed_alpha if piece_alpha is None else piece_alpha, factors)
            # dp/dx = diag(g) - g g^T / sum g applied to u = grad_output: g * (u - sum(g u) / sum g)
            torch.mul(factors, grad_weights, out=products)
            # a row of zeros has no factors: its gradient is zero, not NaN
            total = factors.sum(-1, keepdim=True).clamp_(min=torch.finfo(p.dtype).tiny)
            mean = products.sum(-1, keepdim=True).div_(total)
            torch.addcmul(products, factors, mean, value=-1.0, out=downstream[piece])
            if to_alpha is not None and piece_alpha is not None:
                to_alpha[_rows(piece)] = thresholds.alpha_gradient(p, grad_weights, piece_alpha)
        return downstream, to_alpha, None, None


def _ceiling(allowed: Tensor, scores: Tensor) -> Tensor:
    """+inf where allowed, -inf elsewhere, expanded: its minimum with the scores masks them, far faster than a fill."""
    return (allowed.to(scores.dtype) - 0.5).mul_(math.inf).expand(scores.shape)


def _masked(scores: Tensor, ceiling: Tensor, scratch: Tensor) -> tuple[Tensor, Tensor]:
    """The scores, -inf where masked, whatever stands there, and the maximum of each row."""
    if thresholds.may_look(scores):
        masked = torch.minimum(scores, ceiling, out=scratch)
        top = _top(masked)
        # a minimum lets NaN through, and a fill costs twenty times as much: it is for rows that have one
        if not bool(top.isnan().any()):
            return masked, top
    masked = scores.masked_fill(ceiling < 0, -math.inf)
    return masked, _top(masked)


def _top(scores: Tensor) -> Tensor:
    return scores.amax(-1, keepdim=True)


def _pieces(scores: Tensor, ceiling: Tensor | None) -> Iterator[Piece]:
    """Indices that cut `scores` into pieces, without the columns after the last allowed one.

    All of it is one piece on an accelerator, and in a graph, which the compiler cuts by itself.
    """
    if not scores.numel():
        return
    if not thresholds.may_look(scores):
        yield (...,)
        return
    keys = scores.shape[-1]
    ends = None
    if ceiling is not None:
        # the expanded dimensions are alike, and are worked on once
        # a stride of 0 marks a dimension that `expand` made
        one = ceiling[tuple(slice(None) if stride else slice(1) for stride in ceiling.stride()[:-1])]
        # min(+inf, place) is the place of an allowed key, counted from 1, min(-inf, place) is -inf: the maximum is
        # where to stop
        ends = torch.minimum(one, torch.arange(1, keys + 1, dtype=scores.dtype)).amax(-1).clamp_(min=0.0)
        ends = ends.expand(scores.shape[:-1])
    # a piece is worked on by all threads at once, each with its share of the rows
    limit = torch.get_num_threads() * _BYTES_PER_THREAD // scores.element_size()
    for rows in _cut(tuple(scores.shape[:-1]), max(1, limit // keys)):
        # rows of a piece are neighbours, so under a causal mask they end at nearly the same key
        width = keys if ends is None else int(ends[rows].max())
        if width:
            yield (*rows, ..., slice(width))


def _cut(shape: tuple[int, ...], limit: int) -> Iterator[Piece]:
    """Indices that cut an array of `shape` into pieces of at most `limit` entries."""
    inner = math.prod(shape[1:])
    if math.prod(shape) <= limit:
        yield ()
    # whole inner slices while they fit; only a slice that is too large by itself is cut further in
    elif inner <= limit:
        step = limit // inner
        yield from ((slice(start, start + step),) for start in range(0, shape[0], step))
    else:
        yield from ((first, *rest) for first in range(shape[0]) for rest in _cut(shape[1:], limit))


def _rows(piece: Piece) -> Piece:
    """The same piece of a tensor with one column."""
    return piece[:-1] if isinstance(piece[-1], slice) else piece


def _blank(like: Tensor, pieces: list[Piece]) -> Tensor:
    """Zeros where the pieces leave something out."""
    covered = sum(like[piece].numel() for piece in pieces)
    return (torch.empty if covered == like.numel() else torch.zeros)(like.shape, dtype=like.dtype, device=like.device)


def _with_scratch(like: Tensor, pieces: list[Piece]) -> Iterator[tuple[Piece, Tensor, Tensor]]:
    """Yield each piece with two scratch tensors of its shape, the same memory again and again."""
    size = max([0, *(like[piece].numel() for piece in pieces)])
    first, second = (torch.empty(size, dtype=like.dtype, device=like.device) for _ in range(2))
    for piece in pieces:
        shape = like[piece].shape
        yield piece, first[: shape.numel()].view(shape), second[: shape.numel()].view(shape)
