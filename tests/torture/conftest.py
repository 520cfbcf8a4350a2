"""Counts of cases tried and passed, printed at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from tally import Extent, Tally


@pytest.fixture(params=["sample", pytest.param("all", marks=pytest.mark.slow)])
def extent(request: pytest.FixtureRequest) -> Extent:
    """A sample, and all; a test whose sample would be slow, too, is parametrized with "all" alone."""
    return Extent(request.param == "all")


@pytest.fixture
def tally(request: pytest.FixtureRequest, extent: Extent) -> Iterator[Tally]:
    """The tally of this test; its docstring begins with the kind that it counts, and a colon."""
    documentation: str = request.function.__doc__
    counted = Tally(documentation.partition(":")[0])
    yield counted
    if extent.all_cases:
        passed = counted.tried - len(counted.failures)
        request.node.user_properties.append(("torture", (counted.kind, counted.tried, passed)))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    tried: Counter[str] = Counter()
    passed: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "teardown":
                for name, value in report.user_properties:
                    if name == "torture":
                        kind, cases, good = value
                        tried[kind] += cases
                        passed[kind] += good
    if tried:
        terminalreporter.section("torture: cases tried and passed")
        for kind in sorted(tried):
            terminalreporter.write_line(f"{kind:40} {tried[kind]:6} tried {passed[kind]:6} passed")
