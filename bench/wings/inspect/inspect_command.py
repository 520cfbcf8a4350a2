"""`attnbench inspect`: where a trained model looks, as a page and as images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...cli.command import command
from ...cli.leaderboard import refuse_unwritable, replace_text
from ...cli.options import RESULTS, DataDir, Device, Picture, Results
from ...cli.output import say, warn
from ...cli.pages import Out, needs_extra, save


@command("Read", "attnbench inspect 3f2a --example 0")
def inspect(
    cell: Annotated[
        str, typer.Argument(help="Key of a trained cell, or its beginning; any other word lists the keys.")
    ],
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
    from ...store.store import Store
    from ...store.trained import find_trained
    from .foreign_cell import leave_cell_to_child

    store = Store(results, warn)
    record = find_trained(store, cell)
    page = out / f"attention-{record.key[:8]}.html"
    refuse_unwritable(page)
    leave_cell_to_child(store, record)
    # importing torch takes seconds, which a wrong key must not cost
    from ....dashboards import html
    from ....tasks.data.data import place
    from ...core.errors import SelectionError
    from ...measure.machine import choose_device
    from . import attention_maps as attention
    from .inspection import inspect_example, inspect_sentence
    from .load_model import dataset_of, load

    where = choose_device(device)
    trained = load(store, record, where)
    found = trained.record.cell
    if not trained.is_current:
        warn(f"the code behind `{found}` has changed since it was trained")
    data = place(data_dir, notice=warn)
    dataset = dataset_of(trained, data)
    chosen = [inspect_sentence(trained, dataset, text, where) for text in sentence or []]
    numbers = example if example is not None else [] if sentence else [0]
    chosen += [inspect_example(trained, dataset, number, where) for number in numbers]
    if not any(each.views for each in chosen):
        raise SelectionError(f"{found.variant} has no weights to show")
    charts = {
        f"{number}-{view.attention}-{view.layer}": attention.chart(
            f"{each.name[:80]}: {view.attention}, layer {view.layer}", view.queries, view.keys, view.weights.tolist()
        )
        for number, each in enumerate(chosen)
        for view in each.views
    }
    paragraphs = [f"{found}. Rows look at columns; each head has a scale of its own; weights before dropout."]
    paragraphs += [" → ".join(each.text) for each in chosen if each.text]
    replace_text(page, html.render_figures(f"Where {found.variant} looks", paragraphs, charts))
    save({f"{page.stem}-{name}": chart for name, chart in charts.items()}, out, figures)
    say(f"{page}: {len(charts)} maps, each as .{figures.value} beside it")
