"""Plan: from a selection to the jobs that are still to be run, in the order in which to run them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from statistics import median
from typing import Literal, get_args

from ..core.cell import NO_ATTENTION, REFERENCE, Cell, Job, Lane, Selection
from ..core.hashing import content_hash
from ..core.record import Outcome, Provenance, Record
from ..core.spec import Spec
from ..store.learning_rates import RateChoice, RateGrid, apart_from_rates, first_results
from ..store.store import Site, Store
from .facts import RecipeFacts, TaskFacts
from .skip import without_length

State = Literal["todo", "again", "done"]

Question = tuple[TaskFacts, RecipeFacts]
"""A task with its recipe under the preset."""

NO_ATTENTION_ADDED = f"{NO_ATTENTION} was added: the same model without attention tells what attention adds"


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
    """All Cells of a selection, and the jobs that are left of them. `notices`: messages to the person who asked.

    `rates`: the learning rate of each Cell to train whose preset has a grid, or why it has none. `undecided`: Cells to
    train whose rate is still searched; the plan that is made once these jobs have ended has the next trials or their
    training. `data`: where the data of each task comes from; None for data that is not here yet. `at_once`: how many
    jobs run at once; `timings_alone`: whether a timing has the machine to itself, as on a processor.
    """

    steps: tuple[Step, ...]
    jobs: tuple[Job, ...]
    notices: tuple[str, ...] = ()
    rates: Mapping[Cell, RateChoice] = field(default_factory=dict)
    undecided: tuple[Cell, ...] = ()
    data: Mapping[Spec, Provenance | None] = field(default_factory=dict)
    at_once: int = 1
    timings_alone: bool = True

    @property
    def left(self) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if step.state != "done")

    @property
    def seconds(self) -> float:
        """Likely time from start to end of what is left and can be estimated."""
        return self.seconds_of(self.left)

    def seconds_of(self, steps: Iterable[Step]) -> float:
        """Likely time from start to end of these, `at_once` of them side by side."""
        together = alone = 0.0
        for step in steps:
            if step.cell.lane == "time" and self.timings_alone:
                alone += step.seconds or 0.0
            else:
                together += step.seconds or 0.0
        return together / self.at_once + alone

    def seconds_on(self, machine: str) -> float:
        """Likely time from start to end on a machine of the estimates."""
        return self.seconds_of(replace(step, seconds=step.estimates.get(machine, step.seconds)) for step in self.left)

    @property
    def unknown(self) -> int:
        """The count of Cells left without an estimate; a trivial baseline, which takes seconds at most, needs none."""
        return sum(step.seconds is None and step.cell.lane != "baseline" for step in self.left)


@dataclass(slots=True, kw_only=True)
class Planner:
    """Makes the plan of a selection, given the Records of a store.

    `variants`, `questions`: with values in the types of their constructors. `digest_of`: the digest of a Record that a
    Cell would yield with the present code and data. `ended`: ids of jobs that this run has been through, which are not
    repeated, whatever they left. `estimate` is asked, with all variants, of each Cell that none like it has run of.
    """

    variants: list[Spec]
    questions: Sequence[Question]
    seeds: int
    selection: Selection
    store: Store
    digest_of: Callable[[Cell], str]
    site: Site
    lanes: Collection[Lane] = get_args(Lane)
    retry: bool = False
    ended: Collection[str] = ()
    estimate: Callable[[Cell, Sequence[Spec]], Mapping[str, float]] | None = None
    _history: _History = field(init=False)
    _restored: dict[tuple[object, ...], str] = field(init=False, default_factory=dict)

    def plan(self) -> Plan:
        """Baselines first, then training seed by seed, then the timings: an interrupted run leaves smaller boards.

        Trials of learning rates come before all training; training at a rate that is still searched is left to the next
        plan. The reference is always part of the plan, and so is the training of the model without attention, where the
        preset is ranked.
        """
        reference, without, notices = Spec(REFERENCE), Spec(NO_ATTENTION), []
        self.variants = list(dict.fromkeys(self.variants))
        if reference not in self.variants:
            self.variants.insert(0, reference)
            notices += [f"{REFERENCE} was added: relative figures need it"] if {*self.lanes} - {"baseline"} else []
        self._history = _History(list(self.store.records()), self.site)

        steps = [
            self._step(question, "baseline", Spec(name))
            for question in self.questions
            for name in (question[0].baselines if "baseline" in question[0].lanes else ())
        ]
        jobs = [self._job([step.cell]) for step in steps if step.state == "todo"]

        trainings: list[tuple[Step, RateGrid | None]] = []
        for seed in range(self.seeds):
            for task, recipe in self.questions:
                if "train" not in task.lanes:
                    continue
                trained = list(self.variants)
                # it is no scale of a preset that is not ranked, such as `smoke`
                if recipe.ranked and task.works_without_attention and without not in trained:
                    trained.append(without)
                    notices += [NO_ATTENTION_ADDED] if "train" in self.lanes else []
                for variant in trained:
                    trainings.append((self._step((task, recipe), "train", variant, seed), recipe.rates))
        trials, rates, undecided = self._search(trainings)
        steps += [*trials, *(step for step, _ in trainings)]
        jobs += [self._job([step.cell]) for step in trials if step.state == "todo"]
        jobs += [self._job([one.cell]) for one, _ in trainings if one.state == "todo" and one.cell not in undecided]

        for task, recipe in self.questions:
            timed = [self._step((task, recipe), "time", each) for each in self.variants if "time" in task.lanes]
            if any(step.state != "done" for step in timed):
                # the reference is measured with the others
                timed = [
                    replace(step, state="again") if step.cell.variant == reference and step.state == "done" else step
                    for step in timed
                ]
                # which lengths of a sweep are skipped depends on the Records of the shorter ones
                series = f"{without_length(task.task)} {recipe.preset}" if task.only_timed else ""
                jobs.append(self._job([step.cell for step in timed if step.state != "done"], series))
            steps += timed

        again = "one cell of each task is measured again, so that boards show the present code"
        notices += [f"{name}: other code of it was measured here last; {again}" for name in self._restored.values()]
        return Plan(
            steps=tuple(step for step in steps if step.cell.lane in self.lanes),
            jobs=tuple(job for job in jobs if job.lane in self.lanes and job.id not in self.ended),
            notices=tuple(dict.fromkeys(notices)),
            rates=rates,
            undecided=tuple(undecided) if "tune" in self.lanes else (),
        )

    def _step(self, question: Question, lane: Lane, variant: Spec, seed: int = 0) -> Step:
        task, recipe = question
        cell = Cell(
            variant=variant, task=task.task, preset=recipe.preset, seed=seed, lane=lane, selection=self.selection
        )  # fmt: skip
        record = self.store.finished(cell, self.digest_of(cell), self.site, retry=self.retry)
        replaced = None if record is None else self._history.replaced(record)
        if record is None or (replaced is not None and replaced not in self._restored):
            if replaced is not None:
                self._restored[replaced] = str(variant)
            return self._with_cost(cell, "todo", record)
        return self._with_cost(cell, "done", record)

    def _with_cost(self, cell: Cell, state: State, record: Record | None) -> Step:
        seconds, guessed = self._history.seconds(cell), dict[str, float]()
        if self.estimate and seconds is None and state == "todo":
            guessed = dict(self.estimate(cell, self.variants))
            seconds = next(iter(guessed.values()), None)
        return Step(cell=cell, state=state, record=record, seconds=seconds, estimates=guessed)

    def _search(
        self, trainings: Sequence[tuple[Step, RateGrid | None]]
    ) -> tuple[list[Step], dict[Cell, RateChoice], set[Cell]]:
        """The trials of learning rates, the choice of each Cell to train, and the Cells whose search goes on."""
        trials: dict[Cell, Step] = {}
        rates, undecided = dict[Cell, RateChoice](), set[Cell]()
        for training, grid in trainings:
            if grid is None:
                continue
            cells, choice = grid.search(training.cell, self._history.trials, self.digest_of)
            # a choice that was made stays: failures are repeated only where training failed at every rate
            repeats = self.retry and choice is not None and choice.rate is None
            lacks = False
            for cell in cells:
                record = self._history.trials.get((cell.key, self.digest_of(cell)))
                if record is None and training.state == "done":
                    continue
                is_failure = record is not None and record.outcome is not Outcome.OK
                is_repeated = repeats and is_failure and self._job([cell]).id not in self.ended
                lacks = lacks or record is None or is_repeated
                trials[cell] = self._with_cost(cell, "todo" if record is None or is_repeated else "done", record)
            if choice is not None and not lacks:
                rates[training.cell] = choice
            elif training.state == "todo":
                undecided.add(training.cell)
        return [*trials.values()], rates, undecided

    def _job(self, cells: Sequence[Cell], series: str = "") -> Job:
        digests = {cell.key: self.digest_of(cell) for cell in cells}
        content: list[object] = [self.site.name, [*map(list, digests.items())]]
        if cells[0].lane == "time":
            # it names the rounds that Records share
            content.append(self.site.threads)
        return Job(id=content_hash(content), cells=tuple(cells), digests=digests, series=series)


class _History:
    """The stored Records, as far as they say something about Cells to come."""

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
    def trials(self) -> Mapping[tuple[str, str], Record]:
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
