"""Landmarks, the few tokens that stand for all, and the iterated inverse of the matrix between them.

Both look at the real tokens of one sequence alone, so that neither padding nor the rest of the batch matters.

Density of a Nyström product counts the entries of its three matrices, 2 N m + m^2, as if they were scores.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..contract import Mask, Unsupported, accumulator


def real_tokens(name: str, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> tuple[Tensor, ...]:
    """The real tokens of one sequence, (batch, length), and query, key and value with zeros for the others.

    All three (batch, heads, length, head_dim), float32 at least. Raises Unsupported, in the name of the variant `name`,
    for a causal mask and for queries of another length.
    """
    if query.shape[2] != key.shape[2] or mask.causal:
        raise Unsupported(f"{name} attends within one sequence, not causally: queries and keys must be its tokens")
    valid, dtype = mask.real(key), accumulator(query.dtype)
    return valid, *(x.to(dtype).masked_fill(~valid[:, None, :, None], 0.0) for x in (query, key, value))


def segments(valid: Tensor, count: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Averages of consecutive real tokens, as a matrix (batch, count, length), and (batch, count), True = used.

    n real tokens make min(n, count) segments whose lengths differ by one at most; further rows are zero.
    """
    real = valid.sum(-1, keepdim=True)
    used_count = real.clamp(max=count)
    rank = valid.cumsum(-1) - 1
    # an even division of the ranks of real tokens: padding in between changes no segment
    segment = rank * used_count // real.clamp(min=1)
    numbers = torch.arange(count, device=valid.device)
    member = ((segment[:, None, :] == numbers[:, None]) & valid[:, None, :]).to(dtype)
    return member / member.sum(-1, keepdim=True).clamp(min=1.0), numbers < used_count


def picks(valid: Tensor, count: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Evenly spaced real tokens, as a selection (batch, count, length), and (batch, count), True = used."""
    real = valid.sum(-1, keepdim=True)
    used_count = real.clamp(max=count)
    numbers = torch.arange(count, device=valid.device)
    rank = valid.cumsum(-1) - 1
    # the middle of each of used_count equal parts
    chosen = (2 * numbers + 1) * real // (2 * used_count).clamp(min=1)
    used = numbers < used_count
    member = (rank[:, None, :] == chosen[..., None]) & valid[:, None, :] & used[..., None]
    return member.to(dtype), used


def iterated_inverse(matrix: Tensor, iterations: int) -> Tensor:
    """Moore-Penrose inverse of each (…, m, m) by the third-order iteration of Razavi et al. 2014; zero rows stay zero.

    The start A^T / (|A|_1 |A|_inf) takes the norms of each matrix by itself. A few iterations do not converge, so the
    result still depends on the start, and the gradient goes through its norms too, as in the authors' code.
    """
    sizes = matrix.abs()
    norm = sizes.sum(-1).amax(-1) * sizes.sum(-2).amax(-1)
    inverse = matrix.transpose(-2, -1) / norm.masked_fill(norm == 0, 1.0)[..., None, None]
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    for _ in range(iterations):
        product = matrix @ inverse
        # Z <- Z (13 I - A Z (15 I - A Z (7 I - A Z))) / 4, from the inside out
        inner = 7 * identity - product
        inner = 15 * identity - product @ inner
        inverse = 0.25 * inverse @ (13 * identity - product @ inner)
    return inverse


def nystrom_density(length: int, landmarks: int) -> float:
    """Entries of the three matrices of a Nyström product over those of the full one, at most 1.

    >>> nystrom_density(4096, 128)
    0.0634765625
    """
    landmarks = min(landmarks, length)
    return min(1.0, (2 * length * landmarks + landmarks**2) / length**2)
