"""Counts of cases tried and passed, which `tests/conftest.py` prints at the end of every run that tried some."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tally import Extent, Tally


@pytest.fixture(params=["sample", pytest.param("all", marks=pytest.mark.soak)])
def extent(request: pytest.FixtureRequest) -> Extent:
    """A sample that takes some two seconds, and all; a test without one is parametrized with "all" alone."""
    return Extent(request.param == "all")


@pytest.fixture
def tally(request: pytest.FixtureRequest, extent: Extent) -> Iterator[Tally]:
    """The tally of this test; its docstring begins with the kind that it counts, and a colon."""
    documentation: str = request.function.__doc__
    counted = Tally(documentation.partition(":")[0])
    yield counted
    passed = counted.tried - len(counted.failures)
    request.node.user_properties.append(("torture", (counted.kind, counted.tried, passed)))
