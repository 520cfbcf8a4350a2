"""Cases of which a few run in `make test`, and all in `make soak`: Triton's interpreter takes seconds for each."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def soaked(cases: Iterable[tuple[Any, ...]], quick: Collection[int]) -> list[Any]:
    """Parameters of a test; all cases but those whose place is in `quick` wait for `make soak`."""
    return [pytest.param(*case, marks=() if at in quick else pytest.mark.soak) for at, case in enumerate(cases)]
