"""`attnbench sample`: what a trained model of language writes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def sample(
    cell: Annotated[str, typer.Argument(help="Key of a trained cell, or its beginning; any other word lists them.")],
    prompt: Annotated[str, typer.Option("--prompt", help="What the text begins with.")] = "\n",
    count: Annotated[int, typer.Option("--count", help="How many bytes to write.", min=1)] = 500,
    temperature: Annotated[float, typer.Option(help="How bold: 0 takes the likeliest byte each time.", min=0.0)] = 0.8,
    seed: Annotated[int, typer.Option(help="Of what is drawn.")] = 0,
    results: Annotated[Path, typer.Option("--results", help="Folder that holds the Records.")] = Path("results/local"),
    device: Annotated[str | None, typer.Option("--device", help="cpu or cuda.")] = None,
) -> None:
    """Go on with a text, byte by byte, as a model of language that was trained here would."""
    from ..decoder import Decoder
    from ..errors import SelectionError
    from ..machine import choose_device
    from ..sampling import caches
    from ..sampling import sample as drawn
    from ..store import Store
    from ..trained import find, load

    if not prompt:
        raise SelectionError("expected a prompt of at least one byte, got none; the first byte is given, not predicted")
    store = Store(results, lambda text: typer.echo(text, err=True))
    found = load(store, find(store, cell), choose_device(device))
    model = found.model
    if not isinstance(model, Decoder):
        raise SelectionError(f"expected a cell of language modelling, got `{found.record.cell}`")
    if not found.is_current:
        typer.echo(f"the code behind `{found.record.cell}` has changed since it was trained", err=True)
    cached = caches(model)
    if not cached:
        typer.echo(f"{found.record.cell.variant} cannot go token by token, so the context is read each time", err=True)
    sys.stdout.write(prompt)
    # a byte is token id minus one; a character may be made of several
    text = bytearray()
    ids = [byte + 1 for byte in prompt.encode()]
    for token in drawn(model, ids, count, temperature=temperature, seed=seed, cached=cached):
        text.append(token - 1)
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
        lacks = error.reason == "unexpected end of data" and len(text) < 4
        return None if lacks else text.decode(errors="replace")


def _plain(text: str) -> str:
    """`text` without what would move a terminal's cursor, save for the end of a line."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
