"""Faults planted into variants and wrappers that take the hidden state, select keys or decode, and what finds each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

from attnbench.bench.gate import quick_gate
from attnbench.variants.contract import AttentionShape, Variant
from attnbench.variants.linear.delta import Delta
from attnbench.variants.ops.recurrences import delta_rule
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


class DeltaWhosePaddingDecays(Delta):
    def __init__(self, shape: AttentionShape):
        super().__init__(shape, decay="channel")

    def recur(self, query: Tensor, key: Tensor, value: Tensor, real: Tensor, hidden: Tensor) -> Tensor:
        rate = self._rate(hidden).masked_fill(~real[:, None], 0.0)
        return delta_rule(self.read(query), self.read(key), value, rate, self._log_decay(hidden))


class DeltaThatDecodesPositiveEigenvalues(Delta):
    def __init__(self, shape: AttentionShape):
        super().__init__(shape, eigenvalues="signed")

    def advance(self, key: Tensor, value: Tensor, state: Tensor, hidden: Tensor) -> Tensor:
        self.most = 1.0
        state = super().advance(key, value, state, hidden)
        self.most = 2.0
        return state


FAULTS: dict[Callable[..., Variant], str] = {
    WindowThatGrows: "grouped heads",
    DeltaWhosePaddingDecays: "padding content",
    DeltaThatDecodesPositiveEigenvalues: "grouped heads",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_gate_names_the_property_that_a_fault_breaks(fault: Callable[..., Variant]) -> None:
    finding = quick_gate(fault, SHAPE)
    assert finding is not None
    assert finding.property == FAULTS[fault]
