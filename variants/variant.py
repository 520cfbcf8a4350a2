"""Variant: the class that all attention mechanisms are subclasses of; authors import it from `contract.py`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from ..bench.core.errors import SelectionError, Unsupported
from ..bench.core.spec import Range
from .mask import Mask
from .padding import clear_padding, clear_queries
from .products import KeyValueCache, no_output, repeat_heads
from .shape import AttentionShape

Kind = Literal["exact", "approximate", "different"]
Causality = Literal["strict", "selection"]

Width = Annotated[int, Range(1, 65_536)]
"""A size that parameters or scores are allocated with: hidden units, features, landmarks, clusters."""

Count = Annotated[int, Range(1, 1_048_576)]
"""A number of positions: a window, a block, a stride."""


class Variant(nn.Module):
    """An attention mechanism over projected heads.

    A subclass takes the shape and its own parameters as typed keyword arguments, and defines `forward`; all else has a
    default. Rules that the gate checks: padded slots may hold anything, NaN and inf included: no real output and no
    gradient of a real slot changes, and gradients of padded slots are zero, of any loss of the real outputs; a query
    that may see no key yields zeros; causal means that nothing after a query changes its output.

    The hidden state is padded where the queries are, and the same rules hold for it. A variant that takes it for its
    keys too, such as a decay, says `crosses = False`: queries and keys are then one sequence.

    `forward` has to give padded keys no weight. A call of the variant sees to the rest: before `forward`, padded slots
    that hold NaN, inf or a huge number become zeros, since zero times NaN is NaN. Queries are padded where the keys
    are; under a shape with `cross` all queries are real. The output of a padded query is finite and means nothing. An
    empty batch, no query or no key gives zeros at once.

    Parameters and all that is random besides, such as a projection or a pattern, are drawn in the constructor from
    torch's own generator. The model seeds it by seed and layer, so that each seed of a run draws anew. Such buffers are
    persistent, so that a model that is loaded has the draws it was trained with. After construction dropout alone
    draws; Performer, which may draw its features again, keeps a seed of its own for that.

    The attributes below describe the mechanism; an instance may set those without `ClassVar` for itself. The type
    `Annotated[int, Range(1, 64)]` of a parameter bounds its values.
    """

    #: "exact": the function of `twin`, implemented otherwise; "approximate": aims at softmax; "different": its own
    kind: ClassVar[Kind] = "different"
    #: "strict"; "selection": the future may decide which past keys are seen, never their values; None: never causal
    causality: ClassVar[Causality | None] = "strict"
    #: True if queries and keys may be different sequences
    crosses: ClassVar[bool] = True
    #: True if `step` can generate token by token
    decodes: ClassVar[bool] = True
    #: selection that an "exact" variant equals, such as `softmax[impl=eager]`; with a parameter `impl` it is impl=eager
    twin: ClassVar[str] = ""
    #: True if each row of weights is a distribution over the allowed keys; None: not claimed, not tested
    simplex: ClassVar[bool | None] = None
    #: the formula, shown in lists and in the docs
    equation: ClassVar[str] = ""
    #: the source, shown in lists and in the docs
    paper: ClassVar[str] = ""
    #: cost of one pass, in N and d; shown
    time: ClassVar[str] = "O(N^2 d)"
    #: cost of one pass, in N and d; shown
    memory: ClassVar[str] = "O(N^2)"
    #: the function whose keyword-only arguments are the parameters of `name[key=value]`; None: the constructor
    parameters_from: ClassVar[Callable[..., Any] | None] = None
    #: those of "query", "key", "value" the output does not depend on by definition, so that no gradient reaches it
    ignores: frozenset[str] = frozenset()
    #: True if `dropout` of the shape drops anything in training
    uses_dropout: bool = True
    #: True if `forward`, `weights` and `score` take keys and values of fewer heads; others get them repeated
    grouped: ClassVar[bool] = False
    #: True if it supports `bounds` of a mask; others refuse such a mask
    takes_bounds: ClassVar[bool] = False
    #: words of `impl`, beside "eager", that drop weights by the mask of `ops/dropout`, as "eager" does
    drops_inside: ClassVar[frozenset[str]] = frozenset()
    #: True if it has vectors for the distance of a key, so that a language model adds no table of positions
    brings_positions: bool = False
    #: True if `forward` and `step` take the hidden state of the queries as a fifth argument, and `weights` by keyword
    takes_hidden: bool = False
    #: True if q·k / sqrt(head_dim) is all it uses of query and key, so that `positions=alibi` may add two dimensions
    maps_products: bool = False
    #: True if it stands in the place of the model's projections too, as a `Layer` does
    owns_projections: bool = False
    #: True if a model changes the feed-forward behind it until the layer has as many parameters as that of softmax
    matches_parameters: bool = False
    #: the code of the last forward, such as "eager" or "triton"; recorded with every number
    implementation: str = "eager"

    def __init__(self, shape: AttentionShape):
        super().__init__()
        self.shape = shape

    @property
    def weight_dropout(self) -> float:
        """Dropout of the attention weights as it applies now: that of the shape in training, otherwise 0."""
        return self.shape.dropout if self.training else 0.0

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, hidden: Tensor | None = None) -> Tensor:
        """`forward`, and the hooks of torch, without what could spread from padded slots.

        hidden: (batch, queries, hidden_width); a variant that does not take it never sees it. Raises SelectionError
        where it is missing or has another shape.
        """
        if not self.takes_hidden:
            hidden = None
        elif hidden is None or hidden.shape != (query.shape[0], query.shape[2], self.shape.hidden_width):
            expected = (query.shape[0], query.shape[2], self.shape.hidden_width)
            raise SelectionError(
                f"{type(self).__name__} takes the hidden state: expected hidden {expected}, got "
                f"{None if hidden is None else tuple(hidden.shape)}"
            )
        if 0 in (*query.shape[:3], key.shape[2]):
            # an empty batch, no query, or no key to see: no block or map has to know of it
            return no_output(query, key, value)
        if mask.lengths is not None:
            return self._packed(query, key, value, mask, hidden)
        if mask.bounds is not None and not self.takes_bounds:
            raise Unsupported(f"{type(self).__name__} does not support masks with bounds: it chooses keys itself")
        if not self.grouped:
            key, value = repeat_heads(key, query.shape[1]), repeat_heads(value, query.shape[1])
        if mask.valid is not None:
            queries, keys = query.shape[2], key.shape[2]
            aligned = queries == keys or (mask.causal and queries < keys)
            same_sequence = aligned and not self.shape.cross
            query, key, value = clear_padding(query, key, value, mask.valid, same_sequence=same_sequence)
            if hidden is not None and same_sequence:
                hidden = clear_queries(hidden[:, None], mask.valid)[:, 0]
            # one row for all sequences: a variant that sorts or counts by it needs one for each
            mask = replace(mask, valid=mask.valid.expand(key.shape[0], -1))
        with self._as_written(query):
            output: Tensor = super().__call__(query, key, value, mask, *(() if hidden is None else (hidden,)))
        return output

    def _as_written(self, query: Tensor) -> AbstractContextManager[None]:
        """Turn autocast off: a variant decides itself what it accumulates in, and float32 scores would be cast down."""
        device = query.device.type
        # the question that asks first whether the device has autocast is one that Dynamo of torch 2.11 cannot trace
        lowers = device != "meta" and torch.is_autocast_enabled(device) and not self.owns_projections
        return torch.autocast(device, enabled=False) if lowers else nullcontext()

    def _packed(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, hidden: Tensor | None) -> Tensor:
        """The output of several sequences in each row, those of one length as a batch: nothing is computed in vain."""
        lengths = mask.lengths or ()
        if min(lengths) < 1 or sum(lengths) != query.shape[2] or query.shape[2] != key.shape[2]:
            raise SelectionError(
                "expected lengths of at least 1 that make up the queries and the keys, got a sum of "
                f"{sum(lengths)} for {query.shape[2]} queries and {key.shape[2]} keys"
            )
        if mask.valid is not None or mask.bounds is not None:
            raise SelectionError("expected lengths without valid and bounds: packed sequences have no padding")
        if self.has_loss:
            raise Unsupported(f"{type(self).__name__} has a loss of its last forward; packed sequences take several")
        pieces = [torch.split_with_sizes(x, lengths, 2) for x in (query, key, value)]
        of_hidden = () if hidden is None else torch.split_with_sizes(hidden, lengths, 1)
        alike = defaultdict(list)
        for number, length in enumerate(lengths):
            alike[length].append(number)
        outputs: dict[int, Tensor] = {}
        for numbers in alike.values():
            batch = [torch.cat([of[number] for number in numbers]) for of in pieces]
            states = None if hidden is None else torch.cat([of_hidden[number] for number in numbers])
            output = self(batch[0], batch[1], batch[2], Mask(causal=mask.causal), states)
            outputs |= zip(numbers, output.chunk(len(numbers)), strict=True)
        return torch.cat([outputs[number] for number in range(len(lengths))], 2)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        """Output (batch, heads, queries, head_dim), in the dtype of `value`; a fifth argument where it takes hidden."""
        raise TypeError(f"{type(self).__name__} defines no forward(query, key, value, mask)")

    def weights(self, query: Tensor, key: Tensor, mask: Mask, rows: slice | None = None) -> Tensor | None:
        """Weights (batch, heads, rows, keys) before dropout, of the queries in `rows` only, for analysis.

        `query` holds all queries, since some mechanisms select keys by all of them. None where weights mean nothing.
        """
        return None

    def weights_with(
        self, query: Tensor, key: Tensor, mask: Mask, rows: slice | None, hidden: Tensor | None
    ) -> Tensor | None:
        """`weights`, with the hidden state where the class takes it."""
        if not self.takes_hidden or type(self).weights is Variant.weights:
            return self.weights(query, key, mask, rows)
        return self.weights(query, key, mask, rows, hidden=hidden)  # type: ignore[call-arg]

    def supports(self, shape: AttentionShape) -> str | None:
        """None, or the reason why this shape cannot be done."""
        if shape.causal and self.causality is None:
            return "it has no causal form"
        if shape.cross and not self.crosses:
            return "queries and keys must be one sequence"
        return None

    def density(self, shape: AttentionShape) -> float:
        """Share of the allowed score entries that the mechanism computes at `shape.max_length`, in [0, 1]."""
        return 1.0

    def state_bytes(self, shape: AttentionShape) -> int | None:
        """Decode state of one sequence after `shape.max_length` tokens; None where it cannot decode."""
        if self.causality is None or not self.decodes:
            return None
        return 2 * shape.kv_width * shape.max_length * shape.bytes_per_value

    def step(self, query: Tensor, key: Tensor, value: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """The output of one more token of each sequence, and the state for the next; `state` is None at the first.

        query (batch, heads, 1, head_dim), key and value (batch, kv_heads, 1, head_dim); a fifth argument, hidden
        (batch, 1, hidden_width), where the class takes it. The outputs of successive steps equal the causal forward of
        the whole sequence. A `step` that is not this one repeats heads by `repeat_heads`.
        """
        return self._step_by_cache(query, key, value, state, None)

    def _step_by_cache(
        self, query: Tensor, key: Tensor, value: Tensor, state: Any, hidden: Tensor | None
    ) -> tuple[Tensor, Any]:
        """All keys and values are kept, and the ordinary forward runs for the one query."""
        cache = state or KeyValueCache.empty(key, value)
        keys, values = cache.append(key, value)
        return self(query, keys, values, Mask(causal=True), hidden), cache

    def step_with(
        self, query: Tensor, key: Tensor, value: Tensor, state: Any, hidden: Tensor | None
    ) -> tuple[Tensor, Any]:
        """`step`, with the hidden state where the class takes it."""
        with self._as_written(query):
            if not self.takes_hidden:
                return self.step(query, key, value, state)
            if type(self).step is Variant.step:
                return self._step_by_cache(query, key, value, state, hidden)
            return self.step(query, key, value, state, hidden)  # type: ignore[call-arg]

    def learned_alpha(self) -> Tensor | None:
        """alpha of each head, (heads,), where the variant is an entmax that learns it; shown, never trained on."""
        return None

    def auxiliary_loss(self) -> Tensor | None:
        """A term for the training loss, from the last forward; None where there is none."""
        return None

    @property
    def has_loss(self) -> bool:
        """True if it defines an `auxiliary_loss`."""
        return type(self).auxiliary_loss is not Variant.auxiliary_loss

    def after_step(self) -> None:
        """Called after each optimiser step, for moving averages."""

    def pre_layer(self, width: int) -> nn.Module | None:
        """A residual sublayer to put before attention, over (batch, length, width), valid (batch, length)."""
        return None
