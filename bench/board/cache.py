"""Shelf: Boards that were scored before, kept beside the JSON lines for as long as all that they hang on is the same.

root/cache/boards-HASH.json   the boards of one question put to one folder; made again whenever anything changed
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..core.paths import PACKAGE
from ..store.cache import settled
from ..store.store import Store
from .board import Board, Column, Footnote, Row, TableCell

WORTH = 4_000_000
"""Bytes of JSON lines below which scoring them anew takes no time that anybody minds."""

_BLANK = TableCell()
_KINDS = ("ranked", "unranked", "baselines")


def boards_of(store: Store, asked: object, make: Callable[[], list[Board]]) -> list[Board]:
    """What `make` gives, or gave when it was `asked` the same of the very same Records, artifacts and code.

    What `store` told its readers then is told again. Without a folder that can be written all is made anew.
    """
    if _size(store.root) < WORTH:
        return make()
    path = store.root / "cache" / f"boards-{_hash(asked)}.json"
    stamp = _stamp(store.root)
    key = _hash([asked, stamp, _code()])
    kept = _load(path, key)
    if kept is not None:
        boards, told = kept
        for notice in told:
            store.tell(notice)
        return boards
    boards = make()
    # what changed meanwhile is in nobody's boards
    if settled(changed for _, _, changed, _ in stamp) and _stamp(store.root) == stamp:
        _keep(path, {"key": key, "told": store.told, **_packed(boards)})
    return boards


def _size(root: Path) -> int:
    return sum(path.stat().st_size for path in (root / "records").glob("*.jsonl"))


def _stamp(root: Path) -> list[tuple[str, int, int, int]]:
    """Name, bytes and times of change of every file of Records and every artifact."""
    found = []
    for folder in ("records", "artifacts"):
        with suppress(OSError), os.scandir(root / folder) as entries:
            for entry in entries:
                if not entry.name.startswith("."):
                    status = entry.stat()
                    found.append((entry.name, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    return sorted(found)


def _code() -> str:
    files = sorted([*(PACKAGE / "bench").rglob("*.py"), *(PACKAGE / "bench").rglob("*.toml")])
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def _hash(values: object) -> str:
    return hashlib.sha256(json.dumps(values, default=str).encode()).hexdigest()[:24]


def _keep(path: Path, values: dict[str, Any]) -> None:
    temporary = None
    # a folder that is read-only or full keeps no boards, and says nothing
    with suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            # in one piece: `dump` would write it in a hundred thousand
            file.write(json.dumps(values, separators=(",", ":")))
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
        return
    if temporary is not None:
        with suppress(OSError):
            Path(temporary).unlink()


def _load(path: Path, key: str) -> tuple[list[Board], list[str]] | None:
    """The boards and notices that were kept under this key; None for any other file."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if values["key"] != key:
            return None
        return list(_unpacked(values)), [str(notice) for notice in values["told"]]
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError):
        return None


def _packed(boards: list[Board]) -> dict[str, Any]:
    """Columns once for all boards that share them, and no blank entries: the same in a tenth of the room."""
    columns: dict[tuple[Column, ...], int] = {}
    packed = [_packed_board(board, columns) for board in boards]
    titles = [[[c.name, c.title, c.unit, c.better, c.description, c.importance] for c in group] for group in columns]
    return {"columns": titles, "boards": packed}


def _packed_board(board: Board, columns: dict[tuple[Column, ...], int]) -> list[Any]:
    at = columns.setdefault(board.columns, len(columns))
    kinds = [[_packed_row(row) for row in getattr(board, kind)] for kind in _KINDS]
    notes = [[f.topic, f.text, f.warning, f.column] for f in board.footnotes]
    parts = [_packed_board(part, columns) for part in board.parts]
    return [board.name, board.title, board.question, at, kinds, notes, parts]


def _packed_row(row: Row) -> list[Any]:
    filled = [[at, e.text, e.brief, e.value, e.low, e.high, e.note] for at, e in enumerate(row.entries) if e != _BLANK]
    return [row.name, row.first, row.last, row.group, row.reason, row.records, filled]


def _unpacked(values: dict[str, Any]) -> Iterator[Board]:
    groups = [
        tuple(
            Column(name=name, title=title, unit=unit, better=better, description=description, importance=importance)
            for name, title, unit, better, description, importance in group
        )
        for group in values["columns"]
    ]
    for board in values["boards"]:
        yield _unpacked_board(board, groups)


def _unpacked_board(values: list[Any], groups: list[tuple[Column, ...]]) -> Board:
    name, title, question, at, kinds, notes, parts = values
    columns = groups[at]
    ranked, unranked, baselines = (tuple(_unpacked_row(row, len(columns)) for row in rows) for rows in kinds)
    return Board(
        name=name, title=title, question=question, columns=columns, ranked=ranked, unranked=unranked,
        baselines=baselines,
        footnotes=tuple(Footnote(topic=t, text=text, warning=w, column=c) for t, text, w, c in notes),
        parts=tuple(_unpacked_board(part, groups) for part in parts),
    )  # fmt: skip


def _unpacked_row(values: list[Any], width: int) -> Row:
    name, first, last, group, reason, records, filled = values
    entries = [_BLANK] * width
    for at, text, brief, value, low, high, note in filled:
        entries[at] = TableCell(text=text, brief=brief, value=value, low=low, high=high, note=note)
    return Row(
        name=name, entries=tuple(entries), first=first, last=last, group=group, reason=reason, records=tuple(records)
    )
