"""`attnbench record`: an entry of the record table, measured by a recipe that never changes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from ...cli import completion
from ...cli.command import command
from ...cli.options import CallText, DataDir, folder
from ...cli.output import say

ENTRIES = Path("records")


@command("Share", "attnbench record mine.py:MyAttention")
def record(
    variant: Annotated[
        str | None,
        typer.Argument(
            autocompletion=completion.variants, help="A variant, or FILE.py:NAME; without one, show the table."
        ),
    ] = None,
    call: CallText = "",
    gpu: Annotated[bool, typer.Option("--gpu", help="Use the recipe for a GPU.")] = False,
    seeds: Annotated[int, typer.Option(min=1, max=1_000, help="Number of seeds; fewer than 3 rank nothing.")] = 3,
    results: Annotated[
        Path | None,
        typer.Option(
            "--results",
            metavar="FOLDER",
            parser=folder,
            help="The entry, or the table.",
            show_default="records/VARIANT, or results",
        ),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Measure a variant by a frozen recipe, beside softmax, into a folder to send.

    The folder holds the Records, with FILE.py as it ran among their artifacts. The same command resumes.
    """
    from ...api import boards as api
    from ...cli.leaderboard import show
    from ...cli.run import run
    from ...core.errors import SelectionError
    from ...core.spec import parse_selection
    from .commands import validate

    suite = "record-gpu" if gpu else "record"
    if variant is None:
        table = results or Path("results")
        if not (table / "records").is_dir():
            raise SelectionError(f"no entries in {table}; `attnbench record rela` makes one in records/rela")
        show(api.boards(table, task="tinyshakespeare", preset=suite))
        return
    if len(parse_selection(variant)) > 1:
        raise SelectionError(f"expected one variant for an entry, got {variant}")
    entry = results or ENTRIES / re.sub(r"[^A-Za-z0-9.-]+", "-", variant).strip("-")
    run(variants=variant, call=call, suite=suite, seeds=seeds, results=entry, data_dir=data_dir)
    validate(entry)
    say(f"To enter it, send the folder {entry} (docs/records.md).")
