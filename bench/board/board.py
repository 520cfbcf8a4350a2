"""Board: the answer to one question over many Records, ready to be shown. Dashboards see this and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ..stats.ranking import Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """`better`: the direction that is good, '' for neither. `importance`: where it is narrow, the highest go first."""

    name: str
    title: str
    unit: str = ""
    better: Literal["higher", "lower", ""] = ""
    description: str = ""
    importance: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCell:
    """One number of a row: as text for people; as value with its interval for machines, in the column's unit.

    `brief`: the text for narrow places, where it differs. `note`: a mark of one letter, or why there is no number.
    """

    text: str = ""
    brief: str = ""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`first` and `last`: the places it may hold, both None where unranked; `group` numbers the tie groups from 1.

    `reason`: why it is unranked. `records`: keys of the cells behind it.
    """

    name: str
    entries: tuple[TableCell, ...]
    first: int | None = None
    last: int | None = None
    group: int | None = None
    reason: str = ""
    records: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """Its rank as text, `2` or `2–4`; empty where unranked."""
        if self.first is None:
            return ""
        return str(self.first) if self.first == self.last else f"{self.first}–{self.last}"


def in_order(standings: Sequence[Standing], rows: Mapping[str, Row]) -> tuple[Row, ...]:
    """The rows that have a standing, with their places, in order; rows of equal places share a group."""
    groups = {places: at for at, places in enumerate(dict.fromkeys((s.first, s.last) for s in standings), start=1)}
    return tuple(
        replace(rows[s.name], first=s.first, last=s.last, group=groups[s.first, s.last], reason="") for s in standings
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Footnote:
    """What a reader must know; `topic` in a word or two, `warning` where the numbers cannot be trusted without it.

    `column`: the one that it explains, without which it is not needed; empty for the whole board.
    """

    topic: str
    text: str
    warning: bool = False
    column: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """`name` tells it from all other boards. `ranked` in order of standing; `unranked` with reasons.

    `baselines`: trivial predictors, for scale. `parts`: smaller boards of the same question, shown below it without
    places; their footnotes are its own.
    """

    name: str
    title: str
    question: str
    columns: tuple[Column, ...]
    ranked: tuple[Row, ...]
    unranked: tuple[Row, ...] = ()
    baselines: tuple[Row, ...] = ()
    footnotes: tuple[Footnote, ...] = ()
    parts: tuple[Board, ...] = ()
