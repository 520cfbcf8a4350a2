"""`attnbench probe`: a page on what one variant can do, in minutes."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from ...cli.command import command
from ...cli.options import CallText, Device, Json, Results, Seconds, Threads, complete_variants
from ...cli.output import say, say_json, warn
from ...core.errors import Unsupported
from ...core.files import RESULTS
from ...core.spec import with_call


@command("Own", "attnbench probe entmax15")
def probe(
    variant: Annotated[
        str,
        typer.Argument(autocompletion=complete_variants, help="A variant, such as `rela` or `local\\[flange=64]`."),
    ],
    call: CallText = "",
    preset: Annotated[
        str, typer.Option(help="quick, or smoke to prove that it runs; `quick\\[steps=200]` changes it.")
    ] = "quick",
    device: Device = None,
    threads: Threads = 0,
    results: Results = RESULTS,
    timeout: Seconds = None,
    retry: Annotated[bool, typer.Option("--retry", help="Run failed cells again.")] = False,
    json: Json = False,
) -> None:
    """Profile one variant in minutes: recall, length extrapolation, cost and the most similar variants.

    Run the gate, train the variant and softmax once on each of recall, selective-copy and max, and time attention at
    256, 1,024 and 4,096 tokens. A variant as fast as softmax takes 10 minutes on two cores. The same command resumes.
    Exit with code 1 if the gate fails or a training ends without a result.
    """
    from ...api import run as run_api
    from ...cli.live import Live
    from ...cli.pages import say_page
    from .probe import probe as probe_of
    from .score import CAUSAL_TASKS

    given: dict[str, Any] = {"results": results, "device": device, "threads": threads, "timeout": timeout}
    with Live(quiet=json) as live:
        # what no run takes is told before the minute that the gate takes
        run_api.plan("softmax", CAUSAL_TASKS[0], progress=live, **given)
        found = probe_of(with_call([variant], call), preset=preset, retry=retry, progress=live, **given)
    if json:
        say_json(asdict(found))
    else:
        say(str(found))
        if found.passed:
            say_page(Path(results))
    if found.unsupported:
        raise typer.Exit(Unsupported.exit_code)
    if not found.passed:
        raise typer.Exit(1)
    if not found.complete:
        warn("Some trainings have no result; the lines above give the reasons, and `--retry` runs them again.")
        raise typer.Exit(1)
