"""Run a selection: its data first, then the plan, then job by job until every Cell has a Record in the store."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import get_args

import torch

from ..core.cell import REFERENCE, Cell, Lane
from ..core.errors import AttnbenchError, DataError, PluginError, SelectionError, StoreError
from ..core.record import Begun, Outcome, Provenance, Record
from ..core.registry import TASKS, VARIANTS
from ..core.spec import Spec
from ..plan.executor_settings import ExecutorSettings
from ..plan.facts import recipe_facts, resolve, task_facts
from ..plan.fingerprint import digest_of_cell
from ..plan.planner import NO_ATTENTION_ADDED, Plan, PlannedJob, plan, stored_choice
from ..plan.skip import failed_shorter, reason_to_skip
from ..plan.suite import Suite
from ..process.ask import Reporter, ask, end_children
from ..store.learning_rates import RateChoice, first_results
from ..store.store import Store
from .events import CellFinished, Event, OnEvent
from .executors.executor import Executor
from .job import Job
from .job_files import JobFiles
from .questions import DATA_PATIENCE, FindData, ShapeOf, TryBuild
from .resources import Resources, find_resources

DEFAULT_SEEDS = {"smoke": 1}
"""Seeds of a preset where none are asked for; 3 for every other, the fewest that can be ranked."""

DEFAULT_PRESETS = {"cuda": ("pt-2x64", "quick")}
"""Presets where none is asked for, by kind of device: the first that all tasks have; `quick` for every other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """Options of a run, parsed but not yet looked up on this machine."""

    suite: Suite
    results: Path
    device: str | None = None
    data_dir: Path | None = None
    offline: bool = False
    retry: bool = False
    timeout: float | None = None
    threads: int = 0
    lanes: tuple[Lane, ...] = get_args(Lane)
    executor: ExecutorSettings = field(default_factory=ExecutorSettings)

    def __post_init__(self) -> None:
        """Raises SelectionError for a value that this machine, or any other, cannot run with."""
        # a node of a cluster may have more than this machine
        cores = os.cpu_count() or 1 if self.executor.name == "local" else 1024
        if not 0 <= self.threads <= max(cores, 2):
            raise SelectionError(f"expected 0 to {cores:,} threads, as this machine has cores, got {self.threads:,}")
        if self.timeout is not None and not 1 <= self.timeout < math.inf:
            raise SelectionError(f"expected a time limit of 1 second or more, got {self.timeout}")
        unknown = set(self.lanes) - set(get_args(Lane))
        if unknown or not self.lanes:
            got = ", ".join(map(repr, sorted(unknown))) or "none"
            raise SelectionError(f"expected lanes among {', '.join(get_args(Lane))}, got {got}")


@dataclass(slots=True, kw_only=True)
class Runner:
    """A request made concrete on this machine.

    `on_warning` gets sentences for the person who asked, `on_progress` the name, the amount done and the whole of long
    work on data. `executor`: where jobs run, by default this machine. `left_out`: tasks that are no part of the run,
    and why; `broken`: tasks, and variants on a task, whose Cells get an outcome without being tried.
    """

    request: RunRequest
    on_warning: Callable[[str], None]
    on_progress: Callable[[str, int, int], None]
    executor: Executor | None = None
    resources: Resources = field(init=False)
    store: Store = field(init=False)
    preset: Spec = field(init=False)
    seeds: int = field(init=False)
    tasks: list[Spec] = field(init=False)
    data: dict[Spec, Provenance | None] = field(init=False, default_factory=dict)
    left_out: dict[Spec, AttnbenchError] = field(init=False, default_factory=dict)
    broken: dict[tuple[Spec, Spec | None], PluginError] = field(init=False, default_factory=dict)
    _digests: dict[Cell, str] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        request = self.request
        self.resources = find_resources(
            request.executor, request.device, request.threads, request.results, self.on_warning, self.executor
        )
        _refuse_interpreted_timings(request, self.resources.device)
        self.store = Store(request.results, self.on_warning)
        self.tasks = self._answering(request.suite.tasks, self._described)
        self.preset = request.suite.preset or Spec(default_preset(self.tasks, self.resources.device.type))
        self.tasks = self._answering(self.tasks, self._with_recipe)
        self.seeds = request.suite.seeds or DEFAULT_SEEDS.get(self.preset.name, 3)

    def plan(self, *, fetch: bool = False) -> Plan:
        """The cells, what is done and what is left. Data that is here is read; `fetch` gets and prepares the rest.

        Raises DataError, before anything runs, where data cannot be had for a task that was named by itself, or for any
        task of a suite; another task of a suite is left out, with a warning.
        """
        # digests name the data, which may have come since
        self._digests.clear()
        for task in self.tasks:
            self._build_variants(task)
        if fetch:
            # A folder that cannot be written is found out now and not after an hour of training.
            self.store.prepare()
            files = JobFiles(self.request.results)
            files.forget_ended()
            for event in files.collected(self.on_warning):
                if not self.store.holds(event.record, event.line):
                    self.store.append(event.record, event.line)
        lacking: dict[Spec, DataError] = {}

        def has_data(task: Spec) -> bool:
            try:
                self.data[task] = self._find_data(task, fetch=fetch)
            except DataError as error:
                lacking[task] = error
                if not self.request.suite.name or len(lacking) == len(self.tasks):
                    raise
            return task not in lacking

        made = plan(
            variants=self.request.suite.variants,
            tasks=self.tasks,
            preset=self.preset,
            seeds=self.seeds,
            selection=self.request.suite.selection,
            store=self.store,
            digest_of=self._digest,
            site=self.resources.site,
            has_data=has_data,
            retry=self.request.retry,
            cell_seconds=self.request.suite.cell_seconds,
        )
        self.tasks = [task for task in self.tasks if task not in lacking]
        for task, lack in lacking.items():
            self.on_warning(
                f"{task} is left out of this run, and the other {len(self.tasks)} of {self.request.suite.name} go on: "
                f"{lack}; once its data is here, the same command adds it"
            )
        # training needs the lane that chooses its learning rates
        lanes = {*self.request.lanes, *(["tune"] if "train" in self.request.lanes else [])}
        broken = [f"{error}; its cells get the outcome {error.outcome}" for error in self.broken.values()]
        notices = [each for each in made.notices if "train" in lanes or each != NO_ATTENTION_ADDED]
        return Plan(
            steps=tuple(step for step in made.steps if step.cell.lane in lanes),
            blocks=tuple(block for block in made.blocks if block.lane in lanes),
            notices=(*notices, *dict.fromkeys(broken)),
            data=dict(self.data),
            jobs=self.resources.jobs or 1,
            timings_alone=self.resources.device.type == "cpu",
        )

    def run(self, made: Plan, on_event: OnEvent) -> None:
        """All jobs of a plan to their end; `on_event` gets every event, that of a Record after it is stored."""
        seconds = {step.cell.key: step.seconds for step in made.steps}
        planned = {step.cell.key for step in made.left}
        waiting, running = deque(made.blocks), dict[str, PlannedJob]()
        unended = {block.id for block in made.blocks}
        executor = self.resources.executor

        def store(event: Event) -> None:
            if isinstance(event, CellFinished):
                with self.store.alone():
                    # it may come from a file that was read before, as far as it went, or from another command
                    if self.store.holds(event.record, event.line) or (
                        event.record.key in planned and self._is_done(event.record.cell)
                    ):
                        return
                    self.store.append(event.record, event.line)
            on_event(event)

        def submit() -> None:
            held = {_sweep_of(block) for block in running.values()} - {None}
            for block in [*waiting]:
                if len(running) >= executor.room:
                    break
                if any(first in unended for first in block.after):
                    continue
                # which lengths are skipped depends on the Records of the shorter ones, which are therefore waited for
                sweep = _sweep_of(block)
                if sweep in held:
                    continue
                waiting.remove(block)
                left = [cell for cell in block.cells if cell.key not in planned or not self._is_done(cell)]
                cells = self._worth_trying(replace(block, cells=tuple(left)), store)
                if not cells:
                    unended.discard(block.id)
                    continue
                running[block.id] = block
                held |= {sweep} - {None}
                known = [seconds.get(cell.key) for cell in cells]
                estimate = None if None in known else sum(each or 0.0 for each in known)
                # a plugin that was asked something may have left a thread that takes a core
                end_children()
                executor.submit(self._job(block, cells), self.resources.needs(block.lane, estimate))

        submit()
        for ended in executor.finished(store):
            block = running.pop(ended)
            unended.discard(ended)
            if block.lane == "tune" and any(self.record_of(cell) is None for cell in block.cells):
                # what was lost leaves no rate to train at; a later command tries both
                left_out = [each for each in waiting if ended in each.after]
                waiting = deque(each for each in waiting if each not in left_out)
                unended -= {each.id for each in left_out}
            submit()

    def _is_done(self, cell: Cell) -> bool:
        """Whether a Record of the cell is stored, by this command or another, that `plan` would not run again."""
        site, digest = self.resources.site, self._digest(cell)
        return self.store.finished(cell, digest, site, retry=self.request.retry) is not None

    def record_of(self, cell: Cell) -> Record | None:
        """The Record of a cell as it is stored now, whoever has measured it."""
        return self.store.finished(cell, self._digest(cell), self.resources.site)

    def _job(self, block: PlannedJob, cells: tuple[Cell, ...]) -> Job:
        request = self.request
        return Job(
            block=block.id,
            cells=cells,
            digests={cell.key: self._digest(cell) for cell in cells},
            rates={cell.key: rate for cell in cells if (rate := self._choice(cell).rate) is not None},
            device=str(self.resources.device),
            results=request.results,
            data_dir=request.data_dir,
            offline=request.offline,
            threads=self.resources.needs(block.lane, None).threads,
            timeout=request.timeout,
            executor=self.resources.site.executor,
        )

    def _worth_trying(self, block: PlannedJob, on_event: OnEvent) -> tuple[Cell, ...]:
        """The cells of a job to be tried; the others get Records that say why they are not."""
        left = []
        for cell in block.cells:
            problem = self.broken.get((cell.task, None))
            if cell.lane != "baseline":
                problem = problem or self.broken.get((cell.task, cell.variant))
            if problem is not None:
                on_event(CellFinished(self._untried(cell, block, Outcome(problem.outcome), problem.reason)))
                continue
            choice = self._choice(cell)
            if choice.outcome is Outcome.OK:
                left.append(cell)
            else:
                on_event(CellFinished(self._untried(cell, block, choice.outcome, choice.reason)))
        if left and task_facts(left[0].task).only_timed:
            left = self._skip_expected_failures(left, block, on_event)
        # a reference that is done was to be measured again for the others alone, none of which may be left
        if all(
            cell.variant == Spec(REFERENCE)
            and self.store.finished(cell, self._digest(cell), self.resources.site, retry=self.request.retry)
            for cell in left
        ):
            return ()
        return tuple(left)

    def _choice(self, cell: Cell) -> RateChoice:
        """The learning rate of a cell to train, from the stored Records; none where its preset has no grid."""
        recipe = recipe_facts(cell.task, cell.preset) if cell.lane == "train" else None
        if recipe is None or not recipe.grid:
            return RateChoice(None)
        counted = first_results(record for record in self.store.records() if record.cell.lane == "tune")
        found = stored_choice(cell, recipe, counted, self._digest)
        if found is None:
            raise StoreError(f"not every learning rate of `{cell}` has a Record; run the same command again")
        return found

    def _skip_expected_failures(self, cells: list[Cell], block: PlannedJob, on_event: OnEvent) -> list[Cell]:
        """The cells of a sweep to be tried; the others get Records that name their failure at a shorter length."""
        records = list(self.store.records())

        def length_of(spec: Spec) -> int:
            return recipe_facts(spec, self.preset).length

        left = []
        for cell in cells:
            failure = failed_shorter(cell, self._digest(cell), self.resources.site, records, length_of)
            if failure is None:
                left.append(cell)
                continue
            reason = reason_to_skip(failure, length_of(failure.cell.task))
            on_event(CellFinished(self._untried(cell, block, failure.outcome, reason)))
        return left

    def _untried(self, cell: Cell, block: PlannedJob, outcome: Outcome, reason: str) -> Record:
        try:
            setting = recipe_facts(cell.task, cell.preset).setting
        except PluginError:
            setting = {}
        return Record.of(
            cell,
            outcome,
            reason,
            Begun.now(),
            machine=self.resources.machine,
            data=self.data[cell.task],
            digest=self._digest(cell),
            block=block.id,
            setting=setting,
            executor=self.resources.site.executor,
        )

    def _answering(self, tasks: Sequence[Spec], ask_task: Callable[[Spec], Spec]) -> list[Spec]:
        """What `ask_task` makes of the tasks; those of plugins that do not answer are left out, with a warning.

        Raises PluginError where no other is left.
        """
        found: list[Spec] = []
        lacking: dict[Spec, PluginError] = {}
        for task in tasks:
            try:
                found.append(ask_task(task))
            except PluginError as error:
                lacking[task] = error
                if len(lacking) == len(tasks):
                    raise
        for task, lack in lacking.items():
            self.on_warning(f"{task} is left out of this run, and the others go on: {lack}")
        self.left_out |= lacking
        return found

    def _described(self, task: Spec) -> Spec:
        canonical = resolve(TASKS, task)
        task_facts(canonical)
        return canonical

    def _with_recipe(self, task: Spec) -> Spec:
        recipe_facts(task, self.preset)
        return task

    def _build_variants(self, task: Spec) -> None:
        """Builds every variant once, so that a parameter it refuses raises now and not after hours.

        Plugins that do not answer become `broken`.
        """
        try:
            shape = ask(TASKS, task.name, ShapeOf(task=task, preset=self.preset, device=self.resources.device.type))
        except PluginError as error:
            self.broken[task, None] = error
            return
        for variant in self.request.suite.variants:
            canonical = variant
            try:
                canonical = resolve(VARIANTS, variant)
                ask(VARIANTS, variant.name, TryBuild(canonical, shape))
            except PluginError as error:
                self.broken[task, canonical] = error

    def _find_data(self, task: Spec, *, fetch: bool) -> Provenance | None:
        """Of a task whose plugin does not answer, None; it becomes `broken`."""
        question = FindData(
            task=task,
            preset=self.preset,
            selection=self.request.suite.selection,
            data_dir=self.request.data_dir,
            offline=self.request.offline,
            fetch=fetch,
        )
        try:
            return ask(
                TASKS,
                task.name,
                question,
                reporter=Reporter(self.on_warning, self.on_progress),
                patience=DATA_PATIENCE,
                # who wants cells to be short does not want to wait longer for their data
                most_seconds=self.request.timeout,
            )
        except PluginError as error:
            self.broken[task, None] = error
            return None

    def _digest(self, cell: Cell) -> str:
        """The digest that a Record of the cell gets in this run, looked up once: sources may be edited meanwhile."""
        found = self._digests.get(cell)
        if found is None:
            found = digest_of_cell(cell, self.data[cell.task], self.resources.device.type)
            self._digests[cell] = found
        return found


def _refuse_interpreted_timings(request: RunRequest, device: torch.device) -> None:
    """Raises SelectionError where kernels that Triton interprets would be timed: a thousandth of what they are."""
    asked = [str(spec) for spec in request.suite.variants if spec.get("impl") == "triton"]
    if asked and device.type == "cpu" and "time" in request.lanes and os.environ.get("TRITON_INTERPRET") == "1":
        raise SelectionError(
            f"expected compiled kernels to time, got TRITON_INTERPRET=1 and {', '.join(asked)}: leave timings out with "
            "`--lanes train,baseline`, examine the kernels with `attnbench check`, or time them on a GPU"
        )


def default_preset(tasks: Sequence[Spec], device: str) -> str:
    """The preset of a run that names none; where tasks share none, one that the lookup of the first of them refuses."""
    presets = [task_facts(task).presets for task in tasks]
    wanted = DEFAULT_PRESETS.get(device, ("quick",))
    return next((name for name in wanted if all(name in known for known in presets)), wanted[-1])


def _sweep_of(block: PlannedJob) -> tuple[Spec, Spec, str] | None:
    """The sweep that a job is one length of; None for any other job."""
    cell = block.cells[0]
    if not task_facts(cell.task).only_timed:
        return None
    rest = tuple(each for each in cell.task.parameters if each[0] != "length")
    return Spec(cell.task.name, rest), cell.preset, block.lane
