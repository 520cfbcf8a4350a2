"""What reformer and sinkhorn have in common: half precision, dropout and length."""

from __future__ import annotations

import pytest
import torch
from sorting_cases import HEADS, LONGEST, WIDTH, build, draw

from attnbench.bench.core.errors import Unsupported
from attnbench.variants.contract import AttentionShape, Mask
from attnbench.variants.sparse.reformer import Reformer
from attnbench.variants.sparse.sinkhorn import Sinkhorn

either = pytest.mark.parametrize("name", ["reformer", "sinkhorn"])


@either
def test_half_precision_accumulates_in_single(name: str) -> None:
    variant = build(name, causal=False)
    inputs = [x.bfloat16() for x in draw(45, 45, 45)]
    output = variant(*inputs, Mask())
    assert output.dtype == torch.bfloat16
    exact = variant(*(x.double() for x in inputs), Mask())
    assert (output.double() - exact).abs().le(exact.abs() * 2**-8 + 1e-5).all()


@either
def test_weights_are_dropped_in_training_and_the_mean_is_kept(name: str) -> None:
    dropped = AttentionShape(heads=HEADS, head_dim=WIDTH, max_length=LONGEST, dropout=0.4)
    torch.manual_seed(1)
    variant = (Reformer(dropped, bucket=4) if name == "reformer" else Sinkhorn(dropped, block=5)).double()
    inputs = draw(20, 20, 20)
    with torch.no_grad():
        exact = variant.eval()(*inputs, Mask())
        variant.train()
        runs = torch.stack([variant(*inputs, Mask()) for _ in range(400)])
    assert (runs[0] - runs[1]).abs().max() > 0.1
    error = (runs.mean(0) - exact) / (runs.std(0) / 400**0.5)
    assert float(error.square().mean()) == pytest.approx(1.0, abs=0.5)


@either
def test_longer_sequences_than_it_was_built_for_are_refused(name: str) -> None:
    with pytest.raises(Unsupported, match="at most 48 positions, got 49"):
        build(name, causal=False)(*draw(49, 49, 49), Mask())
