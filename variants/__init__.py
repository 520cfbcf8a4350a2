"""Attention variants: one mechanism per file, all behind the contract of `contract.py`.

`build("rela", shape)` makes one for use anywhere. Importing this package imports no torch; a name is imported when it
is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .contract import AttentionShape, Mask, ScoredVariant, Variant, score_map
    from .kernels.uncompiled import uncompiled as uncompiled
    from .maps.elementwise import elementwise_map
    from .ops.entmax import entmax, entmax15, sparsemax

__all__ = [
    "AttentionShape",
    "Mask",
    "ScoredVariant",
    "Variant",
    "build",
    "elementwise_map",
    "entmax",
    "entmax15",
    "score_map",
    "sparsemax",
]

_ELSEWHERE = {
    "elementwise_map": "maps.elementwise", "entmax": "ops.entmax", "entmax15": "ops.entmax", "sparsemax": "ops.entmax",
    "uncompiled": "kernels.uncompiled",
}  # fmt: skip
"""The modules of what does not come from the contract."""


def build(selection: str, shape: AttentionShape) -> Variant:
    """The variant that `selection` names, such as `local[flange=64]`, for `shape`.

    Raises SelectionError for an unknown name or parameter, Unsupported where the variant cannot do the shape.
    """
    from ..bench.core.errors import Unsupported
    from ..bench.core.registry import VARIANTS
    from ..bench.core.spec import Spec

    spec = Spec.parse(selection)
    variant: Variant = VARIANTS.build(spec, shape)
    reason = variant.supports(shape)
    if reason:
        raise Unsupported(f"{spec} does not support this shape: {reason}")
    return variant


def __getattr__(name: str) -> Any:
    if name not in (*__all__, *_ELSEWHERE):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ELSEWHERE.get(name, 'contract')}"), name)
