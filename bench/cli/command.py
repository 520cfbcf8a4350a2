"""The mark of a command, with its place in the help and a right use of it; its typer class; its way to a child.

A command is a function, or a `typer.Typer` of several, below an entry point of `attnbench.commands` where a package
brings it. Its module is imported before its command runs and for `attnbench --help`, so that libraries
belong into functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from ..core.registry import Registry
    from ..core.spec import Spec

F = TypeVar("F", bound=Callable[..., Any])

PANELS = ("Measure", "Read", "Own", "Share")
"""The parts of the help, in their order."""


def command(panel: str, example: str) -> Callable[[F], F]:
    """Marks a function as a command: its `panel` of the help, and a right use of it, the last line of its own help."""

    def mark(function: F) -> F:
        function.panel, function.example = panel, example  # type: ignore[attr-defined]
        return function

    return mark


class Command(TyperCommand):
    """A command that refuses an option given twice, of which the parser would silently take the last."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given: list[Any] = self.make_parser(ctx).parse_args(args=list(args))[2]
        for param in given:
            if given.count(param) > 1 and param.nargs == 1 and not (param.multiple or param.is_flag):
                ctx.fail(f"{param.opts[0]} is given twice; it takes one value, or one list with commas")
        return super().parse_args(ctx, args)


def parser_of(name: str, found: Callable[..., Any] | typer.Typer) -> Any:
    """The click command of a function marked by `command`, or of a `typer.Typer` of several."""
    if isinstance(found, typer.Typer):
        for each in found.registered_commands:
            each.cls = Command
        group = typer.main.get_group(found)
        group.name, group.rich_help_panel = name, found.rich_help_panel
        return group
    alone = typer.Typer(add_completion=False)
    example = getattr(found, "example", "")
    panel = getattr(found, "panel", PANELS[-1])
    alone.command(name, cls=Command, epilog=example and f"Example: {example}", rich_help_panel=panel)(found)
    return typer.main.get_command(alone)


class LeftToChild(Exception):
    """The whole command is to be run by the child that answers for the plugin `name`; `app.py` does that."""

    def __init__(self, registry: Registry, name: str):
        super().__init__(name)
        self.registry, self.name = registry, name


def leave_to_child(registry: Registry, spec: Spec) -> None:
    """Does nothing for a plugin of attnbench, and in the child; else raises LeftToChild."""
    if registry.is_foreign(spec.name):
        raise LeftToChild(registry, spec.name)
