"""Options that several commands share."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from ..core.errors import SelectionError
from ..core.spec import Spec, parse_selection, with_call
from . import completion

Command = Callable[..., None]


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


class Picture(StrEnum):
    SVG = "svg"
    PNG = "png"


def folder(text: str | Path) -> Path:
    """A folder that is there or may be made; raises BadParameter for a file and for an empty path."""
    path = named(text)
    if path.exists() and not path.is_dir():
        raise typer.BadParameter(f"expected a folder, got the file {str(path)!r}")
    return path


def named(text: str | Path) -> Path:
    """A path; raises BadParameter for an empty one, such as a variable of a shell that is not set."""
    if not str(text).strip():
        raise typer.BadParameter("the path is empty")
    return Path(text)


def pairs(listed: list[str]) -> dict[str, str]:
    """Splits each `KEY=VALUE`; raises BadParameter for other text."""
    found = {}
    for text in listed:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise typer.BadParameter(f"expected KEY=VALUE after --executor-option, got {text[:100]!r}")
        found[name.strip()] = value.strip()
    return found


def selected(options: dict[str, Any]) -> dict[str, Any]:
    """The options of RUN as `attnbench.run` takes them: files of one's own are tasks."""
    if call := options.pop("call"):
        options["variants"] = with_call([options["variants"] or ""], call)
    own = {"text": options.pop("text"), "parallel": options.pop("pairs")}
    files = [Spec.of(task, file=str(named(file))) for task, file in own.items() if file is not None]
    for spec in files:
        read: list[Spec] = []
        with suppress(SelectionError):
            read = parse_selection(str(spec))
        if read != [spec]:
            raise typer.BadParameter(f"expected an ASCII path without commas and brackets, got {spec.get('file')!r}")
    tasks = ",".join(filter(None, [options["tasks"], *map(str, files)])) or None
    return options | {"tasks": tasks, "executor_options": pairs(options["executor_options"])}


def number(text: str | float) -> float:
    """A finite number; raises BadParameter for any other text."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise typer.BadParameter(f"expected a number, got {text!r}")
    return value


Results = Annotated[Path, typer.Option("--results", metavar="FOLDER", parser=folder, help="Folder of the Records.")]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="FOLDER",
        parser=folder,
        help="Folder of original data (default: that of the environment variable ATTNBENCH_DATA).",
    ),
]
CallText = Annotated[
    str,
    typer.Option(
        "--call", help="How FILE.py:NAME is called on its input x, such as `m(x, mask=valid)\\[0]`; default: tried out."
    ),
]
Seconds = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        parser=number,
        help="Time limit of one cell, in seconds (default: by task and preset).",
    ),
]
Device = Annotated[str | None, typer.Option("--device", help="cpu, cuda or cuda:1 (default: the GPU, if any).")]
Offline = Annotated[bool, typer.Option("--offline", help="Never download.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Figures = Annotated[Picture | None, typer.Option("--figures", help="Also write each figure as a file.")]
Published = Annotated[
    bool, typer.Option("--published", help="Show numbers that papers reported beside ours; they are never ranked.")
]
Notes = Annotated[bool, typer.Option("--notes", help="Show all notes, not only the first six.")]
Columns = Annotated[
    str, typer.Option("--columns", metavar="NAMES", help="Show these columns, such as `accuracy,gap`, or `all`.")
]
ShownAs = Annotated[Format, typer.Option("--format", "-f", help="Format of the output.")]
Preset = Annotated[
    str | None,
    typer.Option(
        "--preset",
        autocompletion=completion.presets,
        help="smoke, quick (default), pt-2x64 (default on a GPU, where all tasks have it), …; `quick\\[steps=100]` "
        "changes it.",
    ),
]
Suite = Annotated[
    str | None,
    typer.Option(
        "--suite",
        autocompletion=completion.suites,
        help="A built-in suite, or a FILE.toml; options beside it replace parts of it.",
    ),
]
Selection = Annotated[
    str | None, typer.Option("--selection", help="Split that chooses the checkpoint: validation (default) or test.")
]
Threads = Annotated[
    int, typer.Option("--threads", min=0, help="Processor threads of each job; 0 takes its share of the cores.")
]

RESULTS = Path("results/local")

FILTERS: Mapping[str, tuple[Any, object]] = {
    "results": (Results, RESULTS),
    "task": (
        Annotated[
            str | None,
            typer.Option(
                "--task",
                "--tasks",
                autocompletion=completion.tasks,
                help="Show only these tasks, such as `recall,lra-text`.",
            ),
        ],
        None,
    ),
    "preset": (
        Annotated[
            str | None,
            typer.Option(autocompletion=completion.presets, help="Show only these presets, such as `quick`."),
        ],
        None,
    ),
    "selection": (
        Annotated[str | None, typer.Option(help="Show only checkpoints chosen on this split: validation or test.")],
        None,
    ),
    "fidelity": (
        Annotated[str | None, typer.Option(help="Show only official, regenerated, surrogate, own or synthetic data.")],
        None,
    ),
    "machine": (
        Annotated[
            str | None,
            typer.Option(help="Show only speeds of the machine with this id, which `attnbench doctor` prints."),
        ],
        None,
    ),
    "margin": (
        Annotated[
            float | None,
            typer.Option(
                help="Points worse than the reference that still count as no worse; default: accuracy 1, BLEU 0.5, "
                "bits per character 0.02.",
                metavar="POINTS",
                parser=number,
                show_default=False,
            ),
        ],
        None,
    ),
}
"""The options of a command that reads boards: which of them, and how to judge."""

RUN: Mapping[str, tuple[Any, object]] = {
    "variants": (
        Annotated[
            str | None,
            typer.Option(
                autocompletion=completion.variants,
                help="Variants, such as `rela,linear` or `local\\[flange=64,128]`; also `mine.py:MyAttention`.",
            ),
        ],
        None,
    ),
    "call": (CallText, ""),
    "tasks": (
        Annotated[
            str | None,
            typer.Option(
                "--task",
                "--tasks",
                autocompletion=completion.tasks,
                help="Tasks, such as `sweep\\[length=1k]`; 1k is 1,024, and `256..4096` means 256, 512, … 4096.",
            ),
        ],
        None,
    ),
    "text": (
        Annotated[
            str | None, typer.Option(metavar="FILE", help="Also model this text: short for `--task text\\[file=FILE]`.")
        ],
        None,
    ),
    "pairs": (
        Annotated[
            str | None,
            typer.Option(
                metavar="FILE",
                help="Also translate this file's lines SOURCE<tab>TARGET: short for `--task parallel\\[file=FILE]`.",
            ),
        ],
        None,
    ),
    "match_parameters": (
        Annotated[
            bool,
            typer.Option(
                "--match-parameters",
                help="Give each model as many parameters as softmax's has, by the width of its feed-forward.",
            ),
        ],
        False,
    ),
    "suite": (Suite, None),
    "preset": (Preset, None),
    "seeds": (
        Annotated[int | None, typer.Option(min=1, max=1_000, help="Number of seeds (default: 3; smoke 1).")],
        None,
    ),
    "selection": (Selection, None),
    "device": (Device, None),
    "results": (Results, RESULTS),
    "data_dir": (DataDir, None),
    "threads": (Threads, 0),
    "executor": (
        Annotated[str | None, typer.Option(help="Run on this machine (local, the default), or through slurm or ray.")],
        None,
    ),
    "jobs": (
        Annotated[
            int | None,
            typer.Option(min=1, help="Trainings at once (default: one on each GPU; one on a processor)."),
        ],
        None,
    ),
    "executor_options": (
        Annotated[
            list[str],
            typer.Option(
                "--executor-option", metavar="KEY=VALUE", help="An option of the executor, such as partition=gpu."
            ),
        ],
        [],
    ),
    "lanes": (
        Annotated[
            str | None,
            typer.Option(
                help="Run only these kinds of cell: baseline (simple rules), tune (learning rates), train, time."
            ),
        ],
        None,
    ),
    "memory_budget": (
        Annotated[
            str | None,
            typer.Option(help="For a sweep: also find the longest sequence that fits into this memory, such as 2GiB."),
        ],
        None,
    ),
}
"""The selection that a command runs, and where."""


def sharing(shared: Mapping[str, tuple[Any, object]]) -> Callable[[Command], Command]:
    """Gives a command the options of `shared`, which it receives as `**options`."""

    def extend(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True).parameters.values()
        keyword = inspect.Parameter.KEYWORD_ONLY
        added = [
            inspect.Parameter(name, keyword, default=default, annotation=kind)
            for name, (kind, default) in shared.items()
        ]
        parameters = [p.replace(kind=keyword) for p in own if p.kind is not inspect.Parameter.VAR_KEYWORD]

        @wraps(command)
        def called(**options: Any) -> None:
            # a direct call may leave options out, as a call from the command line never does
            command(**{name: default for name, (_, default) in shared.items()} | options)

        signature = inspect.Signature([*added, *parameters])
        called.__signature__ = signature  # type: ignore[attr-defined]
        called.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
        return called

    return extend
