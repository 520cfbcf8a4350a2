"""The commands, put together; and the one place where an error becomes a message and an exit code."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import sys
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from ..core.errors import AttnbenchError, StoreError
from ..process.ask import Reporter, Request, ask, asking
from ..wings.audit.command import audit
from ..wings.convert.command import convert
from ..wings.inspect.inspect_command import inspect
from ..wings.inspect.sample_command import sample
from ..wings.probe.command import probe
from ..wings.sharing.commands import app as results
from ..wings.sharing.commands import merge, validate
from ..wings.sharing.record import record
from .advice import advice_for, example_of
from .answers import choose, compare
from .catalogue import list_, show
from .check import check
from .data import app as data
from .doctor import doctor
from .in_child import LeftToChild
from .leaderboard import leaderboard
from .options import Command as Function
from .output import flush, give_up, say, tolerate_any_encoding, warn, warn_of
from .pages import dashboard, explain
from .plugin import new
from .run import plan, run
from .status import status

# typer brings a click of its own since 0.20 and needs the separate package before; this names its errors in both
UsageProblem: Any = typer.BadParameter.__mro__[2]

UNWRITABLE = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF)
"""The errors of a stream that cannot be written, which name no file."""

LACKS_MEMORY = re.compile("cannot allocate memory|failed to map|out of memory", re.IGNORECASE)
"""The words of the loader for a library that no memory is left for."""

COMMAND_PATIENCE = 60.0
"""How often the time of an answer a whole command may take that a child runs."""

TRACEBACK = "ATTNBENCH_TRACEBACK"
"""The environment variable that shows the traceback of a fault."""

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

        say(f"attnbench {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Benchmark attention variants: quality, speed, memory and sparsity, in one record."""


class Command(TyperCommand):
    """A command that refuses an option given twice, of which the parser would silently take the last."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given: list[Any] = self.make_parser(ctx).parse_args(args=list(args))[2]
        for param in given:
            if given.count(param) > 1 and param.nargs == 1 and not (param.multiple or param.is_flag):
                ctx.fail(f"{param.opts[0]} is given twice; it takes one value, or one list with commas")
        return super().parse_args(ctx, args)


GROUPS: dict[str, dict[str, Function | typer.Typer]] = {
    "Measure": {"run": run, "plan": plan, "status": status, "data": data, "convert": convert, "doctor": doctor},
    "Read": {
        "leaderboard": leaderboard, "compare": compare, "choose": choose, "dashboard": dashboard, "explain": explain,
        "list": list_, "show": show, "sample": sample, "inspect": inspect,
    },
    "Own": {"check": check, "audit": audit, "probe": probe, "new": new},
    "Share": {"record": record, "merge": merge, "validate": validate, "results": results},
}  # fmt: skip
"""All commands, in the order of the help."""

COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}

for _group, _commands in GROUPS.items():
    for _name, _command in _commands.items():
        if isinstance(_command, typer.Typer):
            for _each in _command.registered_commands:
                _each.cls = Command
            app.add_typer(_command, name=_name, rich_help_panel=_group)
        else:
            app.command(_name, cls=Command, epilog=example_of(_name), rich_help_panel=_group)(_command)


def run_app() -> int:
    """Runs the command line; whatever goes wrong ends in one line and a non-zero exit code, not in a traceback."""
    tolerate_any_encoding()
    # some editors and CI systems set 0 for an unknown width, which rich takes by its word
    if os.environ.get("COLUMNS") == "0":
        del os.environ["COLUMNS"]
    try:
        # what a command asks of plugins is asked once, whichever functions it calls
        with asking():
            code = _run()
        flush()
    except (BrokenPipeError, SystemExit) as end:
        # the reader of our output has gone, as `| head` does; click and rich make an exit of it
        if not isinstance(end.__context__ or end, BrokenPipeError):
            raise
        give_up(sys.stdout)
        give_up(sys.stderr)
        return 141
    except OSError as error:
        give_up(sys.stdout)
        warn(f"attnbench: cannot write the output: {error.strerror or error}")
        return StoreError.exit_code
    return code


def _run() -> int:
    """One command; the exit code, once its error, if any, is told."""
    try:
        return int(app(prog_name="attnbench", standalone_mode=False) or 0)
    except LeftToChild as left:
        return _run_in_child(left)
    except AttnbenchError as error:
        warn_of(error)
        return error.exit_code
    except UsageProblem as problem:
        return _usage(problem)
    except typer.Abort:
        return 1
    except OSError as error:
        if error.errno in UNWRITABLE and error.filename is None:
            raise
        # a path that is too long, a folder in a file's place: what no check before has named
        warn(f"attnbench: {error.strerror or error}" + (f": {error.filename}" if error.filename else ""))
        return StoreError.exit_code
    except (MemoryError, ImportError) as error:
        if isinstance(error, ImportError) and not LACKS_MEMORY.search(str(error)):
            raise
        warn("attnbench: out of memory; free some, raise the limit (`ulimit -v`), or choose less")
        return 71
    except Exception as error:
        if os.environ.get(TRACEBACK):
            raise
        warn(
            f"attnbench: a fault of attnbench, please report it: {type(error).__name__}: {error}; "
            f"{TRACEBACK}=1 shows where"
        )
        return 70


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """What a command has printed, and how it ended."""

    exit_code: int
    output: str
    errors: str


@dataclass(frozen=True, slots=True)
class RunCommand(Request[CommandOutput]):
    """A whole command, where the plugin may be imported."""

    words: tuple[str, ...]

    def answer(self, reporter: Reporter) -> CommandOutput:
        output, errors = io.StringIO(), io.StringIO()
        sys.argv = ["attnbench", *self.words]
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            code = _run()
        return CommandOutput(code, output.getvalue(), errors.getvalue())


def _run_in_child(left: LeftToChild) -> int:
    try:
        done = ask(left.registry, left.name, RunCommand(tuple(sys.argv[1:])), patience=COMMAND_PATIENCE)
    except AttnbenchError as error:
        warn_of(error)
        return error.exit_code
    say(done.output, end="")
    for line in filter(None, done.errors.split("\n")):
        warn(line)
    return done.exit_code


def _usage(problem: Any) -> int:
    """Prints an error of the options in one line; a command that was called without any has printed its help."""
    # making this error, of which only newer versions know, prints the help
    if type(problem).__name__ != "NoArgsIsHelpError":
        # pydantic's words say nothing here
        message = problem.format_message().replace("Value error, ", "").split(", unable to parse")[0].rstrip(".")
        message = message.replace("Input should be a ", "expected a ").replace("Input should be", "expected a number")
        # an option that lacks its value is found before its command is
        path = " ".join(["attnbench", *(word for word in sys.argv[1:2] if word in COMMANDS)])
        path = str(problem.ctx.command_path) if getattr(problem, "ctx", None) else path
        warn(f"attnbench: {message}; {advice_for(message, path, sys.argv)}")
    return int(problem.exit_code)
