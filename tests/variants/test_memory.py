"""No pass of a mechanism that needs no matrix of all pairs makes one, and of those that do none makes more."""

from __future__ import annotations

import pytest
from score_cases import largest_of_a_training_step

from attnbench.variants import AttentionShape, build
from attnbench.variants.scores import additive

BOTH = (
    "linear", "performer", "cosformer", "reformer[hashes=1]", "sinkhorn", "routing[clusters=64,window=32]",
    "local[query_block=16,flange=16,relative=true]", "longformer[window=16,global_tokens=2]",
    "routing[clusters=8,form=strict,window=32]", "local-routing[query_block=16,flange=16,clusters=64,window=32]",
    "sparse[pattern=strided,stride=32]", "sparse[pattern=fixed,stride=64,summary=2]",
)  # fmt: skip
CASES = [(name, causal) for name in BOTH for causal in (False, True)]
CASES += [(name, False) for name in ("linformer", "nystrom", "skyformer", "bigbird[block=8]")]


@pytest.mark.parametrize(("name", "causal"), CASES)
def test_no_tensor_is_near_queries_by_keys(name: str, causal: bool) -> None:
    length = 2048
    variant = build(name, AttentionShape(heads=2, head_dim=8, max_length=length, causal=causal)).train()
    assert length < largest_of_a_training_step(variant, length, causal) < 2 * length**2 / 8


@pytest.mark.parametrize(
    ("name", "largest"),
    [("relative", 600 * 600), ("feedforward", 608 * 33), ("additive[hidden=16]", 600 * 600)],
)
def test_no_tensor_is_larger_than_the_mechanism_needs(name: str, largest: int) -> None:
    """Of additive attention the scores themselves, 16 times less than all pairs by the hidden size."""
    variant = build(name, AttentionShape(heads=1, head_dim=32, max_length=600, causal=True))
    assert largest_of_a_training_step(variant, 600) <= largest + 64 * 600
    assert additive._TILE_ON_CPU < 600 * 600
