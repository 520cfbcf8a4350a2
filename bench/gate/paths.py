"""The implementations of a variant, and why some of them cannot run here."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...variants.contract import AttentionShape
from ..core.errors import Unsupported
from .checked_variant import CheckedVariant, VariantSource
from .twins import examined


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """One `impl` of a variant on one shape. `refusal`: why the gate does not examine it; empty where it does."""

    name: str
    refusal: str = ""


def paths(variant: VariantSource, shape: AttentionShape) -> list[Path]:
    """The paths of `variant`, or the forced one alone; none where it has no parameter `impl`. `auto` takes one of them.

    Raises SelectionError for an unknown name, Unsupported where the variant refuses the shape.
    """
    checked = CheckedVariant(variant, replace(shape, dropout=0.0))
    return [Path(name=name, refusal=_refusal(checked, name)) for name in examined(checked) if name != "auto"]


def _refusal(checked: CheckedVariant, name: str) -> str:
    try:
        checked.build(checked.shape, impl=name)
    except Unsupported as refusal:
        return str(refusal)
    return ""
