"""Twins: the same function in another implementation, forward and backward.

Sees any difference between a fused path and the eager one, or between an exact variant and its definition. Cannot see
an error that both share: only comparisons with independent code, in the tests of each variant, can.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor

from ...variants.contract import Variant
from ..core.errors import Unsupported
from .case import PARTS, Case, Inputs, RunSetting, with_heads
from .checked_variant import CheckedVariant, SoftmaxReference, VariantFactory, build, fits_float64
from .distance import gap, gap_beyond
from .property import Answer, Measured, NotApplicable, worst

FACTOR = 4
NUDGES = 8
"""Draws of a rounding of the inputs: a score at a kink falls on either side in one of them."""
HEAD_DIMS = (67, 5)
TOO_LARGE = "float64 has no room for more than 2,048 tokens, or for scores of more than 2 GiB"
SLOW = {"flex", "triton"}
"""Built or interpreted anew for every shape, which takes seconds."""
EAGER = "eager"
ON_DEMAND = {"cpu": {"flex", "triton"}, "cuda": {"flex"}}
"""Implementations that run on such a device only where a selection names them."""


def equals_twin(checked: CheckedVariant) -> Answer:
    """an `exact` variant equals its eager twin in float64, also at other widths of a head, within four times the
    rounding error of softmax"""
    module = checked.module
    if module.kind != "exact":
        return NotApplicable(f"kind is `{module.kind}`")
    if EAGER not in checked.source.implementations and not module.twin:
        return Measured(1.0, 0.0, "kind is `exact`, but neither `twin` nor `impl=eager` says what it equals")
    return worst(answer for sized in _sizes(checked) for answer in _with_twin(sized))


def implementations_agree(checked: CheckedVariant) -> Answer:
    """every `impl` that runs here, or the forced one, equals eager in float64, also at other widths of a head, within
    four times the larger error of softmax and eager"""
    if EAGER not in checked.source.implementations:
        return NotApplicable("it has one implementation")
    answers: list[Answer] = []
    for name in examined(checked):
        for sized in _sizes(checked):
            # compiled and interpreted anew for each size, which takes seconds
            if name in SLOW and sized is not checked:
                continue
            answers.extend(_with_eager(sized, name))
    return worst(answers)


def examined(checked: CheckedVariant) -> tuple[str, ...]:
    """The implementations to compare with eager: the forced one, or all, but for rare ones where it is to be quick."""
    if checked.source.forced:
        return (checked.source.forced,)
    rare = set() if checked.thorough else ON_DEMAND.get(torch.device(checked.shape.device).type, set())
    return tuple(name for name in checked.source.implementations if name not in rare)


def _sizes(checked: CheckedVariant) -> list[CheckedVariant]:
    """The shape itself, and at few positions an odd width of a head, and one that is large as well."""
    if checked.at_own_length:
        return [checked.narrow]
    others = () if checked.native.interpreted else _other_widths(checked)
    return checked.memo.once("sizes", lambda: [checked, *others])


def _other_widths(checked: CheckedVariant) -> Iterator[CheckedVariant]:
    for head_dim in HEAD_DIMS:
        shape = with_heads(replace(checked.shape, head_dim=head_dim), 2)
        setting = RunSetting(min(checked.shape.max_length, 47), double=False)
        sized = CheckedVariant(checked.source, shape, checked.seed, checked.thorough, (setting,))
        with suppress(Unsupported):
            sized.build(shape)
            yield sized


def _with_twin(checked: CheckedVariant) -> Iterator[Answer]:
    for case in checked.measured:
        if _too_large(case):
            yield NotApplicable(TOO_LARGE)
        else:
            yield from _comparisons(checked, case, case.module, "its twin")


def _with_eager(checked: CheckedVariant, name: str) -> Iterator[Answer]:
    for case in checked.measured[: 1 if name in SLOW else None]:
        if _too_large(case):
            yield NotApplicable(TOO_LARGE)
            continue
        try:
            module = checked.like(impl=name, mode=case.setting.mode)
        except Unsupported as refusal:
            yield NotApplicable(f"impl={name}: {refusal}")
            return
        yield from _comparisons(checked, case, module, f"impl={name}")


def _too_large(case: Case) -> bool:
    return case.setting.own and not fits_float64(case.shape, case.setting.batch, case.length)


def _comparisons(checked: CheckedVariant, case: Case, module: Variant, name: str) -> Iterator[Answer]:
    found = case.with_module(module)
    masks = [False]
    if case.shape.padding:
        # Kernels take another path with a mask, so both are run, where it costs little.
        both = case.setting.mode == "evaluation" and not case.setting.own
        masks = [False, True] if both and name.removeprefix("impl=") not in SLOW else [True]
    for masked in masks:
        expected, allowed = _reference(checked, case, masked)
        inputs = case.inputs()
        valid = _valid(case, masked)
        place = f"{name}, {case.shape.head_dim} wide, {case.place}{' with padding' if masked else ''}"
        yield from differences(
            _twin(checked, case), inputs, valid, found.passes(inputs, valid), expected, allowed, place
        )


def differences(
    twin: Case,
    inputs: Inputs,
    valid: Tensor | None,
    found: list[Tensor],
    expected: list[Tensor],
    allowed: list[float],
    place: str,
) -> Iterator[Measured]:
    """How far each of `Case.passes` is from that of the `twin` in float64.

    A row may differ further by four times what it moves by in float64 itself where each entry of the inputs moves by a
    rounding: a score that is nearly zero may fall on the other side of a kink, or be divided by.
    """
    errors = [gap(a, b) for a, b in zip(found, expected, strict=True)]
    if any(limit < error < math.inf for error, limit in zip(errors, allowed, strict=True)):
        # only here, since nearly all need none: it costs passes in float64
        moved = _moved_by_rounding(twin, inputs, valid, expected)
        errors = [
            max(0.0, gap_beyond(a, b, FACTOR * room)) if limit < error < math.inf else error
            for a, b, room, error, limit in zip(found, expected, moved, errors, allowed, strict=True)
        ]
    for part, error, limit in zip(PARTS, errors, allowed, strict=True):
        yield Measured(error, limit, f"{part} of {place}")


def _moved_by_rounding(twin: Case, inputs: Inputs, valid: Tensor | None, expected: list[Tensor]) -> list[Tensor]:
    """The most that each row of `expected`, (..., 1), moves by in float64 over several draws of a rounding."""
    generator = torch.Generator().manual_seed(twin.seed)
    epsilon = torch.finfo(inputs.query.dtype).eps

    def nudged(x: Tensor) -> Tensor:
        return x.double() * (1 + epsilon * torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.device))

    moved = [torch.zeros_like(x[..., :1]) for x in expected]
    for _ in range(NUDGES):
        passes = twin.passes(inputs.map(nudged), valid)
        rows = [(a - b).abs().amax(-1, keepdim=True) for a, b in zip(passes, expected, strict=True)]
        moved = [torch.maximum(a, b) for a, b in zip(moved, rows, strict=True)]
    return moved


def _valid(case: Case, masked: bool) -> Tensor | None:
    inputs = case.inputs()
    return inputs.padded_from(max(1, inputs.key.shape[2] // 2)) if masked else None


def _reference(checked: CheckedVariant, case: Case, masked: bool) -> tuple[list[Tensor], list[float]]:
    """Output and gradients of the twin in float64, and what each may differ by. Computed once for all paths."""
    wanted = ("twin", case.setting, masked)
    return checked.memo.once(wanted, lambda: _compute_reference(checked, case, _valid(case, masked)))


def _twin(checked: CheckedVariant, case: Case) -> Case:
    """The twin in float64; built once for all comparisons in the setting."""

    def made() -> Variant:
        if EAGER in checked.source.implementations:
            return checked.like(dtype="float64", impl=EAGER, mode=case.setting.mode)
        return build(VariantFactory.of(checked.module.twin), replace(checked.shape, dtype="float64"), checked.seed)

    return case.with_module(checked.memo.once(("module of the twin", case.setting), made), "float64")


def _compute_reference(checked: CheckedVariant, case: Case, valid: Tensor | None) -> tuple[list[Tensor], list[float]]:
    inputs = case.inputs()
    double = inputs.map(Tensor.double)
    softmax = SoftmaxReference(case.shape).eval()
    rounded = case.with_module(softmax).passes(inputs, valid)
    errors = [
        gap(a, b) for a, b in zip(rounded, case.with_module(softmax, "float64").passes(double, valid), strict=True)
    ]
    expected = _twin(checked, case).passes(double, valid)
    if EAGER in checked.source.implementations and checked.module.kind != "exact":
        # Where scores are large the definition itself may err more than softmax does in this precision.
        eager = case.with_module(checked.like(impl=EAGER, mode=case.setting.mode)).passes(inputs, valid)
        errors = [max(error, gap(a, b)) for error, a, b in zip(errors, eager, expected, strict=True)]
    # An error of softmax that happens to be zero must not forbid a last bit to others.
    floor = (16 if case.dtype.itemsize > 2 else 2) * torch.finfo(case.dtype).eps
    return expected, [FACTOR * error + floor for error in errors]
