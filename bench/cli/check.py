"""`attnbench check`: the promises of a variant, tested, as a table or as JSON."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from ..core.errors import AttnbenchError, PluginError, SelectionError, Unsupported
from ..core.registry import VARIANTS
from ..core.spec import Spec, with_call
from ..process.servers import start_server
from .command import command
from .options import CallText, Json, complete_variants
from .output import say, say_json, warn

if TYPE_CHECKING:
    from ..gate.report import CheckReport

_LACKS = "for what it does not take, show or declare"
STYLES = {"holds": "green", "fails": "bold red", "n.a.": "dim", "asks": "bold yellow"}

Causal = Annotated[
    bool | None,
    typer.Option("--causal/--no-causal", help="Whether FILE.py:NAME claims to be causal; else the module is asked."),
]
ByDesign = Annotated[
    str,
    typer.Option(metavar="PROPERTIES", help="What FILE.py:NAME breaks on purpose, such as `window,softmax`."),
]
Strict = Annotated[bool, typer.Option("--strict", help="Also exit with code 2 if anything was not tried.")]

T = TypeVar("T")


def names_of(by_design: str) -> tuple[str, ...]:
    """The properties that a person named, with dashes for spaces or without."""
    return tuple(name.strip().replace("-", " ") for name in by_design.split(",") if name.strip())


def prepare(names: Sequence[str], jobs: int = 1) -> None:
    """Start the server of children before torch is imported, so that it imports torch while this process does.

    jobs: processes that are to work at once, 0 for one on each core.

    For code of a file, threads of OpenMP leave the core to others while they wait: the process that compares and the
    one that runs the code take turns, and on a busy machine a check takes half the time so. Nothing is timed in it.
    """
    if any(":" in name for name in names):
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if any(":" in name for name in names) or (jobs or len(os.sched_getaffinity(0))) > 1:
        start_server()


def each_alone(specs: Sequence[Spec], examine: Callable[[Spec], T], wrong: list[str]) -> Iterator[T]:
    """The results of `examine`; of several names a bad one loses only itself, and is told and added to `wrong`."""
    for spec in specs:
        try:
            yield examine(spec)
        except AttnbenchError as error:
            if len(specs) == 1:
                raise
            _lose(spec, error, wrong)


def _lose(spec: Spec, error: AttnbenchError, wrong: list[str]) -> None:
    wrong.append(str(spec))
    warn(f"{spec}: {error}")


@command("Own", "attnbench check rela linear")
def check(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            autocompletion=complete_variants,
            help="Variants, such as `rela` or `local\\[flange=64]`.",
            show_default=False,
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Check every installed variant.")] = False,
    call: CallText = "",
    device: Annotated[str, typer.Option(help="Device to check on: cpu or cuda.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="Precision to check in: float32, bfloat16 or float16.")] = "float32",
    jobs: Annotated[
        int, typer.Option(help="Processes at once; 0: one for each core, at most six on a CPU.", min=0, max=256)
    ] = 0,
    causal: Causal = None,
    by_design: ByDesign = "",
    strict: Strict = False,
    json: Json = False,
) -> None:
    """Test variants for causality, padding, gradients, precision and decoding.

    Exit with code 1 if one fails, with 2 if its author has to be asked or a name is wrong, with 6 if a named one cannot
    run here, such as `rela\\[impl=triton]` without a GPU.
    """
    prepare(names or [], jobs)
    from ..gate.report import unchecked
    from ..run.check import check_together, processes_for

    wrong: list[str] = []
    specs = _specs(names or [], every, call, wrong)
    # one table for one or a few; for all of them a line each, and the table of those that fail
    brief = every or len(specs) > 3
    reports = []
    options: dict[str, Any] = {"device": device, "dtype": dtype, "causal": causal, "by_design": names_of(by_design)}
    for spec, report in check_together(specs, jobs=jobs or processes_for(device), **options):
        if isinstance(report, AttnbenchError):
            if len(specs) + len(wrong) == 1:
                raise report
            _lose(spec, report, wrong)
            continue
        reports.append(report)
        if not json:
            _print(report, brief)
            # a pipe would hold minutes of lines back
            sys.stdout.flush()
    # processes end in any order
    order = {str(spec): at for at, spec in enumerate(specs)}
    reports.sort(key=lambda report: order.get(report.name, len(order)))
    if json:
        say_json([row for report in reports for row in _objects(report)])
    elif len(reports) > 1:
        say(f"{sum(map(bool, reports))} of {len(reports)} variants hold all that applies to them")
        if brief:
            for line in unchecked(reports):
                say(line)
    if not all(reports):
        raise typer.Exit(1)
    if wrong or any(report.undecided for report in reports) or (strict and not all(each.tried_all for each in reports)):
        raise typer.Exit(SelectionError.exit_code)
    if not every and any(report.unsupported for report in reports):
        raise typer.Exit(Unsupported.exit_code)


def _specs(names: list[str], every: bool, call: str, wrong: list[str]) -> list[Spec]:
    """The variants that are named; of several a wrong name is told at once, and added to `wrong`."""
    from ..plan.facts import resolve

    if every and names:
        raise SelectionError("expected names or --all, got both; leave one out")
    if every:
        return [Spec(entry.name) for entry in VARIANTS.entries()]
    if not names:
        raise SelectionError("expected the name of a variant or --all; `attnbench list variants` lists the names")
    found = []
    for spec in with_call(names, call):
        try:
            found.append(resolve(VARIANTS, spec))
        except PluginError:
            # its report names the problem
            found.append(spec)
        except AttnbenchError as error:
            if len(names) == 1:
                raise
            _lose(spec, error, wrong)
    return list(dict.fromkeys(found))


def _print(report: CheckReport, brief: bool) -> None:
    from rich.markup import escape
    from rich.table import Table

    from .output import console as make_console

    console = make_console()
    if report.first_error:
        console.print(escape(f"{report.name}: {report.first_error}"), style="bold red", soft_wrap=True)
        return
    if report.results and not report.unsupported and not (brief and report):
        table = Table("property", "verdict", "measured", "allowed", "detail", title=escape(report.name), box=None)
        skipped: dict[str, list[str]] = {}
        for setting, result in report.worst():
            if result.verdict == "n.a.":
                # what a condition of the contract lacks is a word of ours; JSON has it
                why = _LACKS if result.detail.startswith("needs ") else result.detail
                skipped.setdefault(why, []).append(result.property)
            if result.verdict in ("n.a.", "not tried") or (brief and result.held):
                continue
            style = STYLES.get(result.verdict, "dim")
            # of what holds, the setting with the largest value says enough; JSON has the rest
            where = str(setting) if result.held else f"{setting}: {result.detail}"
            table.add_row(
                result.property,
                f"[{style}]{result.verdict}[/]",
                _number(result.measured),
                _number(result.allowed),
                escape(where),
            )
        console.print(table)
        for reason, names in () if brief else skipped.items():
            console.print(escape(f"not applicable, {reason}: {', '.join(names)}"), style="dim")
    # elsewhere than on a terminal a line is whole, for other programs
    whole = not console.is_terminal
    console.print(escape(str(report)), style="" if report else "bold red", soft_wrap=whole)
    if brief or report.unsupported or not report.paths:
        return
    compared = ", ".join(path.name for path in report.paths if not path.refusal)
    lines = [f"paths checked against the eager definition: {compared or 'none'}"]
    lines += [f"path {path.name} was not checked: {path.refusal}" for path in report.paths if path.refusal]
    for line in lines:
        console.print(escape(f"{report.name}: {line}"), soft_wrap=whole)


def _objects(report: CheckReport) -> Iterator[dict[str, Any]]:
    if report.problem:
        yield {"variant": report.name, "property": "builds", "verdict": "fails", "detail": report.problem}
    for setting, result in report.results:
        yield {
            "variant": report.name,
            **asdict(setting),
            "property": result.property,
            "verdict": result.verdict,
            "measured": _json_number(result.measured),
            "allowed": _json_number(result.allowed),
            "detail": result.detail,
        }
    for path in report.paths:
        yield {"variant": report.name, "path": path.name, "checked": not path.refusal, "reason": path.refusal}


def _number(value: float) -> str:
    return "" if math.isnan(value) else "0" if value == 0 else f"{value:.2g}"


def _json_number(value: float) -> float | str | None:
    """JSON knows no infinity: it becomes text, and what was not measured null."""
    return None if math.isnan(value) else value if math.isfinite(value) else str(value)
