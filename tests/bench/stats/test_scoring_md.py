"""The worked examples of the scoring rules are true, and every rule has one."""

import ast
import doctest
import re
from pathlib import Path

import attnbench

STATS = Path(attnbench.__file__).parent / "bench" / "stats"
PAGE = STATS / "scoring.md"


def test_the_numbers_on_the_page_hold() -> None:
    found = doctest.testfile(str(PAGE), module_relative=False)
    assert found.failed == 0 and found.attempted > 20


def test_every_rule_stands_on_the_page() -> None:
    tree = ast.parse((STATS / "scoring.py").read_text())
    rules = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    rules = {rule for rule in rules if not rule.startswith("_")} - {"log_ratios"}
    assert {rule for rule in rules if not re.search(rf"\b{rule}\(", PAGE.read_text())} == set()
