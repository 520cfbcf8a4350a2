"""Options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    pass


Results = Annotated[Path, typer.Option("--results", help="Folder that holds the Records.")]
Machine = Annotated[str | None, typer.Option("--machine", help="Machine whose speeds to show.")]
Selection = Annotated[
    str | None, typer.Option("--selection", help="Split that chose the checkpoint: validation or test.")
]
Fidelity = Annotated[str | None, typer.Option("--fidelity", help="Only official, regenerated or surrogate data.")]
Task = Annotated[str | None, typer.Option("--task", help="Only these tasks.")]
Preset = Annotated[str | None, typer.Option("--preset", help="Only these presets.")]
Margin = Annotated[
    float | None,
    typer.Option(
        help="Points worse than the reference that still count as no worse; unless said: accuracy 1, BLEU 0.5, "
        "bits per character 0.02.",
        min=0.0,
        show_default=False,
    ),
]


class Mode(StrEnum):
    STEP = "step"
    FORWARD = "forward"
    DECODE = "decode"


class Format(StrEnum):
    RICH = "rich"
    MARKDOWN = "markdown"
    CSV = "csv"
    JSON = "json"
    LATEX = "latex"
