"""cosformer: rectified rows and the range of its positions."""

from __future__ import annotations

import pytest
import torch
from feature_cases import HEADS, WIDTH, draw

from attnbench.bench.core.errors import Unsupported
from attnbench.variants.contract import AttentionShape, Mask
from attnbench.variants.linear.cosformer import Cosformer


def test_cosformer_keeps_rectified_rows_finite_and_refuses_positions_beyond_its_range() -> None:
    shape = AttentionShape(heads=HEADS, head_dim=WIDTH, max_length=16)
    variant = Cosformer(shape)
    query, key, value = draw(16, 16, 16, dtype=torch.float32)
    assert (variant(-query.abs(), key, value, Mask()) == 0).all()
    with pytest.raises(Unsupported, match="at most 16 positions, got 17"):
        variant(*draw(17, 17, 17), Mask())
