"""A stranger's distribution, and what `attnbench new` begins: installed with pip, used through the command line."""

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_lines import answer

HERE = Path(__file__).parent


def pip_install(source, site, scratch):
    """Installs without a network and without building in the source tree."""
    copy = scratch / source.name
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build"))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    command += ["--no-deps", "--no-build-isolation", "--target", str(site), str(copy)]
    subprocess.run(command, check=True, capture_output=True, text=True)


class Person:
    """Someone at a command line who has installed packages into `site`."""

    def __init__(self, site, folder):
        self.folder = folder
        self.environment = os.environ | {"PYTHONPATH": str(site), "ATTNBENCH_CACHE": str(folder / "cache")}

    def types(self, *words, python=("-m", "attnbench"), code=0):
        command = [sys.executable, *python, *words]
        run = subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True)
        assert run.returncode == code, run.stdout + run.stderr
        return run.stdout + run.stderr


@pytest.fixture(scope="module")
def person(tmp_path_factory):
    site = tmp_path_factory.mktemp("site")
    pip_install(HERE, site, tmp_path_factory.mktemp("scratch"))
    return Person(site, tmp_path_factory.mktemp("home"))


@pytest.mark.slow
def test_its_names_are_listed_with_their_origin_and_description(person):
    for what, name, description in (
        ("variants", "example-floor", "Softmax attention whose smallest weights are exactly zero."),
        ("tasks", "example-majority", "Which of two symbols is the more frequent."),
    ):
        listed = {item["name"]: item for item in json.loads(person.types("list", what, "--json"))}
        assert listed[name] == {"name": name, "origin": "attnbench-example 1.0", "description": description}


@pytest.mark.slow
def test_what_it_says_of_itself_is_shown(person):
    variant = json.loads(person.types("show", "example-floor[floor=0.25]", "--json"))
    assert variant["name"] == "example-floor[floor=0.25]"
    assert variant["parameter floor"] == "float, default 0.5"
    assert variant["equation"].startswith("P' = max(softmax(S)")
    task = json.loads(person.types("show", "example-majority", "--json"))
    assert task["baselines"] == "count" and task["data generator"].startswith("ready (synthetic)")


@pytest.mark.slow
def test_it_passes_the_gate_and_is_trained_timed_and_ranked_beside_the_reference(person):
    words = ["--variants", "example-floor", "--task", "example-majority", "--preset", "smoke[timing_seconds=1.0]"]
    words += ["--device", "cpu", "--threads", "1", "--results", "results"]
    person.types("check", "example-floor")
    person.types("run", *words)
    (file,) = (person.folder / "results" / "records").glob("*.jsonl")
    records = [json.loads(line) for line in file.read_text().split("\n") if line]
    found = {(r["cell"]["lane"], r["cell"]["variant"]): r for r in records}
    measured = {(lane, name) for lane in ("train", "time") for name in ("softmax", "example-floor")}
    assert found.keys() == measured | {("baseline", "count")}
    assert {record["outcome"] for record in records} == {"ok"}
    assert {record["data"]["fidelity"] for record in records} == {"synthetic"}
    (counted,) = [m["value"] for m in found["baseline", "count"]["measurements"] if m["name"] == "accuracy"]
    assert counted == 1.0
    zeros = [m["value"] for m in found["train", "example-floor"]["measurements"] if m["name"] == "sparsity"]
    assert zeros and max(zeros) > 0
    before = file.read_bytes()
    assert "Nothing to do" in person.types("run", *words)
    assert file.read_bytes() == before
    assert "example-floor" in person.types("leaderboard", "--results", "results")


@pytest.mark.slow
def test_a_plugin_that_does_not_import_is_reported_by_load_and_breaks_nothing(person, tmp_path):
    (tmp_path / "broken_plugin.py").write_text("raise RuntimeError('no such kernel')\n")
    (tmp_path / "broken-1.0.dist-info").mkdir()
    (tmp_path / "broken-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    points = "[attnbench.variants]\nbroken = broken_plugin:Broken\n"
    (tmp_path / "broken-1.0.dist-info" / "entry_points.txt").write_text(points)
    site = os.pathsep.join([person.environment["PYTHONPATH"], str(tmp_path)])
    other = Person(site, person.folder)
    assert "broken" in other.types("list", "variants")
    listed = {item["name"]: item["problem"] for item in json.loads(other.types("list", "variants", "--load", "--json"))}
    assert "RuntimeError: no such kernel" in listed.pop("broken")
    assert set(listed.values()) == {None} and "example-floor" in listed
    said = other.types("show", "broken", code=2)
    assert "broken 1.0" in said and "Traceback" not in said


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), [("variant", "my-map"), ("task", "my-task")])
def test_a_project_that_new_begins_installs_and_passes_its_own_test(person, tmp_path, kind, name):
    said = person.types("new", kind, name, "--into", str(tmp_path))
    project = tmp_path / f"attnbench-{name}"
    assert Path(said.split(" holds the code", 1)[0]).is_relative_to(project) and f"pip install -e {project}" in said
    site = tmp_path / "site"
    (tmp_path / "scratch").mkdir()
    pip_install(project, site, tmp_path / "scratch")
    owner = Person(site, tmp_path)
    listed = {item["name"]: item["origin"] for item in json.loads(owner.types("list", f"{kind}s", "--json"))}
    assert listed[name] == f"attnbench-{name} 0.1.0"
    assert name in owner.types("show", name)
    tested = owner.types("-q", "-p", "no:cacheprovider", str(project / "tests"), python=("-m", "pytest"))
    assert "1 passed" in tested


@pytest.fixture(scope="module")
def begun(person, tmp_path_factory):
    """A folder with a variant and a task that `new` began."""
    folder = tmp_path_factory.mktemp("begun")
    for kind, name in (("variant", "my-map"), ("task", "my-task")):
        person.types("new", kind, name, "--into", str(folder))
    return folder


def test_the_templates_are_formatted_and_typed_as_the_package_is(begun):
    style = ["--line-length", "120", "--no-cache", str(begun)]
    ruff = [sys.executable, "-m", "ruff"]
    for command in (["format", "--check"], ["check", "--select", "E,F,W,UP,B,C4,PTH,SIM"]):
        run = subprocess.run([*ruff, *command, *style], capture_output=True, text=True)
        assert run.returncode == 0, run.stdout + run.stderr


def attnbench_imports(path):
    """Modules of attnbench that a file imports."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    modules = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    modules |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return {module for module in modules if module.split(".")[0] == "attnbench"}


def test_a_plugin_imports_the_two_contracts_and_nothing_else_of_attnbench(begun):
    contracts = {"attnbench.variants.contract", "attnbench.tasks.contract"}
    for folder in (begun, HERE / "attnbench_example"):
        assert set().union(*map(attnbench_imports, folder.rglob("*.py"))) == contracts


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("softmax", "installed already, by attnbench"),
        ("My-Map", "small letters"),
        ("a--b", "small letters"),
        ("lambda", "small letters"),
        ("taken", "exists already"),
    ],
)
def test_new_refuses_what_cannot_become_a_project(tmp_path, name, message):
    (tmp_path / "attnbench-taken").mkdir()
    found = answer(f"new variant {name} --into {tmp_path}")
    assert found.code == 2 and message in found.errors
    assert [path.name for path in tmp_path.rglob("*")] == ["attnbench-taken"]
