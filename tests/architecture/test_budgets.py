"""Budgets of packages in files and public names, with slack: how much a newcomer must look at in one room.

Lines are not capped, since a cap on lines is met by squeezing them. A package above its budget is split, loses what
nobody needs, or gets a larger one in a commit that says for what. Families of variants and tasks grow by design and
have none.
"""

import ast
from pathlib import Path

import pytest

import attnbench

ROOT = Path(attnbench.__file__).parent

BUDGETS = {
    "bench/api": (6, 16),
    "bench/board": (25, 205),
    "bench/cli": (20, 155),
    "bench/core": (16, 150),
    "bench/gate": (18, 200),
    "bench/measure": (21, 115),
    "bench/models": (7, 38),
    "bench/plan": (10, 60),
    "bench/process": (6, 50),
    "bench/run": (33, 212),
    "bench/score": (10, 65),
    "bench/stats": (10, 90),
    "bench/store": (12, 116),
    "bench/train": (14, 65),
    "bench/wings": (96, 545),
    "dashboards": (14, 90),
    "tasks/data": (12, 78),
    "tasks/problems": (6, 25),
    "variants/kernels": (38, 155),
    "variants/ops": (24, 105),
}
"""Most files and most public names (functions, classes, constants without an underscore) of each package."""

MOST_LINES_OF_TOOLS = 3_250
"""Scripts that somebody runs again, a quarter of them simulations of verdicts; others are named by their commits."""


def public_names(path: Path) -> list[str]:
    found = []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.append(node.name)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        found += [target.id for target in targets if isinstance(target, ast.Name)]
    return [name for name in found if not name.startswith("_")]


@pytest.mark.parametrize("package", BUDGETS)
def test_a_package_stays_within_its_budget(package: str) -> None:
    paths = sorted((ROOT / package).rglob("*.py"))
    names = sum(len(public_names(path)) for path in paths)
    most_files, most_names = BUDGETS[package]
    assert paths and names, package
    assert len(paths) <= most_files and names <= most_names, f"{package}: {len(paths)} files, {names} public names"


def test_each_package_of_the_core_has_a_budget() -> None:
    rooms = {f"bench/{path.parent.name}" for path in (ROOT / "bench").glob("*/__init__.py")}
    assert rooms <= BUDGETS.keys()


def test_the_tools_are_those_that_somebody_runs_again() -> None:
    paths = [path for kind in ("*.py", "*.sh") for path in (ROOT / "tools").rglob(kind)]
    assert sum(path.read_text(encoding="utf-8").count("\n") for path in paths) <= MOST_LINES_OF_TOOLS
