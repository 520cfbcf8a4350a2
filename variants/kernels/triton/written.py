"""Maps of `ops/written.py` in Triton: three functions of a tile, which the kernels of `maps` call."""

from __future__ import annotations

import hashlib
import linecache
import math
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import triton
import triton.language as tl
from torch import fx

from ...contract import Unsupported
from ...ops.written import Written, operation, read, text
from .bodies import BODIES


@dataclass(frozen=True, eq=False)
class Functions:
    """Functions of a tile of scores; numbers of a query are loaded inside, at `numbers + k * plane + at`.

    `weigh` gives weights, not yet divided, and what is summed; `differentiate` weights and the gradient of the scores;
    `learn` the gradients of learned numbers, summed over the keys that are `seen`: (places, queries). `is_rectified`:
    the weights are to be rectified yet, which a kernel does as it converts them. `rests`: `Written.rests`.
    """

    weigh: Any
    differentiate: Any
    learn: Any
    is_rectified: bool
    rests: bool


@cache
def functions(written: Written) -> Functions:
    """The functions of a map. Raises Unsupported for an operator that Triton lacks."""
    weight, summed, (of_scores, *of_learned) = written.weight, written.summed, written.gradients
    # ReLU costs nothing where it is a part of the conversion to 16 bits
    is_rectified = not written.sums and written.differs_by_score(weight) and operation(weight) == "relu"
    if is_rectified:
        weight = summed = weight.all_input_nodes[0]
    loaded, of_backward = (read(nodes, _NUMBER) for nodes in (written.forward, written.backward))
    values = _assigned([*loaded, *written.levels, *written.lines(weight, summed)])
    gradients = _assigned([*of_backward, *written.lines(weight, of_scores)])
    learned = _assigned([*of_backward, *written.lines(*of_learned)])
    learned += ["found = tl.zeros([PLACES, seen.shape[0]], tl.float32)"]
    for k, node in enumerate(of_learned):
        each = f"tl.sum(tl.where(seen, {_wide(written, node)}, 0.0), 1)"
        learned += [f"found += tl.where(tl.arange(0, PLACES)[:, None] == {k}, {each}[None, :], 0.0)"]
    source = _MODULE.format(
        values="\n    ".join(values),
        gradients="\n    ".join(gradients),
        learned="\n    ".join(learned),
        weight=_wide(written, weight),
        summed=_wide(written, summed),
        gradient=_wide(written, of_scores),
    )
    known = {
        "__name__": __name__,
        "triton": triton,
        "tl": tl,
        "NAN": tl.constexpr(math.nan),
        "INFINITY": tl.constexpr(math.inf),
    }
    source = "".join(f"@triton.jit\ndef {head}:\n    return {body}\n\n\n" for head, body in BODIES.items()) + source
    called, written_here = ({*re.findall(rf"{before}([a-z_0-9]+)\(", source)} for before in (r"(?<![.\w])", "def "))
    if lacking := sorted(called - written_here):
        raise Unsupported(f"Triton has no {lacking[0]}; use impl=eager, or write it by others of PyTorch's operators")
    # Triton reads the source of a function, where tracebacks look for it too
    name = f"<map {hashlib.sha256(source.encode()).hexdigest()[:16]}>"
    linecache.cache[name] = (len(source), None, [f"{line}\n" for line in source.split("\n")], name)
    exec(compile(source, name, "exec"), known)
    return Functions(known["weigh"], known["differentiate"], known["learn"], is_rectified, written.rests)


def _assigned(lines: list[tuple[str, str]]) -> list[str]:
    return [f"{name} = {expression}" for name, expression in lines]


def _wide(written: Written, node: fx.Node) -> str:
    """A node as a number of each score."""
    return text(node) if written.differs_by_score(node) else f"(tl.zeros_like(v_scores) + {text(node)})"


_NUMBER = "tl.load(numbers + {} * plane + at, mask=inside, other=1.0)"

_MODULE = """
@triton.jit
def weigh(v_scores, v_top, numbers, at, inside, plane):
    {values}
    return {weight}, {summed}


@triton.jit
def differentiate(v_scores, v_of_weight, v_of_sum, numbers, at, inside, plane):
    {gradients}
    return {weight}, {gradient}


@triton.jit
def learn(v_scores, v_of_weight, v_of_sum, seen, numbers, at, inside, plane, PLACES: tl.constexpr):
    {learned}
    return found
"""
