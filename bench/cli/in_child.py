"""Commands that run a model or show data of a package that this process must not import: a child runs them instead."""

from __future__ import annotations

from ..core.cell import Cell
from ..core.registry import TASKS, VARIANTS, Registry
from ..core.spec import Spec


class LeftToChild(Exception):
    """The whole command is to be run by the child that answers for the plugin `name`; `app.py` does that."""

    def __init__(self, registry: Registry, name: str):
        super().__init__(name)
        self.registry, self.name = registry, name


def leave_to_child(registry: Registry, spec: Spec) -> None:
    """Does nothing for a plugin of attnbench, and in the child; else raises LeftToChild."""
    if registry.is_foreign(spec.name):
        raise LeftToChild(registry, spec.name)


def leave_cell_to_child(cell: Cell) -> None:
    """As `leave_to_child`, for a trained cell whose model is to run."""
    leave_to_child(VARIANTS, cell.variant)
    leave_to_child(TASKS, cell.task)
