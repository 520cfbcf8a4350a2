"""Implementations of the variants with kernels, and why a test of one of them skips here."""

from __future__ import annotations

import pytest

from attnbench.variants.kernels.cpu import build as cpu_build
from attnbench.variants.kernels.triton import launch as triton_launch


def require(impl: str) -> None:
    """Skips the test where `impl` cannot run: no C++ compiler, no Triton, no interpreter for it."""
    if impl == "cpp" and cpu_build.failure():
        pytest.skip(f"no C++ kernels here: {cpu_build.failure()}")
    if impl == "triton":
        pytest.importorskip("triton", reason="Triton is not installed")
        if not triton_launch.interpreted():
            pytest.skip("needs TRITON_INTERPRET=1")
        if reason := triton_launch.failure():
            pytest.skip(reason)
