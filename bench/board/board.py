"""Board: the answer to one question over many Records, ready to be shown. Dashboards see this and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from ..stats.ranking import RankInterval

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["ranked", "unranked", "baseline"]

NoteKind = Literal["warning", "fact", "method"]

Form = Literal["full", "brief", "bare"]
"""The amount of a cell that is shown: all, a short interval, or the value alone."""

MOST_NOTES = 6
"""The most notes that a display shows below a board; the rest stand behind an option or a fold."""

MOST_COLUMNS = 8
"""The most columns that a display shows of a board; the rest stand behind an option or a fold."""

NO_RIVAL = "no other variant to be ranked against"

_ARROWS = {"higher": " ↑", "lower": " ↓", "": ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """`better`: the good direction, '' for neither. `importance`: a narrow display drops the highest numbers first.

    `short`: the heading of a narrow display, where it differs from the title. `shown`: whether it answers the board's
    question; the other columns are shown on request. `note`: what a reader of the column must know beside its
    description; `mark`: the mark that it explains, where only cells with this mark need it.
    """

    name: str
    title: str
    short: str = ""
    unit: str = ""
    better: Literal["higher", "lower", ""] = ""
    description: str = ""
    importance: int = 1
    shown: bool = True
    note: str = ""
    mark: str = ""

    @property
    def arrow(self) -> str:
        """An arrow in the good direction, after a space; empty for neither."""
        return _ARROWS[self.better]

    @property
    def heading(self) -> str:
        """The title with the arrow."""
        return self.title + self.arrow


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCell:
    """One number of a row: as text for people; as value with its interval for machines, in the column's unit.

    `brief`: the text for a narrow display, and `bare` for one that has no room for intervals, where they differ.
    `note`: a mark of one letter, or why there is no number.
    """

    text: str = ""
    brief: str = ""
    bare: str = ""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    note: str = ""

    def shown(self, form: Form = "full") -> str:
        """The text in that form, with its mark."""
        mark = f" {self.note}" if len(self.note) == 1 else ""
        brief = "" if form == "full" else self.brief
        return ((form == "bare" and self.bare) or brief or self.text) + mark


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`first` and `last`: ends of its rank interval, both None where unranked; `group` numbers the ties from 1.

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
        """The rank as text, `2` or `2–4`; empty where unranked."""
        if self.first is None:
            return ""
        return str(self.first) if self.first == self.last else f"{self.first}–{self.last}"


def split_by_rank(order: Sequence[RankInterval], rows: Mapping[str, Row]) -> tuple[tuple[Row, ...], tuple[Row, ...]]:
    """The rows that have a rank interval, with it, in order; and the others. Rows of equal ranks share a group."""
    groups = {ranks: at for at, ranks in enumerate(dict.fromkeys((s.first, s.last) for s in order), start=1)}
    ranked = tuple(
        replace(rows[s.name], first=s.first, last=s.last, group=groups[s.first, s.last], reason="") for s in order
    )
    names = {s.name for s in order}
    return ranked, tuple(row for name, row in rows.items() if name not in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A fact that a reader needs, in the one wording that every display uses.

    `priority`: the smallest comes first. `kind`: a `warning` says that numbers cannot be trusted without it, a `fact`
    bears on the answer, a `method` says how the numbers were made. `column`: name of the column that it explains, and
    with which it is hidden; empty for the whole board.
    """

    topic: str
    text: str
    priority: int = 0
    kind: NoteKind = "fact"
    column: str = ""

    @property
    def warning(self) -> bool:
        return self.kind == "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """`name` is unique among boards. `ranked` in order of rank; `unranked` with reasons.

    `baselines`: trivial predictors, for scale. `notes`: in order of priority, those of `parts` among them. `parts`:
    smaller boards of the same question, shown below it without ranks. `question`: heads the board, with task and preset
    in it. `headline`: the answer in one or two sentences, as far as the Records give one. `ranked_by`: name of the
    column that ranks, empty for the first. `learned`: False where neither the reference learned the task nor a better.
    """

    name: str
    title: str
    question: str
    columns: tuple[Column, ...]
    ranked: tuple[Row, ...]
    unranked: tuple[Row, ...] = ()
    baselines: tuple[Row, ...] = ()
    notes: tuple[Note, ...] = ()
    headline: str = ""
    parts: tuple[Board, ...] = ()
    ranked_by: str = ""
    learned: bool = True

    @property
    def rows(self) -> tuple[tuple[Kind, Row], ...]:
        """Every row with its kind, in the order in which they are shown."""
        groups: dict[Kind, tuple[Row, ...]] = {
            "ranked": self.ranked, "unranked": self.unranked, "baseline": self.baselines,
        }  # fmt: skip
        return tuple((kind, row) for kind, rows in groups.items() for row in rows)

    def __post_init__(self) -> None:
        object.__setattr__(self, "notes", tuple(sorted(self.notes, key=lambda note: note.priority)))

    def cell(self, row: Row, column: str) -> TableCell:
        """The cell of a row in the column of that name, empty where the board has no such column."""
        names = [each.name for each in self.columns]
        return row.entries[names.index(column)] if column in names else TableCell()

    @property
    def shown_notes(self) -> tuple[Note, ...]:
        """The notes that every display shows, at most `MOST_NOTES`; all others are shown on request."""
        hidden = {column.name for column in self.columns} - {self.columns[at].name for at in self.shown_columns}
        chosen = [note for note in self.notes if note.kind != "method" and note.column not in hidden]
        return tuple(chosen[:MOST_NOTES])

    @property
    def shown_columns(self) -> tuple[int, ...]:
        """Places of the columns that every display shows, at most `MOST_COLUMNS`: those that answer the question."""
        flagged = [at for at in self.filled if self.columns[at].shown]
        chosen = sorted(flagged, key=lambda at: self.columns[at].importance)[:MOST_COLUMNS]
        return tuple(sorted(chosen))

    @property
    def reasons(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Each reason for which rows are unranked, with their names."""
        found: dict[str, list[str]] = {}
        for _, row in self.rows:
            if row.reason:
                found.setdefault(row.reason, []).append(row.name)
        return tuple((reason, tuple(names)) for reason, names in found.items())

    @property
    def filled(self) -> tuple[int, ...]:
        """Places of the columns with a text in some row; dashboards show no others."""
        return tuple(at for at in range(len(self.columns)) if any(row.entries[at].text for _, row in self.rows))

    def to_pandas(self, *, text: bool = False) -> pd.DataFrame:
        """A DataFrame with one row per variant and baseline, in the order of the board; `parts` have their own.

        | column | holds |
        |---|---|
        | `variant` | its name with parameters |
        | `kind` | `ranked`, `unranked` or `baseline` |
        | `rank` | the rank interval as text, `2` or `2–4`; empty where unranked |
        | `rank_first`, `rank_last` | its ends as integers; missing where unranked |
        | `reason` | why it is unranked |
        | `<column>` | the value in the column's unit, NaN for none; texts, where the column has no values at all |
        | `<column>_low`, `<column>_high` | ends of the interval, where any row of the column has one |

        With `text=True` every column of the board holds its texts as shown, and there are no ends.
        """
        import pandas as pd

        rows = [row for _, row in self.rows]
        found: dict[str, Any] = {
            "variant": [row.name for row in rows],
            "kind": [kind for kind, _ in self.rows],
            "rank": [row.place for row in rows],
            "rank_first": pd.array([row.first for row in rows], dtype="Int64"),
            "rank_last": pd.array([row.last for row in rows], dtype="Int64"),
            "reason": [row.reason for row in rows],
        }
        for at, column in enumerate(self.columns):
            cells = [row.entries[at] for row in rows]
            words = any(cell.text for cell in cells) and all(cell.value is None for cell in cells)
            if text or words:
                found[column.name] = [cell.shown() for cell in cells]
                continue
            found[column.name] = pd.Series([cell.value for cell in cells], dtype="float64")
            for end in ("low", "high"):
                numbers = pd.Series([getattr(cell, end) for cell in cells], dtype="float64")
                if numbers.notna().any():
                    found[f"{column.name}_{end}"] = numbers
        return pd.DataFrame(found)
