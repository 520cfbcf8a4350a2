"""Run a selection from its plan to its Records, and tell a listener how it goes."""

from __future__ import annotations

from ..core.record import Record
from ..store.records import Records
from .events import CellFinished, Event
from .listener import RunListener
from .runner import Runner


def run_selection(runner: Runner, told: RunListener) -> Records:
    """Plans with the data fetched, runs what is left and returns the Records of the whole selection; `told` listens."""
    made = runner.plan(fetch=True)
    for notice in made.notices:
        told.notice(notice)
    for task, data in made.data.items():
        if data is not None and data.fidelity == "surrogate":
            told.notice(
                f"{task} runs on a surrogate ({data.source}), since the original is not here; "
                f"`attnbench data list {task.name}` says how to get it"
            )
    told.begin(made, str(runner.preset), runner.resources.machine)
    site = runner.resources.site
    if made.blocks and not site.machine_id:
        told.notice(f"{len(made.blocks)} jobs go to {site.executor}; this machine only submits and collects them")
    measured: dict[str, Record] = {}

    def on_event(event: Event) -> None:
        if isinstance(event, CellFinished):
            measured[event.record.key] = event.record
        told.on_event(event)

    runner.run(made, on_event)
    # another command may have measured a part of it meanwhile
    found = [measured.get(step.cell.key) or step.record or runner.record_of(step.cell) for step in made.steps]
    return Records(
        results=runner.request.results,
        records=tuple(record for record in found if record is not None),
        missing=tuple(step.cell for step, record in zip(made.steps, found, strict=True) if record is None),
        measured=tuple(measured.values()),
        left_out=tuple(runner.left_out),
    )
