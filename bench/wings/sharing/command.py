"""`attnbench record`, `validate`, `merge`, `results`: make an entry, check Records of others, pack a folder for git."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from ...cli.command import command
from ...cli.options import CallText, DataDir, Json, complete_variants
from ...cli.options import folder as named_folder
from ...cli.output import say, say_json, warn
from ...core.errors import SelectionError

ENTRIES = Path("records")

app = typer.Typer(no_args_is_help=True, rich_help_panel="Share", help="Make a results folder small enough for git.")


@app.callback()
def results() -> None:
    """Make a results folder small enough for git."""


@command("Share", "attnbench validate FOLDER")
def validate(
    folder: Annotated[
        Path | None, typer.Argument(help="Folder that holds records/ and artifacts/.", show_default="results")
    ] = None,
    results: Annotated[Path | None, typer.Option("--results", help="Same as FOLDER.")] = None,
    json: Json = False,
) -> None:
    """Check the Records of a folder. Exit with code 1 on an error.

    Errors and warnings name wrong schemas, keys and hashes, impossible values, missing seeds, and scores that disagree
    with their predictions.
    """
    from dataclasses import asdict

    from ....dashboards.escape import visible
    from ...stats.format import counted
    from .validate import validate_records

    if folder is not None and results is not None and folder != results:
        raise SelectionError(f"expected one folder, got {folder} and --results {results}; leave one out")
    asked = folder or results or Path("results")
    found = validate_records(asked)
    if json:
        say_json({"records": found.count, "findings": [asdict(f) for f in found.findings]}, indent=1)
    else:
        for finding in found.findings:
            say(visible(str(finding), longest=500))
        warnings = len(found.findings) - found.errors
        counts = ", ".join([counted(found.errors, "error"), counted(warnings, "warning")])
        say(visible(f"{asked}: {counted(found.count, 'Record')}: {counts}"))
    if found.errors:
        raise typer.Exit(1)


@command("Share", "attnbench merge FOLDER --results results")
def merge(
    folders: Annotated[list[Path], typer.Argument(help="Folders whose Records to add.")],
    results: Annotated[
        Path, typer.Option("--results", metavar="FOLDER", parser=named_folder, help="Folder to add them to.")
    ] = Path("results"),
) -> None:
    """Add the Records of other folders that are missing here, with their artifacts; leave out unsound ones."""
    from ....dashboards.escape import visible
    from ...core.hashing import content_hash
    from ...store.store import Store
    from .validate import validate_records

    store = Store(results, warn)
    store.prepare()
    known = {content_hash(record.to_json(), 64) for record in store.records()}
    refused = 0
    store.log_arrival()
    for folder in folders:
        # the target may hold what these were copied from
        found = validate_records(folder, beside=results)
        source, added = Store(folder, warn), 0
        for record in found.sound:
            identity = content_hash(record.to_json(), 64)
            if identity in known:
                continue
            for name in record.artifacts.values():
                # the name is a hash of the content, so this writes the same name, or what is there already
                store.put_artifact(source.artifact(name), name[24:])
            store.append(record)
            known.add(identity)
            added += 1
        store.log_arrival()
        for finding in found.findings:
            was = "left out" if finding.severity == "error" else "taken, with a warning"
            warn(visible(f"{was}: {finding.place}: {finding.text}", longest=500))
        left_out = found.count - len(found.sound)
        refused += left_out
        say(visible(f"{folder}: {added} added, {len(found.sound) - added} known already, {left_out} left out"))
    if refused:
        raise typer.Exit(1)


@command("Share", "attnbench record mine.py:MyAttention")
def record(
    variant: Annotated[
        str | None,
        typer.Argument(
            autocompletion=complete_variants, help="A variant, or FILE.py:NAME; without one, show the table."
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
            parser=named_folder,
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
    from ...core.spec import parse_selection

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


@app.command("pack", epilog="Example: attnbench results pack FOLDER")
def pack(
    folder: Annotated[Path, typer.Argument(help="Folder that holds records/ and artifacts/.")] = Path("results"),
) -> None:
    """Put the artifacts of a folder into few files, one for each task, preset and kind; packed files do not change."""
    from ....dashboards.escape import visible
    from ...board.select import read_store
    from ...stats.format import counted
    from ...store.store import Store

    store = Store(folder, warn)
    read_store(store, "attnbench results pack")
    made = store.pack()
    for name, members in made.items():
        say(visible(f"{name}: {counted(members, 'artifact')}"))
    say(visible(f"{folder}: {counted(sum(made.values()), 'artifact')} put into {counted(len(made), 'file')}"))
