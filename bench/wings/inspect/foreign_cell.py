"""Leave a trained cell whose code is of another package to a child process."""

from __future__ import annotations

from ....tasks.data.data import place
from ...cli.in_child import LeftToChild
from ...core.errors import SelectionError
from ...core.record import Record
from ...core.registry import TASKS, VARIANTS
from ...store.store import Store
from ...train.checkpoint import is_own


def leave_cell_to_child(store: Store, record: Record) -> None:
    """Leave a trained cell whose model is to run to a child, as `leave_to_child` does.

    Raises SelectionError where it names code by its place, `FILE.py:NAME`, and this account did not train it: whoever
    sent the Record has chosen that code, and perhaps sent it along.
    """
    cell = record.cell
    foreign = [
        (registry, spec.name)
        for registry, spec in ((VARIANTS, cell.variant), (TASKS, cell.task))
        if registry.is_foreign(spec.name)
    ]
    named = [part for registry, name in foreign for _, part in registry.parts(name) if ":" in part]
    if named and not is_own(store.checkpoint(cell, record.digest), place().cache):
        raise SelectionError(
            f"expected a cell that you trained, got one of somebody else, which would run {named[0]}; read that code, "
            "and train the cell yourself"
        )
    if foreign:
        raise LeftToChild(*foreign[0])
