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

from ...ops.first_derivative import THROUGH_EAGER
from ...ops.thresholds import alpha_gradient
from .blocks import GROUPS, Form, GoOn, Start

# on the subset
_FIRST_STEPS = 8
# on whole rows, between two looks; the last of them shows whether the ones before were enough
# four are one graph for the compiler: more would be compiled for rows that have ended, fewer would ask more often
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
        # the largest of 16 entries that stand at the same place of the groups: a subset has no larger threshold, so
        # starting there is starting from below
        groups = scores.view(*scores.shape[:-1], GROUPS, -1).amax(-2)
        # a row that is -inf throughout has no finite maximum to take away
        top = groups.amax(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).min)
        groups = groups - top
        threshold = torch.full_like(top, lowest)
        # no look at the data: a step from the threshold itself stays there, and the subset is a sixteenth of the row
        for _ in range(_FIRST_STEPS):
            threshold = step(groups, threshold, alpha)
        return go_on(scores, alpha, torch.cat([top, threshold], -1))

    def go_on(scores: Tensor, alpha: Tensor | None, level: Tensor) -> tuple[Tensor, Tensor]:
        """The level, (rows, 2), after some steps, and by how much the last of them moved it, (rows, 1)."""
        top, threshold = level[:, :1], level[:, 1:]
        # the last step of the graph is what `_solve` judges by: Newton from below only rises, so a small rise is the
        # end
        before = threshold
        for _ in range(_STEPS):
            before, threshold = threshold, step(scores - top, threshold, alpha)
        return torch.cat([top, threshold], -1), threshold - before

    return {"start": start, "go_on": go_on}


def _rela(scores: Tensor, alpha: Tensor | None, level: Tensor) -> None:
    # -inf, where a key is hidden, becomes zero like any other negative score
    scores.relu_()


def _rela_gradients(scores: Tensor, grad_weights: Tensor, alpha: Tensor | None, level: Tensor, learns: bool) -> None:
    # at zero the derivative is taken as 0, as autograd of relu takes it
    # NaN passes, as there: a score that is no number is not below zero
    grad_weights.copy_(torch.where(scores <= 0, 0.0, grad_weights))


def _sparsemax_step(z: Tensor, threshold: Tensor, alpha: Tensor | None) -> Tensor:
    above = (z - threshold).relu()
    # the size of the support is what a step divides by: the slope of sum [z - t]_+ in t
    count = torch.where(above > 0, 1.0, 0.0).sum(-1, keepdim=True)
    return threshold + (above.sum(-1, keepdim=True) - 1.0) / count.clamp(min=1.0)


def _sparsemax(scores: Tensor, alpha: Tensor | None, level: Tensor) -> None:
    scores.copy_(_above(scores, level))


def _sparsemax_gradients(
    scores: Tensor, grad_weights: Tensor, alpha: Tensor | None, level: Tensor, learns: bool
) -> None:
    above = _above(scores, level)
    # zero where it is not positive, or NaN, which has to stay
    grad_weights.copy_(_through(torch.where(above > 0, 1.0, above), grad_weights))


def _entmax15_step(z: Tensor, threshold: Tensor, alpha: Tensor | None) -> Tensor:
    above = (z - threshold).relu()
    # the norm is linear in the threshold for a single key, so its steps reach further than those on the sum of
    # squares
    norm = (above * above).sum(-1, keepdim=True).sqrt()
    return threshold + (norm - 1.0) * norm / above.sum(-1, keepdim=True).clamp(min=_tiny(z))


def _entmax15(scores: Tensor, alpha: Tensor | None, level: Tensor) -> None:
    roots = _above(scores, level)
    scores.copy_(roots * roots)


def _entmax15_gradients(
    scores: Tensor, grad_weights: Tensor, alpha: Tensor | None, level: Tensor, learns: bool
) -> None:
    # twice, since the scores come halved
    grad_weights.copy_(2.0 * _through(_above(scores, level), grad_weights))


def _entmax_step(z: Tensor, kappa: Tensor, alpha: Tensor | None) -> Tensor:
    """The unknown is kappa = -ln max p, as in `thresholds.entmax`."""
    assert alpha is not None
    e = _excess(alpha)
    # c z of (1 + c z)^(1/e): at -1 the weight is zero, and -inf ends there too
    inside = (z * (e * (e * kappa).exp())).clamp(min=-1.0)
    # (1 + c z)^(1/e - 1): times 1 + c z it is a weight, and it is the slope too, so one power serves both sums. exp2
    # and not exp: on CPU the latter is many times slower where it meets -inf
    powers = (inside.log1p() * ((1.0 / e - 1.0).clamp(min=1e-30) * _LOG2_E)).exp2()
    # a row that is hidden throughout has sums of zero; the floor keeps it finite
    slope = powers.sum(-1, keepdim=True).clamp(min=_tiny(z))
    total = (powers * (1.0 + inside)).sum(-1, keepdim=True).clamp(min=_tiny(z))
    # the step of thresholds.entmax, written for kappa = -ln max p: expm1 and log1p keep its digits as e goes to 0
    return kappa - (total / slope * torch.expm1((total.log() - kappa) * -e)).log1p() / e


def _entmax(scores: Tensor, alpha: Tensor | None, level: Tensor) -> None:
    scores.copy_(_entmax_weights(scores, alpha, level))


def _entmax_gradients(
    scores: Tensor, grad_weights: Tensor, alpha: Tensor | None, level: Tensor, learns: bool
) -> Tensor | None:
    assert alpha is not None
    weights = _entmax_weights(scores, alpha, level)
    positive = weights > 0
    # p^(2 - alpha) by the logarithm; 1 stands for weights of zero, whose logarithm would be -inf times 0
    logs = torch.where(positive, weights, 1.0).log()
    # off the support zero, or NaN, which has to stay
    factors = torch.where(positive, ((1.0 - _excess(alpha)) * logs).exp(), weights)
    to_alpha = alpha_gradient(weights, grad_weights, alpha) if learns else None
    grad_weights.copy_(_through(factors, grad_weights))
    return to_alpha


def _entmax_weights(scores: Tensor, alpha: Tensor | None, level: Tensor) -> Tensor:
    assert alpha is not None
    e = _excess(alpha)
    slope = (e * (e * level[:, 1:]).exp()).clamp(max=torch.finfo(scores.dtype).max)
    inside = ((scores - level[:, :1]) * slope).clamp(min=-1.0)
    powers = (inside.log1p() * (_LOG2_E / e)).exp2()
    # the division takes up the common factor exp(-kappa), and what rounding of kappa left: rows sum to one
    return powers / powers.sum(-1, keepdim=True).clamp(min=_tiny(scores))


def _above(scores: Tensor, level: Tensor) -> Tensor:
    return (scores - level[:, :1] - level[:, 1:]).relu()


def _through(factors: Tensor, grad_weights: Tensor) -> Tensor:
    """Gradients of the scores from those of the weights: dp/ds = diag(g) - g g^T / sum g, with g = `factors`."""
    # a row without a key has no factors and gets a gradient of zero
    total = factors.sum(-1, keepdim=True).clamp(min=_tiny(factors))
    mean = (factors * grad_weights).sum(-1, keepdim=True) / total
    return factors * (grad_weights - mean)


def _excess(alpha: Tensor) -> Tensor:
    # where alpha is 1 every term is at its limit and none divides by zero
    return (alpha - 1.0).clamp(min=1e-20)


def _tiny(x: Tensor) -> float:
    return torch.finfo(x.dtype).tiny


RELA = Form(attend=_rela, differentiate=_rela_gradients, second_derivative=THROUGH_EAGER)
SPARSEMAX = Form(**_newton(_sparsemax_step, -1.0), attend=_sparsemax, differentiate=_sparsemax_gradients)
# scores come times alpha - 1 = 0.5; a step of s leaves an error of s^2, so a step as small as the root of the
# precision is the last that matters
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
