"""`attnbench sample`: what a trained model of language writes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def sample(
    cell: Annotated[str, typer.Argument(help="Key of a trained cell, or its beginning; any other word lists them.")],
    prompt: Annotated[str, typer.Option("--prompt", help="What the text begins with.")] = "\n",
    count: Annotated[int, typer.Option("--count", help="How many tokens to write.", min=1)] = 500,
    temperature: Annotated[float, typer.Option(help="How bold: 0 takes the likeliest token each time.", min=0.0)] = 0.8,
    seed: Annotated[int, typer.Option(help="Of what is drawn.")] = 0,
    results: Annotated[Path, typer.Option("--results", help="Folder that holds the Records.")] = Path("results/local"),
    data_dir: Annotated[Path | None, typer.Option("--data-dir", help="Folder with original data.")] = None,
    device: Annotated[str | None, typer.Option("--device", help="cpu or cuda.")] = None,
) -> None:
    """Go on with a text, token by token, as a model of language that was trained here would."""
    from ...tasks.data.data import place
    from ...tasks.problems.language_modeling import Windows
    from ..core.errors import SelectionError
    from ..measure.machine import choose_device
    from ..models.decoder import Decoder
    from ..models.generate import caches, utf8
    from ..models.generate import sample as drawn
    from ..run.load_model import dataset_of, find, load
    from ..store.store import Store

    if not prompt:
        raise SelectionError(
            "expected a prompt of at least one byte, got none; the first token is given, not predicted"
        )
    begun = utf8(prompt, "prompt")
    store = Store(results, lambda text: typer.echo(text, err=True))
    found = load(store, find(store, cell), choose_device(device))
    model, trained = found.model, found.record.cell
    if not isinstance(model, Decoder):
        raise SelectionError(f"expected a cell of language modelling, got `{trained}`")
    if not found.is_current:
        typer.echo(f"the code behind `{trained}` has changed since it was trained", err=True)
    here = place(data_dir, notice=lambda text: typer.echo(text, err=True))
    windows = dataset_of(found, here).test
    assert isinstance(windows, Windows)
    cached = caches(model)
    if not cached:
        typer.echo(f"{trained.variant} cannot go token by token, so the context is read each time", err=True)
    sys.stdout.write(prompt)
    # a character may be made of several tokens
    text = bytearray()
    ids = windows.vocabulary.encode(begun).tolist()
    for token in drawn(model, ids, count, temperature=temperature, seed=seed, cached=cached):
        text += windows.vocabulary.pieces[token]
        shown = _whole(text)
        if shown is not None:
            sys.stdout.write(_plain(shown))
            sys.stdout.flush()
            text.clear()
    sys.stdout.write(_plain(text.decode(errors="replace")) + "\n")


def _whole(text: bytearray) -> str | None:
    """The characters that these bytes spell; None while the last one lacks some."""
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        lacks = error.reason == "unexpected end of data" and len(text) - error.start < 4
        return None if lacks else text.decode(errors="replace")


def _plain(text: str) -> str:
    """`text` without what would move a terminal's cursor, save for the end of a line."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
