"""The contract of a variant: the author of an attention mechanism imports this module and nothing else of attnbench.

Shapes: query (batch, heads, queries, head_dim); key and value (batch, heads, keys, head_dim); already projected, so
that every variant sits in the same model with the same projections. A variant that `takes_hidden` also gets the hidden
state that the queries were projected from, (batch, queries, hidden_width), and projects gates, decays or indexes from
it by parameters of its own. A `Layer` has projections of its own for all. A variant's own parameters are counted and
shown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..bench.core.errors import SelectionError, Unsupported
from ..bench.core.spec import Range
from .mask import Mask, picked_range
from .products import KeyValueCache, accumulator, allowed_keys, by_group, masked_softmax, repeat_heads
from .shape import AttentionShape
from .variant import Causality, Count, Kind, Variant, Width

__all__ = [
    "AttentionShape",
    "Causality",
    "Count",
    "KeyValueCache",
    "Kind",
    "Layer",
    "Mask",
    "Range",
    "ScoreMap",
    "ScoredVariant",
    "SelectionError",
    "Unsupported",
    "Variant",
    "Width",
    "Wrapper",
    "accumulator",
    "allowed_keys",
    "masked_softmax",
    "repeat_heads",
    "score_map",
]


class Wrapper(Variant):
    """A variant around another, `inner`: it changes what goes in or what comes out, as an output gate does.

    A subclass takes the shape, the variant inside and its own parameters as typed keyword arguments; registered under
    `attnbench.wrappers`, it is named before any variant: `gate+local[window=64]`. What a subclass does not define
    is that of the variant inside. It is "different" from it, so it has no twin, and no weights unless it defines them.
    """

    inner: Variant

    def __init__(self, shape: AttentionShape, inner: Variant):
        super().__init__(shape)
        self.inner = inner
        for name in _OF_INNER:
            # of the instance: what surrounds one variant may surround any
            setattr(self, name, getattr(inner, name))
        self.takes_hidden = self.takes_hidden or inner.takes_hidden
        self.matches_parameters = self.matches_parameters or inner.matches_parameters

    @property
    def implementation(self) -> str:  # type: ignore[override]
        """The code that the variant inside ran as."""
        return self.inner.implementation

    def supports(self, shape: AttentionShape) -> str | None:
        return self.inner.supports(shape)

    def density(self, shape: AttentionShape) -> float:
        return self.inner.density(shape)

    def state_bytes(self, shape: AttentionShape) -> int | None:
        return self.inner.state_bytes(shape)

    def step(
        self, query: Tensor, key: Tensor, value: Tensor, state: Any = None, hidden: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """Decode as the variant inside does; a subclass that takes the hidden state gets it here too."""
        return self.inner.step_with(query, key, value, state, hidden)

    def learned_alpha(self) -> Tensor | None:
        return self.inner.learned_alpha()

    def auxiliary_loss(self) -> Tensor | None:
        return self.inner.auxiliary_loss()

    @property
    def has_loss(self) -> bool:
        return self.inner.has_loss

    def after_step(self) -> None:
        self.inner.after_step()

    def pre_layer(self, width: int) -> nn.Module | None:
        return self.inner.pre_layer(width)


_OF_INNER = (
    "causality", "crosses", "decodes", "time", "memory", "ignores", "uses_dropout", "grouped", "takes_bounds",
    "drops_inside", "brings_positions", "maps_products", "owns_projections",
)  # fmt: skip
"""Attributes that a wrapper has from the variant inside."""


class Layer(Variant):
    """A whole layer with projections of its own, and positions if it has any: (batch, length, width) to the same.

    A subclass defines `transform`; one that decodes also `advance` and `state_bytes`, and says `decodes = True`. In a
    model it stands in the place of attention and its projections to query, key, value and output, and boards say so.
    It is a variant that ignores all but the hidden state, so that the gate, models, decoding and packed rows know it.
    """

    owns_projections = True
    takes_hidden = True
    crosses = False
    decodes = False
    uses_dropout = False
    ignores = frozenset({"query", "key", "value"})

    def transform(self, x: Tensor, mask: Mask) -> Tensor:
        """Output (batch, length, hidden_width) of `x` of this shape; what it gives for padded positions is left out."""
        raise TypeError(f"{type(self).__name__} defines no transform(x, mask)")

    def advance(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Return what `step` does: the output of one more position of each sequence, x (batch, 1, hidden_width)."""
        raise TypeError(f"{type(self).__name__} defines no advance(x, state)")

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, hidden: Tensor) -> Tensor:  # type: ignore[override]
        output = self.transform(self._in_own_dtype(hidden), mask)
        if mask.valid is not None:
            output = output.masked_fill(~mask.valid[..., None], 0.0)
        return self._by_head(output, value.dtype)

    def step(
        self, query: Tensor, key: Tensor, value: Tensor, state: Any = None, hidden: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        assert hidden is not None
        output, state = self.advance(self._in_own_dtype(hidden), state)
        return self._by_head(output, value.dtype), state

    def _in_own_dtype(self, x: Tensor) -> Tensor:
        # parameters stay in float32 where inputs are in half precision
        return x.to(next(self.parameters(), x).dtype)

    def _by_head(self, output: Tensor, dtype: torch.dtype) -> Tensor:
        return torch.unflatten(output.to(dtype), -1, (self.shape.heads, -1)).transpose(1, 2)

    def supports(self, shape: AttentionShape) -> str | None:
        if shape.hidden_width != shape.width:
            return "it has projections of its own, so that no bias of positions can be given to its heads"
        return super().supports(shape)


class ScoredVariant(Variant):
    """Attention in two maps, `score` and `weigh`, and a product with the values.

    The classic zoo differs in `score`, the sparse maps in `weigh`; the default of both is scaled dot-product softmax.
    """

    def score(self, query: Tensor, key: Tensor, first: int = 0) -> Tensor:
        """Scores (batch, heads, queries, keys), float32 or more; the first query stands at key `first`."""
        # in half precision scores are too coarse for the softmax of long rows, and may overflow
        query, key = query.to(accumulator(query.dtype)), key.to(accumulator(key.dtype))
        scale: float = query.shape[-1] ** -0.5
        return by_group(query, key.transpose(-2, -1)) * scale

    def weigh(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        """Weights of `scores`, zero wherever `allowed` is False and on rows where nothing is allowed."""
        return masked_softmax(scores, allowed)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        # the weights that are shown for analysis are those that are multiplied with the values
        weights = self.weights(query, key, mask)
        weights = F.dropout(weights, self.weight_dropout)
        return self.average(weights.to(value.dtype), value)

    def average(self, weights: Tensor, value: Tensor) -> Tensor:
        """Sums of values by weights, (batch, heads, queries, head_dim); the values may have fewer heads."""
        return by_group(weights, value)

    def weights(self, query: Tensor, key: Tensor, mask: Mask, rows: slice | None = None) -> Tensor:
        queries, keys = query.shape[2], key.shape[2]
        if not self.grouped:
            key = repeat_heads(key, query.shape[1])
        allowed = mask.allowed(queries, keys, query.device, rows)
        # some scores depend on positions, so a slice of the queries says where it begins
        first = picked_range(rows, queries)[0] + mask.offset(queries, keys)
        return self.weigh(self.score(query if rows is None else query[:, :, rows], key, first), allowed)


class ScoreMap(ScoredVariant):
    """Scaled dot-product attention with the weights that `map` makes of its scores; `score_map` makes subclasses."""

    grouped: ClassVar = True
    takes_bounds: ClassVar = True
    map: ClassVar[Callable[..., Tensor]]
    maps_products = True

    def __init__(self, shape: AttentionShape, **options: Any):
        super().__init__(shape)
        self.options = options

    def weigh(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return self.map(scores, allowed, **self.options)


def score_map(
    *, paper: str = "", equation: str = "", kind: Kind = "different", **attributes: Any
) -> Callable[[Callable[..., Tensor]], type[ScoreMap]]:
    """Makes a variant of a function `weights = f(scores, allowed)`; its keyword-only arguments become parameters.

    scores: (batch, heads, queries, keys), float32 or more; allowed: Boolean, broadcastable to them, or None. The
    function returns weights that are zero where nothing is allowed. It stays importable as the class's `map`. The
    arguments of the decorator, and any other class attribute of `Variant`, describe the variant.
    """

    def decorate(function: Callable[..., Tensor]) -> type[ScoreMap]:
        described = {"__module__": function.__module__, "__doc__": function.__doc__, "paper": paper, "kind": kind}
        # of a class, a plain function would be bound to the instance
        as_method = staticmethod(function)
        members = {**described, "equation": equation, **attributes, "map": as_method, "parameters_from": as_method}
        # named and placed like the function, so that it can be pickled and found by its entry point
        return type(function.__name__, (ScoreMap,), members)

    return decorate
