"""The objective of a problem, found by its name as variants and tasks are: ours are entry points too."""

from __future__ import annotations

from ....tasks.contract import Problem, Recipe
from ...core.entry_points import load_point
from .objective import Objective


def objective_for(problem: Problem, recipe: Recipe) -> Objective:
    """The objective of `problem`; raises SelectionError where no package brings one of its name."""
    objective: type[Objective] = load_point("attnbench.objectives", problem.objective)
    return objective(problem, recipe)
