"""torch.compile of what a sweep times: one graph of the forward pass, how long it took, and that it computes the same.

A level of a sweep with `compile=true` is compiled as a user compiles a model: the forward pass as one graph, whose
backward pass the compiler derives; the optimiser stays as it is. A forward pass that breaks into several graphs would
run partly as plain operators and be published as compiled, so it is refused, with the number of its graph breaks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from time import perf_counter
from types import FunctionType
from typing import Any, cast

import torch
from torch import Tensor

from ...core.errors import Unsupported
from ...gate.build import Incorrect
from ...gate.numerics import row_error
from ...measure.timer import Work

MOST_CALLS = 4
"""Warm-up calls. After these, any recompilation is an error: a first step may leave guards that the second meets."""

ALLOWED_ERROR, ROUNDINGS = 2e-3, 8
"""Tolerance of compiled against eager, relative, and in units of rounding; the larger counts. Sums are reordered."""

SMALL = 0.01
"""A gradient smaller than this share of the usual one is held against that: some are zero but for rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compilation:
    """`seconds`: spent on compiling, from empty caches, beyond the time of the work itself. `graphs`: made of it."""

    seconds: float
    graphs: int


def compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`function`, to be compiled as one graph, for the shapes of its first call."""
    return cast("Callable[..., Tensor]", torch.compile(_own_code(function), fullgraph=True, dynamic=False))


def compile_now(work: Work, function: Callable[[], object]) -> Compilation:
    """Calls `work`, which calls a compiled `function`, until nothing is compiled any more.

    Raises Unsupported where `function` is no single graph, where the compiler fails, as without a C++ compiler on a
    CPU, where each call is compiled anew, and where nothing was compiled at all.
    """
    from torch._dynamo.exc import TorchDynamoException

    started = _graphs()
    spent = []
    try:
        with _empty_caches():
            for _ in range(MOST_CALLS):
                before, begun = _graphs(), perf_counter()
                work()
                spent.append(perf_counter() - begun)
                if _graphs() == before:
                    break
            else:
                raise Unsupported(f"torch.compile: each of {MOST_CALLS} calls was compiled anew")
    except TorchDynamoException as error:
        breaks = _graph_breaks(function)
        problem = f"torch.compile: {_first_lines(error)}"
        raise Unsupported(f"{problem}; graph breaks: {breaks}" if breaks else problem) from error
    if _graphs() == started:
        raise Unsupported("torch.compile: nothing was compiled; is TORCHDYNAMO_DISABLE or TORCH_COMPILE_DISABLE set?")
    # the last call compiled nothing, and is what each of the others would have taken
    return Compilation(seconds=max(sum(spent) - len(spent) * spent[-1], 0.0), graphs=_graphs() - started)


def require_same(eager: list[Tensor], found: list[Tensor], dtype: torch.dtype) -> None:
    """Raises Incorrect where output or gradients of the compiled form differ from those of the eager one.

    The first tensor is the output, (..., features), of which nine of ten rows are to agree: rounding may flip a choice
    of keys. The others are gradients; each is held against its own norm, or a hundredth of the usual one.
    """
    allowed = max(ALLOWED_ERROR, ROUNDINGS * torch.finfo(dtype).eps)
    error = row_error(found[0], eager[0])
    # not >, so that a number that is none fails
    if not error <= allowed:
        raise Incorrect(f"compiled: its output differs from that of the eager form by {error:.1e}")
    sizes = [float(gradient.double().norm()) for gradient in eager[1:]]
    usual = (sum(size**2 for size in sizes) / len(sizes)) ** 0.5 if sizes else 0.0
    for at, (ours, theirs, size) in enumerate(zip(found[1:], eager[1:], sizes, strict=True)):
        gap = float((ours.double() - theirs.double()).norm())
        if not gap <= allowed * max(size, SMALL * usual):
            raise Incorrect(
                f"compiled: its gradient {at} of {len(sizes)} differs from that of the eager form by "
                f"{gap / max(size, 1e-30):.1e}"
            )


def _own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function with a code object of its own.

    Compiled graphs are kept by code object: those of all variants of a job would be looked through at each call, and
    the ninth would be refused as one too many.
    """
    assert isinstance(function, FunctionType)
    code, name = function.__code__.replace(), function.__name__
    return FunctionType(code, function.__globals__, name, function.__defaults__, function.__closure__)


@contextmanager
def _empty_caches() -> Iterator[None]:
    """Compilers find nothing of an earlier run: how long they take would depend on what was compiled before."""
    from torch._inductor.utils import fresh_inductor_cache

    # the compiler's progress bar, which nobody sees here, would leave a thread behind; torch has a stand-in where the
    # package tqdm is not installed
    bar: Any = torch.hub.tqdm  # type: ignore[attr-defined]
    interval = getattr(bar, "monitor_interval", 0)
    bar.monitor_interval = 0
    try:
        with fresh_inductor_cache():
            yield
    finally:
        bar.monitor_interval = interval


def _graphs() -> int:
    """Graphs that were compiled in this process so far."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def _graph_breaks(function: Callable[[], object]) -> int:
    """Places at which a forward pass leaves its graph, by tracing it in pieces."""
    from torch._dynamo.utils import counters

    before = sum(counters["graph_break"].values())
    # whatever else it may stumble over, it was refused already
    with suppress(Exception), torch.no_grad():
        torch.compile(_own_code(function), backend="eager", dynamic=False)()
    return int(sum(counters["graph_break"].values()) - before)


def _first_lines(error: Exception) -> str:
    """The compiler's message without its advice and its traceback."""
    lines = [line.strip() for line in str(error).split("\n")]
    kept = [line for line in lines[:8] if line and not line.startswith(("Hint:", "Developer debug context:"))]
    return " ".join(kept[:3])[:300]
