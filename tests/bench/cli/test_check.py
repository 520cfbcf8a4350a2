"""`attnbench check`: what a person sees of a variant that raises."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import attnbench
from attnbench.bench.cli import check
from attnbench.bench.core.errors import SelectionError
from attnbench.bench.gate import Property, Result
from attnbench.bench.gate import report as gate_report
from attnbench.bench.gate.report import SETTINGS, CheckReport

CASE: Any = SimpleNamespace(one_head_if_slow=None)


def multiplied(case: object) -> None:
    torch.ones(2, 3) @ torch.ones(2, 3)


def test_a_variant_that_raises_everywhere_is_one_line_that_names_the_line_of_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = [Property(name, multiplied).examine(CASE) for name in ("finite", "causal")]
    line = multiplied.__code__.co_firstlineno + 1
    assert found[0].detail.startswith("raised RuntimeError: mat1 and mat2 shapes cannot be multiplied")
    assert found[0].detail.endswith(f"(line {line} of test_check.py)")
    # what does not apply was not tested
    found.append(Result(property="simplex", verdict="n.a.", measured=math.nan, detail="not declared"))
    check._print(CheckReport(name="mine", results=tuple((SETTINGS[0], each) for each in found), seconds=1.0), False)
    shown = capsys.readouterr().out
    assert shown == f"mine: no property could be tested; the first attempt {found[0].detail}\n"


def test_a_table_has_what_was_tested_and_each_reason_not_to_test_once(capsys: pytest.CaptureFixture[str]) -> None:
    untested = [Result(property=name, verdict="n.a.", measured=math.nan, detail="no mask") for name in ("a", "b", "c")]
    other = replace(untested[0], detail="no heads")
    lacking = [replace(other, property=name, detail=f"needs {name}") for name in ("decoding", "bounds")]
    held = Result(property="finite", verdict="holds", measured=0.0, allowed=0.0, detail="95 long")
    failed = Result(property="causal", verdict="fails", measured=1.0, allowed=0.5, detail="moves the past")
    results = [(SETTINGS[0], each) for each in (held, failed, *untested, *lacking)] + [(SETTINGS[1], other)]
    check._print(CheckReport(name="mine", results=tuple(results), seconds=1.0), False)
    lines = capsys.readouterr().out.split("\n")
    # one that has a reason of its own in another setting has that
    assert [line for line in lines if line.startswith("not applicable, ")] == [
        "not applicable, no heads: a",
        "not applicable, no mask: b, c",
        "not applicable, for what it does not take, show or declare: decoding, bounds",
    ]
    assert any("causal" in line and f"{SETTINGS[0]}: moves the past" in " ".join(line.split()) for line in lines)
    assert not any("95 long" in line for line in lines)


@pytest.mark.parametrize("told", [{"causal": True}, {"causal": False}, {"by_design": ["gradient"]}])
def test_a_registered_variant_is_told_nothing(told: dict[str, Any]) -> None:
    with pytest.raises(SelectionError, match="rela says itself what it promises: --causal"):
        attnbench.check("rela", **told)


def test_a_property_that_is_meant_and_that_no_property_is_called_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_report, "examine", lambda variant, shape: [])
    with pytest.raises(SelectionError, match=r"expected by design some of causal, .*; got 'casual' \(did you mean"):
        attnbench.check(torch.nn.Linear(32, 32), by_design=["casual"])
