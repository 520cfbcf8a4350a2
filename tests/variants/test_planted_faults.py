"""Faults planted into variants and wrappers that take the hidden state, select keys or decode, and what finds each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

from attnbench.bench.gate import quick_gate
from attnbench.variants.contract import AttentionShape, Variant
from attnbench.variants.sparse.window import Window

SHAPE = AttentionShape(heads=2, head_dim=8, max_length=80, causal=True)


class WindowThatGrows(Window):
    def __init__(self, shape: AttentionShape):
        super().__init__(shape, size=7, sink="learned")

    def step(self, query: Tensor, key: Tensor, value: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        if state is None:
            return super().step(query, key, value)
        state.append(key, value)
        return self._attend(query, state.key, state.value, None), state


FAULTS: dict[Callable[..., Variant], str] = {
    WindowThatGrows: "decode",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_gate_names_the_property_that_a_fault_breaks(fault: Callable[..., Variant]) -> None:
    finding = quick_gate(fault, SHAPE)
    assert finding is not None
    assert finding.property == FAULTS[fault]
