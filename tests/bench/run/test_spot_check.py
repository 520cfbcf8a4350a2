"""Rows of the run itself are tested for the future, on layers that are right under the gate alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from attnbench.bench.core.spec import Spec
from attnbench.bench.run.spot_check import SpotCheck
from attnbench.variants.contract import AttentionShape, Mask, ScoredVariant

SHAPE = AttentionShape(heads=2, head_dim=8, max_length=12, causal=True)


class Honest(ScoredVariant):
    pass


class Leaks(Honest):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        return super().forward(query, key, value, mask) + value.mean(2, keepdim=True)


class Counts(Honest):
    """Has a state that a call changes."""

    calls = 0

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        self.calls += 1
        return super().forward(query, key, value, mask)


@pytest.fixture
def foreign(tmp_path: Path) -> Spec:
    (tmp_path / "mine.py").write_text("class Mine: pass", encoding="utf-8")
    return Spec(f"{tmp_path}/mine.py:Mine")


def watched(variant: ScoredVariant, spec: Spec, calls: int = 12) -> SpotCheck:
    check = SpotCheck(spec, torch.device("cpu"), share=1.0)
    draw = torch.Generator().manual_seed(0)
    heads = [torch.randn(3, 2, 12, 8, generator=draw) for _ in range(3)]
    with check.watching([variant]):
        for _ in range(calls):
            variant(*heads, Mask(causal=True))
    return check


def test_a_layer_that_leaks_in_the_run_is_found_and_an_honest_one_passes(foreign: Spec) -> None:
    assert "positions from" in watched(Leaks(SHAPE), foreign).found
    assert watched(Honest(SHAPE), foreign, calls=100).found == ""
    assert watched(Leaks(SHAPE), foreign, calls=1).found == ""


def test_our_own_code_is_not_watched() -> None:
    variant = Leaks(SHAPE)
    assert not SpotCheck(Spec("softmax"), torch.device("cpu"), share=1.0).is_on
    assert watched(variant, Spec("softmax")).found == ""


def test_no_draw_and_no_state_of_the_run_changes(foreign: Spec) -> None:
    variant = Counts(SHAPE)
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    watched(variant, foreign, calls=5)
    assert torch.equal(torch.rand(3), expected) and variant.calls == 5 and not variant._forward_hooks
