"""Audits the targets of targets.toml and every causal language model of transformers, and writes docs/audit.md.

    .venv/bin/python tools/audit/run.py                  # all that build/audit.jsonl lacks, and the page
    .venv/bin/python tools/audit/run.py performer        # those whose name holds a word, again; then the page

Each report is a line of build/audit.jsonl as soon as it is there, so that a run that is interrupted goes on.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from attnbench.bench.core.errors import AttnbenchError
from attnbench.bench.gate.result import Result, as_meant
from attnbench.bench.process.ask import asking
from attnbench.bench.wings.audit.examine import audit
from attnbench.bench.wings.audit.report import MUST_BE_DECIDED, AuditReport
from attnbench.bench.wings.audit.suite import NAMES, TESTS

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PAGE, REPORTS = ROOT / "docs" / "audit.md", ROOT / "build" / "audit.jsonl"
MODELS = "transformers:"

Target = dict[str, Any]


def main() -> None:
    listed = tomllib.loads((HERE / "targets.toml").read_text(encoding="utf-8"))
    packages = listed["packages"]
    wrong = [f"{name} {version(name)}" for name, pinned in packages.items() if version(name).split("+")[0] != pinned]
    if wrong:
        raise SystemExit(f"expected the versions of targets.toml, got {', '.join(wrong)}")
    targets: list[Target] = [*listed["target"], *models(listed["model"])]
    known = stored()
    REPORTS.parent.mkdir(exist_ok=True)
    with REPORTS.open("a", encoding="utf-8") as file, asking():
        for target in targets:
            name = target["name"]
            if any(word in name for word in sys.argv[1:]) or (name not in known and not sys.argv[1:]):
                known[name] = audited(target)
                file.write(json.dumps(asdict(known[name])) + "\n")
                file.flush()
                print(name, known[name], sep="\n    ", flush=True)
    places = {target["name"]: index for index, target in enumerate(listed["target"])}
    targets.sort(key=lambda target: (places.get(target["name"], len(places)), target["name"]))
    found = [(target, as_designed(target, known[target["name"]])) for target in targets if target["name"] in known]
    lines = [*page(found, packages)]
    if waiting := [target["name"].removeprefix(MODELS) for target in targets if target["name"] not in known]:
        lines.append(f"\nNot run by this version of the audit ({len(waiting)}): {', '.join(waiting)}.")
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")


def models(listed: list[Target]) -> Iterator[Target]:
    """Every causal language model of transformers; those first of which targets.toml says something."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

    said = {target["name"].partition("[")[0]: target for target in listed}
    names = {name if isinstance(name, str) else name[0] for name in CAUSAL.values()}
    for name in sorted(names, key=lambda name: (MODELS + name not in said, name)):
        yield said.get(MODELS + name, {"name": MODELS + name})


def stored() -> dict[str, AuditReport]:
    """The reports of earlier runs by target, the last of each."""
    if not REPORTS.exists():
        return {}
    found = {}
    for line in REPORTS.read_text(encoding="utf-8").strip().split("\n"):
        fields = json.loads(line)
        findings = tuple(Result(**each | {"program": tuple(each["program"])}) for each in fields["findings"])
        report = AuditReport(**fields | {"findings": findings, "building": tuple(fields["building"])})
        found[report.target] = report
    return found


def audited(target: Target) -> AuditReport:
    """The report of one target; a question where it cannot be built."""
    name = target["name"]
    try:
        report = audit(name, call=target.get("call", ""), causal=target.get("causal"), compile="")
    except AttnbenchError as error:
        report = AuditReport(target=name, question=str(error))
    # the name of the list, which the canonical text orders otherwise
    return replace(report, target=name)


def as_designed(target: Target, report: AuditReport) -> AuditReport:
    """The report with what targets.toml says is meant, or false, so that new words there need no new run."""
    return replace(report, findings=tuple(as_meant(report.findings, {*target.get("design", ()), *alarms(target)})))


def alarms(target: Target) -> dict[str, str]:
    """Why a failure is false, by its property."""
    said: dict[str, str] = target.get("alarms", {})
    return said


def page(found: list[tuple[Target, AuditReport]], packages: dict[str, str]) -> Iterator[str]:
    """The lines of docs/audit.md."""
    layers = [each for each in found if not each[0]["name"].startswith(MODELS)]
    causal = [each for each in found if each[0]["name"].startswith(MODELS)]
    asked = [report for _, report in layers if report.question]
    built = [each for each in causal if not each[1].question]
    # what the audit tests is written by hand, above what it found
    head, heading, _ = PAGE.read_text(encoding="utf-8").partition("## Published layers\n")
    yield head + heading.strip()
    pinned = ", ".join(f"{name} {number}" for name, number in packages.items())
    yield f"\nVersions: {pinned}.\n\nLayers and functions: {len(layers)}, of which {len(asked)} could not be called. "
    yield f"Causal language models of transformers: {len(causal)}, of which {len(built)} were built small."
    yield "\n## Findings\n\nSizes are in standard deviations of the output.\n"
    yield from table(layers + built, "fails", "says")
    yield "\n## By design\n"
    yield from table(layers + built, "by design", "design")
    head, *rows = table(layers + built, "by design", "alarms")
    if rows:
        yield "\n## False alarms\n\nA second program found that these properties hold: faults of the audit.\n"
        yield from (head, *rows)
    yield "\n## What asks back\n\nWhat a mask means, or how a layer is called, was not found out by trial.\n"
    for target, report in layers:
        questions = [report.question] if report.question else []
        questions += [each.detail for each in report.findings if each.verdict == "asks"]
        yield from (f"- `{target['name']}`: {text.partition('. ')[0]}" for text in questions)
    clean = [short(target["name"]) for target, report in layers if passes(report)]
    yield "\n## Nothing found beyond what is by design\n"
    yield "Targets of the table By design are here too: they fail nothing else.\n"
    yield f"Layers and functions ({len(clean)}): {', '.join(f'`{name}`' for name in clean)}."
    names = [target["name"].removeprefix(MODELS) for target, report in built if passes(report)]
    yield f"\nModels of transformers ({len(names)}): {', '.join(names)}."
    for verdict, words in (("holds", "keep texts of one row apart by"), ("note", "keep no texts of one row apart by")):
        rows = [target["name"].removeprefix(MODELS) for target, report in built if packed(report) == verdict]
        yield f"\nModels that {words} position_ids that begin again ({len(rows)}): {', '.join(rows)}."
    yield "\n## Not tried\n\nThe module takes no such argument that was found, or raised; nothing was compiled.\n"
    for name in NAMES:
        rows = [
            short(target["name"].removeprefix(MODELS)) for target, report in layers + built if untried(report, name)
        ]
        if rows and name != "compile":
            yield f"- {name} ({len(rows)}): {', '.join(f'`{row}`' for row in rows)}"
    for name in TESTS:
        tested = [{each.property for each in report.findings} for _, report in layers + built if report.findings]
        if earlier := sum(name not in each for each in tested):
            yield f"- {name}: {earlier} others, which were run before this test was there"
    missing = [
        (target["name"].removeprefix(MODELS), why(report.question)) for target, report in causal if report.question
    ]
    yield f"\nModels that no tiny configuration built or a CPU does not run ({len(missing)}); of those with too many "
    yield "parameters, more than ten million, a part has a configuration of its own:\n"
    yield from (f"- {name}: {reason}" for name, reason in missing)


def why(question: str) -> str:
    """The reason inside the question about a model that was not built or called, without the advice behind it."""
    _, built, reason = question.partition(" could be built (")
    return reason.partition("); name fields")[0] if built else question.partition(". ")[0]


def packed(report: AuditReport) -> str:
    """The verdict on packed rows; of a test that could not be made, "n.a."."""
    found = next(each for each in report.findings if each.property == "packed rows")
    return "n.a." if found.detail.startswith("not tested") else found.verdict


def passes(report: AuditReport) -> bool:
    """Nothing fails, and what must be decided is."""
    return bool(report) and not any(untried(report, name) for name in MUST_BE_DECIDED)


def untried(report: AuditReport, name: str) -> bool:
    """Nothing is known of a property: its test found no way, or raised before it had an answer."""
    said = (each for each in report.findings if each.property == name)
    return any(each.verdict == "not tried" or each.detail.startswith("not tested") for each in said)


def table(found: list[tuple[Target, AuditReport]], verdict: str, reasons: str) -> Iterator[str]:
    """A table of the findings of one verdict, with what targets.toml says of them under `reasons`."""
    yield "| target | property | found | |\n|---|---|---|---|"
    for target, report in found:
        for finding in (each for each in report.findings if each.verdict == verdict):
            if (finding.property in alarms(target)) != (reasons == "alarms"):
                continue
            said = target.get(reasons, {}).get(finding.property, "")
            yield f"| `{short(target['name'])}` | {finding.property} | {finding.detail} | {said} |"


def short(name: str) -> str:
    """A name without the module's path and the sizes that all layers have."""
    place, _, rest = name.rpartition(":")
    name, bracket, inside = rest.partition("[")
    sizes = (
        "dim=", "heads=", "dim_head=", "depth=", "num_tokens=", "max_seq_len=", "embed_dim=", "num_heads=", "seq_len=",
        "hidden_size=", "n_state=", "n_head=", "query_dim=", "light_", "heavy_", "num_heavy_", "num_routed_",
    )  # fmt: skip
    kept = [each for each in inside.removesuffix("]").split(",") if not each.startswith(sizes)]
    own = place.split(".")[0] if not place.endswith(".py") else ""
    return f"{own}:{name}[{','.join(kept)}]".strip(":").replace("[]", "") if bracket else f"{own}:{name}".strip(":")


if __name__ == "__main__":
    main()
