"""Densities that variants declare, against counts of what they compute for each pair that a mask allows."""

from __future__ import annotations

import pytest

from attnbench.variants import AttentionShape, build
from attnbench.variants.ops.chunks import paired_density

PAIRS = 4096 * 4097 / 2
NSA = 2 * (1 + 2 + 3) + 2 * 2 * (1 + 2 + 2) + 4 * 3 + (1 + 2 + 6 * 3)
"""Means 0, 1, 2 and 3 for two queries each, whole blocks 0, 1, 2 and 2, own parts, and a window of 3."""


@pytest.mark.parametrize(
    ("selection", "length", "causal", "expected"),
    [
        # features of a query and of a key, against the scores of a query
        ("linear", 4096, False, 2 * 32 / 4096),
        ("linear", 4096, True, (2 * 32 + 64) * 4096 / PAIRS),
        ("cosformer", 4096, False, 2 * 64 / 4096),
        ("performer", 4096, False, 2 * 110 / 4096),
        # three matrices
        ("nystrom", 4096, False, (2 * 4096 * 128 + 128**2) / 4096**2),
        ("skyformer", 4096, False, (2 * 4096 * 128 + 128**2) / 4096**2),
        ("nystrom", 48, False, 1.0),
        ("linformer", 4096, False, 128 / 4096),
        # chunks with the one before, in two rounds or one
        ("reformer", 4096, False, 2 * 2 * 64 / 4096),
        ("sinkhorn", 4096, False, 2 * 64 / 4096),
        # two logits of a token
        ("fastformer", 10, False, 20 / 100),
        ("additive-lm", 10, False, 20 / 100),
        ("additive-lm", 10, True, 20 / 55),
        ("additive-lm", 1, False, 1.0),
        # each key once
        ("feedforward", 9, False, 9 / 81),
        ("feedforward", 9, True, 9 / 45),
        # blocks of 2: 3 pairs in each own block; one past block for six queries; 0, 1, 2 and 3 means of two queries
        ("moba[block=2,blocks=2]", 8, True, (4 * 3 + 6 * 2 + 2 * 6 / 2) / 36),
        ("moba[block=8]", 8, True, 1.0),
        ("nsa[block=2,blocks=3,window=3]", 8, True, min(1.0, NSA / 36)),
        # chosen pairs, and products of the index beside those of two heads of 32
        ("indexer[k=3,index_heads=2,index_dim=4]", 8, True, (1 + 2 + 3 * 6) / 36 + 2 * 4 / (2 * 2 * 32)),
        ("indexer[k=3,index_heads=2,index_dim=4]", 8, False, 3 * 8 / 64 + 2 * 4 / (2 * 2 * 32)),
    ],
)
def test_a_density_is_the_share_of_allowed_scores(selection: str, length: int, causal: bool, expected: float) -> None:
    shape = AttentionShape(heads=2, head_dim=32, max_length=length, causal=causal)
    assert build(selection, shape).density(shape) == pytest.approx(expected)


def test_pairs_of_chunks_are_counted_against_what_is_allowed() -> None:
    assert paired_density(AttentionShape(heads=2, head_dim=8, max_length=4096, causal=True), 64) == pytest.approx(
        4 * 64 / 4097
    )
    assert paired_density(AttentionShape(heads=2, head_dim=8, max_length=48), 64) == 1.0
