"""What reformer and sinkhorn have in common: the length that they were built for."""

from __future__ import annotations

import pytest
from sorting_cases import build, draw

from attnbench.bench.core.errors import Unsupported
from attnbench.variants.contract import Mask

either = pytest.mark.parametrize("name", ["reformer", "sinkhorn"])


@either
def test_longer_sequences_than_it_was_built_for_are_refused(name: str) -> None:
    with pytest.raises(Unsupported, match="at most 48 positions, got 49"):
        build(name, causal=False)(*draw(49, 49, 49), Mask())
