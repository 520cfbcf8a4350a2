"""What attention does on real batches, against sums made by hand."""

import math

import pytest
import torch

from attnbench.bench.measure.attention.statistics import AttentionSums, count_rows, measurements_of
from attnbench.variants import Mask


def sums(weights: torch.Tensor, mask: Mask, chunk: int = 128) -> dict[str, float]:
    found = AttentionSums(weights.shape[1])
    queries = weights.shape[2]
    for first in range(0, queries, chunk):
        rows = slice(first, min(first + chunk, queries))
        count_rows(found, weights[:, :, rows], mask, queries, rows)
    measured = measurements_of({0: found})
    return {f"{m.name}{m.where.get('block', '')}": m.value for m in measured if "head" not in m.where}


def test_hand_worked_rows() -> None:
    weights = torch.tensor([[[[0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.25] * 4]]])
    found = sums(weights, Mask())
    assert found["sparsity"] == pytest.approx((2 + 4 + 3) / 16)
    assert found["null_rate"] == pytest.approx(1 / 4)
    assert found["entropy"] == pytest.approx((0.5 + 0.0 + 1.0) / 3)
    assert found["attention_distance"] == pytest.approx((0.5 + 0.0 + (3 + 2 + 1 + 0) / 4) / 3)
    assert found["block_sparsity16"] == 0.0


def test_padded_keys_and_queries_and_the_future_do_not_count() -> None:
    weights = torch.eye(4).expand(1, 1, 4, 4)
    valid = torch.tensor([[True, True, True, False]])
    assert sums(weights, Mask(valid))["sparsity"] == pytest.approx(6 / 9)
    assert sums(weights, Mask(valid, causal=True))["sparsity"] == pytest.approx(3 / 6)
    assert sums(weights, Mask(valid))["null_rate"] == 0.0


def test_unnormalised_weights_are_normalised_for_the_entropy() -> None:
    assert sums(torch.full((1, 1, 5, 5), 7.0), Mask())["entropy"] == pytest.approx(1.0)
    skewed = torch.tensor([3.0, 1.0]).expand(1, 1, 2, 2)
    expected = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25)) / math.log(2)
    assert sums(skewed, Mask())["entropy"] == pytest.approx(expected)


def test_weights_below_zero_count_by_their_size() -> None:
    weights = torch.tensor([[1.0, -1.0], [0.0, -2.0]])[None, None]
    found = sums(weights, Mask())
    assert found["entropy"] == pytest.approx((1.0 + 0.0) / 2) and found["null_rate"] == 0.0
    assert found["sparsity"] == pytest.approx(1 / 4) and found["attention_distance"] == pytest.approx(1 / 4)


def test_blocks_without_a_positive_weight_count_only_inside_the_mask() -> None:
    weights = torch.zeros(1, 1, 256, 256)
    weights[..., :64, :64] = 1.0
    found = sums(weights, Mask())
    assert found["block_sparsity64"] == pytest.approx(15 / 16)
    assert found["block_sparsity128"] == pytest.approx(3 / 4)
    assert sums(weights, Mask(causal=True))["block_sparsity64"] == pytest.approx(9 / 10)


def test_chunks_of_queries_change_nothing() -> None:
    weights = torch.rand(2, 3, 300, 300) * (torch.rand(2, 3, 300, 300) > 0.7)
    valid = torch.arange(300)[None] < torch.tensor([[300], [170]])
    whole, parts = sums(weights, Mask(valid), chunk=384), sums(weights, Mask(valid), chunk=128)
    assert whole == pytest.approx(parts)
    assert set(whole) >= {"sparsity", "null_rate", "entropy", "attention_distance", "block_sparsity64"}
