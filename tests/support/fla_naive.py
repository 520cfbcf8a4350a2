"""Naive functions of flash-linear-attention (package fla-core) in float64: oracles of recurrences and scores."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch


class Float64:
    """torch, with float64 in the place of float32: the functions cast their inputs and would round what is compared."""

    float = float32 = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def naive(place: str, name: str, patch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """The function `name` of `fla/PLACE`, loaded by itself: the package asks for Triton; skips where it is missing."""
    package = importlib.util.find_spec("fla")
    if package is None or package.origin is None:
        pytest.skip("the package fla-core is the oracle")
    spec = importlib.util.spec_from_file_location(f"fla_{Path(place).parent.name}", Path(package.origin).parent / place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    patch.setattr(module, "torch", Float64())
    patch.setattr(torch.Tensor, "float", torch.Tensor.double)
    function: Callable[..., Any] = getattr(module, name)

    def call(*given: Any, **named: Any) -> Any:
        # tensors that they make of nothing
        torch.set_default_dtype(torch.float64)
        try:
            return function(*given, **named)
        finally:
            torch.set_default_dtype(torch.float32)

    return call
