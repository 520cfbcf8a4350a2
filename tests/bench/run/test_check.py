"""Checks that run at once are those that run one after another, and one that dies is its own report."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from attnbench.bench.core.errors import PluginError
from attnbench.bench.core.spec import Spec
from attnbench.bench.gate import Result
from attnbench.bench.gate.report import SETTINGS, CheckReport
from attnbench.bench.gate.twins import Path
from attnbench.bench.process import side_by_side as side
from attnbench.bench.run import check as module
from attnbench.bench.run.check import CheckVariant, check_together, joined, processes_for


def answered(question: CheckVariant) -> CheckReport:
    results = [(setting, Result(property="finite", verdict="holds")) for setting in SETTINGS]
    paths = (Path(name="eager"), Path(name="triton", refusal="" if question.part else "no GPU"))
    return CheckReport(
        name=str(question.variant),
        results=tuple(results[question.part :: question.parts]),
        seconds=float(question.part),
        paths=paths,
    )


@pytest.mark.parametrize(("names", "jobs", "parts"), [(["rela"], 16, 6), (["rela", "linear"], 4, 2), (["rela"], 2, 2)])
def test_settings_of_few_variants_run_apart_and_make_one_report_each(
    names: list[str], jobs: int, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[CheckVariant] = []

    def ask(child: object, registry: object, name: str, question: CheckVariant, **more: Any) -> CheckReport:
        asked.append(question)
        return answered(question)

    monkeypatch.setattr(module, "ask_child", ask)
    monkeypatch.setattr(side, "Child", lambda target: nullcontext())
    found = list(check_together([Spec(name) for name in names], device="cpu", dtype="float32", jobs=jobs))
    assert sorted(report.name for report in found) == sorted(names) and len(asked) == parts * len(names)
    for report in found:
        # every setting once, in the order of a check in one process
        assert [setting for setting, _ in report.results] == list(SETTINGS)
        # a path that ran in one part has been checked
        assert [path.refusal for path in report.paths] == ["", ""]
        assert report.seconds == parts - 1


def test_a_process_that_dies_costs_its_own_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(child: object, registry: Any, name: str, question: CheckVariant, **more: Any) -> CheckReport:
        if name == "linear" and question.part:
            raise PluginError(registry.plugin(name), "it ended with SIGKILL", "crashed")
        return answered(question)

    monkeypatch.setattr(module, "ask_child", ask)
    monkeypatch.setattr(side, "Child", lambda target: nullcontext())
    specs = [Spec("rela"), Spec("linear")]
    found = {each.name: each for each in check_together(specs, device="cpu", dtype="float32", jobs=4)}
    assert found["rela"] and not found["linear"] and found["linear"].problem == "it ended with SIGKILL"


def test_a_part_that_has_a_problem_is_that_of_the_whole() -> None:
    right, wrong = (CheckReport(name="mine", results=(), seconds=1.0, problem=text) for text in ("", "does not build"))
    assert not joined([right, wrong]) and joined([right, right])


@pytest.mark.slow  # a process that imports torch
def test_a_child_answers_with_the_report_that_this_process_would_make() -> None:
    (found,) = check_together([Spec("no-attention")], device="cpu", dtype="float32", jobs=2)
    assert found and {setting for setting, _ in found.results} == set(SETTINGS)


def test_a_cpu_checks_one_variant_at_a_time() -> None:
    assert processes_for("cpu") == 1 and processes_for("cuda:0") >= 1
