"""Numerics: finite, the right shape, the same bits twice, no traces, and half precision near single precision.

Cannot see that a formula is wrong: a variant may be finite, deterministic and not what its paper says. Twins test that.
"""

from __future__ import annotations

import math
import random as random_module
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .case import PARTS, Case, Inputs, permuted
from .checked_variant import CheckedVariant, SoftmaxReference
from .distance import gap, row_error
from .property import Answer, Measured, NotApplicable, worst

HALF_FACTOR = 2.5
GRADIENT_ROOM = 8
"""Gradients are sums over more entries than outputs are, so they round more."""


def shape_and_dtype(checked: CheckedVariant) -> Answer:
    """the output has one vector per query, in the dtype and on the device of the values"""
    case = checked.native
    inputs = case.inputs()
    output = case.output()
    expected = (inputs.query.shape, inputs.value.dtype, inputs.value.device)
    found = (output.shape, output.dtype, output.device)
    return Measured(float(found != expected), 0.0, "" if found == expected else f"expected {expected}, got {found}")


def finite(checked: CheckedVariant) -> Answer:
    """no NaN and no infinity in output and gradients, for inputs ten times the usual size and for zeros"""
    return worst(answer for case in checked.measured for answer in _finite_at_scales(case))


def any_length(checked: CheckedVariant) -> Answer:
    """one, two, primes, powers of two and their neighbours, and the longest: the right shape and finite"""
    return worst(_each_length(checked.native))


def empty_batch(checked: CheckedVariant) -> Answer:
    """no examples in, none out, forward and backward"""
    case = checked.native
    inputs = case.inputs(batch=0)
    found = case.passes(inputs)
    wrong = [tuple(x.shape) for x, y in zip(found, (inputs.query, *inputs.all()), strict=True) if x.shape != y.shape]
    return Measured(float(len(wrong)), 0.0, f"shapes {wrong} for a batch of 0" if wrong else "")


def crosses(checked: CheckedVariant) -> Answer:
    """queries and keys of different lengths, either way: the right shape and finite"""
    if not checked.shape.cross:
        return NotApplicable("the shape is not cross")
    case = checked.native
    longest = case.length
    pairs = {(min(n, longest), min(m, longest)) for n, m in ((1, 7), (7, 1), (31, 64), (95, 17), (17, longest))}
    return worst(
        _finite(case, case.inputs(n, m), f"{n} queries, {m} keys")
        for n, m in sorted(pairs)
        if not checked.shape.causal or n <= m
    )


def deterministic(checked: CheckedVariant) -> Answer:
    """the same bits twice, forward and backward, from two instances of one seed

    On a GPU sums may come in another order, so there rounding is allowed.
    """
    case = checked.native
    other = case.with_module(checked.build(checked.shape))
    first = case.first_passes()
    return worst(
        Measured(gap(a, b), _bits(case), f"{part}, {name}")
        for source, name in ((case, "the same instance"), (other, "another instance of the same seed"))
        for part, a, b in zip(PARTS, source.passes(case.inputs()), first, strict=True)
    )


def layout(checked: CheckedVariant) -> Answer:
    """contiguous inputs give what slices of joined projections do, forward and backward"""
    case = checked.native
    inputs = case.inputs()
    grad_output = case.grad_output(case.output())
    expected = case.first_passes()
    found = case.passes(inputs.map(Tensor.contiguous), None, grad_output.contiguous())
    return worst(
        Measured(gap(a, b), GRADIENT_ROOM * case.tolerance, f"{part} of contiguous inputs, {case.place}")
        for part, a, b in zip(PARTS, found, expected, strict=True)
    )


def no_state(checked: CheckedVariant) -> Answer:
    """a call gives the same bits before and after calls with a larger batch, and leaves earlier outputs as they are"""
    return worst(answer for case in _without_repeats(checked) for answer in _after_others(case, checked))


def no_side_effects(checked: CheckedVariant) -> Answer:
    """a pass leaves inputs, mask, parameters, buffers, random numbers and global settings as they were"""
    # taken before the first pass, since one that has changed them shows no second change
    before = _global_settings()
    cases = _without_repeats(checked)
    torch.set_default_dtype(before["the default dtype"])
    # instances that have made no pass yet: the first may change what later ones leave alone
    modules = [
        checked.like(mode=mode) if mode == "after step" else checked.build(checked.shape).train(mode == "training")
        for mode in (case.setting.mode for case in cases)
    ]
    fresh = [case.with_module(module) for case, module in zip(cases, modules, strict=True)]
    return worst(answer for case in fresh for answer in _side_effects(case, before))


def bfloat16(checked: CheckedVariant) -> Answer:
    """bfloat16 stays as near float32 as softmax does, times two and a half"""
    return _half(checked, "bfloat16")


def float16(checked: CheckedVariant) -> Answer:
    """float16 stays as near float32 as softmax does, times two and a half"""
    return _half(checked, "float16")


def _without_repeats(checked: CheckedVariant) -> list[Case]:
    """The cases in the precision to be measured; before a measurement without that of many sequences."""
    return [case for case in checked.measured if checked.thorough or not case.setting.repeats]


def _bits(case: Case) -> float:
    # Atomic additions on a GPU come in another order each time; eight roundings cover them.
    return 0.0 if case.shape.device == "cpu" else 8 * torch.finfo(case.dtype).eps


def _finite_at_scales(case: Case) -> Iterator[Answer]:
    # Ten times the usual size is what queries and keys reach late in training; zeros find divisions by a norm.
    scales = {"usual": 1.0, "ten times the usual": 10.0, "zero": 0.0}
    for name, scale in scales.items():
        if scale != 10.0 and case.setting.brief:
            continue
        yield _finite(case, case.inputs().map(partial(torch.mul, scale)).map(permuted), f"{name} inputs, {case.place}")


def _finite(case: Case, inputs: Inputs, detail: str) -> Answer:
    with torch.enable_grad():
        leaves = inputs.leaves()
        output = case.forward(leaves)
        if output.shape != inputs.query.shape:
            return Measured(math.inf, 0.0, f"shape {tuple(output.shape)}: {detail}")
        tensors = [output.detach()]
        if output.requires_grad:
            found = torch.autograd.grad(output.double().sum(), leaves.all(), allow_unused=True)
            tensors += [g for g in found if g is not None]
        auxiliary = case.module.auxiliary_loss()
        if auxiliary is not None:
            tensors.append(auxiliary.detach())
    bad = sum(int((~x.isfinite()).sum()) for x in tensors)
    return Measured(float(bad), 0.0, f"entries that are no number: {detail}")


def _each_length(case: Case) -> Iterator[Answer]:
    longest = case.length
    # 1 has no neighbour, primes fit no block, 64 fills one, 65 begins another.
    for length in sorted({min(n, longest) for n in (1, 2, 3, 7, 31, 64, 65, longest)}):
        yield _finite(case, case.inputs(length, batch=1), f"{length} long")
        if case.shape.padding and length > 1:
            inputs = case.inputs(length)
            bad = int((~case.run(inputs, inputs.padded_from(1)).isfinite()).sum())
            yield Measured(float(bad), 0.0, f"entries that are no number: {length} long with padding")


def _after_others(case: Case, checked: CheckedVariant) -> Iterator[Answer]:
    inputs, batch = case.inputs(), case.setting.batch
    larger = case.inputs(batch=batch + (3 if checked.thorough else 1), salt=3)
    valid = None
    if case.shape.padding:
        valid = torch.ones(larger.key.shape[0], larger.key.shape[2], dtype=torch.bool)
        valid[:, max(1, larger.key.shape[2] // 2) :] = False
    first = case.first_passes()
    held = case.run(inputs)
    kept = held.clone()
    # without gradients as well, since a buffer may be used for outputs that need none; first of the same shape
    case.run(case.inputs(salt=4))
    used = case.run(larger, valid)
    yield Measured(gap(held, kept), 0.0, f"an output after another call, {case.place}")
    case.passes(larger, valid)
    for part, a, b in zip(PARTS, case.passes(inputs), first, strict=True):
        yield Measured(gap(a, b), _bits(case), f"{part} after a larger batch, {case.place}")
    fresh = case.with_module(checked.like(mode=case.setting.mode)).run(larger, valid)
    yield Measured(gap(used, fresh), _bits(case), f"a larger batch after a smaller one, {case.place}")


def _side_effects(case: Case, before: dict[str, Any]) -> Iterator[Answer]:
    inputs = case.inputs()
    valid = inputs.padded_from(max(1, inputs.key.shape[2] // 2)).to(inputs.key.device)
    given = valid if case.shape.padding else None
    tensors = inputs.map(Tensor.clone), valid.clone()
    parameters = {name: p.detach().clone() for name, p in case.module.named_parameters()}
    # in training a variant may gather statistics
    buffers = {n: b.clone() for n, b in case.module.named_buffers() if case.setting.mode != "training"}
    flags = [(name, p.requires_grad) for name, p in case.module.named_parameters()], case.module.training
    random = _random_states()
    case.run(inputs, given)
    after, drawn = _global_settings(), _random_states()
    case.passes(inputs, given)
    moved = [name for name in before if before[name] != after[name]]
    found = {
        "an input": not all(torch.equal(a, b) for a, b in zip(inputs.all(), tensors[0].all(), strict=True)),
        "the mask": not torch.equal(valid, tensors[1]),
        "a parameter": any(not torch.equal(p, parameters[n]) for n, p in case.module.named_parameters()),
        "a buffer": any(not _same(b, buffers[n]) for n, b in case.module.named_buffers() if n in buffers),
        "a flag": flags
        != ([(name, p.requires_grad) for name, p in case.module.named_parameters()], case.module.training),
        "random numbers": random != drawn and case.setting.mode != "training",
        **dict.fromkeys(moved, True),
    }
    # Left as it was, or every later test of the process would see it.
    torch.set_default_dtype(before["the default dtype"])
    changed = [name for name, is_changed in found.items() if is_changed]
    yield Measured(float(len(changed)), 0.0, f"changed: {', '.join(changed)}; {case.place}" if changed else "")


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a, b)


def _global_settings() -> dict[str, Any]:
    return {
        "the default dtype": torch.get_default_dtype(),
        "the number of threads": torch.get_num_threads(),
        "whether gradients are recorded": torch.is_grad_enabled(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "the precision of float32 products": torch.get_float32_matmul_precision(),
    }


def _random_states() -> list[bytes]:
    state = np.random.get_state(legacy=False)
    return [torch.get_rng_state().numpy().tobytes(), repr(random_module.getstate()).encode(), repr(state).encode()]


def _half(checked: CheckedVariant, name: str) -> Answer:
    if not checked.thorough and checked.shape.dtype != name:
        return NotApplicable(f"before a measurement it is examined where {name} is measured")
    return worst(answer for case in checked.cases for answer in _halves(checked, case, name))


def _halves(checked: CheckedVariant, case: Case, name: str) -> Iterator[Answer]:
    if case.shape.dtype != checked.shape.dtype or case.setting.repeats:
        return
    dtype: torch.dtype = getattr(torch, name)
    mode = case.setting.mode
    single = case.with_module(checked.like(dtype="float32", mode=mode), "float32")
    half = case.with_module(checked.like(dtype=name, mode=mode), name)
    softmax = SoftmaxReference(checked.shape).eval()
    softmaxes = single.with_module(softmax), half.with_module(softmax)
    # sharp scores show what is kept in half precision: a score of 20 then errs by several per cent
    inputs = single.inputs(batch=2).map(lambda x: x.to(dtype))
    inputs = Inputs(3 * inputs.query, inputs.key, inputs.value)
    valid = None
    if case.shape.padding:
        valid = inputs.padded_from(max(1, 2 * inputs.key.shape[2] // 3))
    for given in (None, valid) if valid is not None else (None,):
        expected = single.run(inputs.map(Tensor.float), given)
        own = row_error(half.run(inputs, given), expected)
        reference = row_error(softmaxes[1].run(inputs, given), softmaxes[0].run(inputs.map(Tensor.float), given))
        # tiny outputs lose digits in float16 whoever computes them
        allowed = HALF_FACTOR * reference + row_error(expected.to(dtype), expected)
        masked = "" if given is None else " with padding"
        yield Measured(own, allowed, f"relative error of a row, {case.setting}{masked}; softmax {reference:.1e}")
