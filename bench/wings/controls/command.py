"""`attnbench controls`: train positive controls, and print which passed."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ...cli.command import command
from ...cli.options import Device, Json, Results, Seconds, Threads, complete_variants
from ...cli.output import print_rows, say, say_json
from ...core.files import RESULTS


@command("Own", "attnbench controls fox,topk")
def controls(
    variants: Annotated[
        str | None,
        typer.Argument(autocompletion=complete_variants, help="Variants, such as `fox,topk` (default: all)."),
    ] = None,
    device: Device = None,
    threads: Threads = 0,
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, help="Trainings at once.")] = None,
    results: Results = RESULTS,
    timeout: Seconds = None,
    retry: Annotated[bool, typer.Option("--retry", help="Run failed cells again.")] = False,
    json: Json = False,
) -> None:
    """Train what each variant must reproduce, a published or provable result, and say which variants do.

    A control takes from five seconds to three minutes on two cores. The same command resumes. A variant whose control
    fails or was never run is not established: boards give it no place. Exit with code 1 where a control fails.
    """
    from ...cli.live import Live
    from .controls import controls as controls_of

    given: dict[str, Any] = {"results": results, "device": device, "threads": threads, "jobs": jobs}
    with Live(quiet=json) as live:
        found = controls_of(variants, timeout=timeout, retry=retry, progress=live, **given)
    rows = [
        {
            "variant": str(one.control.name),
            "claim": one.control.claim,
            "published": one.control.published,
            "asked": one.control.asks,
            "ours": one.shown,
            "state": one.state,
            "source": one.control.source,
        }
        for one in found
    ]
    if json:
        say_json(rows)
    else:
        shown = ("variant", "claim", "published", "asked", "ours", "state")
        styles = ["" if one.state == "passed" else "red" for one in found]
        print_rows([tuple(row[name] for name in shown) for row in rows], shown, styles)
        counts = [f"{sum(one.state == state for one in found)} {state}" for state in ("passed", "failed", "never run")]
        say(f"{len(found)} controls: {', '.join(counts)}")
    if any(one.state != "passed" for one in found):
        raise typer.Exit(1)
