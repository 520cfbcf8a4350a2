"""Markdown text: cells that stay cells, and tables."""

from __future__ import annotations

import re
from collections.abc import Sequence


def cell(text: object) -> str:
    """Text for a cell of a table, or a line, in which no character is taken as markup.

    >>> cell("a|b * <c> _d_")
    'a&#124;b &#42; &lt;c&gt; &#95;d&#95;'
    """
    shown = str(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for sign in "|*_`[]~\\":
        shown = shown.replace(sign, f"&#{ord(sign)};")
    return " ".join(shown.split())


def in_cell(text: str) -> str:
    """Text for a cell of a table in which only backticks are markup.

    >>> in_cell("as `a|b`, or *c*")
    'as `a│b`, or &#42;c&#42;'
    """
    parts = re.split(r"`([^`]*)`", text)
    return "".join(code(part) if at % 2 else _between(part) for at, part in enumerate(parts))


def code(text: object) -> str:
    """Text as code on one line, also inside a table."""
    shown = " ".join(str(text).split()).replace("|", "\u2502")
    return f"`` {shown} ``" if "`" in shown else f"`{shown}`"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """A table of cells that are Markdown already; `right`: the columns that stand at the right."""
    lines = [f"| {' | '.join(header)} |"]
    lines.append(f"| {' | '.join('---:' if at in right else '---' for at in range(len(header)))} |")
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines)


def _between(text: str) -> str:
    """A piece of a cell between two pieces of code, with the spaces at its ends."""
    return re.sub(r"\S(?:.*\S)?", lambda match: cell(match[0]), text, flags=re.DOTALL)
