"""location: the positions it has weights for."""

from __future__ import annotations

import pytest
from score_cases import DIM, HEADS, heads, make

from attnbench.bench.core.errors import Unsupported
from attnbench.variants import AttentionShape, Mask


def test_location_refuses_positions_that_it_has_no_weights_for() -> None:
    variant = make("location", max_length=5)
    assert variant.supports(AttentionShape(heads=HEADS, head_dim=DIM, max_length=5)) is None
    assert "5 positions, not for 6" in variant.supports(AttentionShape(heads=HEADS, head_dim=DIM, max_length=6))
    assert variant(*heads(5, 5), Mask()).isfinite().all()
    with pytest.raises(Unsupported, match="at most 5 keys, got 6"):
        variant(*heads(6, 6), Mask())
