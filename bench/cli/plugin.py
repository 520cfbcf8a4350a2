"""`attnbench new`: a project for a variant or a task of one's own, ready to install."""

from __future__ import annotations

import keyword
import re
from enum import StrEnum
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from ..core.errors import SelectionError, StoreError
from ..core.registry import TASKS, VARIANTS
from . import templates
from .command import command
from .output import say

LONGEST_EXAMPLE = 40


class PluginKind(StrEnum):
    VARIANT = "variant"
    TASK = "task"


@command("Own", "attnbench new variant my-attention")
def new(
    kind: Annotated[PluginKind, typer.Argument(help="Kind of plugin.")],
    name: Annotated[str, typer.Argument(help="Name of the plugin, such as my-attention.")],
    into: Annotated[Path, typer.Option(help="Parent folder of the project.")] = Path(),
) -> None:
    """Create a plugin project for your own variant or task, which installs, runs and passes its own test."""
    folder = into / f"attnbench-{name}"
    files = project_files(kind, name)
    if folder.exists():
        raise SelectionError(f"{folder} exists already; choose another name, or --into another folder")
    try:
        for relative, text in files.items():
            path = folder / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StoreError(f"cannot write {folder}: {error.strerror or error}; use --into a writable folder") from None
    module = name.replace("-", "_")
    code = folder / f"attnbench_{module}" / f"{module}.py"
    say(f"{code} holds the code; it runs as it stands. Next:\n\n    pip install -e {folder}\n{_commands(kind, name)}")


def project_files(kind: PluginKind, name: str) -> dict[str, str]:
    """The text of each file by its path. Raises SelectionError for a name that is taken or cannot be one."""
    module = name.replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name) or keyword.iskeyword(module):
        near = "-".join(re.findall(r"[a-z0-9]+", name.lower()[:LONGEST_EXAMPLE]))
        # a module cannot begin with a digit, nor be called as a word of Python
        example = near if near and not (near[0].isdigit() or keyword.iskeyword(near)) else f"my-{near or kind}"
        why = " that is no word of Python" if keyword.iskeyword(module) else ""
        raise SelectionError(
            f"expected a name of small letters, digits and single '-'{why}, such as {example}, got {name!r}"
        )
    registry = VARIANTS if kind is PluginKind.VARIANT else TASKS
    taken = {entry.name: entry.origin for entry in registry.entries()}
    if name in taken:
        raise SelectionError(f"a {kind} named {name!r} is installed already, by {taken[name]}; choose another name")
    package = f"attnbench_{module}"
    is_variant = kind is PluginKind.VARIANT
    words = {
        "kind": str(kind),
        "name": name,
        "package": package,
        "module": module,
        "object": module if is_variant else "".join(word.capitalize() for word in name.split("-")),
    }
    words["commands"] = _commands(kind, name)
    texts = {
        "pyproject.toml": templates.PROJECT,
        "README.md": templates.README,
        f"{package}/__init__.py": '"""The $kind $name for attnbench."""\n',
        f"{package}/{module}.py": templates.VARIANT if is_variant else templates.TASK,
        f"tests/test_{module}.py": templates.VARIANT_TEST if is_variant else templates.TASK_TEST,
    }
    return {path: _filled(text, words) for path, text in texts.items()}


def _commands(kind: PluginKind, name: str) -> str:
    """The commands to type once the project is installed."""
    lines = templates.VARIANT_COMMANDS if kind is PluginKind.VARIANT else templates.TASK_COMMANDS
    return _filled(lines, {"name": name})


def _filled(text: str, words: dict[str, str]) -> str:
    return Template(text).substitute(words)
