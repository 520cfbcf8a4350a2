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

from .checked_variant import CheckedVariant, SoftmaxReference
from .distance import gap, row_error
from .property import Answer, Measured, NotApplicable, worst
from .view import PARTS, Inputs, VariantInSetting, permuted

HALF_FACTOR = 2.5
GRADIENT_ROOM = 8
"""Gradients are sums over more entries than outputs are, so they round more."""


def shape_and_dtype(checked: CheckedVariant) -> Answer:
    """the output has one vector per query, in the dtype and on the device of the values"""
    view = checked.native
    inputs = view.inputs()
    output = view.output()
    expected = (inputs.query.shape, inputs.value.dtype, inputs.value.device)
    found = (output.shape, output.dtype, output.device)
    return Measured(float(found != expected), 0.0, "" if found == expected else f"expected {expected}, got {found}")


def finite(checked: CheckedVariant) -> Answer:
    """no NaN and no infinity in output and gradients, for inputs ten times the usual size and for zeros"""
    return worst(answer for view in checked.measured for answer in _finite_at_scales(view))


def any_length(checked: CheckedVariant) -> Answer:
    """one, two, primes, powers of two and their neighbours, and the longest: the right shape and finite"""
    return worst(_each_length(checked.native))


def empty_batch(checked: CheckedVariant) -> Answer:
    """no examples in, none out, forward and backward"""
    view = checked.native
    inputs = view.inputs(batch=0)
    found = view.passes(inputs)
    wrong = [tuple(x.shape) for x, y in zip(found, (inputs.query, *inputs.all()), strict=True) if x.shape != y.shape]
    return Measured(float(len(wrong)), 0.0, f"shapes {wrong} for a batch of 0" if wrong else "")


def crosses(checked: CheckedVariant) -> Answer:
    """queries and keys of different lengths, either way: the right shape and finite"""
    if not checked.shape.cross:
        return NotApplicable("the shape is not cross")
    view = checked.native
    longest = view.length
    pairs = {(min(n, longest), min(m, longest)) for n, m in ((1, 7), (7, 1), (31, 64), (95, 17), (17, longest))}
    return worst(
        _finite(view, view.inputs(n, m), f"{n} queries, {m} keys")
        for n, m in sorted(pairs)
        if not checked.shape.causal or n <= m
    )


def deterministic(checked: CheckedVariant) -> Answer:
    """the same bits twice, forward and backward, from two instances of one seed

    On a GPU sums may come in another order, so there rounding is allowed.
    """
    view = checked.native
    other = view.with_module(checked.build(checked.shape))
    first = view.first_passes()
    return worst(
        Measured(gap(a, b), _bits(view), f"{part}, {name}")
        for source, name in ((view, "the same instance"), (other, "another instance of the same seed"))
        for part, a, b in zip(PARTS, source.passes(view.inputs()), first, strict=True)
    )


def layout(checked: CheckedVariant) -> Answer:
    """contiguous inputs give what slices of joined projections do, forward and backward"""
    view = checked.native
    inputs = view.inputs()
    grad_output = view.grad_output(view.output())
    expected = view.first_passes()
    found = view.passes(inputs.map(Tensor.contiguous), None, grad_output.contiguous())
    return worst(
        Measured(gap(a, b), GRADIENT_ROOM * view.tolerance, f"{part} of contiguous inputs, {view.place}")
        for part, a, b in zip(PARTS, found, expected, strict=True)
    )


def no_state(checked: CheckedVariant) -> Answer:
    """a call gives the same bits before and after calls with a larger batch, and leaves earlier outputs as they are"""
    return worst(answer for view in _without_repeats(checked) for answer in _after_others(view, checked))


def no_side_effects(checked: CheckedVariant) -> Answer:
    """a pass leaves inputs, mask, parameters, buffers, random numbers and global settings as they were"""
    # taken before the first pass, since one that has changed them shows no second change
    before = _global_settings()
    views = _without_repeats(checked)
    torch.set_default_dtype(before["the default dtype"])
    # instances that have made no pass yet: the first may change what later ones leave alone
    modules = [
        checked.like(mode=mode) if mode == "after step" else checked.build(checked.shape).train(mode == "training")
        for mode in (view.setting.mode for view in views)
    ]
    fresh = [view.with_module(module) for view, module in zip(views, modules, strict=True)]
    return worst(answer for view in fresh for answer in _side_effects(view, before))


def bfloat16(checked: CheckedVariant) -> Answer:
    """bfloat16 stays as near float32 as softmax does, times two and a half"""
    return _half(checked, "bfloat16")


def float16(checked: CheckedVariant) -> Answer:
    """float16 stays as near float32 as softmax does, times two and a half"""
    return _half(checked, "float16")


def _without_repeats(checked: CheckedVariant) -> list[VariantInSetting]:
    """The views in the precision to be measured; before a measurement without that of many sequences."""
    return [view for view in checked.measured if checked.thorough or not view.setting.repeats]


def _bits(view: VariantInSetting) -> float:
    # Atomic additions on a GPU come in another order each time; eight roundings cover them.
    return 0.0 if view.shape.device == "cpu" else 8 * torch.finfo(view.dtype).eps


def _finite_at_scales(view: VariantInSetting) -> Iterator[Answer]:
    # Ten times the usual size is what queries and keys reach late in training; zeros find divisions by a norm.
    scales = {"usual": 1.0, "ten times the usual": 10.0, "zero": 0.0}
    for name, scale in scales.items():
        if scale != 10.0 and view.setting.brief:
            continue
        yield _finite(view, view.inputs().map(partial(torch.mul, scale)).map(permuted), f"{name} inputs, {view.place}")


def _finite(view: VariantInSetting, inputs: Inputs, detail: str) -> Answer:
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


def _each_length(view: VariantInSetting) -> Iterator[Answer]:
    longest = view.length
    # 1 has no neighbour, primes fit no block, 64 fills one, 65 begins another.
    for length in sorted({min(n, longest) for n in (1, 2, 3, 7, 31, 64, 65, longest)}):
        yield _finite(view, view.inputs(length, batch=1), f"{length} long")
        if view.shape.padding and length > 1:
            inputs = view.inputs(length)
            valid = torch.ones(2, inputs.key.shape[2], dtype=torch.bool)
            valid[0, 1:] = False
            bad = int((~view.run(inputs, valid).isfinite()).sum())
            yield Measured(float(bad), 0.0, f"entries that are no number: {length} long with padding")


def _after_others(view: VariantInSetting, checked: CheckedVariant) -> Iterator[Answer]:
    inputs, batch = view.inputs(), view.setting.batch
    larger = view.inputs(batch=batch + (3 if checked.thorough else 1), salt=3)
    valid = None
    if view.shape.padding:
        valid = torch.ones(larger.key.shape[0], larger.key.shape[2], dtype=torch.bool)
        valid[:, max(1, larger.key.shape[2] // 2) :] = False
    first = view.first_passes()
    held = view.run(inputs)
    kept = held.clone()
    # without gradients as well, since a buffer may be used for outputs that need none; first of the same shape
    view.run(view.inputs(salt=4))
    used = view.run(larger, valid)
    yield Measured(gap(held, kept), 0.0, f"an output after another call, {view.place}")
    view.passes(larger, valid)
    for part, a, b in zip(PARTS, view.passes(inputs), first, strict=True):
        yield Measured(gap(a, b), _bits(view), f"{part} after a larger batch, {view.place}")
    fresh = view.with_module(checked.like(mode=view.setting.mode)).run(larger, valid)
    yield Measured(gap(used, fresh), _bits(view), f"a larger batch after a smaller one, {view.place}")


def _side_effects(view: VariantInSetting, before: dict[str, Any]) -> Iterator[Answer]:
    inputs = view.inputs()
    valid = torch.ones(inputs.key.shape[0], inputs.key.shape[2], dtype=torch.bool, device=inputs.key.device)
    valid[0, max(1, inputs.key.shape[2] // 2) :] = False
    given = valid if view.shape.padding else None
    tensors = inputs.map(Tensor.clone), valid.clone()
    parameters = {name: p.detach().clone() for name, p in view.module.named_parameters()}
    # in training a variant may gather statistics
    buffers = {n: b.clone() for n, b in view.module.named_buffers() if view.setting.mode != "training"}
    flags = [(name, p.requires_grad) for name, p in view.module.named_parameters()], view.module.training
    random = _random_states()
    view.run(inputs, given)
    after, drawn = _global_settings(), _random_states()
    view.passes(inputs, given)
    moved = [name for name in before if before[name] != after[name]]
    found = {
        "an input": not all(torch.equal(a, b) for a, b in zip(inputs.all(), tensors[0].all(), strict=True)),
        "the mask": not torch.equal(valid, tensors[1]),
        "a parameter": any(not torch.equal(p, parameters[n]) for n, p in view.module.named_parameters()),
        "a buffer": any(not _same(b, buffers[n]) for n, b in view.module.named_buffers() if n in buffers),
        "a flag": flags
        != ([(name, p.requires_grad) for name, p in view.module.named_parameters()], view.module.training),
        "random numbers": random != drawn and view.setting.mode != "training",
        **dict.fromkeys(moved, True),
    }
    # Left as it was, or every later test of the process would see it.
    torch.set_default_dtype(before["the default dtype"])
    changed = [name for name, is_changed in found.items() if is_changed]
    yield Measured(float(len(changed)), 0.0, f"changed: {', '.join(changed)}; {view.place}" if changed else "")


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
    return worst(answer for view in checked.views for answer in _halves(checked, view, name))


def _halves(checked: CheckedVariant, view: VariantInSetting, name: str) -> Iterator[Answer]:
    if view.shape.dtype != checked.shape.dtype or view.setting.repeats:
        return
    dtype: torch.dtype = getattr(torch, name)
    mode = view.setting.mode
    single = view.with_module(checked.like(dtype="float32", mode=mode), "float32")
    half = view.with_module(checked.like(dtype=name, mode=mode), name)
    softmax = SoftmaxReference(checked.shape).eval()
    softmaxes = single.with_module(softmax), half.with_module(softmax)
    # sharp scores show what is kept in half precision: a score of 20 then errs by several per cent
    inputs = single.inputs(batch=2).map(lambda x: x.to(dtype))
    inputs = Inputs(3 * inputs.query, inputs.key, inputs.value)
    valid = None
    if view.shape.padding:
        valid = torch.ones(2, inputs.key.shape[2], dtype=torch.bool)
        valid[0, max(1, 2 * inputs.key.shape[2] // 3) :] = False
    for given in (None, valid) if valid is not None else (None,):
        expected = single.run(inputs.map(Tensor.float), given)
        own = row_error(half.run(inputs, given), expected)
        reference = row_error(softmaxes[1].run(inputs, given), softmaxes[0].run(inputs.map(Tensor.float), given))
        # tiny outputs lose digits in float16 whoever computes them
        allowed = HALF_FACTOR * reference + row_error(expected.to(dtype), expected)
        masked = "" if given is None else " with padding"
        yield Measured(own, allowed, f"relative error of a row, {view.setting}{masked}; softmax {reference:.1e}")
