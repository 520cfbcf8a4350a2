"""Caps on the size of the project. To raise one takes a sentence in the commit: for what, and what did it replace?

Files and functions on the way to a Record are capped in `tests/bench/test_walks.py`, notes and columns of the committed
boards in `tests/bench/board`.
"""

from pathlib import Path

import attnbench

ROOT = Path(attnbench.__file__).parent
SOURCE_FOLDERS = ("bench", "variants", "tasks", "dashboards", "docs", "examples")
MOST_SOURCE_LINES, MOST_TEST_LINES = 65_760, 50_480


def lines_below(*folders: str) -> int:
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return sum(path.read_text(encoding="utf-8").count("\n") for path in paths)


def test_the_source_is_no_longer_than_its_cap() -> None:
    assert lines_below(*SOURCE_FOLDERS) <= MOST_SOURCE_LINES


def test_the_tests_are_no_longer_than_their_cap() -> None:
    assert lines_below("tests") <= MOST_TEST_LINES
