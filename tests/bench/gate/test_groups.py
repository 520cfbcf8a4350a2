"""Shared heads: the gate finds a variant that pairs them wrongly, and runs all of its properties on them."""

from dataclasses import replace

import pytest

from attnbench.bench.gate import PROPERTIES
from attnbench.bench.gate import case as module
from attnbench.bench.gate.case import Case, RunSetting
from attnbench.bench.gate.suite import quick_gate
from attnbench.variants import AttentionShape

SHAPE = AttentionShape(heads=4, head_dim=8, max_length=48, causal=True)


def test_shared_heads_hold_and_one_head_shares_nothing():
    (grouped,) = [each for each in PROPERTIES if each.name == "grouped heads"]
    assert [grouped.examine(Case(name, SHAPE)).verdict for name in ("softmax", "local", "linear")] == ["holds"] * 3
    alone = grouped.examine(Case("softmax", replace(SHAPE, heads=1, kv_heads=1)))
    assert (alone.verdict, alone.detail) == ("n.a.", "needs several heads")


@pytest.mark.parametrize("name", ["softmax", "rela"])
def test_every_property_holds_where_the_shape_shares_heads(name):
    assert quick_gate(name, replace(SHAPE, kv_heads=2)) is None


def test_heads_that_share_one_key_are_not_made_fewer_for_ever(monkeypatch):
    # as at 1,024 tokens, where a million scores are those of one head: two that share a key are as few as there are
    monkeypatch.setattr(module, "REDUCED_SCORES", SHAPE.max_length**2)
    shape = replace(SHAPE, kv_heads=2)
    reduced = Case("softmax", shape, RunSetting(shape.max_length, 1, "own")).reduced
    assert (reduced.shape.heads, reduced.shape.kv_heads) == (2, 1)
    assert reduced.reduced is reduced
    assert quick_gate("softmax", shape, form="own") is None
