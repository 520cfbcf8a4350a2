"""Gradients: they reach whatever the output depends on, and they are the derivative of the output.

Sees a wrong backward formula by a factor of 1.0001, a detached branch and a parameter that never learns. Cannot see
errors in float32 at lengths beyond the small shape; the comparison with twins covers fused kernels there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from ...variants.contract import Variant
from ..core.errors import Unsupported
from .checked_variant import CheckedVariant, VariantInDtype, build
from .property import Answer, Measured, NotApplicable, worst

SMALL_LENGTH = 13
STEPS = (1e-5, 1e-6, 1e-4, 1e-7)
ALLOWED = 1e-5
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
    view = _small(checked)
    if view is None:
        return NotApplicable("it refuses float64 on a small shape; its twin speaks for its gradient")
    return worst(_directions(view))


def _reached(checked: CheckedVariant) -> set[str]:
    """Names of the inputs and parameters with a gradient that is not all zero, at the longest length of the view."""
    view, module = checked.native, checked.like()
    _jitter(module, checked.seed)
    leaves = view.inputs(view.lengths[-1]).leaves()
    with torch.enable_grad():
        output = module(*leaves.all(), view.mask())
        grad_output = torch.randn(output.shape, generator=torch.Generator().manual_seed(checked.seed)).to(output)
        # A random direction: the plain sum of a normalised output does not depend on the query at all.
        loss = (output * grad_output).sum()
        auxiliary = module.auxiliary_loss()
        loss = loss if auxiliary is None else loss + auxiliary
        named = dict(zip(NAMES, leaves.all(), strict=True)) | _trained(module)
        if not loss.requires_grad:
            return set()
        found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {name for name, g in zip(named, found, strict=True) if g is not None and bool((g != 0).any())}


def _small(checked: CheckedVariant) -> VariantInDtype | None:
    """The variant on a shape that differences can afford, or on its own shape where it refuses that one."""
    shape = replace(checked.shape, dtype="float64")
    for max_length in sorted({min(shape.max_length, 2 * SMALL_LENGTH), shape.max_length}):
        sized = replace(shape, max_length=max_length)
        try:
            module = build(checked.source, sized, checked.seed)
        except Unsupported:
            continue
        _jitter(module, checked.seed)
        return VariantInDtype(module, sized, 0.0, checked.seed)
    return None


def _directions(view: VariantInDtype) -> Iterator[Answer]:
    inputs = view.inputs(min(SMALL_LENGTH, view.shape.max_length))
    mask = view.mask()
    if view.shape.padding and inputs.key.shape[2] > 3:
        keep = torch.ones(2, inputs.key.shape[2], dtype=torch.bool)
        keep[0, -3:] = False
        mask = view.mask(keep)
    leaves = inputs.leaves()
    generator = torch.Generator().manual_seed(view.seed)
    with torch.enable_grad():
        output = view.module(*leaves.all(), mask)
        grad_output = torch.randn(output.shape, generator=generator, dtype=torch.float64).to(output)
        named = dict(zip(NAMES, leaves.all(), strict=True)) | _trained(view.module)
        if not output.requires_grad:
            yield NotApplicable("no gradient at all; `gradient reaches` says so")
            return
        found = torch.autograd.grad(output, list(named.values()), grad_output, allow_unused=True)

    def loss() -> float:
        with torch.no_grad():
            return float((view.module(*leaves.all(), mask) * grad_output).sum())

    for (name, tensor), gradient in zip(named.items(), found, strict=True):
        gradient = torch.zeros_like(tensor) if gradient is None else gradient
        # A random direction in all entries at once tests every entry; entry by entry would cost a pass for each.
        for _ in range(2):
            direction = torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor)
            slope = float((gradient * direction).sum())
            # a direction may be nearly flat by chance; the gradient's size says what is large
            size = float(gradient.norm()) + 1e-4
            error = _disagreement(loss, tensor, direction, slope, size)
            yield Measured(error, ALLOWED, f"derivative along {name} (float64)")


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
