"""`attnbench audit`: the gate for layers and models of anybody, one line each, as JSON, or as programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from ...cli.check import _json_number
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
    causal: Annotated[
        bool | None,
        typer.Option("--causal/--no-causal", help="Whether it claims to be causal; else the module is asked."),
    ] = None,
    compile: Annotated[str, typer.Option(help="Backend of torch.compile: aot_eager, inductor or none.")] = "aot_eager",
    by_design: Annotated[
        str, typer.Option(metavar="CHECKS", help="Findings that are meant, such as `future,amount-of-padding`.")
    ] = "",
    reproduce: Annotated[
        bool, typer.Option("--reproduce", help="Print a program of plain torch for each failure.")
    ] = False,
    json: Json = False,
) -> None:
    """Test layers and models as they are: leaks of the future, padding, caches, gradients, precision.

    Exit with code 0 if nothing fails but what is by design, with 1 if something fails, with 2 if the audit has to be
    told how to call a target or a name is wrong.
    """
    from .examine import audit as audit_of
    from .report import in_words

    backend = "" if compile == "none" else compile
    meant = tuple(name.strip().replace("-", " ") for name in by_design.split(",") if name.strip())
    specs = with_call(targets, call)
    reports = [audit_of(spec, causal=causal, compile=backend, by_design=meant) for spec in specs]
    if json:
        say_json([_object(report) for report in reports])
    for report in () if json else reports:
        if len(reports) > 1:
            say(report.target)
        if report.convention:
            say(f"called as {report.convention}")
        say(str(report))
        if report.findings:
            say(report.verdict)
        for failure in report.failures if reproduce else ():
            say("\n".join(("", f"# {in_words(failure)}", *report.reproduction(failure.property))))
    if any(report.failures for report in reports):
        raise typer.Exit(1)
    if not all(reports):
        raise typer.Exit(SelectionError.exit_code)


def _object(report: Any) -> dict[str, Any]:
    """The report as JSON has it: no infinity, and the program of each failure whole."""
    found = asdict(report)
    for each, finding in zip(found["findings"], report.findings, strict=True):
        each["measured"], each["allowed"] = _json_number(finding.measured), _json_number(finding.allowed)
        each["program"] = "\n".join(report.reproduction(finding.property)) if finding.verdict == "fails" else None
    return found
