"""The counting of torture cases itself."""

from __future__ import annotations

import pytest
from tally import Extent, Tally


def test_sample_is_drawn_in_order_and_all_means_all() -> None:
    cases = list(range(100))
    drawn = Extent(False).of(cases, sample=10)
    assert len(drawn) == 10 and drawn == sorted(drawn) and drawn == Extent(False).of(cases, sample=10)
    assert Extent(True).of(cases, sample=10) == cases


def test_a_failed_case_or_none_at_all_fails_the_test() -> None:
    counted = Tally("folders")
    with pytest.raises(AssertionError, match="no folders were tried"):
        counted.verdict()
    counted.check("good", None)
    counted.verdict()
    counted.check("link", "wrote outside")
    with pytest.raises(AssertionError, match="link: wrote outside"):
        counted.verdict()
