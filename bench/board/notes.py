"""Notes (in the making): the table of topics."""

from __future__ import annotations

from enum import StrEnum

from .board import Note


class NoteKind(StrEnum):
    LEARNING = "learning"
    DATA = "data"
    UNDECIDED = "undecided"
    NOISE = "noise"
    VERSIONS = "versions"
    MACHINES = "machines"
    MISSING = "missing"
    METHOD = "method"
    COLUMN = "column"


_PRIORITIES = {kind: 10 * at for at, kind in enumerate(NoteKind)}


def footnote(
    *, topic: str, text: str, kind: NoteKind = NoteKind.METHOD, brief: str = "", warning: bool = False, column: str = ""
) -> Note:
    """A note of that topic."""
    priority = _PRIORITIES[kind] + (not warning)
    return Note(
        topic=topic, text=text, priority=priority, column=column,
        kind="warning" if warning else "fact" if brief else "method",
    )  # fmt: skip
