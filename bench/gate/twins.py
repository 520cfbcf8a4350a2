"""Twins: the same function in another implementation, forward and backward.

Sees any difference between a fused path and the eager one, or between an exact variant and its definition. Cannot see
an error that both share: only comparisons with independent code, in the tests of each variant, can.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from ...variants.contract import Variant
from ..core.errors import Unsupported
from .checked_variant import CheckedVariant, Inputs, SoftmaxReference, VariantFactory, VariantInDtype, build
from .distance import gap
from .property import Answer, Measured, NotApplicable, worst

FACTOR = 4
EAGER = "eager"
ON_DEMAND = {"cpu": {"compiled", "flex", "triton"}, "cuda": {"compiled", "flex"}}
"""Implementations that run on such a device only where a selection names them."""


def equals_twin(checked: CheckedVariant) -> Answer:
    """an `exact` variant equals its eager twin in float64, within four times the rounding error of softmax"""
    module = checked.module
    if module.kind != "exact":
        return NotApplicable(f"kind is `{module.kind}`")
    if EAGER in checked.source.implementations:
        twin = checked.like(dtype="float64", impl=EAGER)
    elif module.twin:
        twin = build(VariantFactory.of(module.twin), replace(checked.shape, dtype="float64"), checked.seed)
    else:
        return Measured(1.0, 0.0, "kind is `exact`, but neither `twin` nor `impl=eager` says what it equals")
    return worst(_comparisons(checked.native, module, twin, "its twin"))


def implementations_agree(checked: CheckedVariant) -> Answer:
    """every `impl` that runs here, or the forced one, equals eager in float64, within four times the larger error of
    softmax and eager"""
    if EAGER not in checked.source.implementations:
        return NotApplicable("it has one implementation")
    names = examined(checked)
    # float64 for the truth, and the measured precision to learn how much rounding is unavoidable in it.
    twin, eager = checked.like(dtype="float64", impl=EAGER), checked.like(impl=EAGER)
    answers: list[Answer] = []
    for name in names:
        try:
            module = checked.like(impl=name)
        except Unsupported as refusal:
            answers.append(NotApplicable(f"impl={name}: {refusal}"))
        else:
            answers.extend(_comparisons(checked.native, module, twin, f"impl={name}", eager))
    return worst(answers)


def examined(checked: CheckedVariant) -> tuple[str, ...]:
    """The implementations to compare with eager: the forced one, or all, but for rare ones where it is to be quick."""
    if checked.source.forced:
        return (checked.source.forced,)
    rare = set() if checked.thorough else ON_DEMAND.get(torch.device(checked.shape.device).type, set())
    return tuple(name for name in checked.source.implementations if name not in rare)


def _comparisons(
    view: VariantInDtype, module: Variant, twin: Variant, name: str, eager: Variant | None = None
) -> Iterator[Answer]:
    """`eager`: the twin in the precision of `view`; where scores are large it may err more than softmax does."""
    found = replace(view, module=module)
    exact = VariantInDtype(twin, replace(view.shape, dtype="float64"), 0.0, view.seed)
    softmax = replace(view, module=SoftmaxReference(view.shape).eval())
    softmax_exact = replace(exact, module=softmax.module)
    # An error of softmax that happens to be zero must not forbid a last bit to others.
    floor = (16 if view.dtype.itemsize > 2 else 2) * torch.finfo(view.dtype).eps
    for length in found.lengths:
        inputs = view.inputs(length)
        keep = None
        if view.shape.padding:
            keep = torch.ones(2, inputs.key.shape[2], dtype=torch.bool)
            keep[0, max(1, inputs.key.shape[2] // 2) :] = False
        # Kernels take another path with a mask, so both are run.
        for mask in (None,) if keep is None else (None, keep):
            own = _errors(found, exact, inputs, mask)
            reference = _errors(softmax, softmax_exact, inputs, mask)
            if eager is not None:
                unavoidable = _errors(replace(view, module=eager), exact, inputs, mask)
                reference = [max(pair) for pair in zip(reference, unavoidable, strict=True)]
            for part, error, softmax_error in zip(("output", "query", "key", "value"), own, reference, strict=True):
                what = part if part == "output" else f"gradient of {part}"
                detail = f"{what} of {name}, {length} long{'' if mask is None else ' with padding'}"
                yield Measured(error, FACTOR * softmax_error + floor, detail)


def _errors(found: VariantInDtype, exact: VariantInDtype, inputs: Inputs, keep: Tensor | None) -> list[float]:
    """Gaps of the output and of the three gradients."""
    double = inputs.map(Tensor.double)
    with torch.enable_grad():
        pairs = zip(
            [found.run(inputs, keep), *found.gradients(inputs, keep)],
            [exact.run(double, keep), *exact.gradients(double, keep)],
            strict=True,
        )
        return [gap(a, b) for a, b in pairs]
