"""Maps as text: a function of the scores, traced once with its gradient, in expressions that C++ and Triton both read.

An expression calls functions by the names of PyTorch's operators, which the kernels define: `cpu/map.h` and
`triton/bodies.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx

from ..contract import Unsupported

MapFunction = Callable[..., Tensor | tuple[Tensor, Tensor]]
# as many as `MOST_NUMBERS` of tiles.cpp, of which one is kept for the largest score
MOST_NUMBERS = 15

_FUNCTIONS = {
    "abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "exp2", "expm1", "floor", "log",
    "log10", "log1p", "log2", "maximum", "minimum", "neg", "pow", "reciprocal", "relu", "round",
    "rsqrt", "sigmoid", "sigmoid_backward", "sign", "sin", "sinh", "sqrt", "tanh", "tanh_backward",
    "threshold_backward", "trunc", "where",
}  # fmt: skip
_OTHER_NAMES = {"clamp_min": "maximum", "clamp_max": "minimum", "sgn": "sign"}
_SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_COMPARED = {"gt": ">", "ge": ">=", "lt": "<", "le": "<=", "eq": "==", "ne": "!="}
_LOGIC = {"bitwise_and": "&", "logical_and": "&", "bitwise_or": "|", "logical_or": "|"}
_NOT = {"bitwise_not", "logical_not"}
_SAME = {"detach", "alias", "clone"}
_CONSTANT = {"full", "full_like", "scalar_tensor", "zeros_like", "ones_like", "zeros", "ones"}
# arguments by name that leave the numbers as they are
_HARMLESS = {"alpha", "device", "dtype", "layout", "memory_format", "non_blocking", "pin_memory"}
# not among PyTorch's core decompositions
_BY_PARTS = [
    *(torch.ops.aten.elu, torch.ops.aten.elu_backward, torch.ops.aten.gelu, torch.ops.aten.gelu_backward),
    *(torch.ops.aten.leaky_relu, torch.ops.aten.leaky_relu_backward, torch.ops.aten.hardtanh),
    *(torch.ops.aten.hardtanh_backward, torch.ops.aten.softplus, torch.ops.aten.softplus_backward),
]
_POWERS = {0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}


@dataclass(frozen=True, eq=False)
class Written:
    """A map and its gradients, as nodes of a graph in the order of computation.

    `gradients`: in the scores, then in each number of `learned`, by name. `forward` and `backward`: the numbers of a
    query that they take. `sums`: whether weights are divided by a sum over the keys; `tops`, `counts`: whether the map
    takes the largest score, and how many keys there are.
    """

    weight: fx.Node
    summed: fx.Node
    gradients: tuple[fx.Node, ...]
    forward: tuple[fx.Node, ...]
    backward: tuple[fx.Node, ...]
    sums: bool
    tops: bool
    counts: bool
    learned: tuple[str, ...]
    _scored: frozenset[fx.Node]
    _levels: tuple[fx.Node, ...]

    @property
    def levels(self) -> list[tuple[str, str]]:
        """Name and expression of what the largest score alone decides, once it is known; names here begin with `v_`."""
        return _expressions(x for x in self._levels if x not in self.forward)

    def lines(self, *results: fx.Node) -> list[tuple[str, str]]:
        """Name and expression of all that `results` are made of and that differs by score."""
        return _expressions(x for x in _before(results) if x in self._scored) if results else []

    def differs_by_score(self, node: fx.Node) -> bool:
        """True if its text stands for a number of each score, and not for one of a query or of all."""
        return node in self._scored and _constant(node) is None

    @property
    def rests(self) -> bool:
        """True if weight and gradient are finite for a query that asks nothing: scores 0, numbers 1, no gradient."""
        with torch.device("cpu"):
            given = dict.fromkeys(("of_weight", "of_sum", "scores", "count"), torch.zeros(()))
            known = {x: torch.ones((), dtype=torch.bool if _is_condition(x) else None) for x in self.backward}
            found = [self._value(node, given, known) for node in (self.weight, self.gradients[0])]
            return all(bool(torch.isfinite(x).all()) for x in found)

    def numbers(
        self, nodes: tuple[fx.Node, ...], shape: torch.Size, count: Tensor, learned: Sequence[Tensor], top: Any = None
    ) -> Tensor:
        """The values of `nodes`, (numbers, *shape), float32; a condition is 1 or 0.

        shape: (batch, heads, queries); count and top broadcast to it; learned: (heads,) each.
        """
        of_heads = {name: x[:, None] for name, x in zip(self.learned, learned, strict=True)}
        given = {"count": count, "top": top, **of_heads}
        known: dict[fx.Node, Any] = {}
        found = [self._value(node, given, known).expand(shape).float() for node in nodes]
        return torch.stack(found) if found else torch.empty(0, *shape, device=count.device)

    def _value(self, node: fx.Node, given: Mapping[str, Tensor], known: dict[fx.Node, Any]) -> Any:
        if node not in known:
            if node.op == "placeholder":
                known[node] = given[node.meta["given"]].float()
            elif (constant := _constant(node)) is not None:
                known[node] = given["count"].new_full((), constant)
            else:
                arguments = fx.map_arg(node.args, lambda each: self._value(each, given, known))
                known[node] = node.target(*arguments, **node.kwargs)  # type: ignore[operator]
        return known[node]


@cache
def write(
    function: MapFunction, names: tuple[str, ...] = (), learned: tuple[str, ...] = (), sums: bool = False
) -> Written:
    """`function(scores, **names)` with its gradient in the scores and in `learned`, some of the names.

    sums: it returns what weights are before division, and what is summed; one tensor where both are the same.
    Raises Unsupported, with the reason, for a function that is not elementwise in the scores.
    """
    # a forward in inference mode, under a checkpoint, which saves tensors its own way, or on another device traces what
    # any other does
    as_they_are = torch.autograd.graph.saved_tensors_hooks(torch.Tensor.detach, torch.Tensor.detach)
    off = torch.inference_mode(False), torch.autograd.set_detect_anomaly(False)
    try:
        with off[0], off[1], as_they_are, torch.device("cpu"):
            # what a shape decides would be a constant of the trace
            first, second = (_written(function, names, learned, sums, shape) for shape in ((2, 3), (3, 5)))
            # numbers of a query too: one that depends on places, or on other queries, would be read in vain
            texts = [_expressions(_before((x.weight, x.summed, *x.gradients))) for x in (first, second)]
    except Unsupported:
        raise
    except Exception as error:
        raise Unsupported(f"it cannot be traced: {str(error).strip().partition(chr(10))[0]}") from error
    if texts[0] != texts[1]:
        raise Unsupported("it depends on how many scores there are; take `count`, the keys that a query may see")
    return first


def _written(
    function: MapFunction, names: tuple[str, ...], learned: tuple[str, ...], sums: bool, shape: tuple[int, int]
) -> Written:
    # late: the tracer takes a second to import
    from torch._decomp import core_aten_decompositions, get_decompositions
    from torch.fx.experimental.proxy_tensor import make_fx

    def both(of_weight: Tensor, of_sum: Tensor, scores: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        scores = scores.detach().requires_grad_()
        rows = {name: x.detach().requires_grad_(name in learned) for name, x in zip(names, others, strict=True)}
        with torch.enable_grad():
            found = function(scores, **rows)
        weight, summed = found if isinstance(found, tuple) else (found, found)
        if weight.shape != scores.shape or summed.shape != scores.shape:
            raise Unsupported(f"it gives {tuple(weight.shape)} for scores {tuple(scores.shape)}")
        if not (weight.dtype == summed.dtype == scores.dtype):
            raise Unsupported(f"it gives {weight.dtype} and {summed.dtype} for scores of {scores.dtype}")
        pairs = [(weight, of_weight), (summed, of_sum)] if sums else [(weight, of_weight)]
        # a step has no slope
        outputs = [pair for pair in pairs if pair[0].requires_grad]
        leaves = [scores, *(rows[name] for name in learned)]
        gradients = [torch.zeros_like(leaf) for leaf in leaves]
        if outputs:
            made, upstream = zip(*outputs, strict=True)
            gradients = list(torch.autograd.grad(made, leaves, upstream, allow_unused=True, materialize_grads=True))
        return weight.detach(), summed.detach(), *gradients

    # not drawn: a forward that traces must leave the generator as it was
    examples = [torch.full(shape, 0.5 + k) for k in range(3 + len(names))]
    by_parts = {**core_aten_decompositions(), **get_decompositions(_BY_PARTS)}
    traced = make_fx(both, decomposition_table=by_parts)(*examples)
    # again, so that nothing is done in place
    graph = make_fx(torch.func.functionalize(traced))(*examples).graph
    places = [node for node in graph.nodes if node.op == "placeholder"]
    for place, name in zip(places, ("of_weight", "of_sum", "scores", *names), strict=True):
        place._rename(name)
        # a word of Python's or of the graph's own is renamed
        place.meta["given"] = name
    if any(node.op == "get_attr" and _constant(node) is None for node in graph.nodes):
        raise Unsupported("it holds a tensor of its own; name it among `learned`")
    weight, summed, *gradients = graph.find_nodes(op="output")[0].args[0]
    return _ordered(places, _itself(weight), _itself(summed), tuple(gradients), sums, learned)


def _ordered(
    places: list[fx.Node],
    weight: fx.Node,
    summed: fx.Node,
    gradients: tuple[fx.Node, ...],
    sums: bool,
    learned: tuple[str, ...],
) -> Written:
    """Numbers are nodes that depend on no score; those of the largest score wait for the tile in the forward."""
    values, every = _before((weight, summed)), _before((weight, summed, *gradients))
    scored = set(places[:3])
    for node in every:
        if scored & set(node.all_input_nodes):
            scored.add(node)
    top = {node for node in places if node.meta["given"] == "top"}
    for node in every:
        if top & set(node.all_input_nodes) and node not in scored:
            top.add(node)
    # the largest score is known in the backward, so that all numbers are computed outside
    backward = _read(every, scored, {weight, summed, *gradients})
    forward = _read([x for x in values if x in scored or x in top], scored | top, {weight, summed})
    if max(len(forward), len(backward)) > MOST_NUMBERS:
        most = max(len(forward), len(backward))
        raise Unsupported(f"it takes {most} numbers of a query, more than {MOST_NUMBERS}")
    return Written(
        *(weight, summed, gradients, tuple(forward), tuple(backward), sums),
        tops=any(node.meta["given"] == "top" for node in places),
        counts=any(node.meta["given"] == "count" for node in places),
        learned=learned,
        _scored=frozenset(scored),
        _levels=tuple(x for x in values if x in top),
    )


def _before(roots: tuple[fx.Node, ...]) -> list[fx.Node]:
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


def _itself(node: fx.Node) -> fx.Node:
    """The node that it is another name of."""
    return _itself(node.all_input_nodes[0]) if operation(node) in _SAME else node


def _expressions(nodes: Iterable[fx.Node]) -> list[tuple[str, str]]:
    return [(f"v_{x.name}", _expression(x)) for x in nodes if x.op != "placeholder" and _constant(x) is None]


def operation(node: fx.Node) -> str:
    """The name of its operator."""
    target = node.target
    return target._schema.name.partition("::")[2] if isinstance(target, torch._ops.OpOverload) else str(target)


def _constant(node: fx.Node) -> float | None:
    """The number that all entries of the node are, where the graph itself says so."""
    if node.op == "get_attr":
        held = getattr(node.graph.owning_module, str(node.target))
        return float(held) if held.ndim == 0 else None
    name = operation(node) if node.op == "call_function" else ""
    if name in _SAME or name == "lift_fresh_copy":
        return _constant(node.all_input_nodes[0])
    if name not in _CONSTANT:
        return None
    if name in ("zeros_like", "zeros", "ones_like", "ones"):
        return float(name.startswith("ones"))
    value = node.args[0 if name == "scalar_tensor" else 1]
    return float(value) if isinstance(value, int | float) else None


def _expression(node: fx.Node) -> str:
    name, given = operation(node), [x for x in node.args if x is not None and not isinstance(x, torch.dtype)]
    if unknown := [word for word, x in node.kwargs.items() if x is not None and word not in _HARMLESS]:
        raise Unsupported(f"it computes {name} with {unknown[0]}={node.kwargs[unknown[0]]}, which cannot be fused")
    decides = _is_condition(node)
    if name in _SAME or name in ("copy", "_to_copy"):
        dtype, was = _dtype(node), _dtype(given[-1])
        if dtype in (torch.float16, torch.bfloat16):
            raise Unsupported(f"it computes in {dtype}, and fused code in float32")
        if decides:
            return _condition(given[-1])
        cut = dtype is not None and not dtype.is_floating_point and was is not None and was.is_floating_point
        return f"trunc({_number(given[-1])})" if cut else _number(given[-1])
    if name in _LOGIC and decides:
        return f"({_condition(given[0])} {_LOGIC[name]} {_condition(given[1])})"
    if name in _NOT and decides:
        return f"logical_not({_condition(given[0])})"
    if name == "where" and not decides:
        return f"where({_condition(given[0])}, {_number(given[1])}, {_number(given[2])})"
    arguments = [_number(x) for x in given]
    if name == "isnan":
        return f"({arguments[0]} != {arguments[0]})"
    if name in _COMPARED:
        if name == "le" and given[1] == 0 and operation(of := _itself(node.all_input_nodes[0])) == "relu":
            # the derivative of ReLU: true in the same places without the maximum
            arguments[0] = _number(of.args[0])
        return f"({arguments[0]} {_COMPARED[name]} {arguments[1]})"
    if decides:
        raise Unsupported(f"it computes {name} of conditions, and only numbers can be fused")
    if name in ("add", "sub") and (alpha := node.kwargs.get("alpha", 1)) != 1:
        arguments[1] = f"({arguments[1]} * {text(alpha)})"
    if name in _SIGNS:
        return f"({arguments[0]} {_SIGNS[name]} {arguments[1]})"
    if name == "rsub":
        return f"({arguments[1]} - {arguments[0]})"
    if name == "pow" and isinstance(exponent := node.args[1], int | float):
        if exponent in (1, 2, 3, 4):
            return "(" + " * ".join([arguments[0]] * int(exponent)) + ")"
        if exponent in _POWERS:
            return f"{_POWERS[float(exponent)]}({arguments[0]})"
    if name == "clamp":
        low, high = (*node.args[1:], None, None)[:2]
        least = arguments[0] if low is None else f"maximum({arguments[0]}, {_number(low)})"
        return least if high is None else f"minimum({least}, {_number(high)})"
    name = _OTHER_NAMES.get(name, name)
    if name not in _FUNCTIONS:
        raise Unsupported(f"it computes {name}, and only what is elementwise in the scores can be fused")
    return f"{name}({', '.join(arguments)})"


def _dtype(node: Any) -> torch.dtype | None:
    made = node.meta.get("val", node.meta.get("tensor_meta")) if isinstance(node, fx.Node) else None
    return getattr(made, "dtype", None)


def _is_condition(node: Any) -> bool:
    """True if it is a condition, which code keeps apart from numbers."""
    return _dtype(node) is torch.bool


def _number(x: Any) -> str:
    return f"as_number({text(x)})" if _is_condition(x) and _constant(x) is None else text(x)


def _condition(x: Any) -> str:
    return text(x) if _is_condition(x) and _constant(x) is None else f"({text(x)} != number(0.0))"


def read(nodes: tuple[fx.Node, ...], place: str, first: int = 0) -> list[tuple[str, str]]:
    """Name and expression of numbers of a query; `{}` in `place` stands for which, from `first` on."""
    each = [(x, place.format(k + first)) for k, x in enumerate(nodes)]
    return [(f"v_{x.name}", f"({at} != number(0.0))" if _is_condition(x) else at) for x, at in each]


def text(x: Any) -> str:
    """A node or a number in an expression. Raises Unsupported for anything else."""
    if isinstance(x, fx.Node):
        constant = _constant(x)
        return f"v_{x.name}" if constant is None else text(constant)
    if isinstance(x, bool) or not isinstance(x, int | float):
        raise Unsupported(f"it computes with {x!r}, and only numbers and scores can be fused")
    if math.isnan(x) or math.isinf(x):
        return "number(NAN)" if math.isnan(x) else f"number({'-' if x < 0 else ''}INFINITY)"
    return f"number({float(x)!r})"
