"""Maps written as C++: a function of the scores is traced once with its gradient, and becomes vectors for `map.h`."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx

from ...contract import Unsupported
from . import build

MapFunction = Callable[..., Tensor | tuple[Tensor, Tensor]]
# as many as `MOST_NUMBERS` of tiles.cpp, of which one is kept for the largest score
MOST_NUMBERS = 15

_UNARY = {
    **{name: f"{{0}}.{name}()" for name in ("neg", "abs", "log", "log1p", "expm1", "sqrt", "rsqrt", "tanh", "sin")},
    **{name: f"{{0}}.{name}()" for name in ("cos", "erf", "erfc", "reciprocal", "floor", "ceil", "trunc")},
    **{name: f"{{0}}.{name}()" for name in ("asin", "acos", "atan", "sinh", "cosh", "log2", "log10", "exp2", "round")},
    **dict.fromkeys(("detach", "alias", "clone", "_to_copy"), "{0}"),
    "exp": "exp({0})",
    "sigmoid": "sigmoid({0})",
    "sign": "sign({0})",
    "sgn": "sign({0})",
    # a maximum lets NaN through, as ReLU does
    "relu": "at::vec::maximum({0}, Vec(0.0f))",
    "logical_not": "({0} ^ ({0} == {0}))",
    "bitwise_not": "({0} ^ ({0} == {0}))",
}
_BINARY = {
    **{"mul": "({0} * {1})", "div": "({0} / {1})", "maximum": "at::vec::maximum({0}, {1})"},
    **{"minimum": "at::vec::minimum({0}, {1})", "clamp_min": "at::vec::maximum({0}, {1})"},
    **{"clamp_max": "at::vec::minimum({0}, {1})"},
    **{name: f"({{0}} {sign} {{1}})" for name, sign in (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<="))},
    **{"eq": "({0} == {1})", "ne": "({0} != {1})", "bitwise_and": "({0} & {1})", "logical_and": "({0} & {1})"},
    **{"bitwise_or": "({0} | {1})", "logical_or": "({0} | {1})"},
    "sigmoid_backward": "({0} * {1} * (Vec(1.0f) - {1}))",
    "tanh_backward": "({0} * (Vec(1.0f) - {1} * {1}))",
}
_SIMPLE = {
    **_UNARY,
    **_BINARY,
    "where": "select({0}, {1}, {2})",
    "threshold_backward": "select({1} <= {2}, Vec(0.0f), {0})",
}
_CONSTANT = {"full", "full_like", "scalar_tensor", "zeros_like", "ones_like", "zeros", "ones", "lift_fresh_copy"}
_POWERS = {0.5: "{0}.sqrt()", -0.5: "{0}.rsqrt()", -1.0: "{0}.reciprocal()"}


@dataclass(frozen=True, eq=False)
class Written:
    """A map as C++: `source`, a unit to compile; `forward` and `backward`, its numbers of a query in their order.

    sums: whether its weights are divided by a sum; tops: whether it takes the largest score; learned: how many numbers.
    """

    source: str
    forward: tuple[fx.Node, ...]
    backward: tuple[fx.Node, ...]
    sums: bool
    tops: bool
    learned: int

    @property
    def address(self) -> int:
        """Where the functions of the map lie in this process; compiles them at first. What they are where none run."""
        if build.stands_in:
            return self.sums + 2 * self.tops + 4 * self.learned
        return _address(self.source)

    def numbers(self, nodes: tuple[fx.Node, ...], given: Mapping[str, Tensor], shape: torch.Size) -> Tensor:
        """The values of `nodes`, (numbers, *shape), float32; `given`: what the map takes beside the scores, by name."""
        known: dict[fx.Node, Any] = {}
        found = [self._value(node, given, known).expand(shape) for node in nodes]
        return torch.stack(found) if found else torch.empty(0, *shape)

    def _value(self, node: fx.Node, given: Mapping[str, Tensor], known: dict[fx.Node, Any]) -> Any:
        if node not in known:
            if node.op == "placeholder":
                known[node] = given[node.name].float()
            elif (constant := _constant(node)) is not None:
                known[node] = torch.tensor(constant)
            else:
                arguments = fx.map_arg(node.args, lambda each: self._value(each, given, known))
                known[node] = node.target(*arguments, **node.kwargs)  # type: ignore[operator]
        return known[node]


@cache
def write(
    function: MapFunction, names: tuple[str, ...] = (), learned: tuple[str, ...] = (), sums: bool = False
) -> Written:
    """`function(scores, **names)` and its gradient in the scores and in `learned`, some of the names, as C++.

    sums: it returns what weights are before division, and what is summed; one tensor where both are the same.
    Raises Unsupported, with the reason, for a function that is not elementwise in the scores.
    """
    try:
        # what a shape decides would be a constant of the trace
        first, second = (_written(function, names, learned, sums, shape) for shape in ((2, 3), (3, 5)))
    except Unsupported:
        raise
    except Exception as error:
        raise Unsupported(f"it cannot be traced: {str(error).strip().partition(chr(10))[0]}") from error
    if first.source != second.source:
        raise Unsupported("it depends on how many scores there are; take `count`, the keys that a query may see")
    return first


def _written(
    function: MapFunction, names: tuple[str, ...], learned: tuple[str, ...], sums: bool, shape: tuple[int, int]
) -> Written:
    # late: the tracer takes a second to import
    from torch._decomp import core_aten_decompositions
    from torch.fx.experimental.proxy_tensor import make_fx

    def both(of_weight: Tensor, of_sum: Tensor, scores: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        scores = scores.detach().requires_grad_()
        rows = {name: x.detach().requires_grad_(name in learned) for name, x in zip(names, others, strict=True)}
        with torch.enable_grad():
            found = function(scores, **rows)
        weight, summed = found if isinstance(found, tuple) else (found, found)
        if weight.shape != scores.shape or summed.shape != scores.shape:
            raise Unsupported(f"it gives {tuple(weight.shape)} for scores {tuple(scores.shape)}")
        outputs, upstream = ([weight, summed], [of_weight, of_sum]) if sums else ([weight], [of_weight])
        leaves = [scores, *(rows[name] for name in learned)]
        gradients = torch.autograd.grad(outputs, leaves, upstream, allow_unused=True, materialize_grads=True)
        return weight.detach(), summed.detach(), *gradients

    # not drawn: a forward that traces must leave the generator as it was
    examples = [torch.full(shape, 0.5 + k) for k in range(3 + len(names))]
    graph = make_fx(both, decomposition_table=dict(core_aten_decompositions()))(*examples).graph
    places = [node for node in graph.nodes if node.op == "placeholder"]
    for place, name in zip(places, ("of_weight", "of_sum", "scores", *names), strict=True):
        place._rename(name)
    if any(node.op == "get_attr" for node in graph.nodes):
        raise Unsupported("it holds a tensor of its own; name it among `learned`")
    weight, summed, *gradients = graph.find_nodes(op="output")[0].args[0]
    return _Writer(places, "top" in names, sums, len(learned)).written(weight, summed, gradients)


class _Writer:
    """Writes nodes as C++. Numbers are nodes that depend on no score; those of the largest score wait for the tile."""

    def __init__(self, places: list[fx.Node], tops: bool, sums: bool, learned: int):
        self.places, self.tops, self.sums, self.learned = places, tops, sums, learned

    def written(self, weight: fx.Node, summed: fx.Node, gradients: list[fx.Node]) -> Written:
        values, scored = _before([weight, summed]), set(self.places[:3])
        every = _before([weight, summed, *gradients])
        # numbers of a query too: one that depends on places, or on other queries, would be read in vain
        self._lines(every, set())
        for node in every:
            if scored & set(node.all_input_nodes):
                scored.add(node)
        top = {node for node in self.places if node.name == "top"}
        for node in every:
            if top & set(node.all_input_nodes) and node not in scored:
                top.add(node)
        # the largest score is known in the backward, so that all numbers are computed outside
        backward = _read(every, scored, {weight, summed, *gradients})
        forward = _read([x for x in values if x in scored or x in top], scored | top, {weight, summed})
        if max(len(forward), len(backward)) > MOST_NUMBERS:
            most = max(len(forward), len(backward))
            raise Unsupported(f"it takes {most} numbers of a query, more than {MOST_NUMBERS}")
        first = 1 if self.tops else 0
        start = ["const Vec v_top(rows[0]);"] if self.tops else []
        start += [f"const Vec v_{node.name}(rows[{k + first}]);" for k, node in enumerate(forward)]
        start += self._lines([x for x in values if x in top and x.op != "placeholder"], set(forward))
        body = self._lines([x for x in values if x in scored], set())
        differentiated = [f"const Vec v_{x.name} = load(rows[{k}] + at + j, lanes);" for k, x in enumerate(backward)]
        differentiated += self._lines([x for x in every if x in scored], set())
        differentiated += [
            f"store(load(to_rows[{k}] + at + j, lanes) + {_text(x)}, to_rows[{k}] + at + j, lanes);"
            for k, x in enumerate(gradients[1:])
        ]
        inverse = "const Vec inverse_of = load(inverse + j, lanes), v_of_sum = load(of_sums + j, lanes);"
        of_weight = "load(gradients + j, lanes)" + (" * inverse_of" if self.sums else "")
        flags = ", ".join(str(flag).lower() for flag in (self.sums, self.tops))
        source = _UNIT.format(
            start="\n  ".join(start),
            body="\n    ".join(body),
            weight=_text(weight),
            adding="sum = sum + Vec::set(Vec(0.0f), " + _text(summed) + ", lanes);" if self.sums else "",
            inverse=inverse if self.sums else "",
            of_weight=of_weight,
            differentiated="\n    ".join(differentiated),
            divided=f"{_text(weight)}{' * inverse_of' if self.sums else ''}",
            gradient=_text(gradients[0]),
            members=f"{flags}, {len(forward) + first}, {len(backward)}, {self.learned}",
        )
        return Written(source, tuple(forward), tuple(backward), self.sums, self.tops, self.learned)

    def _lines(self, nodes: list[fx.Node], known: set[fx.Node]) -> list[str]:
        return [
            f"const Vec v_{node.name} = {_expression(node)};"
            for node in nodes
            if node not in known and node.op != "placeholder" and _constant(node) is None
        ]


def _before(roots: list[fx.Node]) -> list[fx.Node]:
    """All nodes that these are made of, in the order of the graph."""
    needed, open_nodes = set(), list(roots)
    while open_nodes:
        node = open_nodes.pop()
        if node not in needed:
            needed.add(node)
            open_nodes += node.all_input_nodes
    return [node for node in roots[0].graph.nodes if node in needed]


def _read(nodes: list[fx.Node], inside: set[fx.Node], results: set[fx.Node]) -> list[fx.Node]:
    """Nodes outside of `inside` that those inside read, constants left out."""
    found: dict[fx.Node, None] = {}
    for node in nodes:
        read = node.all_input_nodes if node in inside else []
        found |= {x: None for x in (*read, node) if x not in inside and (x is not node or x in results)}
    return [node for node in found if _constant(node) is None]


def _name(node: fx.Node) -> str:
    target = node.target
    return target._schema.name.partition("::")[2] if isinstance(target, torch._ops.OpOverload) else str(target)


def _constant(node: fx.Node) -> float | None:
    """The number that all entries of the node are, where the graph itself says so."""
    if node.op != "call_function" or (name := _name(node)) not in _CONSTANT:
        passed = node.op == "call_function" and name in ("detach", "alias", "clone")
        return _constant(node.all_input_nodes[0]) if passed else None
    if name in ("zeros_like", "zeros", "ones_like", "ones"):
        return float(name.startswith("ones"))
    value = node.args[0 if name == "scalar_tensor" else 1]
    return float(value) if isinstance(value, int | float) else None


def _expression(node: fx.Node) -> str:
    name, arguments = _name(node), [_text(x) for x in node.args if x is not None and not isinstance(x, torch.dtype)]
    # in place it is the same number, unless its input is read again
    if name.endswith("_") and len(node.all_input_nodes[0].users) == 1:
        name = name[:-1]
    if name in ("add", "sub"):
        alpha = node.kwargs.get("alpha", 1)
        second = arguments[1] if alpha == 1 else f"({arguments[1]} * {_text(alpha)})"
        return f"({arguments[0]} {'+' if name == 'add' else '-'} {second})"
    if name == "rsub":
        return f"({arguments[1]} - {arguments[0]})"
    if name == "pow" and isinstance(exponent := node.args[1], int | float):
        if exponent in (2, 3, 4):
            return "(" + " * ".join([arguments[0]] * int(exponent)) + ")"
        return _POWERS.get(float(exponent), "{0}.pow({1})").format(*arguments) if exponent != 1 else arguments[0]
    if name == "pow":
        return f"{arguments[0]}.pow({arguments[1]})"
    if name == "clamp":
        low, high = (*node.args[1:], None, None)[:2]
        text = arguments[0] if low is None else f"at::vec::maximum({arguments[0]}, {_text(low)})"
        return text if high is None else f"at::vec::minimum({text}, {_text(high)})"
    if name not in _SIMPLE:
        raise Unsupported(f"it computes {name}, and only what is elementwise in the scores can be fused")
    text = _SIMPLE[name].format(*arguments)
    made = node.meta.get("val", node.meta.get("tensor_meta"))
    is_read_as_number = name == "_to_copy" and getattr(made, "is_floating_point", lambda: True)()
    # a condition is a vector of bits
    return f"({text} & Vec(1.0f))" if is_read_as_number and _is_condition(node.args[0]) else text


def _is_condition(node: Any) -> bool:
    made = node.meta.get("val", node.meta.get("tensor_meta")) if isinstance(node, fx.Node) else None
    return getattr(made, "dtype", None) is torch.bool


def _text(x: Any) -> str:
    if isinstance(x, fx.Node):
        constant = _constant(x)
        return f"v_{x.name}" if constant is None else _text(constant)
    if isinstance(x, bool) or not isinstance(x, int | float):
        raise Unsupported(f"it computes with {x!r}, and only numbers and scores can be fused")
    if math.isnan(x) or math.isinf(x):
        limits = "std::numeric_limits<float>::"
        return f"Vec({limits}quiet_NaN())" if math.isnan(x) else f"Vec({'-' if x < 0 else ''}{limits}infinity())"
    return f"Vec(static_cast<float>({float(x)!r}))"


@cache
def _address(source: str) -> int:
    library = ctypes.CDLL(str(build.built(source)))
    return ctypes.addressof(ctypes.c_char.in_dll(library, "attnbench_map"))


_UNIT = """#include "map.h"

#include <limits>

namespace attnbench {{
namespace {{
using namespace map;

void weigh(float scale, int64_t n, float* x, const float* rows, float* total) {{
  {start}
  Vec sum(0.0f);
  by_vectors(n, [&](int64_t j, int64_t lanes) {{
    const Vec v_scores = load(x + j, lanes) * Vec(scale);
    {body}
    {adding}
    store({weight}, x + j, lanes);
  }});
  *total += total_of(sum);
}}

void differentiate(float scale, int64_t n, float* x, float* gradients, const float* const* rows, int64_t at,
                   const float* inverse, const float* of_sums, float* const* to_rows) {{
  by_vectors(n, [&](int64_t j, int64_t lanes) {{
    const Vec v_scores = load(x + j, lanes) * Vec(scale);
    {inverse}
    const Vec v_of_weight = {of_weight};
    {differentiated}
    store({divided}, x + j, lanes);
    store({gradient}, gradients + j, lanes);
  }});
}}
}}  // namespace
}}  // namespace attnbench

extern "C" const attnbench::Map attnbench_map = {{{members}, &attnbench::weigh, &attnbench::differentiate}};
"""
