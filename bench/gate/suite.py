"""Every property of the gate, and the two ways to examine a variant: in full, and before each measurement."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from ...variants.contract import AttentionShape
from ..core.errors import Unsupported
from . import causality, decode, dropout, gradients, maps, masks, numerics, twins
from .checked_variant import BASE_LENGTH, LONG_LENGTH, CheckedVariant, VariantSource
from .property import GateResult, Property

# Cheap ones first: the quick gate stops at the first failure.
PROPERTIES: tuple[Property, ...] = (
    Property("shape and dtype", numerics.shape_and_dtype),
    Property("finite", numerics.finite),
    Property("deterministic", numerics.deterministic),
    Property("any length", numerics.any_length),
    Property("queries differ from keys", numerics.crosses),
    Property("causal", causality.future_changes_nothing),
    Property("causal values", causality.future_values_change_nothing),
    Property("prefix consistency", causality.prefix_stands_alone),
    Property("aligned at the last key", causality.aligned_at_last_key),
    Property("padding content", masks.padding_content),
    Property("padding length", masks.padding_length),
    Property("batch independence", masks.batch_independence),
    Property("masked rows", masks.masked_rows),
    Property("gradient reaches", gradients.gradient_reaches),
    # at few positions some parameters have nothing to decide, such as those that choose between blocks
    Property("parameters learn", gradients.parameters_learn, quick=False),
    Property("gradient", gradients.gradient_is_derivative),
    Property("twin", twins.equals_twin),
    Property("implementations", twins.implementations_agree),
    Property("bfloat16", numerics.bfloat16, quick=False),
    Property("float16", numerics.float16, quick=False),
    Property("weights within mask", maps.weights_within_mask),
    Property("weights by rows", maps.weights_by_rows),
    Property("weights make output", maps.weights_make_output),
    Property("simplex", maps.simplex),
    Property("closed cases", maps.closed_cases),
    Property("decode", decode.steps_equal_forward),
    Property("decode state", decode.state_as_declared),
    Property("density", decode.density_as_declared, quick=False),
    Property("dropout in training only", dropout.dropout_in_training_only),
    Property("dropout mean", dropout.dropout_keeps_mean, quick=False),
    Property("dropout sums", dropout.dropout_never_renormalises, quick=False),
)


def examine(variant: VariantSource, shape: AttentionShape, seed: int = 0, *, thorough: bool = True) -> list[GateResult]:
    """Every property of `variant` on `shape`, at no more than 384 positions.

    `thorough`: with the implementations that run only where they are named; they may take minutes to compile.

    `variant`: a Spec, its text, a class, or a function from a shape to an instance. `shape.dtype` and `shape.device`
    say where it is examined. Raises SelectionError for an unknown name; where the shape is refused, no
    finding applies.
    """
    # Long enough for several blocks of every kernel; errors that need more are rare, and float64 twins cost N².
    shape = replace(shape, max_length=min(shape.max_length, LONG_LENGTH))
    return list(_findings(CheckedVariant(variant, replace(shape, dropout=0.0), seed, thorough), PROPERTIES))


def quick_gate(variant: VariantSource, shape: AttentionShape, seed: int = 0) -> GateResult | None:
    """The first property that fails on a short form of `shape`, or None: seconds, before any measurement on it.

    The short form keeps all but the length, which is 96, and dropout, which properties set themselves; a variant that
    refuses so few positions is examined at 384, and failing that at its own length. Of several implementations, those
    are examined that may run here.
    """
    quick = tuple(p for p in PROPERTIES if p.quick)
    # Longer ones only where no property applied, as for a variant that refuses less than one block.
    lengths = sorted({min(n, shape.max_length) for n in (BASE_LENGTH, LONG_LENGTH, shape.max_length)})
    for length in lengths:
        applied = False
        checked = CheckedVariant(variant, replace(shape, max_length=length, dropout=0.0), seed, thorough=False)
        for finding in _findings(checked, quick):
            if finding.held is False:
                return finding
            applied |= finding.held is not None
        if applied:
            return None
    return None


@contextmanager
def _one_thread() -> Iterator[None]:
    """Small tensors gain nothing from more; on a busy machine threads that wait for each other cost a factor of 30."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _findings(checked: CheckedVariant, properties: tuple[Property, ...]) -> Iterator[GateResult]:
    shape = checked.shape
    devices = [shape.device] if torch.device(shape.device).type == "cuda" else []
    # The examination draws random numbers of its own; a run that is gated must go on with those it would have had.
    with torch.random.fork_rng(devices), _one_thread(), torch.inference_mode(False), torch.enable_grad():
        try:
            checked.build(shape)
        except Unsupported as refusal:
            yield from (GateResult(property=p.name, held=None, detail=str(refusal)) for p in properties)
            return
        for item in properties:
            yield item.examine(checked)
