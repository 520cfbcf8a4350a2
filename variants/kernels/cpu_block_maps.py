"""Maps of a block of scores to weights, forward and backward, to be compiled: no loop depends on the data."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..thresholds import alpha_gradient
from .cpu_blocks import Form, allowed

# the hardest rows that were found took 11 steps in float64
_STEPS = 12
_LOG2_E = math.log2(math.e)

Gradients = tuple[Tensor, Tensor, Tensor, Tensor | None]


def _rela(
    query: Tensor, key: Tensor, value: Tensor, keep: Tensor, at: Tensor, alpha: Tensor | None
) -> tuple[Tensor, Tensor]:
    weights = _rectified(query, key, keep, at)
    return weights @ value, query.new_zeros(*query.shape[:2], 2)


def _rela_gradients(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    keep: Tensor,
    at: Tensor,
    alpha: Tensor | None,
    level: Tensor,
    upstream: Tensor,
    learns: bool,
) -> Gradients:
    weights = _rectified(query, key, keep, at)
    downstream = torch.where(weights > 0, upstream @ value.transpose(1, 2), 0.0)
    return downstream @ key, downstream.transpose(1, 2) @ query, weights.transpose(1, 2) @ upstream, None


def _rectified(query: Tensor, key: Tensor, keep: Tensor, at: Tensor) -> Tensor:
    weights = (query @ key.transpose(1, 2)).relu()
    return torch.where(allowed(weights, keep, at), weights, 0.0)


def _shifted(query: Tensor, key: Tensor, keep: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """Scores less the maximum of their row, -inf where masked, and that maximum."""
    scores = _masked(query, key, keep, at)
    # a row of -inf has no finite maximum to take away
    top = scores.amax(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).min)
    return scores - top, top


def _masked(query: Tensor, key: Tensor, keep: Tensor, at: Tensor) -> Tensor:
    scores = query @ key.transpose(1, 2)
    return torch.where(allowed(scores, keep, at), scores, -math.inf)


def _sparsemax(
    query: Tensor, key: Tensor, value: Tensor, keep: Tensor, at: Tensor, alpha: Tensor | None
) -> tuple[Tensor, Tensor]:
    z, top = _shifted(query, key, keep, at)
    t = torch.full_like(top, -1.0)
    for _ in range(_STEPS):
        above = (z - t).relu()
        count = torch.where(above > 0, 1.0, 0.0).sum(-1, keepdim=True)
        t = t + (above.sum(-1, keepdim=True) - 1.0) / count.clamp(min=1.0)
    return (z - t).relu() @ value, torch.cat([top, t], -1)


def _sparsemax_gradients(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    keep: Tensor,
    at: Tensor,
    alpha: Tensor | None,
    level: Tensor,
    upstream: Tensor,
    learns: bool,
) -> Gradients:
    weights = (_masked(query, key, keep, at) - level[..., :1] - level[..., 1:]).relu()
    return _backward(weights, torch.where(weights > 0, 1.0, 0.0), query, key, value, upstream)


def _entmax15(
    query: Tensor, key: Tensor, value: Tensor, keep: Tensor, at: Tensor, alpha: Tensor | None
) -> tuple[Tensor, Tensor]:
    z, top = _shifted(query * 0.5, key, keep, at)
    t = torch.full_like(top, -1.0)
    for _ in range(_STEPS):
        above = (z - t).relu()
        norm = (above * above).sum(-1, keepdim=True).sqrt()
        t = t + (norm - 1.0) * norm / above.sum(-1, keepdim=True).clamp(min=_tiny(z))
    above = (z - t).relu()
    return (above * above) @ value, torch.cat([top, t], -1)


def _entmax15_gradients(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    keep: Tensor,
    at: Tensor,
    alpha: Tensor | None,
    level: Tensor,
    upstream: Tensor,
    learns: bool,
) -> Gradients:
    roots = (_masked(query * 0.5, key, keep, at) - level[..., :1] - level[..., 1:]).relu()
    return _backward(roots * roots, roots, query, key, value, upstream)


def _entmax(
    query: Tensor, key: Tensor, value: Tensor, keep: Tensor, at: Tensor, alpha: Tensor
) -> tuple[Tensor, Tensor]:
    """The unknown is kappa = -ln max p, as in `thresholds.entmax`."""
    z, top = _shifted(query, key, keep, at)
    e = _excess(alpha)
    kappa = torch.zeros_like(top)
    for _ in range(_STEPS):
        inside = (z * (e * (e * kappa).exp())).clamp(min=-1.0)
        powers = (inside.log1p() * ((1.0 / e - 1.0).clamp(min=1e-30) * _LOG2_E)).exp2()
        slope = powers.sum(-1, keepdim=True).clamp(min=_tiny(z))
        total = (powers * (1.0 + inside)).sum(-1, keepdim=True).clamp(min=_tiny(z))
        step = (total / slope * torch.expm1((total.log() - kappa) * -e)).log1p() / e
        kappa = kappa - step
    powers = _powers(z, e, kappa)
    total = powers.sum(-1, keepdim=True).clamp(min=_tiny(z))
    return (powers / total) @ value, torch.cat([top, kappa], -1)


def _entmax_gradients(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    keep: Tensor,
    at: Tensor,
    alpha: Tensor,
    level: Tensor,
    upstream: Tensor,
    learns: bool,
) -> Gradients:
    e = _excess(alpha)
    powers = _powers(_masked(query, key, keep, at) - level[..., :1], e, level[..., 1:])
    weights = powers / powers.sum(-1, keepdim=True).clamp(min=_tiny(powers))
    positive = weights > 0
    logs = torch.where(positive, weights, 1.0).log()
    factors = torch.where(positive, ((1.0 - e) * logs).exp(), 0.0)
    *gradients, _ = _backward(weights, factors, query, key, value, upstream)
    to_alpha = None
    if learns:
        by_row = alpha_gradient(weights, upstream @ value.transpose(1, 2), alpha.expand(*weights.shape[:2], 1))
        to_alpha = by_row.sum(1, keepdim=True)
    return gradients[0], gradients[1], gradients[2], to_alpha


def _backward(
    weights: Tensor, factors: Tensor, query: Tensor, key: Tensor, value: Tensor, upstream: Tensor
) -> Gradients:
    """Through dp/ds = diag(g) - g g^T / sum g, with g = `factors`."""
    coming = upstream @ value.transpose(1, 2)
    total = factors.sum(-1, keepdim=True).clamp(min=_tiny(factors))
    mean = (factors * coming).sum(-1, keepdim=True) / total
    downstream = factors * (coming - mean)
    return downstream @ key, downstream.transpose(1, 2) @ query, weights.transpose(1, 2) @ upstream, None


def _powers(z: Tensor, e: Tensor, kappa: Tensor) -> Tensor:
    inside = (z * (e * (e * kappa).exp()).clamp(max=torch.finfo(z.dtype).max)).clamp(min=-1.0)
    return (inside.log1p() * (_LOG2_E / e)).exp2()


def _excess(alpha: Tensor) -> Tensor:
    # where alpha is 1 every term is at its limit and none divides by zero
    return (alpha - 1.0).clamp(min=1e-20)


def _tiny(x: Tensor) -> float:
    return torch.finfo(x.dtype).tiny


RELA = Form(name="rela", attend=_rela, differentiate=_rela_gradients)
SPARSEMAX = Form(name="sparsemax", attend=_sparsemax, differentiate=_sparsemax_gradients)
ENTMAX15 = Form(name="entmax15", attend=_entmax15, differentiate=_entmax15_gradients)
ENTMAX = Form(name="entmax", attend=_entmax, differentiate=_entmax_gradients)


def form_of(alpha: float | Tensor) -> Form:
    """The form for a fixed alpha, or for one that each head has."""
    return {2.0: SPARSEMAX, 1.5: ENTMAX15}.get(alpha, ENTMAX) if isinstance(alpha, float) else ENTMAX
