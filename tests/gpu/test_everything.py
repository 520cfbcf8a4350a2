"""The one command for a GPU names variants, tasks and presets that exist; wheels are for the Python of the image."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from attnbench.bench.core.registry import TASKS, VARIANTS
from attnbench.bench.core.spec import Spec, parse_selection
from attnbench.bench.plan.suite import load_suite


def script(name: str) -> ModuleType:
    described = importlib.util.spec_from_file_location(f"gpu_{name}", Path(__file__).with_name(f"{name}.py"))
    assert described is not None and described.loader is not None
    module = importlib.util.module_from_spec(described)
    sys.modules[described.name] = module
    described.loader.exec_module(module)
    return module


everything, wheels = script("everything"), script("gather_wheels")


@pytest.mark.parametrize("rehearse", [False, True])
def test_every_step_names_what_there_is(rehearse: bool) -> None:
    for step in everything.steps(rehearse=rehearse):
        if step.script:
            assert Path(__file__).with_name(step.script).is_file()
            continue
        given = dict(zip(step.words[::2], step.words[1::2], strict=True))
        suite = load_suite(given["--suite"]) if "--suite" in given else None
        preset = Spec.parse(given["--preset"]) if "--preset" in given else suite.preset
        tasks = parse_selection(given["--task"]) if "--task" in given else suite.tasks
        for task in tasks:
            built = TASKS.build(TASKS.resolve(task))
            assert built.recipe(preset)
        for variant in parse_selection(given["--variants"]) if "--variants" in given else suite.variants:
            VARIANTS.resolve(variant)


def test_the_steps_are_those_that_were_asked_for() -> None:
    found = {step.name: " ".join(step.words) for step in everything.steps(rehearse=False, beside=("adasplash",))}
    assert next(iter(found)) == "check" and list(found)[-1] == "lra"
    assert "kernels-short" in found["kernels-short"] and "adasplash" in found["kernels-short"]
    assert "65536" in found["sweep"] and "adasplash" in found["sweep"]
    assert {"pt-2x64", "lra-listops", "3"} <= set(found["lra"].split())
    # each step of hours comes after all of minutes
    assert [step.minutes for step in everything.steps(rehearse=False)][-1] > 500


def test_a_step_that_fails_or_hangs_is_told_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = everything.Step(name="one", about="a step", words=(), minutes=0.002)
    codes = {"print('last'); raise SystemExit(3)": "exit code 3", "import time; time.sleep(60)": "TIME LIMIT"}
    for code, outcome in codes.items():
        monkeypatch.setattr(everything.Step, "command", lambda *_, code=code: [sys.executable, "-c", code])
        limited = step if "sleep" in code else everything.Step(name="one", about="a step", words=(), minutes=1)
        found = everything.done(limited, tmp_path, "cpu")
        assert found["outcome"] == outcome
    assert found["log"] == "one.log"


def test_wheels_are_gathered_for_the_python_of_the_image_and_not_for_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def downloaded(command: list[str], check: bool) -> SimpleNamespace:
        asked.append(command)
        (tmp_path / f"numpy-2.4.6-{len(asked)}.whl").write_bytes(b"")
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(wheels.subprocess, "run", downloaded)
    monkeypatch.setattr(sys, "argv", ["gather_wheels.py", "--out", str(tmp_path), "adasplash"])
    assert wheels.main() == 0
    first, second = asked
    assert first[first.index("--python-version") + 1] == "3.12" and "--only-binary=:all:" in first
    names = {wheels._name(word) for word in first}
    assert {"msgspec", "psutil", "nvidia-ml-py", "typer"} <= names and not names & {"torch", "numpy", "triton"}
    # a package that needs torch brings none
    assert second[-2:] == ["--no-deps", "adasplash"]
    # the image has its own, which others were built against
    assert list(tmp_path.iterdir()) == []


def test_a_worker_alone_needs_neither_statistics_nor_a_terminal() -> None:
    names = {wheels._name(requirement) for requirement in wheels.wanted(workers_alone=True)}
    assert {"msgspec", "psutil"} <= names and not names & {"scipy", "pandas", "typer", "rich"}
