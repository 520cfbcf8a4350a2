"""Maps of rows of scores to weights, in place, forward and backward: as they are or compiled.

No loop depends on the data, so Newton's method takes a few steps and the caller looks whether more are needed. It
starts from the threshold of a subset, the largest entry of each group: that is a lower bound of the threshold itself,
as close as the support is sparse, and found on a sixteenth of the entries. What it leaves takes three steps at most in
standard normal rows and four in dense ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypedDict

import torch
from torch import Tensor

from ...ops.thresholds import alpha_gradient
from .blocks import GROUPS, Form, GoOn, Start

# on the subset
_FIRST_STEPS = 8
# on whole rows, between two looks; the last of them shows whether the ones before were enough
_STEPS = 4
_LOG2_E = math.log2(math.e)

# (scores less their maximum, threshold, alpha) to the threshold after one step of Newton's method from below
_Step = Callable[[Tensor, Tensor, Tensor | None], Tensor]


class _Solver(TypedDict):
    start: Start
    go_on: GoOn


def _newton(step: _Step, lowest: float) -> _Solver:
    """`start` and `go_on` of a Form, by that step, from the threshold `lowest` of scores less their maximum."""

    def start(scores: Tensor, alpha: Tensor | None) -> tuple[Tensor, Tensor]:
        groups = scores.view(*scores.shape[:-1], GROUPS, -1).amax(-2)
        # a row that is -inf throughout has no finite maximum to take away
        top = groups.amax(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).min)
        groups = groups - top
        threshold = torch.full_like(top, lowest)
        for _ in range(_FIRST_STEPS):
            threshold = step(groups, threshold, alpha)
        return go_on(scores, alpha, torch.cat([top, threshold], -1))

    def go_on(scores: Tensor, alpha: Tensor | None, level: Tensor) -> tuple[Tensor, Tensor]:
        """The level, (rows, 2), after some steps, and by how much the last of them moved it, (rows, 1)."""
        top, threshold = level[:, :1], level[:, 1:]
        before = threshold
        for _ in range(_STEPS):
            before, threshold = threshold, step(scores - top, threshold, alpha)
        return torch.cat([top, threshold], -1), threshold - before

    return {"start": start, "go_on": go_on}


def _rela(scores: Tensor, alpha: Tensor | None, level: Tensor) -> None:
    scores.relu_()


def _rela_gradients(scores: Tensor, coming: Tensor, alpha: Tensor | None, level: Tensor, learns: bool) -> None:
    coming.copy_(torch.where(scores > 0, coming, 0.0))


def _sparsemax_step(z: Tensor, threshold: Tensor, alpha: Tensor | None) -> Tensor:
    above = (z - threshold).relu()
    count = torch.where(above > 0, 1.0, 0.0).sum(-1, keepdim=True)
    return threshold + (above.sum(-1, keepdim=True) - 1.0) / count.clamp(min=1.0)


def _sparsemax(scores: Tensor, alpha: Tensor | None, level: Tensor) -> None:
    scores.copy_(_above(scores, level))


def _sparsemax_gradients(scores: Tensor, coming: Tensor, alpha: Tensor | None, level: Tensor, learns: bool) -> None:
    coming.copy_(_through(torch.where(_above(scores, level) > 0, 1.0, 0.0), coming))


def _entmax15_step(z: Tensor, threshold: Tensor, alpha: Tensor | None) -> Tensor:
    above = (z - threshold).relu()
    norm = (above * above).sum(-1, keepdim=True).sqrt()
    return threshold + (norm - 1.0) * norm / above.sum(-1, keepdim=True).clamp(min=_tiny(z))


def _entmax15(scores: Tensor, alpha: Tensor | None, level: Tensor) -> None:
    roots = _above(scores, level)
    scores.copy_(roots * roots)


def _entmax15_gradients(scores: Tensor, coming: Tensor, alpha: Tensor | None, level: Tensor, learns: bool) -> None:
    # twice, since the scores come halved
    coming.copy_(2.0 * _through(_above(scores, level), coming))


def _entmax_step(z: Tensor, kappa: Tensor, alpha: Tensor | None) -> Tensor:
    """The unknown is kappa = -ln max p, as in `thresholds.entmax`."""
    assert alpha is not None
    e = _excess(alpha)
    inside = (z * (e * (e * kappa).exp())).clamp(min=-1.0)
    powers = (inside.log1p() * ((1.0 / e - 1.0).clamp(min=1e-30) * _LOG2_E)).exp2()
    slope = powers.sum(-1, keepdim=True).clamp(min=_tiny(z))
    total = (powers * (1.0 + inside)).sum(-1, keepdim=True).clamp(min=_tiny(z))
    return kappa - (total / slope * torch.expm1((total.log() - kappa) * -e)).log1p() / e


def _entmax(scores: Tensor, alpha: Tensor | None, level: Tensor) -> None:
    scores.copy_(_entmax_weights(scores, alpha, level))


def _entmax_gradients(
    scores: Tensor, coming: Tensor, alpha: Tensor | None, level: Tensor, learns: bool
) -> Tensor | None:
    assert alpha is not None
    weights = _entmax_weights(scores, alpha, level)
    positive = weights > 0
    logs = torch.where(positive, weights, 1.0).log()
    factors = torch.where(positive, ((1.0 - _excess(alpha)) * logs).exp(), 0.0)
    to_alpha = alpha_gradient(weights, coming, alpha) if learns else None
    coming.copy_(_through(factors, coming))
    return to_alpha


def _entmax_weights(scores: Tensor, alpha: Tensor | None, level: Tensor) -> Tensor:
    assert alpha is not None
    e = _excess(alpha)
    slope = (e * (e * level[:, 1:]).exp()).clamp(max=torch.finfo(scores.dtype).max)
    inside = ((scores - level[:, :1]) * slope).clamp(min=-1.0)
    powers = (inside.log1p() * (_LOG2_E / e)).exp2()
    return powers / powers.sum(-1, keepdim=True).clamp(min=_tiny(scores))


def _above(scores: Tensor, level: Tensor) -> Tensor:
    return (scores - level[:, :1] - level[:, 1:]).relu()


def _through(factors: Tensor, coming: Tensor) -> Tensor:
    """Gradients of the scores from those of the weights: dp/ds = diag(g) - g g^T / sum g, with g = `factors`."""
    total = factors.sum(-1, keepdim=True).clamp(min=_tiny(factors))
    mean = (factors * coming).sum(-1, keepdim=True) / total
    return factors * (coming - mean)


def _excess(alpha: Tensor) -> Tensor:
    # where alpha is 1 every term is at its limit and none divides by zero
    return (alpha - 1.0).clamp(min=1e-20)


def _tiny(x: Tensor) -> float:
    return torch.finfo(x.dtype).tiny


RELA = Form(attend=_rela, differentiate=_rela_gradients)
SPARSEMAX = Form(**_newton(_sparsemax_step, -1.0), attend=_sparsemax, differentiate=_sparsemax_gradients)
# scores times alpha - 1 = 0.5; a step leaves an error of the square root of itself where a key drops out
ENTMAX15 = Form(
    factor=0.5,
    order=0.5,
    **_newton(_entmax15_step, -1.0),
    attend=_entmax15,
    differentiate=_entmax15_gradients,
)
ENTMAX = Form(**_newton(_entmax_step, 0.0), attend=_entmax, differentiate=_entmax_gradients)


def form_of(alpha: float | Tensor) -> Form:
    """The form for a fixed alpha, or for one that each head has."""
    return {2.0: SPARSEMAX, 1.5: ENTMAX15}.get(alpha, ENTMAX) if isinstance(alpha, float) else ENTMAX
