"""Implementations of the variants with kernels, and why a test of one of them skips here."""

from __future__ import annotations

import pytest

from attnbench.variants.kernels import gpu
from attnbench.variants.kernels.cpu import build as cpu_build

NO_TRITON = not gpu.installed()
"""True where the Triton kernels were left out, or Triton is not installed."""


def missing(impl: str) -> str:
    """Why `impl` cannot run on this CPU, or nothing: no C++ compiler, no Triton, no interpreter for it."""
    if impl == "cpp":
        return cpu_build.failure() or ""
    if impl != "triton":
        return ""
    if NO_TRITON:
        return "no Triton kernels, or no Triton"
    if not gpu.interpreted():
        return "needs TRITON_INTERPRET=1"
    return gpu.failure() or ""


def require(impl: str) -> None:
    """Skips the test where `impl` cannot run."""
    if reason := missing(impl):
        pytest.skip(reason)
