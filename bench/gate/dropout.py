"""Dropout: it acts in training alone, keeps the mean, never normalises again, and is the same in the backward pass.

Sees a rate that is not compensated, and weights normalised after the drop, by their mean and variance over draws; a
backward pass with a mask of its own, by finite differences; and a fused path with another mask than its eager twin.
Cannot see draws that are not independent between heads, nor a rate that is not compensated where a variant shows no
weights: additive-lm drops two averages and multiplies them, so that its mean is another with dropout.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ...variants.contract import Variant
from ..core.errors import Unsupported
from .case import Case, Inputs, RunSetting
from .checked_variant import CheckedVariant
from .distance import gap
from .gradients import directions, small
from .maps import linear_in_value
from .property import Answer, Measured, NotApplicable, worst
from .twins import EAGER, FACTOR, differences, examined

RATE = 0.5
DRAWS = 48
LENGTH = 24
DROPS_NOTHING = "it declares that it drops nothing"


def dropout_in_training_only(checked: CheckedVariant) -> Answer:
    """a dropout rate leaves evaluation as it is, and changes training unless `uses_dropout` is False"""
    case, dropped = checked.native, checked.like(dropout=RATE)
    inputs = case.inputs(min(LENGTH, case.length))
    mask = case.mask()
    with torch.no_grad():
        error = gap(dropped(*inputs.all(), mask), case.run(inputs))
        if error > case.tolerance:
            return Measured(error, case.tolerance, "evaluation differs with a dropout rate")
        drops = bool(_draws(dropped, case, inputs, 2, checked.seed).diff(dim=0).any())
    if drops:
        declared = checked.module.uses_dropout
        return Measured(float(not declared), 0.0, "" if declared else f"{DROPS_NOTHING}, and drops in training")
    if checked.module.uses_dropout:
        return Measured(1.0, 0.0, f"two training passes at rate {RATE} are the same; see `uses_dropout`")
    return NotApplicable(DROPS_NOTHING)


def dropout_keeps_mean(checked: CheckedVariant) -> Answer:
    """the mean output over draws is the output without dropout, where that is linear in the values"""
    prepared = _prepared(checked)
    if isinstance(prepared, NotApplicable):
        return prepared
    case, dropped = prepared
    inputs = case.inputs(min(LENGTH, case.length))
    expected = case.run(inputs).double()
    draws = _draws(dropped, case, inputs, DRAWS, checked.seed)
    # projected on the expected output all entries speak at once: 1 where the mean is kept, 1 - rate where not scaled
    shares = (draws * expected).flatten(1).sum(1) / expected.square().sum()
    error = shares.std().item() / math.sqrt(DRAWS)
    return Measured(abs(shares.mean().item() - 1), 5 * error + 1e-3, f"{DRAWS} draws at rate {RATE}, relative to 1")


def dropout_never_renormalises(checked: CheckedVariant) -> Answer:
    """sums of dropped weights vary as independent drops make them, not fixed to one again"""
    prepared = _prepared(checked)
    if isinstance(prepared, NotApplicable):
        return prepared
    case, dropped = prepared
    inputs = case.inputs(min(LENGTH, case.length))
    with torch.no_grad():
        weights = checked.module.weights(inputs.query, inputs.key, case.mask())
    assert weights is not None
    # With values of one the output of a row is the sum of its dropped weights.
    ones = Inputs(inputs.query, inputs.key, torch.ones_like(inputs.value))
    sums = _draws(dropped, case, ones, DRAWS, checked.seed)[..., 0]
    # Of independent drops at rate p: the variance of sum(w m / (1 - p)) is sum(w²) p / (1 - p).
    expected = weights.double().square().sum(-1) * RATE / (1 - RATE)
    ratio = (sums.var(0).mean() / expected.mean()).item()
    detail = f"variance of a row's sum is {ratio:.2f} of what independent drops give"
    return Measured(abs(math.log(max(ratio, 1e-12))), math.log(2.5), detail)


def dropout_in_backward(checked: CheckedVariant) -> Answer:
    """the gradient in training is the derivative of the output with the same draws; a path that drops inside drops what
    its eager twin drops, forward and backward"""
    case, dropped = checked.native, checked.like(dropout=RATE)
    inputs = case.inputs(min(LENGTH, case.length))
    if not _draws(dropped, case, inputs, 2, checked.seed).diff(dim=0).any():
        return NotApplicable(DROPS_NOTHING)
    return worst([*_derivatives(checked), *_against_eager(checked)])


def _derivatives(checked: CheckedVariant) -> Iterator[Answer]:
    """A case in training draws from the same state of the generator at each pass."""
    cases = list(small(checked, "training", RATE))
    if not cases:
        yield NotApplicable("it refuses float64 on a small shape")
    for case in cases:
        yield from directions(case)


def _against_eager(checked: CheckedVariant) -> Iterator[Answer]:
    inside = checked.module.drops_inside
    names = [name for name in examined(checked) if name in inside]
    if not names:
        return
    setting = RunSetting(checked.native.length, mode="training")
    eager = checked.like(impl=EAGER, dropout=RATE, mode="training")
    case = Case(eager, checked.shape, 0.0, checked.seed, setting)
    inputs = case.inputs()
    valid = None
    if checked.shape.padding:
        # holes, which a kernel may move away before it draws
        valid = torch.ones(inputs.key.shape[0], inputs.key.shape[2], dtype=torch.bool)
        valid[0, 1::3] = False
    twin = case.with_module(checked.like(dtype="float64", impl=EAGER, dropout=RATE, mode="training"), "float64")
    expected = twin.passes(inputs.map(Tensor.double), valid)
    floor = (16 if case.dtype.itemsize > 2 else 2) * torch.finfo(case.dtype).eps
    allowed = [FACTOR * gap(a, b) + floor for a, b in zip(case.passes(inputs, valid), expected, strict=True)]
    for name in names:
        try:
            module = checked.like(impl=name, dropout=RATE, mode="training")
        except Unsupported as refusal:
            yield NotApplicable(f"impl={name}: {refusal}")
            continue
        found = case.with_module(module).passes(inputs, valid)
        place = f"impl={name} at rate {RATE}, {case.place}"
        yield from differences(twin, inputs, valid, found, expected, allowed, place)


def _prepared(checked: CheckedVariant) -> tuple[Case, Variant] | NotApplicable:
    case = checked.native
    inputs = case.inputs(min(LENGTH, case.length))
    with torch.no_grad():
        if checked.module.weights(inputs.query, inputs.key, case.mask()) is None:
            return NotApplicable("it shows no weights that could be dropped")
    if not linear_in_value(case):
        return NotApplicable("the output is not linear in the values")
    dropped = checked.like(dropout=RATE)
    if not _draws(dropped, case, inputs, 2, checked.seed).diff(dim=0).any():
        return NotApplicable(DROPS_NOTHING)
    return case, dropped


def _draws(module: Variant, case: Case, inputs: Inputs, count: int, seed: int) -> Tensor:
    """(count, batch, heads, queries, head_dim): outputs in training, each with dropout of its own."""
    torch.manual_seed(seed)
    module.train()
    try:
        with torch.no_grad():
            return torch.stack([module(*inputs.all(), case.mask()).double() for _ in range(count)])
    finally:
        module.eval()
