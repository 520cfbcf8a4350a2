"""Every scoring function against explicit loops in float64."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from score_cases import DIM, HEADS, heads, largest_of_a_training_step, make
from torch import Tensor

from attnbench.bench.core.errors import SelectionError
from attnbench.variants import AttentionShape, Mask, Variant, build

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


@pytest.mark.parametrize(("selection", "elements"), [("relative", 600 * 600), ("feedforward", 608 * 33)])
def test_no_tensor_is_larger_than_the_mechanism_needs(selection: str, elements: int) -> None:
    variant = build(selection, AttentionShape(heads=1, head_dim=32, max_length=600, causal=True))
    assert largest_of_a_training_step(variant, 600) <= elements + 64 * 600


@pytest.mark.parametrize("selection", ["additive[hidden=0]", "feedforward[hidden=-1]", "relative[clip=0]"])
def test_sizes_below_one_are_refused_with_what_was_expected(selection: str) -> None:
    with pytest.raises(SelectionError, match=r"int from 1 to 65,536.* got"):
        build(selection, AttentionShape(heads=1, head_dim=4, max_length=4))
