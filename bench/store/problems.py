"""Types of problem: what readers of Records must know of each, without its objective and so without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any

from ...tasks.contract import Classification, Problem, Recipe
from ...tasks.problems.language_modeling import Language
from ...tasks.problems.token_prediction import TokenPrediction
from ..core.entry_points import is_own, read_group


@cache
def problem_types() -> tuple[type[Problem], ...]:
    """The types of the core, then those that wings bring under `attnbench.problems`."""
    points = read_group("attnbench.problems").points.values()
    # readers of Records import no code of others
    return (Classification, Language, TokenPrediction, *(point.load() for point in points if is_own(point)))


def problem_of(setting: Mapping[str, Any]) -> type[Problem]:
    """The type of problem that a preset is for: the one whose recipe has most of the fields beyond a plain recipe.

    >>> problem_of({"layers": 2, "stride": 64}).__name__, problem_of({"layers": 2}).__name__
    ('Language', 'Classification')
    """
    plain = {field.name for field in fields(Recipe)}

    def own_fields(problem: type[Problem]) -> int:
        return sum(field.name in setting for field in fields(problem.recipe) if field.name not in plain)

    return max(problem_types(), key=own_fields)
