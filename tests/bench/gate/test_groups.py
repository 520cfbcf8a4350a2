"""Shared heads: the gate finds a variant that pairs them wrongly, and runs all of its properties on them."""

from dataclasses import replace

import pytest
import torch

from attnbench.bench.gate import PROPERTIES
from attnbench.bench.gate import case as module
from attnbench.bench.gate.case import Case, RunSetting
from attnbench.bench.gate.suite import quick_gate
from attnbench.variants import AttentionShape
from attnbench.variants.contract import ScoredVariant

SHAPE = AttentionShape(heads=4, head_dim=8, max_length=48, causal=True)


class Interleaved(ScoredVariant):
    """Pairs query head h with key head h modulo their number, where groups stand side by side."""

    grouped = True

    def forward(self, query, key, value, mask):
        times = query.shape[1] // key.shape[1]
        return super().forward(query, key.repeat(1, times, 1, 1), value.repeat(1, times, 1, 1), mask)


class Ungrouped(ScoredVariant):
    """Decodes with keys that nobody repeated."""

    def step(self, query, key, value, state=None):
        past = key.new_zeros(*query.shape[:2], 0, key.shape[3]) if state is None else state
        past = torch.cat([past, key], 2)
        return super().step(query, key, value, None)[0], past


@pytest.mark.parametrize(("variant", "where"), [(Interleaved, "4 heads on 2"), (Ungrouped, "raised")])
def test_wrong_pairs_of_heads_are_found(variant, where):
    found = quick_gate(variant, SHAPE)
    assert found is not None and found.property == "grouped heads" and where in found.detail


def test_shared_heads_hold_and_one_head_shares_nothing():
    (grouped,) = [each for each in PROPERTIES if each.name == "grouped heads"]
    assert [grouped.examine(Case(name, SHAPE)).verdict for name in ("softmax", "local", "linear")] == ["holds"] * 3
    alone = grouped.examine(Case("softmax", replace(SHAPE, heads=1, kv_heads=1)))
    assert (alone.verdict, alone.detail) == ("n.a.", "one head shares nothing")


@pytest.mark.parametrize("name", ["softmax", "rela"])
def test_every_property_holds_where_the_shape_shares_heads(name):
    assert quick_gate(name, replace(SHAPE, kv_heads=2)) is None


def test_heads_that_share_one_key_are_not_made_fewer_for_ever(monkeypatch):
    # as at 1,024 tokens, where a million scores are those of one head: two that share a key are as few as there are
    monkeypatch.setattr(module, "NARROW_SCORES", SHAPE.max_length**2)
    shape = replace(SHAPE, kv_heads=2)
    reduced = Case("softmax", shape, RunSetting(shape.max_length, 1, "own")).reduced
    assert (reduced.shape.heads, reduced.shape.kv_heads) == (2, 1)
    assert reduced.reduced is reduced
    assert quick_gate("softmax", shape, form="own") is None
