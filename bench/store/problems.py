"""Types of problem: what readers of Records must know of each, without its objective and so without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any

from ..core.entry_points import is_own, read_group

if TYPE_CHECKING:
    from ...tasks.contract import Problem


@cache
def problem_types() -> tuple[type[Problem], ...]:
    """The types under `attnbench.problems`, but for those of others: readers of Records import no foreign code."""
    points = read_group("attnbench.problems").points.values()
    return tuple(point.load() for point in points if is_own(point))


def problem_of(setting: Mapping[str, Any]) -> type[Problem]:
    """The type of problem that a preset is for: the one whose recipe has most fields that only some recipes have.

    >>> problem_of({"layers": 2, "stride": 64}).__name__, problem_of({"layers": 2}).__name__
    ('Language', 'Classification')
    """
    plain = min((problem.recipe for problem in problem_types()), key=lambda recipe: len(fields(recipe)))
    shared = {field.name for field in fields(plain)}

    def own_fields(problem: type[Problem]) -> tuple[int, bool]:
        own = sum(field.name in setting for field in fields(problem.recipe) if field.name not in shared)
        return own, problem.recipe is plain

    return max(problem_types(), key=own_fields)
