"""Output: the one way of the commands to the terminal, on which text of others does nothing but show.

Consoles of rich show control characters of that text instead of sending them.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from ...dashboards.escape import shortened, visible

LONGEST = 1_000
"""Characters of a notice or an error that are shown."""


def say(text: str = "", *, end: str = "\n", folds: bool = False) -> None:
    """Print text. Its ends of lines count, so text of others in it is made `visible` before.

    folds: on a terminal long lines go on below, a little to the right; elsewhere they stay whole, for other programs.
    """
    lines = [visible(line) for line in text.split("\n")]
    if folds and sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        fold = partial(textwrap.wrap, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        lines = [part for line in lines for part in fold(line, width) or [""]]
    sys.stdout.write("\n".join(lines) + end)


def write(text: str) -> None:
    """Print text as it is: for one that a dashboard has made harmless in its own format."""
    sys.stdout.write(text)


def say_json(value: Any, *, indent: int = 2) -> None:
    """A value as JSON on standard output, in ASCII."""
    sys.stdout.write(json.dumps(value, indent=indent) + "\n")


def warn(text: str) -> None:
    """One line on standard error, of bounded length."""
    sys.stderr.write(line_of(text) + "\n")
    sys.stderr.flush()


def line_of(text: str) -> str:
    """A notice or an error as one harmless line: long words lose their middle, a long text its end."""
    return visible(shortened(text.strip("\n")), LONGEST)


def warn_of(error: BaseException) -> None:
    """An error as one line on standard error; each note that was added to it is a line of its own."""
    warn(f"attnbench: {error}")
    for note in getattr(error, "__notes__", ()):
        warn(f"  {note}")


def prepare_streams() -> None:
    """Make a question mark stand for each character that the encoding of a stream lacks; each line goes out at once."""
    # a stream that was closed before we began, as `>&-` does
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # a test or a notebook puts streams of its own there, which take all text
        with suppress(AttributeError, ValueError):
            # a pipe would hold minutes of lines back
            stream.reconfigure(errors="replace", line_buffering=True)  # type: ignore[union-attr]


def flush() -> None:
    """Writes what is buffered: an error of the last write would otherwise show after the end, as a traceback."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


def give_up(stream: TextIO) -> None:
    """Make all that is still written to a stream vanish, since its reader has gone or its disk is full."""
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


class VisibleConsole(Console):
    """A console that styles text, while the text itself moves no cursor, changes no colour and reorders nothing."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        # every text passes here before it is measured and cut; rich's own control codes are segments of their own kind
        for segment in super().render(renderable, options):
            if segment.control or (segment.text.isascii() and segment.text.isprintable()):
                yield segment
            else:
                text = "\n".join(map(visible, segment.text.split("\n")))
                yield Segment(text, segment.style)


console = partial(VisibleConsole, highlight=False, emoji=False)
"""Makes a console of the commands, with options as rich's Console takes them. `mine.py:M:` is a name, no picture."""

WHOLE = 10_000
"""Characters of a line of a table where no terminal limits it."""


def print_rows(
    rows: Sequence[Sequence[str]],
    header: Sequence[str] = (),
    styles: Sequence[str] = (),
    *,
    numbers: int = 0,
    indent: int = 0,
) -> None:
    """Prints rows in columns: folded on a terminal; elsewhere a whole line each, for other programs.

    Text is never taken as markup. `header`: on a terminal alone. `styles`: of each row, its first cell left out.
    `numbers`: so many columns at the end stand to the right.
    """
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return
    is_terminal = sys.stdout.isatty()
    table = Table(box=None, show_header=bool(header) and is_terminal, pad_edge=False, padding=(0, 2, 0, 0))
    count = max(map(len, rows))
    for at in range(count):
        name = header[at] if header else ""
        table.add_column(name, overflow="fold", justify="right" if at >= count - numbers else "left")
    for row, style in zip(rows, styles or [""] * len(rows), strict=True):
        table.add_row(Text(row[0], style="bold"), *(Text(cell, style=style) for cell in row[1:]))
    indented = Padding(table, (0, 0, 0, indent))
    if is_terminal:
        console().print(indented)
        return
    drawn = io.StringIO()
    console(file=drawn, width=WHOLE).print(indented)
    for line in drawn.getvalue().rstrip("\n").split("\n"):
        say(line.rstrip())
