"""The tables of the committed boards, read from their Markdown, and their rows of one variant."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from .repository import ROOT

FOLDER = ROOT / "results" / "boards"

REFERENCE = "softmax"


@dataclass(frozen=True, slots=True)
class BoardTable:
    """One table of a committed board. `page`: its file, from the root of the repository; `part`: its heading, if any.

    `lines`: the table as Markdown: header, rule, rows. `headline`: of the whole board.
    """

    page: str
    question: str
    headline: str
    part: str
    lines: tuple[str, ...]

    @property
    def title(self) -> str:
        """The subject of the board: its question without the beginning."""
        return re.sub(r"^.*? (on|over) ", "", self.question).rstrip("?").replace("\\", "")

    @property
    def task(self) -> str:
        """The name of the task; `the` for a board of several."""
        return re.split(r"[^\w-]", self.title)[0]

    def excerpt(self, variant: str) -> list[str]:
        """The table with the rows of `variant` and of the reference alone; empty where `variant` has no row."""
        column = self.lines[0].split(" | ").index("variant") if " | variant |" in self.lines[0] else 0
        names = [re.split(r"[\\\[]", line.split(" | ")[column].strip("|* "))[0] for line in self.lines[2:]]
        if variant not in names:
            return []
        rows = [line for name, line in zip(names, self.lines[2:], strict=True) if name in (variant, REFERENCE)]
        return [*self.lines[:2], *rows]


@lru_cache(maxsize=1)
def tables() -> tuple[BoardTable, ...]:
    """All tables of the committed boards, a board's own table before the tables of its parts."""
    return tuple(table for path in sorted(FOLDER.glob("*.md")) for table in _read(path.name))


def first_boards() -> Iterator[BoardTable]:
    """The first table of each page."""
    seen = set()
    for table in tables():
        if table.page not in seen:
            seen.add(table.page)
            yield table


def _read(name: str) -> Iterator[BoardTable]:
    for board in re.split(r"^## ", (FOLDER / name).read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        question, _, body = board.partition("\n")
        headline = re.match(r"\s*\*\*(.*)\*\*\n", body)
        for at, section in enumerate(re.split(r"^### ", body, flags=re.MULTILINE)):
            lines = tuple(line for line in section.split("\n") if line.startswith("| "))
            if lines:
                part = section.partition("\n")[0] if at else ""
                yield BoardTable(f"results/boards/{name}", question, headline[1] if headline else "", part, lines)
