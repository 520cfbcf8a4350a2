"""The objective of a problem: of this folder, or brought by an entry point."""

from __future__ import annotations

from ....tasks.contract import Problem, Recipe
from ...core.entry_points import read_group
from ...core.errors import SelectionError
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
    if name in OBJECTIVES:
        return OBJECTIVES[name](problem, recipe)
    group = read_group("attnbench.objectives")
    if name not in group.points:
        why = group.problem(name) or "no installed package brings it under `attnbench.objectives`"
        raise SelectionError(f"{type(problem).__name__} asks for the objective {name!r}: {why}")
    brought: type[Objective] = group.points[name].load()
    return brought(problem, recipe)
