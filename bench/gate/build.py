"""Build variants for a model, each checked by the gate before anything is measured."""

from __future__ import annotations

import torch

from ...variants.contract import AttentionShape, Variant
from ..core.errors import Unsupported
from ..core.registry import VARIANTS
from ..core.spec import Spec
from ..models.blocks import BuildVariant
from . import quick_gate


class Incorrect(Exception):
    """The gate is red; the message names the property."""


def build_checked(spec: Spec, device: torch.device) -> BuildVariant:
    """Makes the variant for each layer's shape; raises Unsupported with its reason, Incorrect where the gate is red."""
    # a model of translation uses a variant in three ways, and each may be wrong by itself
    passed: set[tuple[bool, bool]] = set()

    def build(shape: AttentionShape) -> Variant:
        variant: Variant = VARIANTS.build(spec, shape)
        reason = variant.supports(shape)
        if reason:
            raise Unsupported(reason)
        way = (shape.causal, shape.cross)
        if way not in passed:
            finding = quick_gate(spec, shape)
            if finding is not None:
                raise Incorrect(f"{finding.property}: {finding.detail or finding.measured}")
            passed.add(way)
        return variant

    return build


def build_unchecked(spec: Spec, device: torch.device) -> BuildVariant:
    """As `build_checked`, for who knows that the gate has been passed."""

    def build(shape: AttentionShape) -> Variant:
        variant: Variant = VARIANTS.build(spec, shape)
        reason = variant.supports(shape)
        if reason:
            raise Unsupported(reason)
        return variant

    return build
