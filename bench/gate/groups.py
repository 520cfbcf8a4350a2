"""Groups: heads that share keys and values give what they give with keys and values repeated for each.

Sees a variant that pairs heads wrongly, forward, backward or in decoding. Cannot see a kernel that takes no float64:
every other property meets shared heads where the shape has them, as `sweep[kv_heads=8]` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from ...variants.contract import Mask, Variant
from .checked_variant import CheckedVariant
from .distance import gap
from .property import Answer, Measured, NotApplicable, worst

DECODED = 8
"""Tokens that are decoded one by one."""

TOLERANCE = 1e-9
"""Far above rounding in float64."""


def grouped_heads(checked: CheckedVariant) -> Answer:
    """heads that share keys and values equal heads with keys and values repeated"""
    heads = checked.shape.heads
    if heads == 1:
        return NotApplicable("one head shares nothing")
    shared = checked.shape.kv_heads
    if shared == heads:
        # the largest number that divides the heads, so that groups are small and several
        shared = next(number for number in range(heads // 2, 0, -1) if heads % number == 0)
    # float64, where nothing but a wrong pair of heads makes a difference
    shape = replace(checked.shape, dtype="float64")
    grouped, single = (checked.build(replace(shape, kv_heads=number)).double() for number in (shared, heads))
    place = f"{heads} heads on {shared}, float64"
    return worst(_answers(checked, grouped, single, place))


def _answers(checked: CheckedVariant, grouped: Variant, single: Variant, place: str) -> Iterator[Measured]:
    heads, shared = single.shape.kv_heads, grouped.shape.kv_heads
    inputs, mask = checked.native.inputs(), Mask(causal=single.shape.causal)
    parts = (inputs.query, inputs.key[:, :shared], inputs.value[:, :shared])
    query, key, value = leaves = [x.detach().double().requires_grad_() for x in parts]
    # by number and not by `repeat_heads`, which variants call themselves: a wrong order would be wrong on both sides
    of_group = torch.arange(heads, device=query.device) // (heads // shared)
    outputs = [grouped(query, key, value, mask), single(query, key[:, of_group], value[:, of_group], mask)]
    yield Measured(gap(outputs[0], outputs[1]), TOLERANCE, f"output, {place}")
    found = [torch.autograd.grad(output.sum(), leaves, allow_unused=True) for output in outputs]
    for name, ours, theirs in zip(("query", "key", "value"), *found, strict=True):
        if ours is not None and theirs is not None and theirs.any():
            yield Measured(gap(ours, theirs), TOLERANCE, f"gradient of {name}, {place}")
    if not single.shape.causal or single.shape.cross or not single.decodes or single.state_bytes(single.shape) is None:
        return
    state, steps = None, []
    with torch.no_grad():
        first, of_keys, of_values = (x[:, :, :DECODED] for x in leaves)
        for at in range(first.shape[2]):
            token = slice(at, at + 1)
            output, state = grouped.step(first[:, :, token], of_keys[:, :, token], of_values[:, :, token], state)
            steps.append(output)
        expected = grouped(first, of_keys, of_values, mask)
    yield Measured(gap(torch.cat(steps, 2), expected), TOLERANCE, f"decoding, {place}")
