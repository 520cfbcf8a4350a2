"""Plan: from a selection to the Blocks that are still to be run, in the order in which to run them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal, get_args

from ..core.cell import REFERENCE, Cell, Lane, Selection
from ..core.errors import PluginError, SelectionError
from ..core.hashing import content_hash
from ..core.record import Outcome, Provenance, Record
from ..core.registry import TASKS, VARIANTS
from ..core.spec import Spec
from ..store.store import Store
from .facts import recipe_facts, resolve, task_facts

DigestOf = Callable[[Cell], str]
"""The digest of a Record that a Cell would yield with the present code and data."""

State = Literal["todo", "again", "done"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The work of one child process: one Cell to train, one baseline, or the Cells of one task to time in turns."""

    id: str
    lane: Lane
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One Cell of a plan. `record`: what it yielded before; `seconds`: what it is likely to take, None = unknown.

    `again`: done before, and measured once more because others are measured against it.
    """

    cell: Cell
    state: State
    record: Record | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All Cells of a selection, and the Blocks that are left of them. `notices`: what a person should be told.

    `data`: where the data of each task comes from; None for data that is not here yet.
    """

    steps: tuple[Step, ...]
    blocks: tuple[Block, ...]
    notices: tuple[str, ...] = ()
    data: Mapping[Spec, Provenance | None] = field(default_factory=dict)

    @property
    def left(self) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if step.state != "done")

    @property
    def seconds(self) -> float:
        """Likely time of what is left and can be estimated."""
        return sum(step.seconds or 0.0 for step in self.left)

    @property
    def unknown(self) -> int:
        """How many of the Cells left have no estimate."""
        return sum(step.seconds is None for step in self.left)


def plan(
    *,
    variants: Sequence[Spec],
    tasks: Sequence[Spec],
    preset: Spec,
    seeds: int,
    selection: Selection,
    store: Store,
    digest_of: DigestOf,
    machine_id: str,
    retry: bool = False,
) -> Plan:
    """Baselines first, then training seed by seed, then the timings: an interrupted run leaves whole, smaller boards.

    Raises SelectionError for a name, parameter, preset or count that cannot be run. The reference is always part of it.
    """
    if seeds < 1:
        raise SelectionError(f"expected a count of seeds of 1 or more, got {seeds}")
    if selection not in get_args(Selection):
        raise SelectionError(f"expected selection to be {' or '.join(get_args(Selection))}, got {selection!r}")
    specs, notices = _with_reference([_resolved(spec) for spec in variants])
    questions = [_question(resolve(TASKS, task), preset) for task in dict.fromkeys(tasks)]
    known = _Known(list(store.records()), machine_id)

    def step(cell: Cell) -> Step:
        record = store.finished(cell, digest_of(cell), machine_id, retry=retry)
        return Step(cell=cell, state="done" if record else "todo", record=record, seconds=known.seconds(cell))

    steps: list[Step] = []
    blocks: list[Block] = []
    for cell in _single_cells(questions, specs, seeds, selection):
        steps.append(step(cell))
        if steps[-1].state == "todo":
            blocks.append(_block(cell.lane, (cell,), machine_id, digest_of))
    for question in (question for question in questions if "time" in question.lanes):
        timed = _timed([step(question.cell(spec, 0, "time", selection)) for spec in specs])
        steps += timed
        again = tuple(s.cell for s in timed if s.state != "done")
        if again:
            blocks.append(_block("time", again, machine_id, digest_of))
    return Plan(steps=tuple(steps), blocks=tuple(blocks), notices=tuple(notices))


@dataclass(frozen=True, slots=True)
class _Question:
    """A task under a preset, both canonical, and its trivial baselines."""

    task: Spec
    preset: Spec
    baselines: tuple[str, ...]
    lanes: tuple[Lane, ...]

    def cell(self, variant: Spec, seed: int, lane: Lane, selection: Selection) -> Cell:
        return Cell(
            variant=variant, task=self.task, preset=self.preset, seed=seed, lane=lane, selection=selection
        )  # fmt: skip


def _question(task: Spec, preset: Spec) -> _Question:
    facts = task_facts(task)
    return _Question(task, recipe_facts(task, preset).preset, facts.baselines, facts.lanes)


def _resolved(variant: Spec) -> Spec:
    """The canonical Spec; as it is given where the plugin does not answer, since its Cells are part of the plan."""
    try:
        return resolve(VARIANTS, variant)
    except PluginError:
        return variant


def _with_reference(variants: list[Spec]) -> tuple[list[Spec], list[str]]:
    reference = Spec(REFERENCE)
    if reference in variants:
        return list(dict.fromkeys(variants)), []
    return [reference, *dict.fromkeys(variants)], [f"{REFERENCE} was added: relative figures need it"]


def _single_cells(questions: list[_Question], variants: list[Spec], seeds: int, selection: Selection) -> Iterator[Cell]:
    for question in questions:
        for name in question.baselines if "baseline" in question.lanes else ():
            yield question.cell(Spec(name), 0, "baseline", selection)
    for seed in range(seeds):
        for question in questions:
            for variant in variants if "train" in question.lanes else ():
                yield question.cell(variant, seed, "train", selection)


def _timed(steps: list[Step]) -> list[Step]:
    """The steps of one time Block: where any is left, the reference is measured with it."""
    if all(step.state == "done" for step in steps):
        return steps
    reference = Spec(REFERENCE)
    return [
        Step(cell=step.cell, state="again", record=step.record, seconds=step.seconds)
        if step.cell.variant == reference and step.state == "done"
        else step
        for step in steps
    ]


def _block(lane: Lane, cells: tuple[Cell, ...], machine_id: str, digest_of: DigestOf) -> Block:
    content = [machine_id, [[cell.key, digest_of(cell)] for cell in cells]]
    return Block(id=content_hash(content), lane=lane, cells=cells)


class _Known:
    """Seconds that cells took before on this machine."""

    def __init__(self, records: list[Record], machine_id: str):
        mine = [record for record in records if record.machine.id == machine_id]
        sizes: dict[str, int] = {}
        for record in mine:
            sizes[record.block] = sizes.get(record.block, 0) + 1
        self._variant: dict[tuple[str, ...], float] = {}
        self._others: dict[tuple[str, ...], list[float]] = {}
        for record in mine:
            cell = record.cell
            # the Cells of a time Block run in turns, so each one's clock shows the time of all
            share = record.seconds / (sizes[record.block] if cell.lane == "time" else 1)
            self._variant[(*_question_of(cell), str(cell.variant))] = share
            if record.outcome is Outcome.OK:
                self._others.setdefault(_question_of(cell), []).append(share)

    def seconds(self, cell: Cell) -> float | None:
        """Last time of this variant, else the median of the others on the same question; None where none is known."""
        same = self._variant.get((*_question_of(cell), str(cell.variant)))
        others = self._others.get(_question_of(cell))
        return same if same is not None else median(others) if others else None


def _question_of(cell: Cell) -> tuple[str, ...]:
    return cell.lane, str(cell.task), str(cell.preset)
