"""Times of a Record beside how long it took."""

from __future__ import annotations

import pytest

from attnbench.bench.core.record import Measurement
from attnbench.bench.wings.sharing.agreement import time_errors


@pytest.mark.parametrize(("seconds", "is_wrong"), [(9.0, False), (8.0, False), (7.5, True), (5.0, True)])
def test_samples_take_no_longer_than_their_record_but_for_a_hundredth_and_a_second(
    bench, seconds: float, is_wrong: bool
) -> None:
    b = bench()
    timed = Measurement.of("step_seconds", 3.0, (3.0, 3.0, 3.0))
    record = b.add(b.cell("rela", lane="time"), [timed], seconds=seconds)
    assert ["its samples take" in error for error in time_errors(record)] == [True] * is_wrong
