"""Load the model of a finished Cell from its checkpoint.

Parameters stay in the results folder's `checkpoints` and are no part of a Record: they are large, few need them, and
the same Cell makes them again. A folder that is copied without them loses only the commands that use the model itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ....tasks.contract import DataPlace, Dataset, Recipe, Task
from ....variants.contract import AttentionShape, Variant
from ...core.errors import DataError, StoreError
from ...core.record import Record
from ...core.registry import TASKS, VARIANTS
from ...models.blocks import Model
from ...plan.fingerprint import digest_of_cell
from ...store.store import Store
from ...train.checkpoint import read_parameters
from ...train.objectives.registry import objective_for


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model with its best parameters. `is_current`: whether the code is still the one that trained it."""

    record: Record
    task: Task
    recipe: Recipe
    model: Model
    is_current: bool


def load(store: Store, record: Record, device: torch.device) -> LoadedModel:
    """The model of `record`. Raises StoreError where its parameters are not at hand or do not fit the code."""
    cell = record.cell
    task: Task = TASKS.build(cell.task)
    recipe = task.recipe(cell.preset)

    def build(shape: AttentionShape) -> Variant:
        variant: Variant = VARIANTS.build(cell.variant, shape)
        return variant

    model = objective_for(task.problem(), recipe).model(build, cell.seed, str(device)).to(device)
    path = store.checkpoint(cell, record.digest)
    if not path.is_file():
        raise StoreError(
            f"the parameters of `{cell}` are not at hand: expected {path}, which stays where the cell was trained; "
            "use that folder, or train the cell again in another"
        )
    try:
        model.load_state_dict(read_parameters(path, device))
    except RuntimeError as error:
        raise StoreError(
            f"the parameters in {path} do not fit the model of today ({' '.join(str(error).split())[:200]}); "
            "train the cell again"
        ) from None
    trained_on = "cuda" if record.machine.accelerators else "cpu"
    current = digest_of_cell(cell, record.data, trained_on) == record.digest
    return LoadedModel(record=record, task=task, recipe=recipe, model=model, is_current=current)


def dataset_of(trained: LoadedModel, place: DataPlace) -> Dataset:
    """The data that the model was trained on. Raises DataError where it is missing, or differs, as ids do then."""
    cell, was = trained.record.cell, trained.record.data
    found = trained.task.load(place, trained.recipe, cell.seed, cell.selection)
    changed = [
        name for name, checksum in (was.files if was else {}).items() if found.provenance.files.get(name) != checksum
    ]
    if changed:
        raise DataError(
            f"expected the data that `{cell}` was trained on, got others for {', '.join(changed)}; put those back, or "
            "train the cell again"
        )
    return found
