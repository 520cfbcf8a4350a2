"""The objective of a problem: of this folder, or brought by an entry point."""

from __future__ import annotations

from ....tasks.contract import Problem, Recipe
from ...core.entry_points import load_point
from .classification import ClassificationObjective
from .language_modeling import LanguageModelingObjective
from .objective import Objective
from .token_prediction import TokenPredictionObjective

OBJECTIVES: dict[str, type[Objective]] = {
    "classification": ClassificationObjective,
    "language_modeling": LanguageModelingObjective,
    "token_prediction": TokenPredictionObjective,
}
"""The objectives of the core by name. Others come from the entry points of `attnbench.objectives`."""


def objective_for(problem: Problem, recipe: Recipe) -> Objective:
    """The objective of `problem`; raises SelectionError where no package brings one of its name."""
    name = problem.objective
    objective: type[Objective] = OBJECTIVES.get(name) or load_point("attnbench.objectives", name)
    return objective(problem, recipe)
