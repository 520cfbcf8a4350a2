"""Reference pages: the commands from the command line's own help, the Python interface from docstrings."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import typer

from attnbench.bench.cli.app import app

from .markdown import code, in_cell, table

PYTHON = """\
# Python interface

Each function does what the command of its name does. `import attnbench` is enough for all of them.

{functions}

## Options

::: attnbench.bench.api.RunOptions
    options: {{heading_level: 3}}

::: attnbench.bench.board.filters.Filters
    options: {{heading_level: 3}}

## Values

{values}

## Errors

::: attnbench.bench.core.errors
    options:
      heading_level: 3
      show_root_heading: false
      show_root_toc_entry: false
"""

VALUES = (
    "attnbench.bench.store.records.Records",
    "attnbench.bench.core.record.Record",
    "attnbench.bench.core.cell.Cell",
    "attnbench.bench.core.record.Measurement",
    "attnbench.bench.core.spec.Spec",
    "attnbench.bench.board.board.Board",
    "attnbench.bench.board.board.Row",
    "attnbench.bench.board.board.TableCell",
)
"""What the functions take and return."""

CONTRACTS = {
    "variants": (
        "The contract of a variant",
        "Import these from `attnbench.variants.contract`; a variant needs nothing else of attnbench.",
    ),
    "tasks": (
        "The contract of a task",
        "Import these from `attnbench.tasks.contract`; a task needs nothing else of attnbench.",
    ),
}


def python_page() -> str:
    """The functions of `attnbench`, and the values that they take and return."""
    import attnbench

    names = [name for name in attnbench.__all__ if name != "AttnbenchError"]
    functions = [_directive(f"attnbench.bench.api.{name}", f"attnbench.{name}", 2) for name in names]
    values = [_directive(path, path.rpartition(".")[2], 3) for path in VALUES]
    return PYTHON.format(functions="\n".join(functions), values="\n".join(values))


def contract_page(folder: str) -> str:
    """All names of a contract that are defined in attnbench."""
    import importlib

    module = importlib.import_module(f"attnbench.{folder}.contract")
    title, introduction = CONTRACTS[folder]
    parts = [f"# {title}", introduction]
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            parts.append(_directive(f"{value.__module__}.{value.__qualname__}", name, 2))
        else:
            parts.append(_directive(f"attnbench.{folder}.contract.{name}", name, 2))
    return "\n\n".join(parts) + "\n"


def commands_page() -> str:
    """Every command with its arguments and options, as `--help` has them."""
    group: Any = typer.main.get_command(app)
    parts = [
        "# Commands",
        "`attnbench COMMAND --help` prints the same. Names of variants and tasks take parameters: `local[flange=64]`.",
    ]
    for name, command in _commands(group, "attnbench"):
        parts += [f"## {name}", _plain(command.help)]
        shown = [parameter for parameter in command.params if parameter.name != "help" and not parameter.hidden]
        rows = [[_names(parameter), _help(parameter)] for parameter in shown]
        if rows:
            parts.append(table(("argument or option", "meaning"), rows))
    return "\n\n".join(parts) + "\n"


def _commands(group: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{prefix} {name}")
        else:
            yield f"{prefix} {name}", command


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return code(parameter.name.upper() if parameter.required else f"[{parameter.name.upper()}]")
    return ", ".join(code(name) for name in [*parameter.opts, *parameter.secondary_opts])


def _help(parameter: Any) -> str:
    text = in_cell((getattr(parameter, "help", "") or "").replace("\\[", "["))
    default = parameter.default
    if (
        parameter.required
        or not getattr(parameter, "show_default", True)
        or default in (None, False, (), [])
        or callable(default)
    ):
        return text
    return f"{text} Default: {code(getattr(default, 'value', default))}."


def _plain(text: str | None) -> str:
    """The help of a command: paragraphs stay, a block of indented lines or examples is code."""
    shown = []
    for paragraph in inspect.cleandoc((text or "").replace("\b", "").replace("\\[", "[")).split("\n\n"):
        lines = paragraph.strip("\n").split("\n")
        is_code = all(
            line.startswith("    ") or line.strip().startswith("attnbench ") for line in lines if line.strip()
        )
        body = "\n".join(line.strip() for line in lines)
        shown.append(f"```sh\n{body}\n```" if is_code else body.replace("<", "&lt;"))
    return "\n\n".join(shown)


def _directive(path: str, heading: str, level: int) -> str:
    return f'::: {path}\n    options: {{heading: "{heading}", toc_label: "{heading}", heading_level: {level}}}\n'
