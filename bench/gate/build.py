"""Build variants for a model, each checked by the gate before anything is measured."""

from __future__ import annotations

from ...variants.contract import AttentionShape, Variant
from ..core.errors import Unsupported
from ..core.registry import VARIANTS
from ..core.spec import Spec
from ..models.blocks import BuildVariant
from .suite import Form, quick_gate


class Incorrect(Exception):
    """A property of the gate fails; the message names it."""


def build_checked(spec: Spec, batch: int = 1) -> BuildVariant:
    """Makes the variant for each layer's shape; raises Unsupported with its reason, Incorrect where the gate fails.

    `batch`: how many sequences are to be measured at once.
    """
    # A translation model uses a variant in three ways, and each may be wrong by itself. Layers differ in nothing else
    # that the gate looks at, so that one of each is enough.
    checked: set[tuple[bool, bool]] = set()
    build_any = build_unchecked(spec)

    def build(shape: AttentionShape) -> Variant:
        variant = build_any(shape)
        use = (shape.causal, shape.cross)
        if use not in checked:
            require_correct(spec, shape, batch)
            checked.add(use)
        return variant

    return build


def require_correct(spec: Spec, shape: AttentionShape, batch: int, form: Form = "both") -> None:
    """Raises Incorrect where `form` of the gate fails."""
    failure = quick_gate(spec, shape, batch=batch, form=form)
    if failure is not None:
        raise Incorrect(f"{failure.property}: {failure.detail or failure.measured}")


def build_unchecked(spec: Spec) -> BuildVariant:
    """As `build_checked`, for a variant that has passed the gate on the same shape already."""

    def build(shape: AttentionShape) -> Variant:
        variant: Variant = VARIANTS.build(spec, shape)
        reason = variant.supports(shape)
        if reason:
            raise Unsupported(reason)
        return variant

    return build
