"""The examples of all docstrings hold."""

import doctest
import importlib
from pathlib import Path

import pytest

import attnbench

ROOT = Path(attnbench.__file__).parent
FILES = [
    path
    for folder in ("bench", "dashboards", "docs", "tasks", "variants")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if "    >>> " in path.read_text(encoding="utf-8")
]


def test_most_modules_with_examples_are_found() -> None:
    assert len(FILES) > 60


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_examples_of_a_module_hold(path: Path) -> None:
    if path.name == "docstrings.py":
        pytest.importorskip("griffe", reason="the extra docs is not installed")
    module = importlib.import_module(".".join(["attnbench", *path.relative_to(ROOT).with_suffix("").parts]))
    assert doctest.testmod(module).failed == 0
