"""Tuning: the cells that choose the learning rate where a preset has a grid, and the choice once they are done."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..core.cell import FIRST_TUNING_SEED, Cell
from ..core.record import Record
from ..store.learning_rates import RateChoice, choose_rate
from .facts import RecipeFacts

Counted = Mapping[tuple[str, str], Record]
"""The Record that counts of each cell and digest, as `store.learning_rates.first_results` gives it."""


def tuning_cells(cell: Cell, recipe: RecipeFacts) -> dict[float, tuple[Cell, ...]]:
    """The cells of the lane `tune` that the rate of a cell to train is chosen by; none without a grid.

    They are the same for all seeds. Their checkpoints are chosen on validation data, whatever the cell's own are.
    """
    return {
        rate: tuple(
            Cell(variant=cell.variant, task=cell.task, preset=preset, seed=FIRST_TUNING_SEED + at, lane="tune")
            for at in range(recipe.tuning_seeds)
        )
        for rate, preset in recipe.grid
    }


def stored_choice(
    cell: Cell, recipe: RecipeFacts, counted: Counted, digest_of: Callable[[Cell], str]
) -> RateChoice | None:
    """The choice of a cell to train, by the present code and data; None where tuning cells are still to be run.

    Records of any machine count, so that every machine that sees them chooses the same.
    """
    found = {
        rate: [record for one in cells if (record := counted.get((one.key, digest_of(one))))]
        for rate, cells in tuning_cells(cell, recipe).items()
    }
    if any(len(records) < recipe.tuning_seeds for records in found.values()):
        return None
    return choose_rate(found)
