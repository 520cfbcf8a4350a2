"""Commands that run a model or show data of a package that this process must not import: a child runs them instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.errors import SelectionError
from ..core.registry import TASKS, VARIANTS, Registry
from ..core.spec import Spec

if TYPE_CHECKING:
    from ..core.record import Record
    from ..store.store import Store


class LeftToChild(Exception):
    """The whole command is to be run by the child that answers for the plugin `name`; `app.py` does that."""

    def __init__(self, registry: Registry, name: str):
        super().__init__(name)
        self.registry, self.name = registry, name


def leave_to_child(registry: Registry, spec: Spec) -> None:
    """Does nothing for a plugin of attnbench, and in the child; else raises LeftToChild."""
    if registry.is_foreign(spec.name):
        raise LeftToChild(registry, spec.name)


def leave_cell_to_child(store: Store, record: Record) -> None:
    """As `leave_to_child`, for a trained cell whose model is to run.

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
    if named:
        from ...tasks.data.data import place
        from ..train.checkpoint import is_own

        if not is_own(store.checkpoint(cell, record.digest), place().cache):
            raise SelectionError(
                f"expected a cell that you trained, got one of somebody else, which would run {named[0]}; read that "
                "code, and train the cell yourself"
            )
    if foreign:
        raise LeftToChild(*foreign[0])
