"""The house style, as far as a program can see it."""

import ast
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

import attnbench

ROOT = Path(attnbench.__file__).parent
FOLDERS = ("bench", "variants", "tasks", "dashboards")
SOURCES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
TESTS = [path for folder in ("tests", "tools") for path in sorted((ROOT / folder).rglob("*.py"))]


def relative(path):
    return path.relative_to(ROOT).as_posix()


def length(path):
    return path.read_text().count("\n")


@pytest.mark.parametrize("folder", [*FOLDERS, "results", "tests", "tools"])
def test_every_folder_says_what_lives_in_it_in_a_page(folder):
    text = (ROOT / folder / "README.md").read_text()
    assert text.startswith("# ") and 5 <= text.count("\n") <= 60


def test_a_file_is_one_concept_and_no_longer_than_that_needs():
    assert {relative(path): length(path) for path in SOURCES if length(path) > 460} == {}


def test_no_file_is_named_for_what_it_might_hold():
    vague = re.compile(r"utils?|common|helpers?|manager|misc|base")
    assert [relative(path) for path in SOURCES + TESTS if vague.fullmatch(path.stem)] == []


def test_nothing_is_put_off_and_every_module_says_what_it_is():
    word = "TO" + "DO"
    for path in SOURCES + TESTS:
        text = path.read_text()
        assert word not in text and "FIX" + "ME" not in text, relative(path)
        assert path in TESTS or ast.get_docstring(ast.parse(text)), relative(path)


def test_text_is_never_split_at_more_than_line_feeds():
    # str.splitlines also splits at characters that JSON lines and reviews hold inside a line
    for path in SOURCES:
        calls = [node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)]
        assert "splitlines" not in calls, relative(path)


def test_nothing_of_the_package_stands_at_the_root_but_its_name():
    assert {path.name for path in ROOT.glob("*.py")} <= {"__init__.py", "__main__.py"}
    # a docstring, the version, the public names for readers and type checkers, and the function that looks them up
    tree = ast.parse((ROOT / "__init__.py").read_text())
    kinds = [ast.Expr, ast.Assign, ast.Assign, ast.Assign, ast.If, ast.Assign, ast.FunctionDef]
    assert [type(node) for node in tree.body] == kinds and "__version__" in ast.unparse(tree.body[1])


def test_test_files_lie_beside_their_subject_and_in_no_package():
    # importlib imports by path, so two folders may each have a test_cache.py
    assert [relative(path) for path in TESTS if path.name == "__init__.py" and "plugin" not in path.parts] == []
    for folder in sorted({path.parent for path in TESTS if path.name.startswith("test_")}):
        mirrored = folder.relative_to(ROOT / "tests")
        own = mirrored.parts[0] in ("architecture", "examples", "golden", "plugin", "torture")
        assert own or (ROOT / mirrored).is_dir(), relative(folder)


def test_a_class_name_means_one_thing():
    found = {}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(relative(path))
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


def test_the_package_is_seen_by_static_readers_under_its_name():
    assert (ROOT / ".typing" / "attnbench").resolve() == ROOT


def test_the_pinned_versions_cover_what_is_required():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    pinned = {line.partition("==")[0] for line in (ROOT / "constraints.txt").read_text().split("\n") if "==" in line}
    names = {re.match(r"[A-Za-z0-9_.-]+", requirement).group() for requirement in wanted}
    assert names - pinned == set()


def test_the_ends_of_the_ranges_are_those_that_make_tests():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    stated = map(Requirement, [*project["dependencies"], *project["optional-dependencies"]["triton"]])
    ranges = {each.name: each.specifier for each in stated}
    lines = re.findall(r"^(oldest|newest|newest_triton) := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    ends = {name: dict(pin.split("==") for pin in pins.split()) for name, pins in lines}
    for package, last in (("torch", ends["newest"]["torch"]), ("triton", ends["newest_triton"]["triton"])):
        first = Version(ends["oldest"][package])
        major, minor, _ = Version(last).release
        assert set(ranges[package]) == {*SpecifierSet(f">={first.major}.{first.minor},<{major}.{minor + 1}")}
