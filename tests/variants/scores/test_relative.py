"""relative: its tables and its dropout."""

from __future__ import annotations

import pytest
import torch
from score_cases import DIM, HEADS, heads, make

from attnbench.variants import Mask
from attnbench.variants.ops.dropout import WeightDropout


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
