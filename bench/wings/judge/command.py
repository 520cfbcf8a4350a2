"""`attnbench judge`: is it right, is it better, what does it cost? One page, line by line as it is measured."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from ...cli.command import command
from ...cli.options import CallText, Device, Json, Results, Seconds, Threads, complete_variants
from ...cli.output import say, say_json, warn
from ...core.errors import SelectionError, Unsupported
from ...core.files import RESULTS
from ...core.spec import with_call


@command("Own", "attnbench judge mine.py:MyAttention")
def judge(
    variant: Annotated[
        str,
        typer.Argument(
            autocompletion=complete_variants,
            help="A module or function of yours, FILE.py:NAME or package.module:NAME, or a variant, such as `rela`.",
        ),
    ],
    call: CallText = "",
    quick: Annotated[bool, typer.Option("--quick", help="Two minutes: one short training, one length.")] = False,
    causal: Annotated[
        bool | None,
        typer.Option("--causal/--no-causal", help="Whether a module claims to be causal; else it is asked."),
    ] = None,
    preset: Annotated[
        str, typer.Option(help="quick, or smoke to prove that it runs; `quick\\[steps=200]` changes it.")
    ] = "quick",
    device: Device = None,
    threads: Threads = 0,
    results: Results = RESULTS,
    timeout: Seconds = None,
    retry: Annotated[bool, typer.Option("--retry", help="Test and run failed cells again.")] = False,
    json: Json = False,
) -> None:
    """Judge an attention: is it right, is it better than softmax, what does it cost?

    Audit a module as it is, run the gate, train it and softmax once on each of recall, selective-copy and max, and time
    it at 256, 1,024 and 4,096 tokens: a layer beside softmax with the same projections. A line is printed as soon as it
    is known; what fails marks those that follow, and a layer that looks ahead a little has to say first what it claims.
    One as fast as softmax takes ten minutes on two idle cores, two with `--quick`. The same command goes on where it
    was stopped. Exit with code 1 if something fails or a training ends without a result, 2 if it has to say more.
    """
    from ...api import run as run_api
    from ...cli.live import Live
    from ...cli.pages import say_page
    from .judge import judging
    from .score import CAUSAL_TASKS

    given: dict[str, Any] = {"results": results, "device": device, "threads": threads, "timeout": timeout}
    report, shown = None, 0
    try:
        with Live(quiet=json, brief=True) as live:
            # what no run takes is told before the minute that the gate takes
            run_api.plan("softmax", CAUSAL_TASKS[0], progress=Live(quiet=True), **given)
            names = with_call([variant], call)
            more: dict[str, Any] = {"preset": preset, "quick": quick, "causal": causal, "retry": retry}
            for report in judging(names, progress=live, **more, **given):
                for line in () if json else report.lines[shown:]:
                    live.say(str(line))
                shown = len(report.lines)
    finally:
        # an interrupt too leaves what is done
        if report is not None and json:
            say_json(asdict(report) | {"headline": report.headline})
        elif report is not None and report.answers:
            say(report.ending)
    assert report is not None
    if not json and report.complete:
        say_page(Path(results))
    if report.unsupported:
        raise typer.Exit(Unsupported.exit_code)
    if report.undecided:
        raise typer.Exit(SelectionError.exit_code)
    if not report.passed:
        raise typer.Exit(1)
    if not report.complete:
        warn("Some trainings have no result; the lines above give the reasons, and `--retry` runs them again.")
        raise typer.Exit(1)
