"""Gradients: they reach whatever the output depends on, and they are the derivative of the output.

Sees a wrong backward formula by a factor of 1.0001 at 13 positions and by one of 1.001 at the length to be measured, a
detached branch, a parameter that never learns, and float32 gradients that are not those of float64. Cannot see a wrong
gradient of few rows where rounding flips which keys are chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace

import torch
from torch import Tensor

from ...variants.contract import Variant
from ..core.errors import Unsupported
from .case import INPUTS, Case, Inputs, Kind, RunSetting, after_steps, gap
from .result import Answers, Measured, NotJudged
from .variant import build, jitter, resized

SMALL_LENGTH = 13
SMALL_HEADS = 8
STEPS = (1e-5, 1e-6, 1e-4, 1e-7)
ALLOWED = 1e-5
LONG_STEPS = (1e-6, 1e-7, 1e-8)
"""Shorter ones, since among more scores one lies sooner at a kink or a jump."""
LONG_ALLOWED = 3e-4
ALONG = 3.0
"""The part of a direction along the gradient, in standard deviations of its random part."""
PRECISION_ALLOWED = 1e-4
_PARAMETERS_ALLOWED = 0.1
"""Of the size of the gradient of one parameter, where outputs are equal: rounding moves a choice of keys at times."""
FLIPPED = 0.01
"""Share of the rows whose gradient may differ: where rounding puts a weight on the other side of a kink."""
FLIPPED_OUTPUTS = 0.1
"""The same where outputs differ as well, since rounding chose other keys: then whole rows do."""
DRAWS = 32
"""Draws of the inputs before a gradient is said to reach nothing: a gate may be shut for most of them."""
_TOO_LARGE = "it refuses float64, or float64 takes too much at this length"


def gradient_reaches(case: Case) -> Answers:
    """training moves query, key, value and the hidden state, but for those that the variant says it ignores"""
    reached, ignored = _reached(case), case.module.ignores
    inputs = INPUTS[: len(list(case.inputs()))]
    missed, false = set(inputs) - reached - ignored, reached & ignored
    details = [f"no gradient reaches {', '.join(sorted(missed))}"] if missed else []
    details += [f"declared ignored, yet reached: {', '.join(sorted(false))}"] if false else []
    yield Measured(float(len(missed) + len(false)), 0.0, "; ".join(details))


def parameters_learn(case: Case) -> Answers:
    """training moves every parameter of the variant's own"""
    own = set(_trained(case.module))
    if not own:
        yield NotJudged("it has no parameters")
        return
    missed = own - _reached(case)
    yield Measured(float(len(missed)), 0.0, f"no gradient reaches {', '.join(sorted(missed))}" if missed else "")


def gradient_is_derivative(case: Case) -> Answers:
    """in float64, derivatives along random directions of each input and parameter equal finite differences"""
    cases = [each for kind in ("usual", "after step") if (each := small(case, kind)) is not None]
    if not cases:
        yield NotJudged("it refuses float64 on a small shape; its twin speaks for its gradient")
    for each in cases:
        yield from directions(each)


def gradient_at_length(case: Case) -> Answers:
    """in float64, the derivative along one direction of all inputs and parameters, with more tokens"""
    if case.in_float64 is None:
        yield NotJudged(_TOO_LARGE)
        return
    # A copy off its first values, where a kink may lie.
    case = case.in_float64.with_module(deepcopy(case.in_float64.module))
    jitter(case.module, case.seed)
    inputs = case.inputs()
    valid = _padded(case, inputs)
    leaves = Inputs(*(x.detach().requires_grad_() for x in inputs))
    trained = list(_trained(case.module).values())
    with torch.enable_grad():
        output = case.forward(leaves, valid)
        if not output.requires_grad:
            yield NotJudged("no gradient at all; `gradient reaches` says so")
            return
        grad_output = case.grad_output(output)
        gradients = torch.autograd.grad(
            output, [*leaves, *trained], grad_output, allow_unused=True, materialize_grads=True
        )
    output = output.detach()
    generator = torch.Generator().manual_seed(case.seed)
    tensors = [*inputs, *trained]
    sizes = [float(g.norm()) for g in gradients]
    # Each tensor in units of its gradient, so that a small gradient has as much to say as a large one.
    largest = max(sizes)
    units = [min(largest / size, 1e3) if size else 1.0 for size in sizes]
    # A share along the gradient, so that a wrong factor shows whatever the random part draws.
    along = [
        u * (torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.device) + ALONG * g / (s or 1.0))
        for u, x, g, s in zip(units, tensors, gradients, sizes, strict=True)
    ]
    slope = sum(float((g * d).sum()) for g, d in zip(gradients, along, strict=True))
    size = math.hypot(*(u * s for u, s in zip(units, sizes, strict=True))) + 1e-4
    kept = [p.detach().clone() for p in trained]

    def loss(step: float) -> float:
        moved = Inputs(*(x + step * d for x, d in zip(inputs, along, strict=False)))
        with torch.no_grad():
            for p, d in zip(trained, along[len(list(inputs)) :], strict=True):
                p.add_(step * d)
        # The difference entry by entry, before the sum: it loses no digits to the size of the loss.
        change = float(((case.run(moved, valid) - output) * grad_output).sum())
        with torch.no_grad():
            for p, old in zip(trained, kept, strict=True):
                p.copy_(old)
        return change

    def off(found: float) -> float:
        error = abs(found - slope) / size
        return error if math.isfinite(error) else math.inf

    least = math.inf
    for step in LONG_STEPS:
        # One side is mostly enough; at a kink the other may be right, and where the output bends their mean.
        ahead = loss(step)
        least = min(least, off(ahead / step))
        if least > LONG_ALLOWED:
            behind = -loss(-step)
            least = min(least, off(behind / step), off((ahead + behind) / 2 / step))
        if least <= LONG_ALLOWED:
            break
    yield Measured(least, LONG_ALLOWED, f"derivative along all inputs and parameters, {case.place}")


def gradient_in_precision(case: Case) -> Answers:
    """gradients in the precision to be measured equal those in float64"""
    double = case.in_float64
    if double is None:
        yield NotJudged(_TOO_LARGE)
        return
    inputs = case.inputs()
    valid = _padded(case, inputs)
    arriving = case.grad_output(inputs.query)
    allowed = max(8 * case.tolerance, PRECISION_ALLOWED)

    def differing(arriving: Tensor) -> tuple[list[Tensor], list[float], float]:
        """The rows of the gradients that differ, (batch, heads, rows), the shares of those, and the gap of outputs."""
        found = case.passes(inputs, valid, arriving)
        expected = double.passes(Inputs(*(x.double() for x in inputs)), valid, arriving.double())
        rows = []
        for a, b in zip(found[1:], expected[1:], strict=True):
            # relative to the row plus a tenth of the usual size
            sizes, off = b.norm(dim=-1), (a.double() - b).norm(dim=-1)
            # `not <=` and not `>`, so that a row that is no number counts
            rows.append(~(off <= allowed * (sizes + sizes.square().mean().sqrt() / 10) + 1e-30))
        return rows, [float(each.double().mean()) for each in rows], gap(found[0], expected[0])

    rows, shares, distance = differing(arriving)
    if distance <= case.tolerance and 0 < shares[0] <= FLIPPED < max(shares[1:]):
        # One weight at a kink moves the gradients of one query, and of all keys that it sees. Without those queries the
        # gradients of the keys must be right.
        _, shares, distance = differing(arriving.masked_fill(rows[0].any(1, keepdim=True)[..., None], 0.0))
    if case.is_foreign and distance <= case.tolerance:
        yield from _of_parameters(case, double, inputs, valid, arriving)
    limit = FLIPPED_OUTPUTS if distance > case.tolerance else FLIPPED
    for name, share in zip(INPUTS, shares, strict=False):
        detail = f"share of rows of the gradient of {name} that are not those of float64, {case.place}"
        yield Measured(share, limit, detail)


def _of_parameters(case: Case, double: Case, inputs: Inputs, valid: Tensor | None, arriving: Tensor) -> Answers:
    """Gradients of parameters in the precision to be measured, whole, beside those in float64."""
    own, exact = (_trained(each.module) for each in (case, double))
    found = case.passes(inputs, valid, arriving, [*own.values()])[-len(own) :] if own else []
    wide = Inputs(*(x.double() for x in inputs))
    expected = double.passes(wide, valid, arriving.double(), [*exact.values()])[-len(own) :] if own else []
    # of what cancels to nothing rounding alone is left
    least = 1e-3 * max((float(each.norm()) for each in expected), default=0.0) + 1e-30
    for name, a, b in zip(own, found, expected, strict=True):
        off = float((a.double() - b).norm()) / max(float(b.norm()), least)
        words = f"share of the gradient of {name} that is not that of float64, {case.place}"
        yield Measured(off, _PARAMETERS_ALLOWED, words)


def small(case: Case, kind: Kind, dropout: float = 0.0) -> Case | None:
    """The variant in float64 on a shape that differences can afford, or on its own where it refuses that one.

    None where it refuses both.
    """
    shape = replace(case.shape, dtype="float64", dropout=dropout)
    lengths = sorted({min(shape.max_length, 2 * SMALL_LENGTH), shape.max_length})
    # more heads than a kernel may take at once
    heads = (SMALL_HEADS, shape.heads) if shape.kv_heads == shape.heads < SMALL_HEADS else (shape.heads,)
    for number, max_length in [(number, length) for number in heads for length in lengths]:
        groups = number if number != shape.heads else shape.kv_heads
        sized = resized(shape, heads=number, kv_heads=groups, max_length=max_length)
        try:
            module = build(case.factory, sized, case.seed)
        except Unsupported:
            continue
        if kind == "after step":
            after_steps(module, sized, case.seed)
        jitter(module, case.seed)
        setting = RunSetting(min(SMALL_LENGTH, max_length), kind=kind)
        module.train(kind == "training")
        return Case(case.factory, sized, setting, case.seed, module=module, base=case.base)
    return None


def directions(case: Case) -> Answers:
    """Derivatives along random directions of each input and parameter, against finite differences; float64."""
    inputs = case.inputs()
    valid = _padded(case, inputs)
    # Copies, since the differences move them in place.
    leaves = Inputs(*(x.clone().requires_grad_() for x in inputs))
    with torch.enable_grad():
        output = case.forward(leaves, valid)
        grad_output = case.grad_output(output)
        named = dict(zip(INPUTS, leaves, strict=False)) | _trained(case.module)
        if not output.requires_grad:
            yield NotJudged("no gradient at all; `gradient reaches` says so")
            return
        gradients = torch.autograd.grad(
            output, list(named.values()), grad_output, allow_unused=True, materialize_grads=True
        )

    def loss(name: str, moved: Tensor) -> float:
        tensor = named[name]
        kept = tensor.detach().clone()
        with torch.no_grad():
            tensor.copy_(moved)
            found = float((case.forward(leaves, valid) * grad_output).sum())
            tensor.copy_(kept)
        return found

    for name, error in derivative_errors(named, gradients, loss, seed=case.seed, allowed=ALLOWED):
        yield Measured(error, ALLOWED, f"derivative along {name}, {case.place}")


def derivative_errors(
    named: dict[str, Tensor],
    gradients: Sequence[Tensor],
    loss: Callable[[str, Tensor], float],
    *,
    seed: int,
    allowed: float,
    steps: Sequence[float] = STEPS,
    floor: float = 1e-4,
) -> Iterator[tuple[str, float]]:
    """Errors of derivatives along two random directions of each tensor, relative to its gradient's size plus `floor`.

    loss: its value with other numbers for the tensor of a name.
    """
    generator = torch.Generator().manual_seed(seed)
    for (name, tensor), gradient in zip(named.items(), gradients, strict=True):
        kept = tensor.detach()
        # A random direction in all entries at once tests every entry; entry by entry would cost a pass for each.
        for _ in range(2):
            direction = torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor)
            slope = float((gradient * direction).sum())
            # a direction may be nearly flat by chance; the gradient's size says what is large
            size = max(abs(slope), float(gradient.norm()) + floor)
            # The least error over several step sizes and over both sides, since a kink or a jump may lie within a step.
            least, middle = math.inf, loss(name, kept)
            for step in steps:
                ahead, behind = loss(name, kept + step * direction), loss(name, kept - step * direction)
                # Forward, backward and central: at a kink one side is right, and a wrong gradient is wrong on all.
                for difference in ((ahead - behind) / 2, ahead - middle, middle - behind):
                    error = abs(difference / step - slope) / size
                    least = min(least, error if math.isfinite(error) else math.inf)
                if least <= allowed:
                    break
            yield name, least


def _reached(case: Case) -> set[str]:
    """Names of the inputs and parameters with a gradient that is not all zero for some draw of the inputs."""
    moved, reached = case.rebuilt(), set[str]()
    jitter(moved.module, case.seed)
    for salt in range(DRAWS):
        leaves = Inputs(*(x.detach().requires_grad_() for x in case.inputs(salt=salt)))
        with torch.enable_grad():
            output = moved.forward(leaves)
            # A random direction: the plain sum of a normalised output does not depend on the query at all.
            loss = (output * case.grad_output(output)).sum()
            auxiliary = moved.module.auxiliary_loss()
            loss = loss if auxiliary is None else loss + auxiliary
            named = dict(zip(INPUTS, leaves, strict=False)) | _trained(moved.module)
            if not loss.requires_grad:
                continue
            found = torch.autograd.grad(loss, list(named.values()), allow_unused=True, materialize_grads=True)
        reached |= {name for name, gradient in zip(named, found, strict=True) if gradient.any()}
        if reached >= named.keys() - case.module.ignores:
            break
    return reached


def _padded(case: Case, inputs: Inputs) -> Tensor | None:
    keys = inputs.key.shape[2]
    return inputs.padded_from(keys - max(3, keys // 5)) if case.shape.padding and keys > 3 else None


def _trained(module: Variant) -> dict[str, Tensor]:
    return {f"parameter {name}": p for name, p in module.named_parameters() if p.requires_grad and p.numel()}
