"""Skips interpreted tests where the interpreter of the installed Triton does not run."""

from __future__ import annotations

import importlib.util

import pytest

from attnbench.variants.kernels.triton import interpreter


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Those that compile have a process of their own, without the interpreter."""
    if item.path.stem in ("test_compile", "test_specialisations", "test_interpreter"):
        return
    if interpreter.interpreted() and importlib.util.find_spec("triton") and (reason := interpreter.failure()):
        pytest.skip(reason)
