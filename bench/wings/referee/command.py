"""`attnbench referee`: whether the places of a variant hold on tasks that were drawn just now."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from ...cli.command import command
from ...cli.leaderboard import show
from ...cli.options import Device, Format, Json, Results, Threads, complete_variants, folder
from ...cli.output import print_rows, say, say_json
from ...core.files import RESULTS

_ORDER = {1: "better", -1: "worse", 0: "not separated", None: "not ranked"}


@command("Own", "attnbench referee entmax15")
def referee(
    variant: Annotated[str, typer.Argument(autocompletion=complete_variants, help="A variant, such as `rela`.")],
    rivals: Annotated[
        str | None, typer.Option(autocompletion=complete_variants, help="Variants beside softmax to train with it.")
    ] = None,
    secret: Annotated[
        str | None, typer.Option(help="Any text, to draw the same tasks again (default: a new one).")
    ] = None,
    claims: Annotated[
        Path, typer.Option(metavar="FOLDER", parser=folder, help="Records whose average over `synthetic` is claimed.")
    ] = RESULTS,
    seeds: Annotated[int, typer.Option(min=3, help="Number of seeds.")] = 3,
    device: Device = None,
    threads: Threads = 0,
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, help="Trainings at once.")] = None,
    results: Results = RESULTS,
    json: Json = False,
) -> None:
    """Train a variant and some rivals on two tasks that a secret draws, and say whether its places hold there.

    Recall, stacks, flip-flop and reversal with drawn sizes: nobody can tune to them before. About half an hour on two
    cores. With the same secret the same command resumes. Exit with code 1 where a place turned.
    """
    from ...cli.live import Live
    from .referee import referee as referee_of

    given: dict[str, Any] = {"secret": secret, "claims": claims, "results": results, "seeds": seeds}
    given |= {"rivals": rivals} if rivals is not None else {}
    with Live(quiet=json) as live:
        found = referee_of(variant, **given, device=device, threads=threads, jobs=jobs, progress=live)
    if json:
        places = [asdict(place) | {"verdict": place.verdict} for place in found.places]
        say_json({"variant": found.variant, "secret": found.secret, "headline": found.headline, "places": places})
    else:
        show(list(found.boards), Format.RICH, all_notes=False, columns="", command="referee")
        rows = [
            (place.rival, _ORDER[place.claimed], *(_ORDER[each] for each in place.found), place.verdict)
            for place in found.places
        ]
        print_rows(rows, ("against", "claimed", *(f"task {at + 1}" for at in range(len(found.boards))), "verdict"))
        say(found.headline)
    if any(place.verdict in ("turned", "mixed") for place in found.places):
        raise typer.Exit(1)
