"""Thresholds of the sparse maps: p_j = [e x_j - tau]_+^(1/e), e = alpha - 1, with tau such that the row sums to one.

Newton's method on the norm phi(t) = |[e x - t]_+|_{1/e}, from t = e max(x) - 1: phi is convex and decreasing for
e <= 1, so each step stays below tau, no bracket is needed, and {e x > t} always contains the support. All functions
work in place on one piece of rows, (..., n), without autograd; scratch tensors have the shape of the piece.

`z` is x less the maximum of its row, times alpha - 1 where that is a fixed number, and -inf where a key is masked. A
row of -inf ends with weights of zero.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_LOG2_E = math.log2(math.e)
# where alpha is 1, e takes this value: every term below is at its limit and none divides by zero
_SMALLEST_EXCESS = 1e-20
# the hardest rows that were found took 11 steps on CPU, asked to end in float64
_DEVICE_STEPS = {torch.float32: 14, torch.float64: 18}
# halvings of [0, ln n] down to the spacing of float64
_BISECTIONS = 58


def sparsemax(z: Tensor, out: Tensor, scratch: Tensor) -> None:
    """alpha = 2; each step is the threshold of the support so far, exact once that stays the same."""
    # max(z) is 0, so the largest entry alone has weight 1 at -1: no threshold can be lower
    t = z.new_full((*z.shape[:-1], 1), -1.0)
    for _ in _steps(z):
        torch.sub(z, t, out=scratch).relu_()
        excess = scratch.sum(-1, keepdim=True).sub_(1.0)
        # entries lie in [0, 1], so rounding up counts the positive ones
        # -(sum - 1) / slope, the slope being minus the size of the support: Michelot's method, here as Newton's
        step = excess.div_(torch.ceil(scratch, out=out).sum(-1, keepdim=True).clamp_(min=1.0))
        t += step
        if _ended(step, 4 * _eps(z)):
            break
    torch.sub(z, t, out=out).relu_()


def entmax15(z: Tensor, out: Tensor, scratch: Tensor) -> None:
    """alpha = 1.5; p is the square of [z - t]_+, and its norm the Euclidean one."""
    t = z.new_full((*z.shape[:-1], 1), -1.0)
    for _ in _steps(z):
        torch.sub(z, t, out=scratch).relu_()
        # d|u|_2 / dt = -sum u / |u|_2, hence the step (|u| - 1) |u| / sum u
        norm = torch.linalg.vector_norm(scratch, dim=-1, keepdim=True)
        step = (norm - 1.0).mul_(norm).div_(scratch.sum(-1, keepdim=True).clamp_(min=_tiny(z)))
        t += step
        if _ended(step, _tolerance(z, 0.5)):
            break
    torch.sub(z, t, out=scratch).relu_()
    # the weights are not divided by their sum: at the last threshold it is one up to rounding
    torch.mul(scratch, scratch, out=out)


def entmax(z: Tensor, alpha: Tensor, out: Tensor, scratch: Tensor) -> None:
    """1 <= alpha <= 2, one per row, (..., 1).

    The unknown is kappa = -ln max p, t = -exp(-e kappa), p_j = exp(-kappa) (1 + c z_j)^(1/e), c = e exp(e kappa): exact
    for long dense rows at alpha = 2 and for alpha -> 1 alike, where it is log-sum-exp and the first step lands on it.
    """
    e = _excess(alpha)
    # at alpha = 2 the power would be zero, and 0^0 would count masked keys
    power = (1.0 / e - 1.0).clamp_(min=1e-30).mul_(_LOG2_E)
    # max p = 1: the lower end, as t = -1 above
    kappa = torch.zeros_like(e)
    tolerance = _tolerance(z, float(e.max()) if may_look(z) else 1.0)
    for _ in _steps(z):
        # c z, held at -1 where the key has no weight; -inf, a masked key, ends there too
        torch.mul(z, e * (e * kappa).exp_(), out=scratch).clamp_(min=-1.0)
        torch.log1p(scratch, out=out).mul_(power).exp2_()
        # with u = 1 + c z: sum u^(1/e - 1) is the slope and sum u^(1/e) the mass, up to exp(-kappa); one power serves
        # both
        slope = out.sum(-1, keepdim=True)
        total = torch.addcmul(out, out, scratch, out=out).sum(-1, keepdim=True)
        # ln of the sum of the weights at this kappa: 0 at the solution
        above = total.clamp(min=_tiny(z)).log_() - kappa
        # expm1 and log1p keep the digits of the step where e is nearly 0 and both factors are nearly 1
        ratio = total.div_(slope.clamp_(min=_tiny(z)))
        step = ratio.mul_(torch.expm1(above.mul_(-e))).log1p_().div_(e)
        kappa -= step
        if _ended(-step, tolerance):
            break
    _powers(z, e, kappa, out)


def entmax_by_bisection(z: Tensor, alpha: Tensor, out: Tensor) -> None:
    """Any alpha >= 1, one per row, (..., 1): the norm is not convex above 2, where Newton's method overshoots.

    kappa = -ln max p lies between 0 and ln n, and the sum of the weights falls with it. Above 2 the slope at the edge
    of the support is infinite, and float32 would keep half its digits there: so this is done in float64.
    """
    # no look at the device in this loop: a fixed number of halvings, all rows alike
    z, e = z.double(), _excess(alpha.double())
    low, high, powers = torch.zeros_like(e), torch.full_like(e, math.log(z.shape[-1])), torch.empty_like(z)
    for _ in range(_BISECTIONS):
        middle = (low + high).mul_(0.5)
        # more than one at the middle: kappa must grow, since weights are exp(-kappa) times the powers
        heavy = _unscaled_powers(z, e, middle, powers).sum(-1, keepdim=True).log_() >= middle
        low, high = torch.where(heavy, middle, low), torch.where(heavy, high, middle)
    _powers(z, e, low, powers)
    out.copy_(powers)


def gradient_factors(p: Tensor, alpha: float | Tensor, out: Tensor) -> Tensor:
    """g = p^(2 - alpha) on the support, 0 elsewhere: dp/dx = diag(g) - g g^T / sum g."""
    if isinstance(alpha, Tensor):
        # p^(2 - alpha) = p exp((1 - alpha) ln p), zero off the support, where p is zero
        return log_weights(p, out).mul_(-_excess(alpha)).exp_().mul_(p)
    if alpha == 1.5:
        # the square root of an exact zero is thirty times slower on CPU; that of the smallest normal number is exact
        tiny = _tiny(p)
        return torch.clamp(p, min=tiny, out=out).sqrt_().sub_(math.sqrt(tiny))
    # alpha = 2: 1 on the support. Weights lie in [0, 1] but for rounding; unlike the sign, this leaves NaN as it is
    return torch.ceil(p, out=out).clamp_(max=1.0)


def log_weights(p: Tensor, out: Tensor) -> Tensor:
    """ln p on the support, 0 elsewhere."""
    return torch.clamp(p, min=_tiny(p), out=out).log_().mul_(torch.sign(p))


def alpha_gradient(p: Tensor, grad_output: Tensor, alpha: Tensor) -> Tensor:
    """Gradient in alpha, one per row, (..., 1), from the weights and the gradient that comes to them.

    With L = ln p, y = -e L, phi = (exp(y) - 1)/e and psi = (exp(y) - 1 - y)/e^2, which tend to -L and L^2/2, and their
    means E, M over p: dp_j/dalpha = -p_j (psi_j + M L_j - E phi_j - mean) / (1 + e M). Nothing cancels as alpha -> 1.
    """
    e = _excess(alpha)
    log = log_weights(p, torch.empty_like(p))
    y = log * -e
    phi = torch.expm1(y) / e
    # exp(y) - 1 - y by its series up to 1/2, where the difference loses digits, and the rest by exp(near) (exp(far) -
    # 1) - far
    near = y.clamp(max=0.5)
    far = y - near
    beyond = (torch.expm1(far) * near.exp() - far) / e / e
    # near / e is -ln p without a division by e, which may be 0
    psi = torch.minimum(-log, 0.5 / e).square_() * _remainder(near) + beyond
    mean_log, mean_phi = (p * log).sum(-1, keepdim=True), (p * phi).sum(-1, keepdim=True)
    # the mean that makes the entries of dp/dalpha sum to zero, taken from the gradient that comes in: the same product
    centred = grad_output - (p * grad_output).sum(-1, keepdim=True)
    slope = psi + mean_phi * log - mean_log * phi
    return -(centred * p * slope).sum(-1, keepdim=True) / (1.0 + e * mean_phi)


def _remainder(y: Tensor) -> Tensor:
    """(exp(y) - 1 - y) / y^2 for 0 <= y <= 1/2, by its series, to the last bit of float64."""
    total = torch.full_like(y, 1.0 / math.factorial(15))
    for order in range(14, 1, -1):
        total.mul_(y).add_(1.0 / math.factorial(order))
    return total


def _powers(z: Tensor, e: Tensor, kappa: Tensor, out: Tensor) -> None:
    # the common factor exp(-kappa) is left to the division, which also takes up what rounding of kappa leaves
    total = _unscaled_powers(z, e, kappa, out).sum(-1, keepdim=True)
    out.div_(total.clamp_(min=_tiny(z)))


def _unscaled_powers(z: Tensor, e: Tensor, kappa: Tensor, out: Tensor) -> Tensor:
    factor = (e * (e * kappa).exp_()).clamp_(max=torch.finfo(z.dtype).max)
    # exp2 and not exp: on CPU the latter is many times slower where it meets -inf
    # (1 + c z)^(1/e) as exp2(log1p(c z) / (e ln 2))
    return torch.mul(z, factor, out=out).clamp_(min=-1.0).log1p_().mul_(_LOG2_E / e).exp2_()


def _excess(alpha: Tensor) -> Tensor:
    return (alpha - 1.0).clamp_(min=_SMALLEST_EXCESS)


def may_look(x: Tensor) -> bool:
    """True if values of `x` may decide what is done next.

    Reading them stalls a GPU, and a graph that is being compiled has no values.
    """
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def _steps(z: Tensor) -> range:
    # the loop ends by itself where it may look
    return range(1000 if may_look(z) else _DEVICE_STEPS[z.dtype])


def _ended(step: Tensor, tolerance: float) -> bool:
    return may_look(step) and not bool((step > tolerance).any())


def _tolerance(z: Tensor, e: float) -> float:
    """Largest step after which the threshold is right to the last bits.

    The error that a step leaves is of order 1/e in it (a key that drops out) or 2, with factors up to the key count.
    """
    # the error is step^(1/e) or step^2, whichever is more: this is that, solved for the step
    order = max(e, 0.5)
    return float(max((1e-4 * _eps(z)) ** order, 4 * _eps(z)))


def _eps(z: Tensor) -> float:
    return torch.finfo(z.dtype).eps


def _tiny(z: Tensor) -> float:
    return torch.finfo(z.dtype).tiny
