"""`attnbench sample`: text from a trained language model."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ...cli.command import command
from ...cli.options import RESULTS, DataDir, Device, Results
from ...cli.output import warn


@command("Read", "attnbench sample 3f2a")
def sample(
    cell: Annotated[
        str, typer.Argument(help="Key of a trained cell, or its beginning; any other word lists the keys.")
    ],
    prompt: Annotated[str, typer.Option(help="Beginning of the text.", show_default="a line end")] = "\n",
    count: Annotated[int, typer.Option(help="Number of tokens to generate.", min=1)] = 500,
    temperature: Annotated[
        float, typer.Option(help="Sampling temperature; 0 takes the likeliest token.", min=0.0)
    ] = 0.8,
    seed: Annotated[int, typer.Option(help="Seed of the random draws.")] = 0,
    results: Results = RESULTS,
    data_dir: DataDir = None,
    device: Device = None,
) -> None:
    """Generate text from a trained language model."""
    from ...core.decode import utf8
    from ...core.errors import SelectionError
    from ...store.store import Store
    from ...store.trained import find_trained
    from .foreign_cell import leave_cell_to_child

    if not prompt:
        raise SelectionError("the prompt is empty; give at least one byte, since the first token is not predicted")
    begun = utf8(prompt, "prompt")
    store = Store(results, warn)
    record = find_trained(store, cell)
    leave_cell_to_child(store, record)
    # importing torch takes seconds, which a wrong key must not cost
    from ....tasks.data.data import place
    from ....tasks.problems.language_modeling import Windows
    from ...measure.machine import choose_device
    from ...models.decoder import Decoder
    from .generate import can_cache
    from .generate import sample as drawn
    from .load_model import dataset_of, load

    found = load(store, record, choose_device(device))
    model, trained = found.model, found.record.cell
    if not isinstance(model, Decoder):
        raise SelectionError(f"expected a cell of language modelling, got `{trained}`")
    if not found.is_current:
        warn(f"the code behind `{trained}` has changed since it was trained")
    here = place(data_dir, notice=warn)
    windows = dataset_of(found, here).test
    assert isinstance(windows, Windows)
    cached = can_cache(model)
    if not cached:
        warn(f"{trained.variant} cannot decode token by token, so it reads the whole context for each token")
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
