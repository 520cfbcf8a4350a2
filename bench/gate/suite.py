"""Every property of the gate, and the two ways to examine a variant: in full, and before each measurement."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Literal

import torch

from ...variants.contract import AttentionShape
from ..core.errors import Unsupported
from . import causality, decode, dropout, gradients, groups, maps, masks, numerics, twins
from .case import interpreted, with_heads
from .checked_variant import (
    BASE_LENGTH,
    WIDEST_BATCH,
    CheckedVariant,
    VariantSource,
    own_setting,
    short_settings,
)
from .property import GateResult, Property

LONG_LENGTH = 384
SHORT_HEADS = 5
"""At few positions: more than four, since a kernel may take heads by fours."""
CHECKED_BATCH = 10

Form = Literal["short", "own", "both"]

# Cheap ones first: the quick gate stops at the first failure.
PROPERTIES: tuple[Property, ...] = (
    # before any other pass could leave its traces
    Property("no side effects", numerics.no_side_effects),
    Property("shape and dtype", numerics.shape_and_dtype),
    Property("finite", numerics.finite, own="check"),
    Property("deterministic", numerics.deterministic, own="check"),
    Property("layout", numerics.layout),
    Property("no state", numerics.no_state),
    Property("any length", numerics.any_length),
    Property("empty batch", numerics.empty_batch),
    Property("queries differ from keys", numerics.crosses),
    Property("causal", causality.future_changes_nothing, own="always"),
    Property("causal values", causality.future_values_change_nothing, own="always"),
    Property("prefix consistency", causality.prefix_stands_alone, own="always"),
    Property("aligned at the last key", causality.aligned_at_last_key, own="always"),
    Property("padding content", masks.padding_content, own="check"),
    Property("padding length", masks.padding_length, own="always"),
    Property("padding without numbers", masks.padding_without_numbers),
    Property("batch independence", masks.batch_independence, own="always", whole=True),
    Property("masked rows", masks.masked_rows),
    Property("bounds", masks.bounds_are_kept),
    Property("packed sequences", masks.packed_sequences),
    Property("grouped heads", groups.grouped_heads),
    Property("gradient reaches", gradients.gradient_reaches),
    # at few positions some parameters have nothing to decide, such as those that choose between blocks
    Property("parameters learn", gradients.parameters_learn, quick=False, own="check", longest=True),
    Property("gradient", gradients.gradient_is_derivative),
    Property("gradient at length", gradients.gradient_at_length, own="always"),
    Property("gradient in precision", gradients.gradient_in_precision, own="always"),
    Property("twin", twins.equals_twin, own="always"),
    Property("implementations", twins.implementations_agree, own="always"),
    Property("bfloat16", numerics.bfloat16, own="check"),
    Property("float16", numerics.float16, own="check"),
    Property("weights within mask", maps.weights_within_mask),
    Property("weights by rows", maps.weights_by_rows),
    Property("weights make output", maps.weights_make_output, own="always"),
    Property("simplex", maps.simplex),
    Property("rows sum", maps.rows_sum_whatever_the_scores),
    Property("closed cases", maps.closed_cases),
    Property("decode", decode.steps_equal_forward, own="check"),
    Property("decode state", decode.state_as_declared, own="check"),
    Property("density", decode.density_as_declared, quick=False, own="check"),
    Property("dropout in training only", dropout.dropout_in_training_only),
    Property("dropout in backward", dropout.dropout_in_backward),
    Property("dropout mean", dropout.dropout_keeps_mean, quick=False),
    Property("dropout sums", dropout.dropout_never_renormalises, quick=False),
)

LONGEST = {item.name for item in PROPERTIES if item.longest}


def examine(
    variant: VariantSource,
    shape: AttentionShape,
    seed: int = 0,
    *,
    batch: int = CHECKED_BATCH,
    thorough: bool = True,
) -> list[GateResult]:
    """Every property of `variant` on `shape`: at few positions, and where it takes few passes at its own length too.

    `batch`: of the pass at the own length. `thorough`: with the implementations that run only where they are named;
    they may take minutes to compile.

    `variant`: a Spec, its text, a class, or a function from a shape to an instance. `shape.dtype` and `shape.device`
    say where it is examined. Raises SelectionError for an unknown name; where the shape is refused, no
    finding applies.
    """
    forms = [_short(variant, shape, seed, batch, thorough=thorough), _own(variant, shape, seed, batch, thorough)]
    found: dict[str, GateResult] = {}
    for form in forms:
        properties = tuple(p for p in PROPERTIES if not form.at_own_length or p.own != "never")
        for result in _findings(form, properties):
            known = found.get(result.property)
            longest = result.property in LONGEST and result.held is not None
            if known is None or longest or severity(result) > severity(known):
                found[result.property] = result
    return list(found.values())


def quick_gate(
    variant: VariantSource, shape: AttentionShape, seed: int = 0, *, batch: int = 1, form: Form = "both"
) -> GateResult | None:
    """The first property that fails on `shape`, or None: seconds, before any measurement of `batch` sequences on it.

    `form`: "short" for all but the length, which is 96; a variant that refuses so few positions is examined at 384, and
    failing that at its own length. "own" for the length and the batch to be measured, by few passes; float64 takes part
    up to 2,048 tokens and 2 GiB. Of several implementations, those are examined that may run here.
    """
    quick = tuple(p for p in PROPERTIES if p.quick)
    if form != "own":
        failure = _first_failure(_quick_short(variant, shape, seed, batch, quick))
        if failure is not None or form == "short":
            return failure
    # few positions are a length to be measured too, and all of it has been examined
    if form == "both" and shape.max_length <= BASE_LENGTH and batch <= WIDEST_BATCH:
        return None
    own = tuple(p for p in quick if p.own == "always")
    return _first_failure(_findings(_own(variant, shape, seed, batch, False), own))


def _first_failure(findings: Iterator[GateResult]) -> GateResult | None:
    return next((finding for finding in findings if finding.held is False), None)


def run_part(
    variant: VariantSource, shape: AttentionShape, part: int, parts: int, *, batch: int = 1, seed: int = 0
) -> None:
    """Every `parts`-th property of the short form before a measurement, from `part` on, for what running it leaves
    behind: compiled kernels. Its findings are forgotten."""
    for _ in _quick_short(variant, shape, seed, batch, tuple(p for p in PROPERTIES if p.quick)[part::parts]):
        pass


def _quick_short(
    variant: VariantSource, shape: AttentionShape, seed: int, batch: int, properties: tuple[Property, ...]
) -> Iterator[GateResult]:
    # Longer ones only where no property applied, as for a variant that refuses less than one block.
    for length in sorted({min(n, shape.max_length) for n in (BASE_LENGTH, LONG_LENGTH, shape.max_length)}):
        applied = False
        for finding in _findings(_short(variant, shape, seed, batch, length, thorough=False), properties):
            applied |= finding.held is not None
            yield finding
        if applied:
            return


def _short(
    variant: VariantSource, shape: AttentionShape, seed: int, batch: int, length: int = BASE_LENGTH, *, thorough: bool
) -> CheckedVariant:
    # Dropout is set by the properties themselves.
    shape = replace(shape, max_length=min(length, shape.max_length), dropout=0.0)
    few = with_heads(shape, SHORT_HEADS)
    for sized in dict.fromkeys((few, shape)):
        checked = CheckedVariant(variant, sized, seed, thorough, short_settings(sized, batch))
        with suppress(Exception), torch.random.fork_rng(_cuda(shape)):
            checked.build(sized)
            break
    # refused or broken with either, which its tests say
    return checked


def _own(variant: VariantSource, shape: AttentionShape, seed: int, batch: int, thorough: bool) -> CheckedVariant:
    shape = replace(shape, dropout=0.0)
    return CheckedVariant(variant, shape, seed, thorough, (own_setting(shape),), batch)


def severity(result: GateResult) -> tuple[int, float]:
    """Failed above held above not applicable; then by how much of the allowance is used."""
    if result.held is None:
        return (0, 0.0)
    return (2 - result.held, result.measured / result.allowed if result.allowed else result.measured)


@contextmanager
def _settings_kept(own: bool) -> Iterator[None]:
    """One thread for few positions: small tensors gain nothing from more, and on a busy machine threads that wait for
    each other cost a factor of 30. Afterwards all is as it was, whatever the variant did."""
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    torch.set_num_threads(threads if own else 1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)


def _cuda(shape: AttentionShape) -> list[str]:
    """The devices beside the CPU that draw random numbers for `shape`."""
    return [shape.device] if torch.device(shape.device).type == "cuda" else []


def _findings(checked: CheckedVariant, properties: tuple[Property, ...]) -> Iterator[GateResult]:
    shape, own = checked.shape, checked.at_own_length
    # The examination draws random numbers of its own; a run that is gated must go on with those it would have had.
    with torch.random.fork_rng(_cuda(shape)), _settings_kept(own), torch.inference_mode(False), torch.enable_grad():
        try:
            checked.build(shape)
        except Unsupported as refusal:
            yield from (GateResult(property=p.name, held=None, detail=str(refusal)) for p in properties)
            return
        if own and interpreted(checked.module, shape):
            return
        for item in properties:
            yield item.examine(checked)
