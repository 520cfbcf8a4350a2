"""Filters: which boards of a results folder are wanted."""

from __future__ import annotations

from typing import TypedDict


class Filters(TypedDict, total=False):
    """Which boards; a filter that is absent or None leaves all. A name without parameters stands for all of its own.

    task, preset: such as `lra-text,sweep`. selection: `validation` or `test`. fidelity: `official`, `regenerated`,
    `surrogate`, `own` or `synthetic` data. machine: the id of the machine whose speeds are shown.
    """

    task: str | None
    preset: str | None
    selection: str | None
    fidelity: str | None
    machine: str | None
