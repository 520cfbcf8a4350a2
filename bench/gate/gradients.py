"""Gradients: they reach whatever the output depends on, and they are the derivative of the output.

Sees a wrong backward formula by a factor of 1.0001 at 13 positions and by one of 1.001 at the length to be measured, a
detached branch, a parameter that never learns, and float32 gradients that are not those of float64. Cannot see a wrong
gradient of few rows where rounding flips which keys are chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace

import torch
from torch import Tensor

from ...variants.contract import Variant
from ..core.errors import Unsupported
from .case import Case, Inputs, Mode, RunSetting
from .checked_variant import CheckedVariant, after_steps, build
from .distance import beyond, gap
from .property import Answer, Measured, NotApplicable, worst
from .twins import EAGER

SMALL_LENGTH = 13
STEPS = (1e-5, 1e-6, 1e-4, 1e-7)
ALLOWED = 1e-5
LONG_STEPS = (1e-6, 1e-7, 1e-8)
"""Shorter ones, since among more scores one lies sooner at a kink or a jump."""
LONG_ALLOWED = 3e-4
ALONG = 3.0
"""How far a direction goes along the gradient, in standard deviations of its random part."""
PRECISION_ALLOWED = 1e-4
FLIPPED = 0.01
"""Share of the rows whose gradient may differ: where rounding puts a weight on the other side of a kink."""
FLIPPED_OUTPUTS = 0.1
"""The same where outputs differ as well, since rounding chose other keys: then whole rows do."""
NAMES = ("query", "key", "value")


def gradient_reaches(checked: CheckedVariant) -> Answer:
    """training moves query, key and value, but for those that the variant says it ignores"""
    reached = _reached(checked)
    missed, false = set(NAMES) - reached - checked.module.ignores, reached & checked.module.ignores
    details = [f"no gradient reaches {', '.join(sorted(missed))}"] if missed else []
    details += [f"declared ignored, yet reached: {', '.join(sorted(false))}"] if false else []
    return Measured(float(len(missed) + len(false)), 0.0, "; ".join(details))


def parameters_learn(checked: CheckedVariant) -> Answer:
    """training moves every parameter of the variant's own"""
    own = set(_trained(checked.module))
    if not own:
        return NotApplicable("it has no parameters")
    missed = own - _reached(checked)
    return Measured(float(len(missed)), 0.0, f"no gradient reaches {', '.join(sorted(missed))}" if missed else "")


def gradient_is_derivative(checked: CheckedVariant) -> Answer:
    """in float64, derivatives along random directions of each input and parameter equal finite differences"""
    modes: tuple[Mode, ...] = ("evaluation", "after step")
    cases = [case for mode in modes for case in small(checked, mode)]
    if not cases:
        return NotApplicable("it refuses float64 on a small shape; its twin speaks for its gradient")
    return worst(answer for case in cases for answer in directions(case))


def gradient_at_length(checked: CheckedVariant) -> Answer:
    """in float64, the derivative along one direction of all inputs and parameters, with more tokens"""
    narrow = checked.narrow
    doubles = [double for case in narrow.measured if (double := narrow.in_float64(case.setting)) is not None]
    if not doubles:
        return NotApplicable("it refuses float64, or float64 takes too much at this length")
    return worst(_joint(case) for case in doubles)


def gradient_in_precision(checked: CheckedVariant) -> Answer:
    """gradients in the precision to be measured equal those in float64"""
    narrow = checked.narrow
    if EAGER in checked.source.implementations:
        return NotApplicable("`implementations` compares the gradients of every path with float64")
    return worst(_precision(case, narrow.in_float64(case.setting)) for case in narrow.measured)


def _reached(checked: CheckedVariant) -> set[str]:
    """Names of the inputs and parameters with a gradient that is not all zero."""
    case, module = checked.native, checked.like()
    _jitter(module, checked.seed)
    leaves = case.inputs().leaves()
    with torch.enable_grad():
        output = module(*leaves.all(), case.mask())
        # A random direction: the plain sum of a normalised output does not depend on the query at all.
        loss = (output * case.grad_output(output)).sum()
        auxiliary = module.auxiliary_loss()
        loss = loss if auxiliary is None else loss + auxiliary
        named = dict(zip(NAMES, leaves.all(), strict=True)) | _trained(module)
        if not loss.requires_grad:
            return set()
        found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {name for name, g in zip(named, found, strict=True) if g is not None and bool((g != 0).any())}


def small(checked: CheckedVariant, mode: Mode, dropout: float = 0.0) -> Iterator[Case]:
    """The variant in float64 on a shape that differences can afford, or on its own where it refuses that one."""
    shape = replace(checked.shape, dtype="float64", dropout=dropout)
    for max_length in sorted({min(shape.max_length, 2 * SMALL_LENGTH), shape.max_length}):
        sized = replace(shape, max_length=max_length)
        try:
            module = build(checked.source, sized, checked.seed)
        except Unsupported:
            continue
        if mode == "after step":
            after_steps(module, sized, checked.seed)
        _jitter(module, checked.seed)
        setting = RunSetting(min(SMALL_LENGTH, max_length), mode=mode)
        yield Case(module.train(mode == "training"), sized, 0.0, checked.seed, setting)
        return


def _padded(case: Case, inputs: Inputs) -> Tensor | None:
    keys = inputs.key.shape[2]
    if not case.shape.padding or keys <= 3:
        return None
    return inputs.padded_from(keys - max(3, keys // 5))


def _joint(case: Case) -> Answer:
    """All tensors move together, which costs two passes or three."""
    # A copy off its first values, where a kink may lie.
    case = case.with_module(deepcopy(case.module))
    _jitter(case.module, case.seed)
    inputs = case.inputs()
    valid = _padded(case, inputs)
    leaves = inputs.leaves()
    trained = list(_trained(case.module).values())
    with torch.enable_grad():
        output = case.forward(leaves, valid)
        if not output.requires_grad:
            return NotApplicable("no gradient at all; `gradient reaches` says so")
        grad_output = case.grad_output(output)
        found = torch.autograd.grad(output, [*leaves.all(), *trained], grad_output, allow_unused=True)
    output = output.detach()
    generator = torch.Generator().manual_seed(case.seed)
    tensors = [*inputs.all(), *trained]
    gradients = [torch.zeros_like(x) if g is None else g for x, g in zip(tensors, found, strict=True)]
    sizes = [float(g.norm()) for g in gradients]
    # Each tensor in units of its gradient, so that a small gradient has as much to say as a large one.
    largest = max(sizes)
    units = [min(largest / size, 1e3) if size else 1.0 for size in sizes]
    # A share along the gradient, so that a wrong factor shows whatever the random part draws.
    directions = [
        u * (torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.device) + ALONG * g / (s or 1.0))
        for u, x, g, s in zip(units, tensors, gradients, sizes, strict=True)
    ]
    slopes = [float((g * d).sum()) for g, d in zip(gradients, directions, strict=True)]
    size = math.hypot(*(u * s for u, s in zip(units, sizes, strict=True))) + 1e-4

    def loss(step: float) -> float:
        moved = Inputs(*(x + step * d for x, d in zip(inputs.all(), directions, strict=False)))
        kept = [p.detach().clone() for p in trained]
        with torch.no_grad():
            for p, d in zip(trained, directions[3:], strict=True):
                p.add_(step * d)
        # The difference entry by entry, before the sum: it loses no digits to the size of the loss.
        change = float(((case.run(moved, valid) - output) * grad_output).sum())
        with torch.no_grad():
            for p, old in zip(trained, kept, strict=True):
                p.copy_(old)
        return change

    least = math.inf
    for step in LONG_STEPS:
        # One side is mostly enough; at a kink the other may be right, and where the output bends their mean.
        ahead = loss(step)
        least = min(least, _off(ahead / step, sum(slopes), size))
        if least <= LONG_ALLOWED:
            break
        behind = -loss(-step)
        least = min(least, _off(behind / step, sum(slopes), size), _off((ahead + behind) / 2 / step, sum(slopes), size))
        if least <= LONG_ALLOWED:
            break
    return Measured(least, LONG_ALLOWED, f"derivative along all inputs and parameters, {case.place}")


def _off(found: float, slope: float, size: float) -> float:
    error = abs(found - slope) / size
    return error if math.isfinite(error) else math.inf


def _precision(case: Case, double: Case | None) -> Answer:
    if double is None:
        return NotApplicable("it refuses float64, or float64 takes too much at this length")
    inputs = case.inputs()
    valid = _padded(case, inputs)
    grad_output = case.grad_output(inputs.query)
    allowed = max(8 * case.tolerance, PRECISION_ALLOWED)

    def differing(arriving: Tensor) -> tuple[list[Tensor], float]:
        """Which rows of the three gradients differ from float64, (batch, heads, rows), and the distance of outputs."""
        found = case.passes(inputs, valid, arriving)
        expected = double.passes(inputs.map(Tensor.double), valid, arriving.double())
        rows = [beyond(a, b, allowed) for a, b in zip(found[1:], expected[1:], strict=True)]
        return rows, gap(found[0], expected[0])

    rows, distance = differing(grad_output)
    of_query, *others = rows
    kinks = of_query.any(1, keepdim=True)
    if distance <= case.tolerance and 0 < _share(of_query) <= FLIPPED and max(map(_share, others)) > FLIPPED:
        # One weight at a kink moves the gradients of one query, and of all keys that it sees. Without those queries the
        # gradients of the keys must be right.
        rows, distance = differing(grad_output.masked_fill(kinks[..., None], 0.0))
    limit = FLIPPED_OUTPUTS if distance > case.tolerance else FLIPPED
    answers: list[Answer] = []
    for name, differ in zip(NAMES, rows, strict=True):
        detail = f"share of rows of the gradient of {name} that are not those of float64, {case.place}"
        answers.append(Measured(_share(differ), limit, detail))
    return worst(answers)


def _share(rows: Tensor) -> float:
    return float(rows.double().mean())


def directions(case: Case) -> Iterator[Answer]:
    """Derivatives along random directions of each input and parameter, against finite differences; float64."""
    inputs = case.inputs()
    valid = _padded(case, inputs)
    # Copies, since the differences move them in place.
    leaves = inputs.map(Tensor.clone).leaves()
    generator = torch.Generator().manual_seed(case.seed)
    with torch.enable_grad():
        output = case.forward(leaves, valid)
        grad_output = case.grad_output(output)
        named = dict(zip(NAMES, leaves.all(), strict=True)) | _trained(case.module)
        if not output.requires_grad:
            yield NotApplicable("no gradient at all; `gradient reaches` says so")
            return
        found = torch.autograd.grad(output, list(named.values()), grad_output, allow_unused=True)

    def loss() -> float:
        with torch.no_grad():
            return float((case.forward(leaves, valid) * grad_output).sum())

    for (name, tensor), gradient in zip(named.items(), found, strict=True):
        gradient = torch.zeros_like(tensor) if gradient is None else gradient
        # A random direction in all entries at once tests every entry; entry by entry would cost a pass for each.
        for _ in range(2):
            direction = torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor)
            slope = float((gradient * direction).sum())
            # a direction may be nearly flat by chance; the gradient's size says what is large
            size = float(gradient.norm()) + 1e-4
            error = _disagreement(loss, tensor, direction, slope, size)
            yield Measured(error, ALLOWED, f"derivative along {name}, {case.place}")


def _disagreement(loss: Callable[[], float], tensor: Tensor, direction: Tensor, slope: float, size: float) -> float:
    """Least error over several step sizes and over both sides, since a kink or a jump may lie within a step."""
    least, middle = math.inf, loss()
    kept = tensor.detach().clone()
    for step in STEPS:
        with torch.no_grad():
            tensor.copy_(kept + step * direction)
            ahead = loss()
            tensor.copy_(kept - step * direction)
            behind = loss()
            tensor.copy_(kept)
        # Forward, backward and central: at a kink one side is right, and a wrong gradient is wrong on all.
        for difference in ((ahead - behind) / 2, ahead - middle, middle - behind):
            error = abs(difference / step - slope) / max(abs(slope), size)
            least = min(least, error if math.isfinite(error) else math.inf)
        if least <= ALLOWED:
            break
    return least


def _trained(module: Variant) -> dict[str, Tensor]:
    return {f"parameter {name}": p for name, p in module.named_parameters() if p.requires_grad}


def _jitter(module: Variant, seed: int) -> None:
    """Moves parameters off their first values, where a zero may hide a gradient and a kink may lie."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(torch.randn(p.shape, generator=generator, dtype=p.dtype).to(p), alpha=0.05)
