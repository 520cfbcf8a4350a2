"""Seeds of the tests, which one environment variable shifts."""

import os

SHIFT = 1_000_003 * int(os.environ.get("ATTNBENCH_TEST_SEED", "0"))


def seed(base: int = 0) -> int:
    """The seed to draw from; ATTNBENCH_TEST_SEED=1, 2, … gives other numbers to every test that asks here."""
    return base + SHIFT
