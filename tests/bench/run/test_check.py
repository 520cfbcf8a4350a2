"""Checks that run at once are those that run one after another, and one that dies is its own report."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from attnbench.bench.core.errors import PluginError, SelectionError
from attnbench.bench.core.spec import Spec
from attnbench.bench.gate import Result
from attnbench.bench.gate.report import SETTINGS, CheckReport, check_variant
from attnbench.bench.gate.result import NotJudged
from attnbench.bench.gate.twins import Path as VariantPath
from attnbench.bench.process import side_by_side as side
from attnbench.bench.process.ask import Silent
from attnbench.bench.run import check as module
from attnbench.bench.run.check import CheckVariant, check_together, joined, processes_for
from attnbench.bench.run.remote_child import ProcessSettings
from attnbench.variants.contract import Mask, ScoredVariant


class Idle:
    """A child that is asked nothing."""

    def __init__(self, target: str):
        self.open = {0}

    def receive(self, seconds: float) -> None:
        raise TimeoutError

    def end(self) -> None:
        self.open.clear()


def answered(question: CheckVariant) -> CheckReport:
    results = [(setting, Result(property="finite", verdict="holds")) for setting in SETTINGS]
    paths = (VariantPath(name="eager"), VariantPath(name="triton", refusal="" if question.part else "no GPU"))
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
    monkeypatch.setattr(side, "Child", Idle)
    specs = [Spec(name) for name in names]
    found = dict(check_together(specs, device="cpu", dtype="float32", jobs=jobs))
    assert set(found) == set(specs) and len(asked) == parts * len(names)
    for report in found.values():
        assert isinstance(report, CheckReport)
        # every setting once, in the order of a check in one process
        assert [setting for setting, _ in report.results] == list(SETTINGS)
        # a path that ran in one part has been checked
        assert [path.refusal for path in report.paths] == ["", ""]
        # of the whole, as a person waited for it
        assert 0 <= report.seconds < parts - 1


def test_a_process_that_dies_costs_its_own_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(child: object, registry: Any, name: str, question: CheckVariant, **more: Any) -> CheckReport:
        if name == "linear" and question.part:
            raise PluginError(registry.plugin(name), "it ended with SIGKILL", "crashed")
        return answered(question)

    monkeypatch.setattr(module, "ask_child", ask)
    monkeypatch.setattr(side, "Child", Idle)
    specs = [Spec("rela"), Spec("linear")]
    found = dict(check_together(specs, device="cpu", dtype="float32", jobs=4))
    died = found[Spec("linear")]
    assert found[Spec("rela")] and isinstance(died, CheckReport) and died.problem == "it ended with SIGKILL"


def test_a_part_that_has_a_problem_is_that_of_the_whole() -> None:
    right, wrong = (CheckReport(name="mine", results=(), seconds=1.0, problem=text) for text in ("", "does not build"))
    assert not joined([right, wrong], 1.0) and joined([right, right], 1.0)


@pytest.mark.slow  # a process that imports torch
def test_a_child_answers_with_the_report_that_this_process_would_make() -> None:
    ((_, found),) = check_together([Spec("no-attention")], device="cpu", dtype="float32", jobs=2)
    assert isinstance(found, CheckReport) and found and {setting for setting, _ in found.results} == set(SETTINGS)


@pytest.mark.slow  # processes that import torch
def test_code_of_others_is_judged_by_parts_in_processes_that_never_import_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    # says where it is imported: never in this process, nor in one that judges
    file.write_text(
        "import os, torch\n"
        f"open({str(tmp_path / 'log')!r}, 'a').write(f'{{os.getppid()}} {{os.getpid()}}\\n')\n"
        "def plain(query, key, value):\n"
        "    return torch.nn.functional.scaled_dot_product_attention(query, key, value)\n"
    )
    spec = Spec(f"{file}:plain")
    ((_, found),) = check_together([spec], device="cpu", dtype="float32", jobs=2, causal=False)
    assert isinstance(found, CheckReport) and {setting for setting, _ in found.results} == set(SETTINGS)
    assert not {result.property for _, result in found.results if result.held is False}
    importers = {line.split()[1] for line in (tmp_path / "log").read_text().split("\n") if line}
    assert len(importers) == 2 and str(os.getpid()) not in importers
    assert str(file) not in {getattr(module, "__file__", None) for module in sys.modules.values()}


def test_a_check_leaves_the_settings_of_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def judged(source: object, name: str, **more: Any) -> CheckReport:
        torch.set_float32_matmul_precision("medium")
        torch.use_deterministic_algorithms(True)
        return CheckReport(name=name, results=(), seconds=0.0)

    monkeypatch.setattr(module, "check_variant", judged)
    before = ProcessSettings.now()
    assert CheckVariant(Spec("rela"), "cpu", "float32", threads=before.threads + 1).answer(Silent()) is not None
    after = ProcessSettings.now()
    assert (after.threads, after.deterministic, after.precision) == (
        before.threads, before.deterministic, before.precision
    )  # fmt: skip


class KeepsMasks(ScoredVariant):
    """Softmax whose masks are kept under the lengths alone, whether or not they are causal."""

    kept: ClassVar[dict[tuple[int, int], Tensor]] = {}

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        size = query.shape[2], key.shape[2]
        seen = self.kept.setdefault(
            size, torch.ones(size, dtype=torch.bool).tril() if mask.causal else torch.ones(size)
        )
        return F.scaled_dot_product_attention(query, key, value, seen.bool())


@pytest.mark.parametrize("part", [1, 4])
def test_what_is_kept_from_one_setting_to_the_next_is_seen_whatever_the_parts(part: int) -> None:
    """Those of the two causal settings, as processes of their own would examine them."""
    KeepsMasks.kept.clear()
    report = check_variant(KeepsMasks, "mine", part=part, parts=len(SETTINGS))
    assert "causal" in [result.property for result in report.failures]


def test_a_question_that_is_wrong_is_an_error_and_not_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(child: object, registry: object, name: str, question: CheckVariant, **more: Any) -> CheckReport:
        if name == "linear":
            raise SelectionError("linear says itself what it promises")
        return answered(question)

    monkeypatch.setattr(module, "ask_child", ask)
    monkeypatch.setattr(side, "Child", Idle)
    specs = [Spec("rela"), Spec("linear")]
    found = dict(check_together(specs, device="cpu", dtype="float32", jobs=4, by_design=("window",)))
    assert isinstance(found[Spec("linear")], SelectionError) and isinstance(found[Spec("rela")], CheckReport)


@pytest.mark.slow  # processes that import torch
def test_code_whose_call_is_not_found_is_asked_about_in_whole(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "class Odd(torch.nn.Module):\n"
        "    def forward(self, x, table):\n"
        "        raise ValueError(f'what {200 * \"a\"} needs')\n"
    )
    spec = Spec(f"{tmp_path / 'mine.py'}:Odd")
    ((_, found),) = check_together([spec], device="cpu", dtype="float32", jobs=1)
    assert isinstance(found, SelectionError) and str(found).startswith("how is it called?")
    assert str(found).endswith("or name a module of your file that needs no more")


def test_a_cpu_checks_no_more_at_once_than_it_has_cores_or_there_are_settings() -> None:
    assert 1 <= processes_for("cpu") <= min(len(os.sched_getaffinity(0)), len(SETTINGS))
    assert processes_for("cuda:0") >= 1


def test_a_property_that_does_not_apply_has_its_own_reason_before_that_of_a_whole_setting() -> None:
    blanket, own = (Result.of("bounds", NotJudged(reason)) for reason in ("it takes no mask", "needs bounds"))
    other = Result.of("twin", NotJudged("it takes no mask"))
    results = ((SETTINGS[0], blanket), (SETTINGS[0], other), (SETTINGS[3], own))
    report = CheckReport(name="mine", results=results, seconds=1.0)
    assert {result.property: result.detail for _, result in report.worst()} == {
        "bounds": "needs bounds", "twin": "it takes no mask"
    }  # fmt: skip
