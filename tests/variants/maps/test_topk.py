"""topk against sorted rows."""

import math

import pytest
import torch
from map_cases import draw, variant

from attnbench.bench.core.errors import SelectionError


def test_topk_is_softmax_over_the_highest() -> None:
    scores = draw(2, 2, 6, 9)
    found = variant("topk[k=3]").weigh(scores, None)
    for row, weights in zip(scores.flatten(0, -2).tolist(), found.flatten(0, -2).tolist(), strict=True):
        best = sorted(range(9), key=lambda j: -row[j])[:3]
        total = sum(math.exp(row[j]) for j in best)
        expected = [math.exp(row[j]) / total if j in best else 0.0 for j in range(9)]
        assert weights == pytest.approx(expected, abs=1e-12)


def test_topk_keeps_ties_and_is_softmax_for_few_keys() -> None:
    tied = torch.tensor([[[[2.0, 1.0, 1.0, 1.0, 0.0]]]])
    assert (variant("topk[k=2]").weigh(tied, None) > 0).tolist() == [[[[True, True, True, True, False]]]]
    scores = draw(2, 2, 6, 9)
    allowed = (torch.arange(9) % 2 == 0)[None, None, None]
    expected = scores.masked_fill(~allowed, -math.inf).softmax(-1)
    torch.testing.assert_close(variant("topk[k=5]").weigh(scores, allowed), expected)
    torch.testing.assert_close(variant("topk").weigh(scores, allowed), expected)
    with pytest.raises(SelectionError, match="k to be int from 1 to 1,048,576, got 0"):
        variant("topk[k=0]")
