"""What is installed is what is in the folders."""

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import attnbench
from attnbench.bench.core.targets import module_source

ROOT = Path(attnbench.__file__).parent
FOLDERS = ("bench", "variants", "tasks", "dashboards")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def folders_with_code():
    found = {path.parent for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}
    return {path.relative_to(ROOT).as_posix() for path in found}


def test_the_list_of_packages_is_that_of_the_folders():
    setuptools = PYPROJECT["tool"]["setuptools"]
    expected = {"attnbench": "."} | {"attnbench." + path.replace("/", "."): path for path in folders_with_code()}
    assert setuptools["package-dir"] == expected
    assert sorted(setuptools["packages"]) == sorted(expected)


def test_every_folder_with_code_is_a_package():
    assert [path for path in folders_with_code() if not (ROOT / path / "__init__.py").is_file()] == []


def test_every_entry_point_names_something_that_is_defined():
    for group in PYPROJECT["project"]["entry-points"].values():
        for name, target in group.items():
            module, _, attribute = target.partition(":")
            source = module_source(module)
            assert source, f"{name}: there is no {module}"
            text = source.read_text()
            # a plugin of pytest is a module as it stands
            forms = (f"class {attribute}:", f"class {attribute}(", f"def {attribute}(", f"\n{attribute} = ")
            assert not attribute or any(form in text for form in forms), name


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The names in a wheel built from a copy, since building leaves folders behind."""
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("wheel")
    for path in ROOT.iterdir():
        if path.name in FOLDERS:
            shutil.copytree(path, tree / path.name, ignore=shutil.ignore_patterns("__pycache__"))
        elif path.is_file():
            shutil.copy(path, tree)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-index"]
    command += ["--no-deps", "--no-build-isolation", "--wheel-dir", str(out), str(tree)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    (built,) = out.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        return archive.namelist()


def test_a_wheel_holds_one_top_level_package_with_all_code_and_the_files_that_code_reads(wheel):
    inside = {name for name in wheel if not name.split("/")[0].endswith(".dist-info")}
    assert {name.split("/")[0] for name in inside} == {"attnbench"}
    code = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    kinds = ("*.toml", "*.html", "*.css", "*.js", "*.json", "*.csv", "*.cpp", "*.h")
    read = [path for folder in FOLDERS for kind in kinds
            for path in (ROOT / folder).rglob(kind)]  # fmt: skip
    expected = {"attnbench/" + path.relative_to(ROOT).as_posix() for path in [*code, *read, *ROOT.glob("__*__.py")]}
    assert inside == expected


def test_a_wheel_brings_the_command_and_the_licence(wheel):
    assert any(name.endswith("entry_points.txt") for name in wheel)
    assert any(name.endswith("LICENSE") for name in wheel)
