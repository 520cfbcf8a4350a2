"""Plan: from a selection to the jobs that are still to be run, in the order in which to run them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from statistics import median
from typing import Literal, get_args

from ..core.cell import FIRST_TUNING_SEED, NO_ATTENTION, REFERENCE, Cell, Lane, Selection
from ..core.errors import PluginError, SelectionError
from ..core.hashing import content_hash
from ..core.record import Outcome, Provenance, Record, Site
from ..core.registry import VARIANTS
from ..core.spec import Spec
from ..store.learning_rates import RateChoice, apart_from_rates, first_results, search
from ..store.store import Store
from .facts import RecipeFacts, TaskFacts, recipe_facts, resolve, task_facts

DigestOf = Callable[[Cell], str]
"""The digest of a Record that a Cell would yield with the present code and data."""

Counted = Mapping[tuple[str, str], Record]
"""The Record that counts of each cell and digest, as `store.learning_rates.first_results` gives it."""

State = Literal["todo", "again", "done"]

NO_ATTENTION_ADDED = f"{NO_ATTENTION} was added: the same model without attention tells what attention adds"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """The work of one child process: one Cell to train, one baseline, or the Cells of one task to time in turns.

    `after`: ids of jobs that must have ended before this one starts; they stand before it in the plan.
    """

    id: str
    lane: Lane
    cells: tuple[Cell, ...]
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One Cell of a plan. `record`: what it yielded before; `seconds`: what it is likely to take, None = unknown.

    `estimates`: where none like it has run, the seconds by machine, from counted work; `seconds` is the first of them.
    `again`: done before, and measured once more because others are measured against it. A Cell that is measured once
    more because other code of its variant was measured since is to do.
    """

    cell: Cell
    state: State
    record: Record | None = None
    seconds: float | None = None
    estimates: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All Cells of a selection, and the jobs that are left of them. `notices`: what a person should be told.

    `data`: where the data of each task comes from; None for data that is not here yet. `jobs`: how many at once;
    `timings_alone`: whether a timing has the machine to itself, as on a processor.
    `undecided`: Cells to train whose learning rate may be searched beyond the trials of this plan; a plan that is made
    once its jobs have ended has the next ones.
    """

    steps: tuple[Step, ...]
    blocks: tuple[PlannedJob, ...]
    notices: tuple[str, ...] = ()
    data: Mapping[Spec, Provenance | None] = field(default_factory=dict)
    jobs: int = 1
    timings_alone: bool = True
    undecided: tuple[Cell, ...] = ()

    @property
    def left(self) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if step.state != "done")

    @property
    def seconds(self) -> float:
        """Likely time from start to end of what is left and can be estimated."""
        return self.seconds_of(self.left)

    def seconds_of(self, steps: Iterable[Step]) -> float:
        """Likely time from start to end of these, `jobs` of them at once."""
        together = alone = 0.0
        for step in steps:
            if step.cell.lane == "time" and self.timings_alone:
                alone += step.seconds or 0.0
            else:
                together += step.seconds or 0.0
        return together / self.jobs + alone

    def seconds_on(self, machine: str) -> float:
        """As `seconds`, on a machine of the estimates."""
        return self.seconds_of(replace(step, seconds=step.estimates.get(machine, step.seconds)) for step in self.left)

    @property
    def unknown(self) -> int:
        """How many of the Cells left have no estimate; a trivial baseline, which takes seconds at most, needs none."""
        return sum(step.seconds is None and step.cell.lane != "baseline" for step in self.left)


def plan(
    *,
    variants: Sequence[Spec],
    tasks: Sequence[Spec],
    preset: Spec,
    seeds: int,
    selection: Selection,
    store: Store,
    digest_of: DigestOf,
    site: Site,
    has_data: Callable[[Spec], bool] = lambda task: True,
    retry: bool = False,
    estimate: Callable[[Cell, Sequence[Spec]], Mapping[str, float]] | None = None,
) -> Plan:
    """Baselines first, then training seed by seed, then the timings: an interrupted run leaves whole, smaller boards.

    Of a preset with a grid of learning rates, the cells that choose among them come before all training. The reference
    is always part of the plan, and so is the training of the model without attention, where the preset is ranked.
    `has_data` is asked of each task once all names and counts are known to be right, since it may fetch the data; a
    task without data is left out. `estimate` is asked, with all variants, of each cell that none like it has run of.
    Raises SelectionError for a name, parameter, preset or count that cannot be run.
    """
    if seeds < 1:
        raise SelectionError(f"expected a count of seeds of 1 or more, got {seeds}")
    if selection not in get_args(Selection):
        raise SelectionError(f"expected selection to be {' or '.join(get_args(Selection))}, got {selection!r}")
    resolved = []
    for spec in variants:
        try:
            resolved.append(resolve(VARIANTS, spec))
        except PluginError:
            # its Cells are part of the plan, and get their outcome from the run
            resolved.append(spec)
    reference, without = Spec(REFERENCE), Spec(NO_ATTENTION)
    notices = [] if reference in resolved else [f"{REFERENCE} was added: relative figures need it"]
    specs = list(dict.fromkeys([*([] if reference in resolved else [reference]), *resolved]))
    facts = [task_facts(task) for task in dict.fromkeys(tasks)]
    questions = [(task, recipe_facts(task.task, preset)) for task in facts]
    if seeds > FIRST_TUNING_SEED and any(recipe.grid for _, recipe in questions):
        raise SelectionError(
            f"expected at most {FIRST_TUNING_SEED} seeds with learning_rates, whose choice is made on seeds from "
            f"{FIRST_TUNING_SEED} on, got {seeds:,}"
        )
    questions = [(task, recipe) for task, recipe in questions if has_data(task.task)]
    # A preset that is not ranked, such as `smoke`, answers no question to which the model without attention is a scale.
    scaled = {
        task.task
        for task, recipe in questions
        if recipe.ranked and "train" in task.lanes and task.works_without_attention
    }
    if without not in specs and scaled:
        notices.append(NO_ATTENTION_ADDED)
    history = _History(list(store.records()), site)
    restored: dict[tuple[object, ...], str] = {}
    undecided: dict[Cell, None] = {}

    def step(task: TaskFacts, recipe: RecipeFacts, variant: Spec, seed: int, lane: Lane) -> Step:
        cell = Cell(
            variant=variant, task=task.task, preset=recipe.preset, seed=seed, lane=lane, selection=selection
        )  # fmt: skip
        record = store.finished(cell, digest_of(cell), site, retry=retry)
        group = None if record is None else history.replaced(record)
        is_first = group is not None and group not in restored
        if group is not None:
            restored.setdefault(group, str(cell.variant))
        state: State = "done" if record and not is_first else "todo"
        return expected(cell, state, record)

    def expected(cell: Cell, state: State, record: Record | None) -> Step:
        seconds = history.seconds(cell)
        guessed = estimate(cell, specs) if estimate and seconds is None and state == "todo" else {}
        seconds = next(iter(guessed.values()), seconds)
        return Step(cell=cell, state=state, record=record, seconds=seconds, estimates=guessed)

    def trials(training: Step, recipe: RecipeFacts) -> list[Step]:
        """The steps that choose the learning rate of a training from a grid; of one that is done, those that were run.

        A failed trial is run again only where no trial gave a rate: a choice that was made stays.
        """
        tried, choice = search_of(training.cell, recipe, history.counted, digest_of)
        again = retry and choice is not None and choice.rate is None
        if choice is None and recipe.extensions and training.state == "todo":
            undecided[training.cell] = None
        found = []
        for cell in (cell for rate in tried for cell in tuning_cells(training.cell, recipe)[rate]):
            record = history.counted.get((cell.key, digest_of(cell)))
            if record is None and training.state == "done":
                continue
            is_done = record is not None and (record.outcome is Outcome.OK or not again)
            state: State = "done" if is_done else "todo"
            found.append(expected(cell, state, record))
        return found

    def job(lane: Lane, cells: tuple[Cell, ...], after: tuple[str, ...] = ()) -> PlannedJob:
        content: list[object] = [site.name, [[cell.key, digest_of(cell)] for cell in cells]]
        if lane == "time":
            # it names the rounds that Records share
            content.append(site.threads)
        return PlannedJob(id=content_hash(content), lane=lane, cells=cells, after=after)

    steps = [
        step(task, recipe, Spec(name), 0, "baseline")
        for task, recipe in questions
        for name in (task.baselines if "baseline" in task.lanes else ())
    ]
    blocks = [job("baseline", (one.cell,)) for one in steps if one.state == "todo"]
    trainings = [
        (step(task, recipe, variant, seed, "train"), recipe)
        for seed in range(seeds)
        for task, recipe in questions
        for variant in dict.fromkeys([*specs, *([without] if task.task in scaled else [])])
        if "train" in task.lanes
    ]
    tuning = {one.cell: trials(one, recipe) for one, recipe in trainings if recipe.grid}
    tried = {trial.cell: trial for found in tuning.values() for trial in found}
    steps += tried.values()
    choosing = {cell: job("tune", (cell,)) for cell, trial in tried.items() if trial.state == "todo"}
    blocks += choosing.values()
    for one, _ in trainings:
        steps.append(one)
        if one.state == "todo" and one.cell not in undecided:
            after = (choosing[trial.cell].id for trial in tuning.get(one.cell, ()) if trial.cell in choosing)
            blocks.append(job("train", (one.cell,), tuple(after)))
    for task, recipe in questions:
        timed = [step(task, recipe, spec, 0, "time") for spec in specs] if "time" in task.lanes else []
        if any(one.state != "done" for one in timed):
            # the reference is measured with the others
            timed = [
                replace(one, state="again") if one.cell.variant == reference and one.state == "done" else one
                for one in timed
            ]
            blocks.append(job("time", tuple(one.cell for one in timed if one.state != "done")))
        steps += timed
    once = "one cell of each task is measured again, so that boards show the present code"
    notices += [f"{name}: other code of it was measured here last; {once}" for name in dict.fromkeys(restored.values())]
    return Plan(steps=tuple(steps), blocks=tuple(blocks), notices=tuple(notices), undecided=tuple(undecided))


def tuning_cells(cell: Cell, recipe: RecipeFacts) -> dict[float, tuple[Cell, ...]]:
    """The cells of the lane `tune` that may choose the learning rate of a cell to train, by rate; empty without a grid.

    They are the same for all seeds. Their checkpoints are chosen on validation data, whatever the cell's own are.
    """
    return {
        rate: tuple(
            Cell(variant=cell.variant, task=cell.task, preset=preset, seed=FIRST_TUNING_SEED + at, lane="tune")
            for at in range(recipe.tuning_seeds)
        )
        for rate, preset in recipe.rates
    }


def search_of(
    cell: Cell, recipe: RecipeFacts, counted: Counted, digest_of: DigestOf
) -> tuple[tuple[float, ...], RateChoice | None]:
    """The rates that a cell to train tries and its choice, by the present code and data.

    The choice is None where tuning cells are still to be run. Records of any machine count, so that every machine that
    sees them chooses the same.
    """
    cells = tuning_cells(cell, recipe)
    return search(
        recipe.grid, recipe.extensions, recipe.tuning_seeds,
        lambda rate: [record for one in cells[rate] if (record := counted.get((one.key, digest_of(one))))],
    )  # fmt: skip


class _History:
    """What the stored Records tell about Cells to come."""

    def __init__(self, records: list[Record], site: Site):
        self._trials = [record for record in records if record.cell.lane == "tune"]
        # sorting is stable: of one second, the line that was appended last is the last
        mine = sorted((record for record in records if site.counts(record)), key=attrgetter("started"))
        clocks: dict[str, list[float]] = {}
        for record in mine:
            clocks.setdefault(record.block, []).append(record.seconds)
        self._last: dict[tuple[object, ...], str] = {}
        self._variant: dict[tuple[str, ...], float] = {}
        self._others: dict[tuple[str, ...], list[float]] = {}
        for record in mine:
            cell = record.cell
            self._last[_group_of(record)] = record.digest
            # the Cells of a time job run in turns, and the clock of the last one shows the time of all
            share = max(clocks[record.block]) / len(clocks[record.block]) if cell.lane == "time" else record.seconds
            self._variant[(*_question_of(cell), str(cell.variant))] = share
            if record.outcome is Outcome.OK:
                self._others.setdefault(_question_of(cell), []).append(share)

    @cached_property
    def counted(self) -> Counted:
        """The Record that counts of each trial of a learning rate."""
        return first_results(self._trials)

    def seconds(self, cell: Cell) -> float | None:
        """Last time of this variant, else the median of the others on the same question; None where none is known."""
        same = self._variant.get((*_question_of(cell), str(cell.variant)))
        others = self._others.get(_question_of(cell))
        return same if same is not None else median(others) if others else None

    def replaced(self, record: Record) -> tuple[object, ...] | None:
        """The group of a Record whose variant was measured here with other code since, such as a change taken back.

        Boards show the code that was measured last, so one Cell of each group is measured once more. The code of the
        reference is the package's own, whose versions count.
        """
        cell = record.cell
        if cell.lane not in ("train", "time") or cell.variant.name == REFERENCE:
            return None
        group = _group_of(record)
        return None if self._last.get(group, record.digest) == record.digest else group


def _group_of(record: Record) -> tuple[object, ...]:
    """Records whose code is compared: of one variant and question, at the same versions and data."""
    cell, versions_and_data = record.cell, record.digest.rpartition("-")[0]
    return cell.lane, cell.variant, cell.task, cell.preset, cell.selection, cell.protocol, versions_and_data


def _question_of(cell: Cell) -> tuple[str, ...]:
    """Cells of one question take about the same time: training does at every learning rate."""
    if cell.lane not in ("train", "tune"):
        return cell.lane, str(cell.task), str(cell.preset)
    rest = apart_from_rates(dict(cell.preset.parameters))
    return "train", str(cell.task), str(Spec.of(cell.preset.name, **rest))
