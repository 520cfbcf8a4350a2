"""The page of all commands, from the command line's own help."""

from __future__ import annotations

import typer
from typer.cli import get_docs_for_click

from attnbench.bench.cli.app import app


def commands_page() -> str:
    """Every command with its arguments, options and example, as `--help` has them."""
    group = typer.main.get_command(app)
    context = typer.Context(group, info_name="attnbench")
    page = get_docs_for_click(obj=group, ctx=context, name="attnbench", title="Commands")
    # brackets are escaped for the terminal, and would show a backslash inside of code
    return page.replace("\\[", "[")
