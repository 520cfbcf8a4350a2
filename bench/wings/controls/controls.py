"""`attnbench.controls`: the trainings of positive controls that have no Record yet, and the state of each control."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...api.run import run
from ...core.cell import Cell
from ...core.errors import LOG, SelectionError
from ...core.files import RESULTS
from ...core.record import Record
from ...core.registry import VARIANTS
from ...core.spec import Names, Spec, specs_of
from ...plan.facts import resolve
from ...store.controls import FOLDER, Control, ControlResult, all_controls, controls_of, judged

if TYPE_CHECKING:
    from ...run.events import RunListener


def controls(
    variants: Names | None = None,
    *,
    results: str | Path = RESULTS,
    device: str | None = None,
    threads: int = 0,
    jobs: int | None = None,
    timeout: float | None = None,
    retry: bool = False,
    progress: RunListener | None = None,
) -> tuple[ControlResult, ...]:
    """Train what the positive controls of `variants` ask for, and judge them; what was trained is not trained again.

    variants: names such as `fox` or `delta[decay=channel]`; None for all that attnbench knows a control of. The Records
    lie in the folder `controls` of `results`. Returns one result a control. Raises as `run`, and SelectionError for a
    variant without a control.

    >>> [each.state for each in attnbench.controls("topk")]                                        # doctest: +SKIP
    ['passed']
    """
    wanted = all_controls() if variants is None else _named(specs_of(variants))
    notice = progress.notice if progress else LOG.warning
    questions: dict[tuple[Spec, Spec], list[Control]] = {}
    for control in wanted:
        questions.setdefault((control.task, control.preset), []).append(control)
    records: list[Record] = []
    for number, ((task, preset), asked) in enumerate(questions.items(), start=1):
        cells: dict[Spec, Cell] = {cell.variant: cell for control in asked for cell in control.cells}
        notice(f"part {number} of {len(questions)}: {len(asked)} controls on {task}, {preset}")
        records += run(
            list(cells), [task], preset=preset, seeds=1, lanes="train", results=Path(results) / FOLDER, device=device,
            threads=threads, jobs=jobs, timeout=timeout, retry=retry, progress=progress,
        )  # fmt: skip
    return tuple(judged(control, records) for control in wanted)


def _named(specs: Sequence[Spec]) -> list[Control]:
    found: dict[Control, None] = {}
    for spec in specs:
        mine = controls_of(resolve(VARIANTS, spec))
        if not mine:
            raise SelectionError(f"{spec} has no control; write one into a `controls.toml` beside its file")
        # a mechanism that is named without parameters: all of its forms
        forms = [each for each in all_controls() if not spec.parameters and each.name.name == spec.name]
        found |= dict.fromkeys(forms or mine)
    return list(found)
