"""Every scoring function against explicit loops in float64, and where each starts, what it drops and refuses."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from score_cases import DIM, HEADS, heads, make
from torch import Tensor
from torch.nn import functional as F

from attnbench.bench.core.errors import SelectionError, Unsupported
from attnbench.variants import AttentionShape, Mask, Variant, build
from attnbench.variants.ops.dropout import WeightDropout

SELECTIONS = [
    "dot",
    "general",
    "additive",
    "additive[hidden=5,bias=true]",
    "additive[hidden=4,normalized=true]",
    "relative[clip=1]",
    "relative[clip=2]",
    "relative[clip=9,values=false]",
    "feedforward",
    "feedforward[hidden=4]",
    "location",
]
Scorer = Callable[[Variant, Tensor, Tensor, int, int, int], float]


def score_dot(variant: Any, q: Tensor, k: Tensor, h: int, i: int, j: int) -> float:
    return sum(float(a) * float(b) for a, b in zip(q, k, strict=True))


def score_general(variant: Any, q: Tensor, k: Tensor, h: int, i: int, j: int) -> float:
    w = variant.weight[h]
    return sum(float(q[a] * w[a, b] * k[b]) for a in range(DIM) for b in range(DIM))


def score_additive(variant: Any, q: Tensor, k: Tensor, h: int, i: int, j: int) -> float:
    direction = variant.direction[h].tolist()
    if variant.gain is not None:
        norm = math.sqrt(sum(x * x for x in direction))
        direction = [float(variant.gain[h]) * x / norm for x in direction]
    total = 0.0
    for unit, weight in enumerate(direction):
        inner = score_dot(variant, variant.query_weight[h, unit], q, h, i, j)
        inner += score_dot(variant, variant.key_weight[h, unit], k, h, i, j)
        inner += 0.0 if variant.bias is None else float(variant.bias[h, 0, unit])
        total += weight * math.tanh(inner)
    return total


def score_relative(variant: Any, q: Tensor, k: Tensor, h: int, i: int, j: int) -> float:
    row = max(-variant.clip, min(variant.clip, j - i)) + variant.clip
    return score_dot(variant, q, k + variant.key_table[row], h, i, j) / math.sqrt(DIM)


def score_feedforward(variant: Any, q: Tensor, k: Tensor, h: int, i: int, j: int) -> float:
    return sum(
        float(variant.direction[h, unit, 0])
        * math.tanh(score_dot(variant, variant.weight[h, unit], k, h, i, j) + float(variant.bias[h, 0, unit]))
        for unit in range(variant.weight.shape[1])
    )


def score_location(variant: Any, q: Tensor, k: Tensor, h: int, i: int, j: int) -> float:
    return score_dot(variant, variant.positions[h, j], q, h, i, j)


SCORERS: dict[str, Scorer] = {
    "dot": score_dot,
    "general": score_general,
    "additive": score_additive,
    "relative": score_relative,
    "feedforward": score_feedforward,
    "location": score_location,
}


def attend_by_loops(selection: str, variant: Any, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
    """Output and weights, one pair at a time."""
    name = selection.partition("[")[0]
    queries, keys = q.shape[2], k.shape[2]
    output, weights = torch.zeros_like(q), q.new_zeros(*q.shape[:3], keys)
    for b in range(q.shape[0]):
        for h in range(HEADS):
            for row in range(queries):
                i = row + (keys - queries if mask.causal else 0)
                seen = [
                    j for j in range(keys) if (mask.valid is None or mask.valid[b, j]) and (not mask.causal or j <= i)
                ]
                if not seen:
                    continue
                powers = [math.exp(SCORERS[name](variant, q[b, h, row], k[b, h, j], h, i, j)) for j in seen]
                for j, power in zip(seen, powers, strict=True):
                    share = power / sum(powers)
                    added = v[b, h, j]
                    if name == "relative" and variant.value_table is not None:
                        added = added + variant.value_table[max(-variant.clip, min(variant.clip, j - i)) + variant.clip]
                    weights[b, h, row, j] = share
                    output[b, h, row] += share * added
    return output, weights


@pytest.mark.parametrize("selection", SELECTIONS)
@torch.no_grad()
def test_output_and_weights_equal_explicit_loops(selection: str) -> None:
    variant = make(selection)
    sizes = [(5, 5), (1, 1), (3, 7), (7, 4)]
    for (queries, keys), causal, padded in itertools.product(sizes, (False, True), (False, True)):
        q, k, v = heads(queries, keys)
        valid = torch.ones(2, keys, dtype=torch.bool)
        valid[0, -1] = False  # one sequence ends early, the other begins late
        valid[1, : keys // 2] = False
        mask = Mask(valid if padded else None, causal)
        output, weights = attend_by_loops(selection, variant, q, k, v, mask)
        torch.testing.assert_close(variant(q, k, v, mask), output, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(variant.weights(q, k, mask), weights, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("selection", SELECTIONS)
@torch.no_grad()
def test_a_decoded_token_drops_as_the_parallel_one_does(selection: str) -> None:
    variant = make(selection, dropout=0.5)
    q, k, v = heads(1, 1, batch=20)
    torch.manual_seed(1)
    stepped, _ = variant.step(q, k, v)
    torch.manual_seed(1)
    torch.testing.assert_close(stepped, variant(q, k, v, Mask(causal=True)))
    assert not torch.equal(stepped, variant.eval()(q, k, v, Mask(causal=True)))


@pytest.mark.parametrize("selection", ["additive[hidden=0]", "feedforward[hidden=-1]", "relative[clip=0]"])
def test_sizes_below_one_are_refused_with_what_was_expected(selection: str) -> None:
    with pytest.raises(SelectionError, match=r"int from 1 to 65,536.* got"):
        build(selection, AttentionShape(heads=1, head_dim=4, max_length=4))


@torch.no_grad()
def test_dot_is_the_softmax_of_pytorch_without_its_scale() -> None:
    q, k, v = heads(6, 6)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)
    torch.testing.assert_close(make("dot")(q, k, v, Mask(causal=True)), expected)


@torch.no_grad()
def test_general_starts_at_scaled_dot_product_softmax() -> None:
    q, k, v = (x.float() for x in heads(6, 6))
    variant = build("general", AttentionShape(heads=HEADS, head_dim=DIM, max_length=6))
    torch.testing.assert_close(variant(q, k, v, Mask()), F.scaled_dot_product_attention(q, k, v))


def test_location_refuses_positions_that_it_has_no_weights_for() -> None:
    variant = make("location", max_length=5)
    assert variant.supports(AttentionShape(heads=HEADS, head_dim=DIM, max_length=5)) is None
    assert "5 positions, not for 6" in variant.supports(AttentionShape(heads=HEADS, head_dim=DIM, max_length=6))
    assert variant(*heads(5, 5), Mask()).isfinite().all()
    with pytest.raises(Unsupported, match="at most 5 keys, got 6"):
        variant(*heads(6, 6), Mask())


@torch.no_grad()
def test_dropout_of_feedforward_drops_a_key_whole_and_for_all_queries() -> None:
    variant = make("feedforward", dropout=0.4)
    q, k, v = heads(6, 6)
    pooled = variant(q, k, v, Mask())
    assert torch.equal(pooled, pooled[:, :, :1].expand_as(pooled))
    assert not torch.equal(pooled, variant(q, k, v, Mask()))
    # the first query sees one key, with weight 1: dropped, or scaled by 1 / 0.6
    first = torch.stack([variant(q, k, v, Mask(causal=True))[:, :, 0] / v[:, :, 0] for _ in range(50)])
    torch.testing.assert_close(first.unique().sort().values[[0, -1]], torch.tensor([0.0, 1 / 0.6]).double())
    assert torch.equal(first == 0, (first == 0).all(-1, keepdim=True).expand_as(first))


@pytest.mark.parametrize(("row", "wanted"), [(0, "far past"), (3, "next"), (2, "own")])
@torch.no_grad()
def test_rows_of_the_relative_tables_run_from_the_far_past_to_the_far_future(row: int, wanted: str) -> None:
    variant = make("relative[clip=2]", causal=False)
    variant.key_table.zero_()
    variant.key_table[row] = 1e3
    q, k = torch.ones(1, HEADS, 6, DIM, dtype=torch.float64), torch.zeros(1, HEADS, 6, DIM, dtype=torch.float64)
    seen = variant.weights(q, k, Mask())[0, 0, 3]
    expected = {"far past": [0.5, 0.5, 0, 0, 0, 0], "next": [0, 0, 0, 0, 1, 0], "own": [0, 0, 0, 1, 0, 0]}[wanted]
    torch.testing.assert_close(seen, torch.tensor(expected, dtype=torch.float64))


def test_dropout_of_relative_falls_on_the_weights_of_both_sums() -> None:
    variant = make("relative[clip=2]", dropout=0.5)
    q, k, v = heads(6, 6)
    torch.manual_seed(11)
    drop = WeightDropout.drawn(0.5, q.device)
    assert drop is not None
    dropped = drop.apply(variant.weights(q, k, Mask()))
    expected = torch.zeros_like(q)
    for i in range(6):
        for j in range(6):
            added = v[:, :, j] + variant.value_table[max(-2, min(2, j - i)) + 2]
            expected[:, :, i] += dropped[:, :, i, j, None] * added
    torch.manual_seed(11)
    torch.testing.assert_close(variant(q, k, v, Mask()), expected)
