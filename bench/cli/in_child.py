"""Commands that run a model or show data of a package that this process must not import: a child runs them instead."""

from __future__ import annotations

from ..core.registry import Registry
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
