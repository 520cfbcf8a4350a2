"""Numerics: finite, the right shape, the same bits twice, any length, and half precision near single precision.

Cannot see that a formula is wrong: a variant may be finite, deterministic and not what its paper says. Twins test that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from .checked_variant import CheckedVariant, Inputs, SoftmaxReference, VariantInDtype
from .distance import gap, row_error
from .property import Answer, Measured, NotApplicable, worst

HALF_FACTOR = 2.5


def shape_and_dtype(checked: CheckedVariant) -> Answer:
    """the output has one vector per query, in the dtype and on the device of the values"""
    view = checked.native
    inputs = view.inputs(view.lengths[0])
    output = view.run(inputs)
    expected = (inputs.query.shape, inputs.value.dtype, inputs.value.device)
    found = (output.shape, output.dtype, output.device)
    return Measured(float(found != expected), 0.0, "" if found == expected else f"expected {expected}, got {found}")


def finite(checked: CheckedVariant) -> Answer:
    """no NaN and no infinity in output and gradients, for inputs ten times the usual size and for zeros"""
    view = checked.native
    # Ten times the usual size is what queries and keys reach late in training; zeros find divisions by a norm.
    scales = {"usual": 1.0, "ten times the usual": 10.0, "zero": 0.0}
    return worst(
        _finite(view, view.inputs(view.lengths[0]).map(partial(torch.mul, scale)), f"{name} inputs")
        for name, scale in scales.items()
    )


def any_length(checked: CheckedVariant) -> Answer:
    """one, two, primes, powers of two and their neighbours, and the longest: the right shape and finite"""
    return worst(_each_length(checked.native))


def crosses(checked: CheckedVariant) -> Answer:
    """queries and keys of different lengths, either way: the right shape and finite"""
    if not checked.shape.cross:
        return NotApplicable("the shape is not cross")
    view = checked.native
    longest = view.lengths[-1]
    pairs = {(min(n, longest), min(m, longest)) for n, m in ((1, 7), (7, 1), (31, 64), (95, 17), (17, longest))}
    return worst(
        _finite(view, view.inputs(n, m), f"{n} queries, {m} keys")
        for n, m in sorted(pairs)
        if not checked.shape.causal or n <= m
    )


def deterministic(checked: CheckedVariant) -> Answer:
    """the same bits twice, forward and backward, from two instances of one seed; inputs are left as they were

    On a GPU sums may come in another order, so there rounding is allowed.
    """
    view = checked.native
    other = VariantInDtype(checked.build(checked.shape), view.shape, view.tolerance, view.seed)
    inputs = view.inputs(view.lengths[0])
    kept = inputs.map(Tensor.clone)
    # Atomic additions on a GPU come in another order each time; eight roundings cover them.
    allowed = 0.0 if view.shape.device == "cpu" else 8 * torch.finfo(view.dtype).eps
    answers: list[Answer] = []
    first = [view.run(inputs), *view.gradients(inputs)]
    for source, name in ((view, "the same instance"), (other, "another instance of the same seed")):
        for part, a, b in zip(
            ("output", "query gradient", "key gradient", "value gradient"),
            [source.run(inputs), *source.gradients(inputs)],
            first,
            strict=True,
        ):
            answers.append(Measured(gap(a, b), allowed, f"{part}, {name}"))
    # An in-place operation on an input would corrupt the layer before it, in training only.
    untouched = all(torch.equal(a, b) for a, b in zip(inputs.all(), kept.all(), strict=True))
    answers.append(Measured(float(not untouched), 0.0, "inputs after the pass"))
    return worst(answers)


def bfloat16(checked: CheckedVariant) -> Answer:
    """bfloat16 stays as near float32 as softmax does, times two and a half"""
    return _half(checked, "bfloat16")


def float16(checked: CheckedVariant) -> Answer:
    """float16 stays as near float32 as softmax does, times two and a half"""
    return _half(checked, "float16")


def _finite(view: VariantInDtype, inputs: Inputs, detail: str) -> Answer:
    with torch.enable_grad():
        leaves = inputs.leaves()
        output = view.forward(leaves)
        if output.shape != inputs.query.shape:
            return Measured(math.inf, 0.0, f"shape {tuple(output.shape)}: {detail}")
        tensors = [output.detach()]
        if output.requires_grad:
            found = torch.autograd.grad(output.double().sum(), leaves.all(), allow_unused=True)
            tensors += [g for g in found if g is not None]
        auxiliary = view.module.auxiliary_loss()
        if auxiliary is not None:
            tensors.append(auxiliary.detach())
    bad = sum(int((~x.isfinite()).sum()) for x in tensors)
    return Measured(float(bad), 0.0, f"entries that are no number: {detail}")


def _each_length(view: VariantInDtype) -> Iterator[Answer]:
    longest = view.lengths[-1]
    # 1 has no neighbour, primes fit no block, 64 fills one, 65 begins another.
    for length in sorted({min(n, longest) for n in (1, 2, 3, 7, 31, 64, 65, longest)}):
        yield _finite(view, view.inputs(length, batch=1), f"{length} long")
        if view.shape.padding and length > 1:
            inputs = view.inputs(length)
            keep = torch.ones(2, inputs.key.shape[2], dtype=torch.bool)
            keep[0, 1:] = False
            bad = int((~view.run(inputs, keep).isfinite()).sum())
            yield Measured(float(bad), 0.0, f"entries that are no number: {length} long with padding")


def _half(checked: CheckedVariant, name: str) -> Answer:
    dtype: torch.dtype = getattr(torch, name)
    single = VariantInDtype(checked.like(dtype="float32"), checked.native.shape, 0.0, checked.seed)
    half = checked.like(dtype=name)
    softmax = SoftmaxReference(checked.shape).eval()
    answers: list[Answer] = []
    for length in single.lengths:
        # sharp scores show what is kept in half precision: a score of 20 then errs by several per cent
        inputs = single.inputs(length).map(lambda x: x.to(dtype))
        inputs = Inputs(3 * inputs.query, inputs.key, inputs.value)
        mask = single.mask()
        with torch.no_grad():
            expected = single.module(*inputs.map(Tensor.float).all(), mask)
            own = row_error(half(*inputs.all(), mask), expected)
            reference = row_error(softmax(*inputs.all(), mask), softmax(*inputs.map(Tensor.float).all(), mask))
        # tiny outputs lose digits in float16 whoever computes them
        unavoidable = row_error(expected.to(dtype), expected)
        allowed = HALF_FACTOR * reference + unavoidable
        answers.append(Measured(own, allowed, f"relative error of a row, {length} long; softmax {reference:.1e}"))
    return worst(answers)
