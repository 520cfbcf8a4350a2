"""The page of audited layers: what targets.toml says of findings, and the sections that a report comes to."""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path

import pytest

import attnbench
from attnbench.bench.gate.result import Result
from attnbench.bench.wings.audit.report import AuditReport
from attnbench.bench.wings.audit.suite import NAMES

FOLDER = Path(attnbench.__file__).parent / "tools" / "audit"
spec = importlib.util.spec_from_file_location("audit_page", FOLDER / "run.py")
assert spec is not None and spec.loader is not None
run = importlib.util.module_from_spec(spec)
spec.loader.exec_module(run)

LISTED = tomllib.loads((FOLDER / "targets.toml").read_text())
HOLDS = tuple(Result(property=name, verdict="holds") for name in NAMES)


def report(**verdicts: tuple[str, str]) -> AuditReport:
    """All properties hold but those that are given, with verdict and detail; `_` stands for a space."""
    said = {name.replace("_", " "): given for name, given in verdicts.items()}
    changed = tuple(
        Result(property=each.property, verdict=said[each.property][0], detail=said[each.property][1])
        if each.property in said
        else each
        for each in HOLDS
    )
    return AuditReport(target="mine:Layer", findings=changed)


def sections(target: dict, found: AuditReport) -> dict[str, str]:
    """The text of each section of a page of one target."""
    text = "\n".join(run.page([(target, found)], {}))
    return {part.partition("\n")[0]: part for part in text.split("\n## ")}


def test_targets_say_something_of_known_properties_and_stand_once() -> None:
    targets = [*LISTED["target"], *LISTED["model"]]
    names = [target["name"] for target in targets]
    assert len(set(names)) == len(names)
    words = [word for target in targets for key in ("says", "design", "alarms") for word in target.get(key, {})]
    assert words and set(words) <= {*NAMES}


@pytest.mark.parametrize(
    ("given", "section"),
    [
        ({"batch": ("fails", "moves by 3")}, "Findings"),
        ({"padding": ("fails", "moves by 3")}, "By design"),
        ({"padding": ("asks", "what does mask mean? True or False")}, "What asks back"),
        ({"decoding": ("not tried", "no cache found")}, "Not tried"),
        ({"gradients": ("note", "not tested, raises RuntimeError: no")}, "Not tried"),
    ],
)
def test_a_finding_stands_in_its_section_alone(given: dict, section: str) -> None:
    target = {"name": "mine:Layer", "says": {"batch": "a reason"}, "design": {}}
    if section == "By design":
        target["design"] = {"padding": "a reason"}
    found = sections(target, run.as_designed(target, report(**given)))
    names = ("Findings", "By design", "What asks back", "Not tried")
    assert [name for name in names if "mine:Layer" in found[name]] == [section]
    if section in ("Findings", "By design"):
        assert "| a reason |" in found[section]


def test_a_false_alarm_stands_with_its_reason_and_fails_nothing() -> None:
    target = {"name": "mine:Layer", "alarms": {"prefix": "rounding"}}
    found = sections(target, run.as_designed(target, report(prefix=("fails", "by 0.0001"))))
    names = ("Findings", "By design", "False alarms", "Nothing found beyond what is by design")
    assert [name for name in names if "mine:Layer" in found[name]] == [*names[2:]]
    assert "| prefix | by 0.0001 | rounding |" in found["False alarms"]


@pytest.mark.parametrize(
    ("given", "clean"),
    [
        ({}, True),
        ({"decoding": ("not tried", "no cache found")}, True),
        ({"gradients": ("note", "not tested, raises RuntimeError: no")}, False),
        ({"gradients": ("not tried", "takes none")}, False),
        ({"batch": ("fails", "moves by 3")}, False),
    ],
)
def test_nothing_is_found_only_where_future_and_gradients_were_tried(given: dict, clean: bool) -> None:
    found = sections({"name": "mine:Layer"}, report(**given))
    assert ("`mine:Layer`" in found["Nothing found beyond what is by design"]) is clean


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        (
            "no tiny Git could be built (ValueError: it has 85,970,723 parameters); name fields, as `Git[num_heads=2]`",
            "ValueError: it has 85,970,723 parameters",
        ),
        ("how is it called? Nothing that was tried gave one output. Say it by `--call`", "how is it called? Nothing "
         "that was tried gave one output"),
    ],
)  # fmt: skip
def test_a_model_that_was_not_built_stands_with_its_reason(question: str, reason: str) -> None:
    missing = AuditReport(target="transformers:GitForCausalLM", question=question)
    text = "\n".join(run.page([({"name": missing.target}, missing)], {}))
    assert text.split("\n")[-1] == f"- GitForCausalLM: {reason}"
