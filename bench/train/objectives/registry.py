"""The objective of each type of problem."""

from __future__ import annotations

from ....tasks.contract import Classification, Problem, Recipe
from ....tasks.problems.language_modeling import Language
from ....tasks.problems.token_prediction import TokenPrediction
from ....tasks.problems.translation import Translation
from ...core.errors import SelectionError
from .classification import ClassificationObjective
from .language_modeling import LanguageModelingObjective
from .objective import Objective
from .token_prediction import TokenPredictionObjective
from .translation import TranslationObjective

OBJECTIVES: dict[type[Problem], type[Objective]] = {
    Classification: ClassificationObjective,
    Language: LanguageModelingObjective,
    Translation: TranslationObjective,
    TokenPrediction: TokenPredictionObjective,
}


def objective_for(problem: Problem, recipe: Recipe) -> Objective:
    """The objective of `problem`; raises SelectionError for a kind that it does not know."""
    found = OBJECTIVES.get(type(problem))
    if found is None:
        known = ", ".join(objective.__name__ for objective in OBJECTIVES)
        raise SelectionError(f"expected a problem among {known}, got {type(problem).__name__}")
    return found(problem, recipe)
