"""The kinds of problem that there are."""

from __future__ import annotations

from ....tasks.contract import Classification, Problem, Recipe
from ....tasks.problems.language_modeling import Language
from ....tasks.problems.translation import Translation
from ...core.errors import SelectionError
from .classification import Classifying
from .language_modeling import Predicting
from .objective import Kind
from .translation import Translating

KINDS: dict[type[Problem], type[Kind]] = {
    Classification: Classifying,
    Language: Predicting,
    Translation: Translating,
}


def kind_of(problem: Problem, recipe: Recipe) -> Kind:
    """What the harness must know of `problem`; raises SelectionError for a kind that it does not know."""
    found = KINDS.get(type(problem))
    if found is None:
        known = ", ".join(kind.__name__ for kind in KINDS)
        raise SelectionError(f"expected a problem among {known}, got {type(problem).__name__}")
    return found(problem, recipe)
