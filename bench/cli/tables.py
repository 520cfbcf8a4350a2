"""Tables of the commands beside boards: names, data, plans, machines."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence

from .output import console, say

WHOLE = 10_000
"""Characters of a line where no terminal limits it."""


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
