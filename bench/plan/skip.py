"""Skip rule of sweeps: a variant that failed at a shorter length is not tried at a longer one."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..core.cell import Cell
from ..core.record import Outcome, Record
from ..core.spec import Spec
from ..store.store import Site

Lengths = Callable[[Spec], int]
"""The length that a task's Spec stands for, which the Spec leaves out where it is the default."""


def failed_shorter(cell: Cell, digest: str, site: Site, records: Iterable[Record], length_of: Lengths) -> Record | None:
    """The longest failure of the same variant, by the same code at this site, at a length below that of `cell`.

    `records` in the order of being made: of one cell the last counts.
    """
    # A retry may have succeeded since, so only the newest Record of a cell counts.
    newest: dict[str, Record] = {}
    for record in records:
        if record.digest == digest and site.counts(record) and _family(record.cell) == _family(cell):
            newest[record.key] = record
    length = length_of(cell.task)
    failures = {length_of(record.cell.task): record for record in newest.values() if record.outcome is not Outcome.OK}
    shorter = [failed for failed in failures if failed < length]
    return failures[max(shorter)] if shorter else None


def reason_to_skip(failure: Record, length: int) -> str:
    """Why a cell is not tried after `failure` at `length`; a failure that was itself skipped passes its reason on."""
    if failure.reason.startswith("skipped: "):
        return failure.reason
    words = str(failure.outcome).replace("_", " ")
    return f"skipped: {words} at length {length:,}" + (f" ({failure.reason})" if failure.reason else "")


def without_length(task: Spec) -> Spec:
    """The sweep that a task is one length of."""
    return Spec(task.name, tuple(parameter for parameter in task.parameters if parameter[0] != "length"))


def _family(cell: Cell) -> tuple[object, ...]:
    """All of a cell but its length."""
    return cell.variant, without_length(cell.task), cell.preset, cell.lane, cell.protocol
