"""`attnbench audit`: the gate for layers and models of anybody, one line each, as JSON, or as programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from ...cli.check import ByDesign, Causal, Strict, _json_number, each_alone, names_of, prepare
from ...cli.command import command
from ...cli.options import CallText, Json
from ...cli.output import say, say_json
from ...core.errors import SelectionError
from ...core.spec import with_call


@command("Own", "attnbench audit mine.py:MyAttention")
def audit(
    targets: Annotated[
        list[str],
        typer.Argument(help="FILE.py:NAME, package.module:NAME\\[dim=64] or transformers:NAME.", show_default=False),
    ],
    call: CallText = "",
    causal: Causal = None,
    compile: Annotated[str, typer.Option(help="Backend of torch.compile: aot_eager, inductor or none.")] = "aot_eager",
    by_design: ByDesign = "",
    like: Annotated[
        str, typer.Option(metavar="VARIANT", help="Compare with one of ours: rela, 'softmax|alibi', window\\[size=8].")
    ] = "",
    strict: Strict = False,
    reproduce: Annotated[
        bool, typer.Option("--reproduce", help="Print a program of plain torch for each failure.")
    ] = False,
    json: Json = False,
) -> None:
    """Test layers and models as they are: leaks of the future, padding, caches, gradients, precision.

    Exit with code 0 if nothing fails but what is by design, with 1 if something fails, with 2 if the audit has to be
    told how to call a target, what it claims or what its mask means, or if a name is wrong.
    """
    prepare(targets)
    from .examine import audit as audit_of
    from .report import in_words

    backend = "" if compile == "none" else compile
    options: dict[str, Any] = {"causal": causal, "compile": backend, "by_design": names_of(by_design), "like": like}
    wrong: list[str] = []
    specs = with_call(targets, call)
    reports = list(each_alone(specs, lambda spec: audit_of(spec, **options), wrong))
    if json:
        say_json([_object(report) for report in reports])
    for report in () if json else reports:
        if len(specs) > 1:
            say(report.target)
        if report.convention:
            say(f"called as {report.convention}", folds=True)
        say(str(report), folds=True)
        if report.findings:
            say(report.verdict, folds=True)
        for failure in report.failures if reproduce else ():
            say("\n".join(("", f"# {in_words(failure)}", *report.reproduction(failure.property))))
    if any(report.failures for report in reports):
        raise typer.Exit(1)
    if wrong or not all(reports) or (strict and not all(report.tried_all for report in reports)):
        raise typer.Exit(SelectionError.exit_code)


def _object(report: Any) -> dict[str, Any]:
    """The report as JSON has it: no infinity, and the program of each failure whole."""
    found = asdict(report)
    for each, finding in zip(found["findings"], report.findings, strict=True):
        each["measured"], each["allowed"] = _json_number(finding.measured), _json_number(finding.allowed)
        each["program"] = "\n".join(report.reproduction(finding.property)) if finding.verdict == "fails" else None
    return found
