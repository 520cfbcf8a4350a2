"""`attnbench inspect` and `sample`: where a trained model looks, and the text that it writes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...cli.command import LeftToChild, command
from ...cli.leaderboard import refuse_unwritable, replace_text
from ...cli.options import DataDir, Device, Picture, Results
from ...cli.output import say, warn
from ...cli.pages import Out, needs_extra, save
from ...core.errors import SelectionError
from ...core.files import RESULTS

if TYPE_CHECKING:
    import torch

    from ...core.record import Record
    from ...store.store import Store
    from .load_model import LoadedModel

Trained = Annotated[str, typer.Argument(help="Key of a trained cell, or its beginning; without it, the keys.")]


@command("Read", "attnbench inspect 3f2a --example 0")
def inspect(
    cell: Trained = "",
    sentence: Annotated[
        list[str] | None, typer.Option("--sentence", help="Text to translate or to continue; repeatable.")
    ] = None,
    example: Annotated[
        list[int] | None, typer.Option("--example", help="Number of a test example; repeatable.")
    ] = None,
    out: Out = Path("site"),
    figures: Annotated[Picture, typer.Option("--figures", help="Format of the images.")] = Picture.PNG,
    results: Results = RESULTS,
    data_dir: DataDir = None,
    device: Device = None,
) -> None:
    """Write the attention maps of a trained model on chosen sentences, as a page and as images."""
    needs_extra()
    store, record = _trained_here(results, cell)
    page = out / f"attention-{record.key[:8]}.html"
    refuse_unwritable(page)
    leave_cell_to_child(store, record)
    # importing torch takes seconds, which a wrong key must not cost
    from ....dashboards import html
    from ....tasks.data.data import place
    from ...measure.machine import choose_device
    from .attention_maps import chart
    from .inspection import inspect_example, inspect_sentence
    from .load_model import dataset_of

    where = choose_device(device)
    trained = _loaded(store, record, where)
    variant = record.cell.variant
    dataset = dataset_of(trained, place(data_dir, notice=warn))
    chosen = [inspect_sentence(trained, dataset, text, where) for text in sentence or []]
    numbers = example if example is not None else [] if sentence else [0]
    chosen += [inspect_example(trained, dataset, number, where) for number in numbers]
    if not any(each.views for each in chosen):
        raise SelectionError(f"{variant} has no weights to show")
    charts = {
        f"{number}-{view.attention}-{view.layer}": chart(
            f"{each.name[:80]}: {view.attention}, layer {view.layer}", view.queries, view.keys, view.weights.tolist()
        )
        for number, each in enumerate(chosen)
        for view in each.views
    }
    paragraphs = [f"{record.cell}. Rows look at columns; each head has a scale of its own; weights before dropout."]
    paragraphs += [" → ".join(each.text) for each in chosen if each.text]
    replace_text(page, html.render_figures(f"Where {variant} looks", paragraphs, charts))
    save({f"{page.stem}-{name}": chart for name, chart in charts.items()}, out, figures)
    say(f"{page}: {len(charts)} maps, each as .{figures.value} beside it")


@command("Read", "attnbench sample 3f2a")
def sample(
    cell: Trained = "",
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

    if not prompt:
        raise SelectionError("the prompt is empty; give at least one byte, since the first token is not predicted")
    begun = utf8(prompt, "prompt")
    store, record = _trained_here(results, cell)
    leave_cell_to_child(store, record)
    # importing torch takes seconds, which a wrong key must not cost
    from ....tasks.data.data import place
    from ....tasks.problems.language_modeling import Windows
    from ...measure.machine import choose_device
    from ...models.decoder import Decoder
    from .generate import can_cache
    from .generate import sample as drawn
    from .load_model import dataset_of

    trained = _loaded(store, record, choose_device(device))
    model = trained.model
    if not isinstance(model, Decoder):
        raise SelectionError(f"expected a cell of language modelling, got `{record.cell}`")
    windows = dataset_of(trained, place(data_dir, notice=warn)).test
    assert isinstance(windows, Windows)
    cached = can_cache(model)
    if not cached:
        warn(f"{record.cell.variant} cannot decode token by token, so it reads the whole context for each token")
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


def _trained_here(results: Path, cell: str) -> tuple[Store, Record]:
    """The store of a folder and its Record of a trained cell of that key."""
    from ...store.store import Store
    from ...store.trained import find_trained

    store = Store(results, warn)
    return store, find_trained(store, cell)


def _loaded(store: Store, record: Record, device: torch.device) -> LoadedModel:
    """The model of a Record; says where its code has changed since."""
    from .load_model import load

    trained = load(store, record, device)
    if not trained.is_current:
        warn(f"the code behind `{record.cell}` has changed since it was trained")
    return trained


def leave_cell_to_child(store: Store, record: Record) -> None:
    """Leave a trained cell whose model is to run to a child, as `leave_to_child` does.

    Raises SelectionError where it names code by its place, `FILE.py:NAME`, and this account did not train it: whoever
    sent the Record has chosen that code, and perhaps sent it along.
    """
    from ....tasks.data.data import place
    from ...core.registry import TASKS, VARIANTS
    from ...train.checkpoint import is_own

    cell = record.cell
    foreign = [
        (registry, spec.name)
        for registry, spec in ((VARIANTS, cell.variant), (TASKS, cell.task))
        if registry.is_foreign(spec.name)
    ]
    named = [part for registry, name in foreign for _, part in registry.parts(name) if ":" in part]
    if named and not is_own(store.checkpoint(cell, record.digest), place().cache):
        raise SelectionError(
            f"expected a cell that you trained, got one of somebody else, which would run {named[0]}; read that code, "
            "and train the cell yourself"
        )
    if foreign:
        raise LeftToChild(*foreign[0])


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
