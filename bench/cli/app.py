"""The commands, put together; and the one place where an error becomes a message and an exit code."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ..core.errors import AttnbenchError
from .answers import choose, compare
from .catalogue import list_, show
from .check import check
from .data import app as data
from .doctor import doctor
from .inspect import inspect
from .leaderboard import leaderboard
from .pages import dashboard, explain
from .plugin import new
from .run import plan, run
from .sample import sample
from .sharing import merge, validate

app = typer.Typer(
    name="attnbench",
    help="Benchmark attention variants: quality, speed, memory and sparsity, in one record.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from ... import __version__

        typer.echo(f"attnbench {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Benchmark attention variants: quality, speed, memory and sparsity, in one record."""


app.command("run")(run)
app.command("plan")(plan)
app.command("leaderboard")(leaderboard)
app.command("compare")(compare)
app.command("choose")(choose)
app.command("dashboard")(dashboard)
app.command("list")(list_)
app.command("show")(show)
app.command("check")(check)
app.command("new")(new)
app.command("merge")(merge)
app.command("validate")(validate)
app.command("explain")(explain)
app.command("sample")(sample)
app.command("inspect")(inspect)
app.command("doctor")(doctor)
app.add_typer(data, name="data")


def main() -> int:
    """Runs the command line; a user's mistake ends in one message and a non-zero exit code, not in a traceback."""
    try:
        app()
    except AttnbenchError as error:
        typer.echo(f"attnbench: {error}", err=True)
        return error.exit_code
    except KeyboardInterrupt:
        typer.echo("\nattnbench: interrupted; finished results are kept, and the same command resumes", err=True)
        return 130
    except BrokenPipeError:
        # the reader of our output has gone, as `| head` does
        sys.stderr.close()
        return 141
    return 0
