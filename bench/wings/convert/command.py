"""`attnbench convert`: a local checkpoint with its attention replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...cli.command import command, leave_to_child
from ...cli.options import DataDir, Device, Results
from ...cli.output import print_rows, say, warn
from ...core.files import RESULTS


@command("Measure", "attnbench convert ./my-model --to entmax15 --text text.txt")
def convert(
    path: Annotated[Path, typer.Argument(help="Folder of a model that save_pretrained wrote.")],
    to: Annotated[str, typer.Option("--to", help="Variant to convert to; weights of its own start anew.")] = "entmax15",
    text: Annotated[
        Path | None,
        typer.Option(
            help="Text to measure and train on; for a classifier, a line TEXT<tab>LABEL for each example.",
            show_default="tinyshakespeare",
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(help="Rank by a function of your own, FILE.py:NAME, that takes (model, split); larger is better."),
    ] = None,
    temperatures: Annotated[str, typer.Option(help="Temperatures to try, with commas.")] = "0.5,0.7,1,1.4,2,2.8",
    alphas: Annotated[int, typer.Option(help="Number of alphas to try, from 1 (softmax) to the variant's.", min=2)] = 5,
    steps: Annotated[int, typer.Option(help="Steps of fine-tuning; 0 for none.", min=0)] = 100,
    seeds: Annotated[int, typer.Option(help="Seeds of fine-tuning; a rank needs 3.", min=1)] = 1,
    learning_rate: Annotated[float, typer.Option(help="Learning rate of fine-tuning.", min=0.0)] = 3e-4,
    batch: Annotated[int, typer.Option(help="Sequences of a step.", min=1)] = 8,
    context: Annotated[int, typer.Option(help="Tokens of a sequence.", min=8)] = 256,
    windows: Annotated[int, typer.Option(help="Sequences of each split to evaluate.", min=1)] = 64,
    results: Results = RESULTS,
    data_dir: DataDir = None,
    device: Device = None,
) -> None:
    """Replace the attention of a local model; measure it before and after fine-tuning, and zeros by layer and head.

    It writes Records and leaves no model; in Python, `attach(model, "entmax15")` gives one to save.
    """
    from ...core.errors import DataError, SelectionError
    from ...core.registry import VARIANTS
    from ...core.spec import Spec
    from ...core.targets import target_of
    from ...store.store import Store

    try:
        tried = tuple(float(each) for each in temperatures.split(","))
    except ValueError:
        raise SelectionError(f"expected temperatures such as 0.7,1,1.4, got {temperatures!r}") from None
    if not path.is_dir():
        raise DataError(f"no folder {path}; nothing is downloaded: write one with model.save_pretrained(FOLDER)")
    if not (path / "config.json").exists():
        raise DataError(f"expected a folder that save_pretrained wrote, got {path}, which has no config.json")
    for each in (to, *([metric] if metric else [])):
        leave_to_child(VARIANTS, Spec.parse(each))
    VARIANTS.resolve(Spec.parse(to))
    # importing torch takes seconds, which a wrong word must not cost
    from ...measure.machine import choose_device
    from .convert import ConvertSetting, default_text, sentence_of, tables_of
    from .convert import convert as converted

    setting = ConvertSetting(
        to=to, alphas=alphas, temperatures=tried, steps=steps, seeds=seeds, learning_rate=learning_rate, batch=batch,
        context=context, windows=windows,
    )  # fmt: skip
    own = target_of(metric) if metric else None
    if metric and own is None:
        raise SelectionError(f"expected a function as FILE.py:NAME, got {metric!r}")
    store = Store(results, warn)
    store.prepare()
    text = text if text or own else default_text(data_dir, warn)
    records = converted(path, text, setting, store, choose_device(device), warn, own.load() if own else None)
    for table in tables_of(records, to):
        print_rows(table, numbers=len(table[0]) - 1)
        say()
    say(f"{len(records)} Records in {results}; `attnbench leaderboard --results {results}` shows their boards")
    say(sentence_of(records, to))
