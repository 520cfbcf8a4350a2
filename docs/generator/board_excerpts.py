"""Excerpts of the committed boards: what they measured of one variant, and the first columns of one task's boards."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from .markdown import cell, table
from .repository import ROOT

BOARDS = ROOT / "results" / "boards"

FEW = 6
"""Columns of an excerpt; the board has all."""

REFERENCE = "softmax"

BY_SETTING = ("by", "right-key")
"""In the names of the parts of a board that show results by setting."""


@dataclass(frozen=True, slots=True)
class StoredBoard:
    """One board of a JSON file. `page`: the Markdown beside it, from the root of the repository."""

    values: dict[str, Any]
    page: str

    @property
    def title(self) -> str:
        return str(self.values["title"])

    def is_about(self, task: str) -> bool:
        """Whether it is of `task`, in whatever setting; suites have pages of their own."""
        return _bare(self.values["name"]) == task

    def rows(self, variant: str) -> list[dict[str, Any]]:
        """The rows of a variant, in all its settings, ranked and unranked."""
        rows = [*self.values["ranked"], *self.values["unranked"]]
        return [row for row in rows if _bare(row["name"]) == variant]

    @property
    def by_setting(self) -> Iterator[StoredBoard]:
        """Its parts by length, difficulty and weight on the right key."""
        for part in self.values.get("parts", ()):
            if any(f"/{kind}/" in part["name"] for kind in BY_SETTING):
                yield StoredBoard(part, self.page)

    def excerpt(self, rows: Sequence[dict[str, Any]]) -> str:
        """A table of `rows` with the first columns that hold something, and their ranks where any row has one."""
        columns = [column for column in self.values["columns"] if any(_text(row, column["name"]) for row in rows)]
        first = sorted(columns, key=lambda column: column["importance"])[:FEW]
        shown = [column for column in columns if column in first]
        header = ["variant", *(cell(_heading(column)) for column in shown)]
        lines = [[_name(row), *(_entry(row, column["name"]) for column in shown)] for row in rows]
        ranks = [_rank(row) for row in rows]
        if any(ranks):
            header, lines = ["rank", *header], [[rank, *line] for rank, line in zip(ranks, lines, strict=True)]
        return table(header, lines)


def of_variant(name: str) -> Iterator[tuple[StoredBoard, str]]:
    """The boards that have a variant, and their parts by setting, each with its rows and the reference's."""
    for board in boards():
        rows = board.rows(name)
        if rows:
            for each in (board, *board.by_setting):
                own = each.rows(name)
                reference = [] if name == REFERENCE else each.rows(REFERENCE)
                if own:
                    yield each, each.excerpt([*own, *reference])


def of_task(name: str) -> Iterator[tuple[StoredBoard, str]]:
    """The boards of a task, and their parts by setting, each with all its rows."""
    for board in boards():
        if board.is_about(name):
            for each in (board, *board.by_setting):
                values = each.values
                yield each, each.excerpt([*values["ranked"], *values["unranked"], *values["baselines"]])


@lru_cache(maxsize=1)
def boards(folder: Path = BOARDS) -> tuple[StoredBoard, ...]:
    """All boards of the JSON files whose Markdown stands beside them."""
    found = []
    for path in sorted(folder.glob("*.json")):
        page = path.with_suffix(".md")
        if page.is_file():
            stored = json.loads(path.read_text(encoding="utf-8"))["boards"]
            found += [StoredBoard(values, page.relative_to(folder.parents[1]).as_posix()) for values in stored]
    return tuple(found)


def _bare(name: str) -> str:
    """A name without its parameters, and without the setting that follows a task in the name of a board."""
    return re.split(r"[\[,/]", name)[0]


def _heading(column: dict[str, Any]) -> str:
    arrow = {"higher": " ↑", "lower": " ↓"}.get(column["better"], "")
    return f"{column['title']}{arrow}"


def _text(row: dict[str, Any], name: str) -> str:
    return str(row["entries"].get(name, {}).get("text", ""))


def _entry(row: dict[str, Any], name: str) -> str:
    """A cell in which no line breaks inside a number and its interval."""
    shown = cell(_text(row, name))
    number = row["entries"].get(name, {}).get("value") is not None
    return shown.replace(" ", "\u00a0") if number else shown


def _name(row: dict[str, Any]) -> str:
    return cell(f"{row['name']}: {row['reason']}" if row["reason"] else row["name"])


def _rank(row: dict[str, Any]) -> str:
    first, last = row["first"], row["last"]
    if not first:
        return "–" if row["reason"] else ""
    return f"{first}" if first == last else f"{first}–{last}"
