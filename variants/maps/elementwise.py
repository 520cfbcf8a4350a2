"""Maps that are elementwise in the score: declared by one function, and fused without a kernel of their own."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from ..contract import AttentionShape, Mask, ScoredVariant, SelectionError, Unsupported, allowed_keys
from ..kernels.dispatch import DROPPING, choose_implementation, refusal
from ..ops.dropout import WeightDropout

if TYPE_CHECKING:
    from ..ops.written import Written

Impl = Literal["auto", "eager", "cpp", "triton"]


class ElementwiseMap(ScoredVariant):
    """Weights that a function of each score gives, as they are or over their sum; `elementwise_map` makes subclasses.

    `map(scores, …)` may take beside the scores, by name: `count`, how many keys the query may see, at least one; `top`,
    its largest score (a sink's among them), by which a map that divides by a sum keeps exponentials small: its results
    have to scale by exp(-top), and the weights not to depend on it; and names of `learned`, numbers of each head. It
    returns weights, or a pair: them, and what is summed to divide them. All but the scores broadcast against them.

    A fused form of the map is written and compiled at first use, in C++ on a CPU and in Triton on a GPU, where the
    function is elementwise, PyTorch's operators throughout; where it is not, `supports` of a forced form says why, and
    `auto` runs it eagerly. Decoding on a CPU is eager.
    """

    grouped: ClassVar = True
    takes_bounds: ClassVar = True
    memory: ClassVar = "O(N d); eager O(N^2)"
    maps_products = True
    drops_inside: ClassVar = DROPPING
    map: ClassVar[Callable[..., Tensor | tuple[Tensor, Tensor]]]
    #: "none": the weights are the map's; "sum": they are divided by a sum over the keys
    normaliser: ClassVar[Literal["none", "sum"]] = "none"
    #: the score of one key more that has a part of the sum and no value; a subclass may set `self.sink`, (heads,)
    sink_score: ClassVar[float | None] = None
    #: added to the sum
    epsilon: ClassVar[float] = 0.0
    #: names of numbers that each head learns, and where they start
    learned: ClassVar[dict[str, float]] = {}

    def __init__(self, shape: AttentionShape, *, impl: Impl = "auto", **options: Any):
        super().__init__(shape)
        self.impl = impl
        self.options = options
        self.sink: nn.Parameter | None = None
        for name, start in self.learned.items():
            setattr(self, name, nn.Parameter(torch.full((shape.heads,), float(start))))

    def weigh(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        given: dict[str, Tensor] = {name: getattr(self, name).to(scores.dtype)[:, None, None] for name in self.learned}
        sink = None if self.sink_score is None else scores.new_full((), self.sink_score)
        if self.sink is not None:
            sink = self.sink.to(scores.dtype)[:, None, None]
        names = _taken(type(self).map)
        if "count" in names:
            given["count"] = allowed_keys(scores, allowed).clamp(min=1.0)
        fill = scores.new_zeros(())
        if "top" in names:
            seen = scores if allowed is None else scores.masked_fill(~allowed, -torch.inf)
            top = seen.detach().amax(-1, keepdim=True)
            top = top if sink is None else torch.maximum(top, sink.detach())
            # a query without a key has none
            given["top"] = fill = top.masked_fill(top == -torch.inf, 0.0)
        # before the map too: a hidden score may be anything, and its gradient times zero be no number
        scores = scores if allowed is None else torch.where(allowed, scores, fill)
        weights, summed = self._mapped(scores, given, allowed)
        if self.normaliser == "none":
            return weights
        total = summed.sum(-1, keepdim=True)
        if sink is not None:
            total = total + self._mapped(sink, given, None)[1]
        total = total + self.epsilon if self.epsilon else total
        return weights / total.masked_fill(total == 0.0, 1.0)

    def _mapped(self, scores: Tensor, given: dict[str, Tensor], allowed: Tensor | None) -> tuple[Tensor, Tensor]:
        """Weights before division, and what is summed; both zero where not allowed."""
        found = self.map(scores, **given, **self.options)
        pair = found if isinstance(found, tuple) else (found, found)
        if allowed is None:
            return pair
        first = pair[0].masked_fill(~allowed, 0.0)
        return first, first if pair[1] is pair[0] else pair[1].masked_fill(~allowed, 0.0)

    def _written(self, impl: str) -> Written | str:
        """The map, ready to run as `impl`, or the reason why it cannot be."""
        options, sums = tuple(self.options.items()), self.normaliser == "sum"
        return _write(type(self).__name__, type(self).map, tuple(self.learned), sums, options, impl)

    def supports(self, shape: AttentionShape) -> str | None:
        reason = super().supports(shape) or refusal(self.impl, shape, dropping=self.drops_inside)
        if reason or self.impl not in self.drops_inside:
            return reason
        written = self._written(self.impl)
        return f"impl={self.impl}: {written}" if isinstance(written, str) else None

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        self.implementation = choose_implementation(
            *(self.impl, query, key, value),
            dropout=self.weight_dropout,
            dropping=self.drops_inside,
            bounds=mask.bounds is not None,
            kernels=self.drops_inside,
        )
        drop = WeightDropout.drawn(self.weight_dropout, query.device)
        written = "" if self.implementation == "eager" else self._written(self.implementation)
        if isinstance(written, str):
            self.implementation = "eager"
            weights = self.weights(query, key, mask)
            weights = weights if drop is None else drop.apply(weights)
            return self.average(weights.to(value.dtype), value)
        further: dict[str, Any] = {
            "learned": {name: getattr(self, name) for name in self.learned},
            "sink": self.sink_score if self.sink is None else self.sink,
            "epsilon": self.epsilon,
        }
        if self.implementation == "triton":
            from ..kernels.gpu import map_attention

            sums = map_attention(query, key, value, mask.valid, mask.causal, written, drop, **further)
        else:
            from ..kernels.cpu.tiles import tiled_attention

            sums = tiled_attention(query, key, value, mask, written, drop, **further)
        return sums.to(value.dtype)


def elementwise_map(
    *,
    normaliser: Literal["none", "sum"] = "none",
    sink: float | None = None,
    epsilon: float = 0.0,
    learned: dict[str, float] | None = None,
    paper: str = "",
    equation: str = "",
    **attributes: Any,
) -> Callable[[Callable[..., Any]], type[ElementwiseMap]]:
    """Makes a variant, with a fused form, of a function of the scores as `ElementwiseMap` describes it.

    Its keyword-only arguments become parameters, numbers or words. It stays importable as the class's `map`. The
    arguments of the decorator, and any other class attribute of `Variant`, describe the variant. Raises SelectionError
    for a function whose arguments are not those.
    """

    def decorate(function: Callable[..., Any]) -> type[ElementwiseMap]:
        names, known = _taken(function), {"count", "top", *(learned or {})}
        if not known >= {*names} >= {*(learned or {})}:
            raise SelectionError(
                f"{function.__name__}: expected scores, then any of {', '.join(sorted(known))}, all of `learned` among "
                f"them, got {', '.join(names) or 'scores alone'}; what a user sets is keyword-only, behind `*`"
            )
        if taken := [name for name in names if hasattr(ElementwiseMap, name)]:
            raise SelectionError(f"{function.__name__}: every module has an attribute {taken[0]}; take another name")

        def parameters(*, impl: Impl = "auto") -> None:
            """The keyword-only arguments of the function, and `impl`."""

        own = inspect.signature(function)
        kept = [p for p in own.parameters.values() if p.kind is inspect.Parameter.KEYWORD_ONLY]
        parameters.__signature__ = own.replace(  # type: ignore[attr-defined]
            parameters=[*kept, *inspect.signature(parameters).parameters.values()], return_annotation=None
        )
        # strings are looked up where the function was written, as its own are
        hints = inspect.get_annotations(function, eval_str=True)
        parameters.__annotations__ = {**{p.name: hints[p.name] for p in kept if p.name in hints}, "impl": Impl}
        members = {
            **{"__module__": function.__module__, "__doc__": function.__doc__, "paper": paper, "equation": equation},
            **{"normaliser": normaliser, "sink_score": sink, "epsilon": epsilon, "learned": learned or {}},
            **attributes,
            # of a class, a plain function would be bound to the instance
            **{"map": staticmethod(function), "parameters_from": staticmethod(parameters)},
        }
        # named and placed like the function, so that it can be pickled and found by its entry point
        return type(function.__name__, (ElementwiseMap,), members)

    return decorate


def _taken(function: Callable[..., Any]) -> tuple[str, ...]:
    """Names that the map takes beside the scores, without its parameters."""
    parameters = list(inspect.signature(function).parameters.values())
    return tuple(p.name for p in parameters[1:] if p.kind is not inspect.Parameter.KEYWORD_ONLY)


@cache
def _write(
    name: str,
    function: Callable[..., Any],
    learned: tuple[str, ...],
    sums: bool,
    options: tuple[tuple[str, Any], ...],
    impl: str,
) -> Written | str:
    """A map, ready to run as `impl`, or the reason why it cannot be, which is said once."""
    from ..ops.written import write

    try:
        written = write(partial(function, **dict(options)), _taken(function), learned, sums)
        if impl == "triton":
            from ..kernels.gpu import functions

            functions(written)
        else:
            from ..kernels.cpu.written import address

            # compiles it
            address(written)
    except (Unsupported, RuntimeError) as error:
        print(f"attnbench: {name} runs eagerly: {error}", file=sys.stderr, flush=True)
        return str(error)
    return written
