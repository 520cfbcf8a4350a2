"""Completion in a shell: names of variants, tasks, presets and suites, the last of a list that commas separate.

Nothing of other packages is imported for it: names come from entry points, presets from attnbench's own tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from ..core.errors import AttnbenchError, SelectionError
from ..core.registry import TASKS, VARIANTS
from ..core.spec import Spec

if TYPE_CHECKING:
    from ...tasks.contract import Recipe, Task

Complete = Callable[[str], list[str]]


def _last_of_list(names: Callable[[], Iterable[str]]) -> Complete:
    def complete(incomplete: str) -> list[str]:
        first, comma, last = incomplete.rpartition(",")
        taken = set(first.split(","))
        return [f"{first}{comma}{name}" for name in sorted(names()) if name.startswith(last) and name not in taken]

    return complete


def _variants() -> Iterable[str]:
    return [entry.name for entry in VARIANTS.entries()]


def _tasks() -> Iterable[str]:
    return [entry.name for entry in TASKS.entries()]


def _suites() -> Iterable[str]:
    from ..plan.suites import built_in

    return built_in()


def _presets() -> Iterable[str]:
    return presets_of_own_tasks()


def presets_of_own_tasks() -> dict[str, dict[Recipe, list[str]]]:
    """The recipes of each preset, each with its tasks; a list imports no task of another package."""
    found: dict[str, dict[Recipe, list[str]]] = {}
    for entry in TASKS.entries():
        if TASKS.is_foreign(entry.name):
            continue
        # a task may refuse a preset that others of its kind have
        with suppress(AttnbenchError):
            task: Task = TASKS.build(Spec(entry.name))
            for name in task.presets():
                with suppress(SelectionError):
                    found.setdefault(name, {}).setdefault(task.recipe(Spec(name)), []).append(entry.name)
    return found


variants = _last_of_list(_variants)
tasks = _last_of_list(_tasks)
suites = _last_of_list(_suites)
presets = _last_of_list(_presets)
named = _last_of_list(lambda: [*_variants(), *_tasks(), *_presets()])
"""Whatever `show` describes."""
