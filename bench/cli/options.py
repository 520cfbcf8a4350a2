"""Options that several commands share, and the names that a shell completes them with.

Nothing of other packages is imported to complete: names come from entry points, presets from attnbench's own tasks.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core.errors import AttnbenchError, SelectionError
from ..core.files import RESULTS
from ..core.registry import TASKS, VARIANTS
from ..core.spec import Spec, parse_selection, with_call
from ..plan.suites import built_in

if TYPE_CHECKING:
    from ...tasks.contract import Recipe, Task

Command = Callable[..., None]
Complete = Callable[[str], list[str]]


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


def _last_of_list(names: Callable[[], Iterable[str]]) -> Complete:
    """Completes the last name of a list that commas separate."""

    def complete(incomplete: str) -> list[str]:
        first, comma, last = incomplete.rpartition(",")
        taken = set(first.split(","))
        return [f"{first}{comma}{name}" for name in sorted(names()) if name.startswith(last) and name not in taken]

    return complete


def _variants() -> Iterable[str]:
    return [entry.name for entry in VARIANTS.entries()]


def _tasks() -> Iterable[str]:
    return [entry.name for entry in TASKS.entries()]


def presets_of_own_tasks() -> dict[str, dict[Recipe, list[str]]]:
    """The recipes of each preset, each with its tasks; a list imports no task of another package."""
    found: dict[str, dict[Recipe, list[str]]] = {}
    for entry in TASKS.entries():
        if TASKS.is_foreign(entry.name):
            continue
        # a task may refuse a preset that others of its kind have
        with suppress(AttnbenchError):
            task: Task = TASKS.build(Spec(entry.name))
            for name in task.presets():
                with suppress(SelectionError):
                    found.setdefault(name, {}).setdefault(task.recipe(Spec(name)), []).append(entry.name)
    return found


complete_variants = _last_of_list(_variants)
complete_tasks = _last_of_list(_tasks)
complete_suites = _last_of_list(built_in)
complete_presets = _last_of_list(presets_of_own_tasks)
complete_named = _last_of_list(lambda: [*_variants(), *_tasks(), *presets_of_own_tasks()])
"""Whatever `show` describes."""

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
Device = Annotated[
    str | None, typer.Option("--device", help="cpu, cuda or cuda:1 (default: the GPU, if any); for `plan` also h100.")
]
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
Threads = Annotated[
    int, typer.Option("--threads", min=0, help="Processor threads of each job; 0 takes its share of the cores.")
]


def option(help: str, *names: str, kind: Any = str | None, default: object = None, **more: Any) -> tuple[Any, object]:
    """An option of a table below: how typer reads it, and its default."""
    annotated: Any = Annotated
    return annotated[kind, typer.Option(*names, help=help, **more)], default


FILTERS: Mapping[str, tuple[Any, object]] = {
    "results": (Results, RESULTS),
    "task": option(
        "Show only these tasks, such as `recall,lra-text`.", "--task", "--tasks", autocompletion=complete_tasks
    ),
    "preset": option("Show only these presets, such as `quick`.", autocompletion=complete_presets),
    "selection": option("Show only checkpoints chosen on this split: validation or test."),
    "fidelity": option("Show only official, regenerated, surrogate, own or synthetic data."),
    "machine": option("Show only speeds of the machine with this id, which `attnbench doctor` prints."),
    "margin": option(
        "Points worse than the reference that still count as no worse; default: accuracy 1, BLEU 0.5, bits per "
        "character 0.02.",
        kind=float | None,
        metavar="POINTS",
        parser=number,
        show_default=False,
    ),
}
"""The options of a command that reads boards: which of them, and how to judge."""

RUN: Mapping[str, tuple[Any, object]] = {
    "variants": option(
        "Variants, such as `rela,linear` or `local\\[flange=64,128]`; also `mine.py:MyAttention`.",
        autocompletion=complete_variants,
    ),
    "call": (CallText, ""),
    "tasks": option(
        "Tasks, such as `sweep\\[length=1k]`; 1k is 1,024, and `256..4096` means 256, 512, … 4096.",
        "--task",
        "--tasks",
        autocompletion=complete_tasks,
    ),
    "text": option("Also model this text: short for `--task text\\[file=FILE]`.", metavar="FILE"),
    "pairs": option(
        "Also translate this file's lines SOURCE<tab>TARGET: short for `--task parallel\\[file=FILE]`.", metavar="FILE"
    ),
    "match_parameters": option(
        "Give each model as many parameters as softmax's has, by the width of its feed-forward.",
        "--match-parameters",
        kind=bool,
        default=False,
    ),
    "suite": option(
        "A built-in suite, or a FILE.toml; options beside it replace parts of it.", autocompletion=complete_suites
    ),
    "preset": option(
        "smoke, quick (default), pt-2x64 (default on a GPU, where all tasks have it), …; `quick\\[steps=100]` changes "
        "it.",
        autocompletion=complete_presets,
    ),
    "seeds": option("Number of seeds (default: 3; smoke 1).", kind=int | None, min=1, max=1_000),
    "selection": option("Split that chooses the checkpoint: validation (default) or test."),
    "device": (Device, None),
    "results": (Results, RESULTS),
    "data_dir": (DataDir, None),
    "threads": (Threads, 0),
    "executor": option("Run on this machine (local, the default), or through slurm or ray."),
    "jobs": option("Trainings at once (default: one on each GPU; one on a processor).", kind=int | None, min=1),
    "executor_options": option(
        "An option of the executor, such as partition=gpu.",
        "--executor-option",
        kind=list[str],
        default=[],
        metavar="KEY=VALUE",
    ),
    "lanes": option("Run only these kinds of cell: baseline (simple rules), tune (learning rates), train, time."),
    "memory_budget": option("For a sweep: also find the longest sequence that fits into this memory, such as 2GiB."),
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
