"""The commands, put together; and the one place where an error becomes a message and an exit code."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import resource
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint
from itertools import pairwise
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ..core.entry_points import is_own, loaded, origin_of, read_group
from ..core.errors import AttnbenchError, PluginError, StoreError
from ..process.ask import Reporter, Request, ask, asking
from .command import PANELS, LeftToChild, parser_of
from .output import flush, give_up, prepare_streams, say, warn, warn_of

# typer brings a click of its own since 0.20 and needs the separate package before; this names its errors in both
UsageProblem: Any = typer.BadParameter.__mro__[2]

UNWRITABLE = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF)
"""The errors of a stream that cannot be written, which name no file."""

LACKS_MEMORY = re.compile("cannot allocate memory|failed to map|out of memory", re.IGNORECASE)
"""The words of the loader for a library that no memory is left for."""

COMMAND_PATIENCE = 60.0
"""A whole command that a child runs may take so many times the patience of one answer."""

TRACEBACK = "ATTNBENCH_TRACEBACK"
"""The environment variable that shows the traceback of a fault."""

RIGHT_RUN = "attnbench run --variants rela,entmax15 --task lra-text"
"""A right use of the first command that anybody tries."""

ORDER = "Got unexpected extra argument", "Missing argument", "Missing option", "is not one of 'variant', 'task'"
"""The words of the parser for a mistake in the order or number of words, which it alone cannot put right."""

COMMANDS = {
    "run": "run:run", "plan": "run:plan", "status": "run:status", "data": "data:app", "doctor": "doctor:doctor",
    "leaderboard": "leaderboard:leaderboard", "compare": "compare:compare", "dashboard": "pages:dashboard",
    "explain": "pages:explain", "list": "catalogue:list_", "show": "catalogue:show",
    "check": "check:check", "new": "plugin:new",
}  # fmt: skip
"""The commands of the core, in the order of the help: the module beside this one, and the function in it."""

GROUP = "attnbench.commands"
"""The entry points of all other commands."""


class Commands(TyperGroup):
    """The commands by name; each module is imported when its command is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        found = {name: self.get_command(ctx, name) for name in _names()}
        named = [name for name, command in found.items() if command is not None]
        order = {panel: at for at, panel in enumerate(PANELS)}
        return sorted(named, key=lambda name: order.get(found[name].rich_help_panel, len(order)))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in COMMANDS:
            module, _, attribute = COMMANDS[cmd_name].partition(":")
            return parser_of(cmd_name, getattr(import_module(f".{module}", __package__), attribute))
        point = _points().get(cmd_name)
        if point is None:
            # typer looks for the word that was meant among these names
            self.commands = dict.fromkeys(_names())  # type: ignore[assignment]
            return None
        if not is_own(point) and cmd_name not in sys.argv[1:2]:
            # the help and the completion name a command of others, and run none of their code
            return parser_of(cmd_name, _of_others(origin_of(point)))
        try:
            return parser_of(cmd_name, loaded(point))
        except PluginError as error:
            # a broken command of one package breaks no other
            warn_of(error)
            return None


def _of_others(origin: str) -> Callable[[], None]:
    def command() -> None: ...

    command.__doc__ = f"From {origin}."
    return command


@cache
def _points() -> dict[str, EntryPoint]:
    # the help asks for each command several times, and each reading takes the metadata of all packages
    return read_group(GROUP).points


def _names() -> list[str]:
    """The commands of the core, then those of installed packages, which take the name of none of these."""
    return list(dict.fromkeys([*COMMANDS, *_points()]))


app = typer.Typer(
    name="attnbench",
    cls=Commands,
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


FEWEST_FILES = 64
"""Open files that a command needs at least: with 18 the library that draws the page of a run waits for ever."""


def need_files() -> None:
    """Raises the limit of open files where it is too low, and AttnbenchError where this account may not."""
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= limit < FEWEST_FILES:
        if 0 <= most < FEWEST_FILES:
            raise AttnbenchError(
                f"expected a limit of at least {FEWEST_FILES} open files (`ulimit -n`), got {most}; "
                "run the command where it is higher"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (FEWEST_FILES, most))


def run_app() -> int:
    """Runs the command line; whatever goes wrong ends in one line and a non-zero exit code, not in a traceback."""
    prepare_streams()
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
        need_files()
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
    """The output of a command, and its exit code."""

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
        path = " ".join(["attnbench", *(word for word in sys.argv[1:2] if word in _names())])
        path = str(problem.ctx.command_path) if getattr(problem, "ctx", None) else path
        command = getattr(getattr(problem, "ctx", None), "command", None)
        example = str(getattr(command, "epilog", None) or "").removeprefix("Example: ")
        warn(f"attnbench: {message}; {advice_for(message, path, sys.argv, example)}")
    return int(problem.exit_code)


def advice_for(message: str, path: str, words: Sequence[str] = (), example: str = "") -> str:
    """The right use, where a problem is of words in a wrong place, else where to read; `path`: the command's words.

    `words`: all that stood on the command line; `example`: a right use of that command.

    >>> advice_for("No such option: --tsk", "attnbench run")
    'see `attnbench run --help`'
    >>> advice_for("Missing option '--length'", "attnbench choose", [], "attnbench choose --length 512")
    'write `attnbench choose --length 512`, or see `attnbench choose --help`'
    >>> advice_for("No such option: -p", "attnbench plan", ["attnbench", "plan", "-preset", "smoke"])
    'options have two dashes: write `--preset`, or see `attnbench plan --help`'
    """
    name = path.removeprefix("attnbench").strip()
    for word, following in pairwise([*words, ""]):
        if message.startswith("No such option") and re.fullmatch("-[a-z][a-z-]+", word):
            return f"options have two dashes: write `-{word}`, or see `{path} --help`"
        if message.startswith("Got unexpected extra argument") and word.endswith(",") and following:
            return f"write no space after a comma: `{word}{following}`, or see `{path} --help`"
    if "--" in words and any(word.startswith("-") for word in words[words.index("--") + 1 :]):
        return f"leave out `--`: no option is read behind it; or see `{path} --help`"
    if "'--seeds'" in message and any(re.fullmatch(r"(--seeds=)?[0-9]+(,[0-9]+)+", word) for word in words):
        return "write how many, as in `--seeds 3` for the seeds 0, 1 and 2"
    if name == "new" and re.search("'score[-_]?map'", message):
        return "this is what `attnbench new variant NAME` writes: a map from scores to weights"
    if not name and message.startswith("No such option"):
        return f"options follow the command, as in `{RIGHT_RUN}`; see `attnbench --help`"
    if message.startswith("No such option: --json"):
        return f"write `{path} --format json`, or see `{path} --help`"
    if example and any(words in message for words in ORDER):
        return f"write `{example}`, or see `{path} --help`"
    return f"see `{path} --help`"
