"""Plan: from a selection to the jobs that are still to be run, in the order in which to run them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from statistics import median
from typing import Literal, get_args

from ..core.cell import FIRST_TUNING_SEED, NO_ATTENTION, REFERENCE, Cell, Lane, Selection
from ..core.errors import PluginError, SelectionError
from ..core.hashing import content_hash
from ..core.record import Outcome, Provenance, Record, Site
from ..core.registry import TASKS, VARIANTS, Registry
from ..core.spec import Spec
from ..store.learning_rates import RateChoice, choose_rate, first_results
from ..store.store import Store
from .facts import RecipeFacts, recipe_facts, resolve, task_facts

DigestOf = Callable[[Cell], str]
"""The digest of a Record that a Cell would yield with the present code and data."""

Counted = Mapping[tuple[str, str], Record]
"""The Record that counts of each cell and digest, as `store.learning_rates.first_results` gives it."""

State = Literal["todo", "again", "done"]

NO_ATTENTION_ADDED = f"{NO_ATTENTION} was added: the same model without attention tells what attention adds"

IMPOSSIBLE_WITHOUT_ATTENTION = ("translation",)
"""Objectives whose models read another sequence through attention alone, so that identity cannot take its place."""


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

    `again`: done before, and measured once more because others are measured against it. A Cell that is measured once
    more because other code of its variant was measured since is to do.
    """

    cell: Cell
    state: State
    record: Record | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All Cells of a selection, and the jobs that are left of them. `notices`: what a person should be told.

    `data`: where the data of each task comes from; None for data that is not here yet. `jobs`: how many at once;
    `timings_alone`: whether a timing has the machine to itself, as on a processor.
    """

    steps: tuple[Step, ...]
    blocks: tuple[PlannedJob, ...]
    notices: tuple[str, ...] = ()
    data: Mapping[Spec, Provenance | None] = field(default_factory=dict)
    jobs: int = 1
    timings_alone: bool = True

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
    cell_seconds: float | None = None,
) -> Plan:
    """Baselines first, then training seed by seed, then the timings: an interrupted run leaves whole, smaller boards.

    Of a preset with a grid of learning rates, the cells that choose among them come before all training. The reference
    is always part of the plan, and so is the training of the model without attention, where the preset is ranked.
    `has_data` is asked of each task once all names and counts are known to be right, since it may fetch the data; a
    task without data is left out. `cell_seconds`: what a training is taken to last until one like it has run here.
    Raises SelectionError for a name, parameter, preset or count that cannot be run.
    """
    if seeds < 1:
        raise SelectionError(f"expected a count of seeds of 1 or more, got {seeds}")
    if selection not in get_args(Selection):
        raise SelectionError(f"expected selection to be {' or '.join(get_args(Selection))}, got {selection!r}")
    specs, notices = _with_reference([_resolved(VARIANTS, spec) for spec in variants])
    questions = [_question(_resolved(TASKS, task), preset) for task in dict.fromkeys(tasks)]
    if seeds > FIRST_TUNING_SEED and any(question.recipe.grid for question in questions):
        raise SelectionError(
            f"expected at most {FIRST_TUNING_SEED} seeds with learning_rates, whose choice is made on seeds from "
            f"{FIRST_TUNING_SEED} on, got {seeds:,}"
        )
    questions = [question for question in questions if has_data(question.task)]
    if Spec(NO_ATTENTION) not in specs and any(question.takes_no_attention for question in questions):
        notices.append(NO_ATTENTION_ADDED)
    history = _History(list(store.records()), site, cell_seconds)
    restored: dict[tuple[object, ...], str] = {}

    def step(cell: Cell) -> Step:
        record = store.finished(cell, digest_of(cell), site, retry=retry)
        group = None if record is None else history.replaced(record)
        is_first = group is not None and group not in restored
        if group is not None:
            restored.setdefault(group, str(cell.variant))
        state: State = "done" if record and not is_first else "todo"
        return Step(cell=cell, state=state, record=record, seconds=history.seconds(cell))

    def trials(training: Step, recipe: RecipeFacts) -> list[Step]:
        """The steps that choose the learning rate of a training, where there is a grid; of one that is done, those run.

        A failed trial is run again only where no trial gave a rate: a choice that was made stays.
        """
        if not recipe.grid:
            return []
        choice = stored_choice(training.cell, recipe, history.counted, digest_of)
        again = retry and choice is not None and choice.rate is None
        found = []
        for cell in (cell for cells in tuning_cells(training.cell, recipe).values() for cell in cells):
            record = history.counted.get((cell.key, digest_of(cell)))
            if record is None and training.state == "done":
                continue
            is_done = record is not None and (record.outcome is Outcome.OK or not again)
            state: State = "done" if is_done else "todo"
            found.append(Step(cell=cell, state=state, record=record, seconds=history.seconds(cell)))
        return found

    singles = [step(cell) for cell in _single_cells(questions, specs, seeds, selection)]
    by_task = {question.task: question.recipe for question in questions}
    tuning = {one.cell: trials(one, by_task[one.cell.task]) for one in singles if one.cell.lane == "train"}
    trial_steps = {trial.cell: trial for found in tuning.values() for trial in found}
    trial_blocks = {
        cell: _job("tune", (cell,), site, digest_of) for cell, trial in trial_steps.items() if trial.state == "todo"
    }
    steps: list[Step] = [one for one in singles if one.cell.lane == "baseline"]
    blocks = [_job("baseline", (one.cell,), site, digest_of) for one in steps if one.state == "todo"]
    steps += trial_steps.values()
    blocks += trial_blocks.values()
    for one in singles:
        if one.cell.lane == "train":
            steps.append(one)
            if one.state == "todo":
                after = tuple(trial_blocks[trial.cell].id for trial in tuning[one.cell] if trial.cell in trial_blocks)
                blocks.append(_job("train", (one.cell,), site, digest_of, after))
    for question in (question for question in questions if "time" in question.lanes):
        timed = _timed([step(question.cell(spec, 0, "time", selection)) for spec in specs])
        steps += timed
        left = tuple(s.cell for s in timed if s.state != "done")
        if left:
            blocks.append(_job("time", left, site, digest_of))
    once = "one cell of each task is measured again, so that boards show the present code"
    notices += [f"{name}: other code of it was measured here last; {once}" for name in dict.fromkeys(restored.values())]
    return Plan(steps=tuple(steps), blocks=tuple(blocks), notices=tuple(notices))


@dataclass(frozen=True, slots=True)
class _Question:
    """A task under a preset, both canonical, and its trivial baselines.

    `takes_no_attention`: whether the model without attention is trained too. A preset that is not ranked, such as
    `smoke`, answers no question to which that would be a scale.
    """

    task: Spec
    preset: Spec
    baselines: tuple[str, ...]
    lanes: tuple[Lane, ...]
    recipe: RecipeFacts
    takes_no_attention: bool

    def cell(self, variant: Spec, seed: int, lane: Lane, selection: Selection) -> Cell:
        return Cell(
            variant=variant, task=self.task, preset=self.preset, seed=seed, lane=lane, selection=selection
        )  # fmt: skip


def _question(task: Spec, preset: Spec) -> _Question:
    facts = task_facts(task)
    recipe = recipe_facts(task, preset)
    takes = recipe.ranked and "train" in facts.lanes and facts.objective not in IMPOSSIBLE_WITHOUT_ATTENTION
    return _Question(task, recipe.preset, facts.baselines, facts.lanes, recipe, takes)


def _resolved(registry: Registry, spec: Spec) -> Spec:
    """The canonical Spec; as it is given where the plugin does not answer, since its Cells are part of the plan."""
    try:
        return resolve(registry, spec)
    except PluginError:
        return spec


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
            added = [Spec(NO_ATTENTION)] if question.takes_no_attention else []
            for variant in dict.fromkeys([*variants, *added]) if "train" in question.lanes else ():
                yield question.cell(variant, seed, "train", selection)


def tuning_cells(cell: Cell, recipe: RecipeFacts) -> dict[float, tuple[Cell, ...]]:
    """The cells of the lane `tune` that choose the learning rate of a cell to train, by rate; empty without a grid.

    They are the same for all seeds. Their checkpoints are chosen on validation data, whatever the cell's own are.
    """
    return {
        rate: tuple(
            Cell(variant=cell.variant, task=cell.task, preset=preset, seed=FIRST_TUNING_SEED + at, lane="tune")
            for at in range(recipe.tuning_seeds)
        )
        for rate, preset in recipe.grid
    }


def stored_choice(cell: Cell, recipe: RecipeFacts, counted: Counted, digest_of: DigestOf) -> RateChoice | None:
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


def _timed(steps: list[Step]) -> list[Step]:
    """The steps of one time job: where any is left, the reference is measured with it."""
    if all(step.state == "done" for step in steps):
        return steps
    reference = Spec(REFERENCE)
    return [
        Step(cell=step.cell, state="again", record=step.record, seconds=step.seconds)
        if step.cell.variant == reference and step.state == "done"
        else step
        for step in steps
    ]


def _job(
    lane: Lane, cells: tuple[Cell, ...], site: Site, digest_of: DigestOf, after: tuple[str, ...] = ()
) -> PlannedJob:
    content: list[object] = [site.name, [[cell.key, digest_of(cell)] for cell in cells]]
    if lane == "time":
        # it names the rounds that Records share
        content.append(site.threads)
    return PlannedJob(id=content_hash(content), lane=lane, cells=cells, after=after)


class _History:
    """What the stored Records tell about Cells to come. `usual`: seconds of a training, until one like it has run."""

    def __init__(self, records: list[Record], site: Site, usual: float | None = None):
        self._trials = [record for record in records if record.cell.lane == "tune"]
        self._usual = usual
        # sorting is stable: of one second, the line that was appended last is the last
        mine = sorted((record for record in records if site.counts(record)), key=attrgetter("started"))
        sizes = Counter(record.block for record in mine)
        self._last: dict[tuple[object, ...], str] = {}
        self._variant: dict[tuple[str, ...], float] = {}
        self._others: dict[tuple[str, ...], list[float]] = {}
        for record in mine:
            cell = record.cell
            self._last[_group_of(record)] = record.digest
            # the Cells of a time job run in turns, so each one's clock shows the time of all
            share = record.seconds / (sizes[record.block] if cell.lane == "time" else 1)
            self._variant[(*_question_of(cell), str(cell.variant))] = share
            if record.outcome is Outcome.OK:
                self._others.setdefault(_question_of(cell), []).append(share)

    @cached_property
    def counted(self) -> Counted:
        """The Record that counts of each trial of a learning rate."""
        return first_results(self._trials)

    def seconds(self, cell: Cell) -> float | None:
        """Last time of this variant, else the median of the others on the same question, else what is usual.

        None where none is known.
        """
        same = self._variant.get((*_question_of(cell), str(cell.variant)))
        others = self._others.get(_question_of(cell))
        usual = self._usual if cell.lane in ("train", "tune") else None
        return same if same is not None else median(others) if others else usual

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
    rates = ("learning_rate", "learning_rates", "tuning_seeds")
    rest = tuple(parameter for parameter in cell.preset.parameters if parameter[0] not in rates)
    return "train", str(cell.task), str(Spec(cell.preset.name, rest))
