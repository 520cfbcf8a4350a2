"""Triton's interpreter, which runs kernels on a CPU: whether it is on, and launches that prepare it once.

Left to itself it puts its own functions in the place of Triton's language at every call of a function inside a kernel,
which is half of its time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np

ENABLE = "TRITON_INTERPRET=1"
"""Variables to set in the environment, before Triton is imported."""


def interpreted() -> bool:
    """True if kernels imported from now on run in Triton's interpreter."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def failure() -> str | None:
    """None, or why the interpreter of this Triton does not run here. Needs Triton."""
    import triton

    if _release(triton.__version__) < (3, 7) and _release(np.__version__) >= (2, 4):
        return (
            f"the interpreter of Triton {triton.__version__} does not run with NumPy {np.__version__}: "
            "use Triton 3.7 or later, or NumPy before 2.4"
        )
    return None


def _release(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:2]))


@contextmanager
def prepared_once() -> Iterator[None]:
    """Replace what the interpreter replaces once, and put it back at the end; another Triton is left as it is.

    The replaced functions are those of the modules that a kernel's file imports, so each set of modules has its turn.
    Numbers that leave their range or are divided by zero become infinite, and NaN passes, without a warning of
    NumPy's, as on a GPU.
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"), _replaced_once():
        yield


@contextmanager
def _replaced_once() -> Iterator[None]:
    from triton.runtime import interpreter

    # a private name of Triton: where another version lacks it, kernels run as slowly as they did
    prepare: Callable[[Any], Any] | None = getattr(interpreter, "_patch_lang", None)
    if prepare is None:
        yield
        return
    done: dict[frozenset[str], Any] = {}

    def once(function: Any) -> _Kept:
        modules = frozenset(one.__name__ for one in function.__globals__.values() if isinstance(one, ModuleType))
        if modules not in done:
            done[modules] = prepare(function)
        return _Kept()

    interpreter._patch_lang = once
    try:
        yield
    finally:
        interpreter._patch_lang = prepare
        for scope in reversed(done.values()):
            # Triton before 3.7 returns none, and puts back by itself
            if scope is not None:
                scope.restore()


class _Kept:
    """Stands for a preparation that outlives the call that asked for it."""

    def restore(self) -> None:
        """Do nothing yet: `prepared_once` puts everything back."""
