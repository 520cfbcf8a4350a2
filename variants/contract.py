"""The contract of a variant: the author of an attention mechanism imports this module and nothing else of attnbench.

Shapes: query (batch, heads, queries, head_dim); key and value (batch, heads, keys, head_dim); already projected, so
that every variant sits in the same model with the same projections. A variant's own parameters are counted and shown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..bench.core.errors import SelectionError, Unsupported
from ..bench.core.spec import Range
from .mask import Mask
from .padding import clear_padding

__all__ = [
    "AttentionShape",
    "Causality",
    "Count",
    "KeyValueCache",
    "Kind",
    "Mask",
    "Range",
    "ScoreMap",
    "ScoredVariant",
    "SelectionError",
    "Unsupported",
    "Variant",
    "Width",
    "accumulator",
    "allowed_keys",
    "masked_softmax",
    "repeat_heads",
    "score_map",
]

Kind = Literal["exact", "approximate", "different"]
Causality = Literal["strict", "selection"]

Width = Annotated[int, Range(1, 65_536)]
"""A size that parameters or scores are allocated with: hidden units, features, landmarks, clusters."""

Count = Annotated[int, Range(1, 1_048_576)]
"""A number of positions: a window, a block, a stride."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """The shape that a variant is built for. `max_length` bounds queries and keys; `dropout` is that of the weights.

    kv_heads: heads of keys and values, each shared by a group of heads / kv_heads query heads that stand side by side
    (grouped-query attention, Ainslie et al. 2023); 0, the default, stands for `heads`, and is so after construction.
    dtype: that of query, key and value, by its name in torch; device as torch writes it. `layer` counts from 0. Raises
    SelectionError where kv_heads does not divide heads.
    """

    heads: int
    head_dim: int
    max_length: int
    kv_heads: int = 0
    causal: bool = False
    cross: bool = False
    padding: bool = True
    dropout: float = 0.0
    dtype: str = "float32"
    device: str = "cpu"
    layer: int = 0
    layers: int = 1

    def __post_init__(self) -> None:
        if not self.kv_heads:
            object.__setattr__(self, "kv_heads", self.heads)
        if not 1 <= self.kv_heads <= self.heads or self.heads % self.kv_heads:
            raise SelectionError(f"expected kv_heads that divides {self.heads} heads, got {self.kv_heads}")

    @property
    def width(self) -> int:
        """heads times head_dim: the width of the model that the heads make up."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """kv_heads times head_dim: the width of the keys of a token, and of its values."""
        return self.kv_heads * self.head_dim

    @property
    def bytes_per_value(self) -> int:
        """Bytes of a number of `dtype`."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype.itemsize


@dataclass(slots=True)
class KeyValueCache:
    """Keys and values seen so far, (batch, heads, length, head_dim), in buffers that double when full."""

    key: Tensor
    value: Tensor
    length: int = 0

    @classmethod
    def empty(cls, like: Tensor, value_like: Tensor, room: int = 64) -> KeyValueCache:
        """A cache for `room` tokens, in the dtypes and on the device of the first one, (batch, heads, 1, head_dim)."""
        return cls(
            like.new_empty(*like.shape[:2], room, like.shape[3]),
            value_like.new_empty(*value_like.shape[:2], room, value_like.shape[3]),
        )

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Adds (batch, heads, new, head_dim) and returns all keys and values so far."""
        end = self.length + key.shape[2]
        if end > self.key.shape[2]:
            # doubling makes about 2 n copies of tokens in all, growing by one would make n^2 / 2
            room = (0, 0, 0, max(end, 2 * self.key.shape[2]) - self.key.shape[2])
            self.key, self.value = F.pad(self.key, room), F.pad(self.value, room)
        self.key[:, :, self.length : end] = key
        self.value[:, :, self.length : end] = value
        self.length = end
        return self.key[:, :, :end], self.value[:, :, :end]


class Variant(nn.Module):
    """An attention mechanism over projected heads.

    A subclass takes the shape and its own parameters as typed keyword arguments, and defines `forward`; all else has a
    default. Rules that the gate checks: padded slots may hold anything, NaN and inf included: no real output and no
    gradient of a real slot changes, and gradients of padded slots are zero, of any loss of the real outputs; a query
    that may see no key yields zeros; causal means that nothing after a query changes its output.

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
    #: whether queries and keys may be different sequences
    crosses: ClassVar[bool] = True
    #: whether `step` can generate token by token
    decodes: ClassVar[bool] = True
    #: selection that an "exact" variant equals, such as `softmax[impl=eager]`; with a parameter `impl` it is impl=eager
    twin: ClassVar[str] = ""
    #: whether each row of weights is a distribution over the allowed keys; None: not claimed, not tested
    simplex: ClassVar[bool | None] = None
    #: the formula, shown in lists and in the docs
    equation: ClassVar[str] = ""
    #: the source, shown in lists and in the docs
    paper: ClassVar[str] = ""
    #: of one pass, in N and d; shown
    time: ClassVar[str] = "O(N^2 d)"
    #: of one pass, in N and d; shown
    memory: ClassVar[str] = "O(N^2)"
    #: the function whose keyword-only arguments are the parameters of `name[key=value]`; None: the constructor
    parameters_from: ClassVar[Callable[..., Any] | None] = None
    #: which of "query", "key", "value" the output does not depend on by definition, so that no gradient reaches it
    ignores: frozenset[str] = frozenset()
    #: whether `dropout` of the shape drops anything in training
    uses_dropout: bool = True
    #: whether `forward`, `weights` and `score` take keys and values of fewer heads; others get them repeated
    grouped: ClassVar[bool] = False
    #: whether it supports `bounds` of a mask; others refuse such a mask
    takes_bounds: ClassVar[bool] = False
    #: words of `impl`, beside "eager", that drop weights by the mask of `ops/dropout`, as "eager" does
    drops_inside: ClassVar[frozenset[str]] = frozenset()
    #: whether it has vectors for the distance of a key, so that a language model adds no table of positions
    brings_positions: bool = False
    #: whether q·k / sqrt(head_dim) is all it uses of query and key, so that `positions=alibi` may add two dimensions
    maps_products: bool = False
    #: the code of the last forward, such as "eager" or "triton"; recorded with every number
    implementation: str = "eager"

    def __init__(self, shape: AttentionShape):
        super().__init__()
        self.shape = shape

    @property
    def weight_dropout(self) -> float:
        """Dropout of the attention weights as it applies now: that of the shape in training, otherwise 0."""
        return self.shape.dropout if self.training else 0.0

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        """`forward`, and the hooks of torch, without what could spread from padded slots."""
        if 0 in (*query.shape[:3], key.shape[2]):
            # an empty batch, no query, or no key to see: no block or map has to know of it
            return _zeros(query, key, value)
        if mask.lengths is not None:
            return self._packed(query, key, value, mask)
        if mask.bounds is not None and not self.takes_bounds:
            raise Unsupported(f"{type(self).__name__} does not support masks with bounds: it chooses keys itself")
        if not self.grouped:
            key, value = repeat_heads(key, query.shape[1]), repeat_heads(value, query.shape[1])
        if mask.valid is not None:
            queries, keys = query.shape[2], key.shape[2]
            aligned = queries == keys or (mask.causal and queries < keys)
            same_sequence = aligned and not self.shape.cross
            query, key, value = clear_padding(query, key, value, mask.valid, same_sequence=same_sequence)
            # one row for all sequences: a variant that sorts or counts by it needs one for each
            mask = replace(mask, valid=mask.valid.expand(key.shape[0], -1))
        # a variant decides itself what it accumulates in: autocast would cast its float32 scores down
        with torch.autocast(query.device.type, enabled=False) if _autocasts(query) else nullcontext():
            output: Tensor = super().__call__(query, key, value, mask)
        return output

    def _packed(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        """The output of several sequences in each row, those of one length as a batch: nothing is computed in vain."""
        lengths = mask.lengths or ()
        if min(lengths) < 1 or sum(lengths) != query.shape[2] or query.shape[2] != key.shape[2]:
            raise SelectionError(
                "expected lengths of at least 1 that make up the queries and the keys, got a sum of "
                f"{sum(lengths)} for {query.shape[2]} queries and {key.shape[2]} keys"
            )
        if mask.valid is not None or mask.bounds is not None:
            raise SelectionError("expected lengths without valid and bounds: packed sequences have no padding")
        if type(self).auxiliary_loss is not Variant.auxiliary_loss:
            raise Unsupported(f"{type(self).__name__} has a loss of its last forward; packed sequences take several")
        pieces = [torch.split_with_sizes(x, lengths, 2) for x in (query, key, value)]
        alike = defaultdict(list)
        for number, length in enumerate(lengths):
            alike[length].append(number)
        outputs: dict[int, Tensor] = {}
        for numbers in alike.values():
            batch = [torch.cat([of[number] for number in numbers]) for of in pieces]
            output = self(batch[0], batch[1], batch[2], Mask(causal=mask.causal))
            outputs |= zip(numbers, output.chunk(len(numbers)), strict=True)
        return torch.cat([outputs[number] for number in range(len(lengths))], 2)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        """Output (batch, heads, queries, head_dim), in the dtype of `value`."""
        raise TypeError(f"{type(self).__name__} defines no forward(query, key, value, mask)")

    def weights(self, query: Tensor, key: Tensor, mask: Mask, rows: slice | None = None) -> Tensor | None:
        """Weights (batch, heads, rows, keys) before dropout, of the queries in `rows` only, for analysis.

        `query` holds all queries, since some mechanisms select keys by all of them. None where weights mean nothing.
        """
        return None

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

        query (batch, heads, 1, head_dim), key and value (batch, kv_heads, 1, head_dim). The outputs of successive steps
        equal the causal forward of the whole sequence. A `step` that is not this one repeats heads by `repeat_heads`.
        """
        # the default keeps all keys and values and runs the ordinary forward for the one query
        cache = state or KeyValueCache.empty(key, value)
        keys, values = cache.append(key, value)
        return self(query, keys, values, Mask(causal=True)), cache

    def learned_alpha(self) -> Tensor | None:
        """alpha of each head, (heads,), where the variant is an entmax that learns it; shown, never trained on."""
        return None

    def auxiliary_loss(self) -> Tensor | None:
        """A term for the training loss, from the last forward; None where there is none."""
        return None

    def after_step(self) -> None:
        """Called after each optimiser step, for moving averages."""

    def pre_layer(self, width: int) -> nn.Module | None:
        """A residual sublayer to put before attention, over (batch, length, width), valid (batch, length)."""
        return None


class ScoredVariant(Variant):
    """Attention in two maps, `score` and `weigh`, and a product with the values.

    The classic zoo differs in `score`, the sparse maps in `weigh`; the default of both is scaled dot-product softmax.
    """

    def score(self, query: Tensor, key: Tensor, first: int = 0) -> Tensor:
        """Scores (batch, heads, queries, keys), float32 or more; the first query stands at key `first`."""
        # in half precision scores are too coarse for the softmax of long rows, and may overflow
        query, key = query.to(accumulator(query.dtype)), key.to(accumulator(key.dtype))
        scale: float = query.shape[-1] ** -0.5
        return _by_group(query, key.transpose(-2, -1)) * scale

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
        return _by_group(weights, value)

    def weights(self, query: Tensor, key: Tensor, mask: Mask, rows: slice | None = None) -> Tensor:
        queries, keys = query.shape[2], key.shape[2]
        if not self.grouped:
            key = repeat_heads(key, query.shape[1])
        allowed = mask.allowed(queries, keys, query.device, rows)
        # some scores depend on positions, so a slice of the queries says where it begins
        first = (rows or slice(None)).indices(queries)[0] + mask.offset(queries, keys)
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


def repeat_heads(x: Tensor, heads: int) -> Tensor:
    """Keys or values (batch, kv_heads, length, width) with each head repeated for its group: (batch, heads, …).

    As they are where they have so many heads already. Raises SelectionError where their heads do not divide `heads`.
    """
    own = x.shape[1]
    if own == heads:
        return x
    if heads % own:
        raise SelectionError(f"expected keys and values whose heads divide the {heads} of the queries, got {own}")
    return x.repeat_interleave(heads // own, 1)


def _by_group(left: Tensor, right: Tensor) -> Tensor:
    """left @ right, (batch, heads, rows, n) by (batch, kv_heads, n, columns), without a copy of right for each head."""
    heads, kv_heads = left.shape[1], right.shape[1]
    if heads == kv_heads:
        return left @ right
    if heads % kv_heads:
        raise SelectionError(f"expected keys and values whose heads divide the {heads} of the queries, got {kv_heads}")
    # the rows of a group of heads side by side are more rows of one product
    rows = left.reshape(left.shape[0], kv_heads, -1, left.shape[-1])
    return (rows @ right).view(*left.shape[:3], right.shape[-1])


def _autocasts(x: Tensor) -> bool:
    device = x.device.type
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def _zeros(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """An output of zeros, (batch, heads, queries, width of value), through which gradients are zeros."""
    # sums over no entry: zero whatever the inputs hold, and part of the graph
    nothing = query[..., :0].sum() + key[..., :0].sum() + value[..., :0].sum()
    return value.new_zeros(*query.shape[:3], value.shape[-1]) + nothing.to(value.dtype)


def masked_softmax(scores: Tensor, allowed: Tensor | None, dim: int = -1) -> Tensor:
    """Softmax over the allowed entries; zeros, with zero gradient, where nothing is allowed."""
    if allowed is None:
        return scores.softmax(dim)
    # not -inf: on a row without an allowed key that is NaN, forward and in the gradient
    lowest = torch.finfo(scores.dtype).min
    weights = scores.masked_fill(~allowed, lowest).softmax(dim)
    # such a row is uniform now; the fill makes it zero, and its gradient too
    return weights.masked_fill(~allowed, 0.0)


def allowed_keys(scores: Tensor, allowed: Tensor | None) -> Tensor:
    """How many keys each query may see, broadcastable to (batch, heads, queries, 1), in the dtype of `scores`."""
    if allowed is None:
        return scores.new_full((1, 1, 1, 1), scores.shape[-1])
    # a mask may have one column for all keys
    return allowed.expand(*allowed.shape[:-1], scores.shape[-1]).sum(-1, keepdim=True).to(scores.dtype)


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which scores and sums are kept: float32 at least."""
    return torch.promote_types(dtype, torch.float32)
