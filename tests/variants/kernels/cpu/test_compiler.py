"""The compiler that builds the kernels, as CXX names it."""

import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch.utils.cpp_extension import include_paths

from attnbench.variants.kernels.cpu import build as cpu_build
from attnbench.variants.kernels.cpu.written import source as written_source
from attnbench.variants.ops.written import write


@pytest.fixture
def wrapper(tmp_path: Path) -> Path:
    """A program like ccache: it writes a line for each call and runs the compiler that it is given."""
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler here")
    # a blank in the path, which a shell would need to be quoted
    path = tmp_path / "a folder" / "wrapper"
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\necho "$1" >> "{tmp_path}/calls"\nexec "$@"\n', encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.mark.slow
def test_a_wrapper_around_the_compiler_builds_and_a_second_build_too(
    wrapper: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch names the second build of a process otherwise, so that it was not found."""
    if shutil.which("ninja") is None:
        pytest.skip("no ninja here")
    monkeypatch.setenv("CXX", f"'{wrapper}' c++")
    monkeypatch.setenv("ATTNBENCH_CACHE", str(tmp_path / "cache"))
    source = tmp_path / "probe.cpp"
    source.write_text("int attnbench_probe() { return 1; }\n", encoding="utf-8")
    monkeypatch.setattr(cpu_build, "SOURCES", [source])
    assert cpu_build.compiler() == (str(wrapper), "c++")
    first = cpu_build.built()
    assert first.is_file()
    calls = (tmp_path / "calls").read_text(encoding="utf-8").split()
    assert len(calls) >= 2 and set(calls) == {"c++"}, "one call compiles, one links"
    source.write_text("int attnbench_probe() { return 2; }\n", encoding="utf-8")
    second = cpu_build.built()
    assert second.is_file() and second.parent != first.parent


@pytest.mark.slow
def test_a_build_that_fails_says_what_the_compiler_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not cpu_build.compiler() or shutil.which("ninja") is None:
        pytest.skip("no C++ compiler or no ninja here")
    source = tmp_path / "probe.cpp"
    source.write_text("#error no kernels today\n", encoding="utf-8")
    monkeypatch.setattr(cpu_build, "SOURCES", [source])
    monkeypatch.setenv("ATTNBENCH_CACHE", str(tmp_path / "cache"))
    reason = cpu_build.failure.__wrapped__()
    assert reason is not None and "error: #error no kernels today" in reason
    assert not list(cpu_build.folders()[0].glob("build-*"))


@pytest.mark.slow
@pytest.mark.parametrize("capability", ["AVX2", "AVX512", "DEFAULT"])
def test_a_map_compiles_for_each_processor(capability: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On any machine: what PyTorch's header of vectors brings with it differs by their width."""
    if not cpu_build.compiler():
        pytest.skip("no C++ compiler here")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    source = tmp_path / "unit.cpp"
    source.write_text(written_source(write(torch.relu)), encoding="utf-8")
    folders = [f"-isystem{path}" for path in include_paths()] + [f"-I{cpu_build.HEADERS[0].parent}"]
    command = [*cpu_build.compiler(), "-std=c++20", "-fsyntax-only", *cpu_build.flags(), *folders, str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_another_command_has_another_build(wrapper: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = set()
    for words in ("c++", f"'{wrapper}' c++", f"'{wrapper}' c++ -m64"):
        monkeypatch.setenv("CXX", words)
        folders.add(cpu_build.folders()[0])
    assert len(folders) == 3


@pytest.mark.parametrize("words", ["no-such-program g++", "'unclosed", "  "])
def test_no_compiler_is_found_where_there_is_none(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", words)
    assert cpu_build.compiler() == ()


def test_an_empty_name_is_that_of_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "")
    found = shutil.which("c++")
    assert cpu_build.compiler() == ((found,) if found else ())
