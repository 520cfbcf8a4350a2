"""Run a selection: its data first, then the plan, then Block by Block until every Cell has a Record in the store."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

import torch

from ..core.cell import REFERENCE, Cell, Lane
from ..core.errors import AttnbenchError, DataError, PluginError, SelectionError, StoreError
from ..core.record import Machine, Outcome, Provenance, Record
from ..core.registry import TASKS, VARIANTS
from ..core.spec import Spec
from ..measure.machine import choose_device, describe
from ..plan.facts import recipe_facts, resolve, task_facts
from ..plan.fingerprint import digest_of_cell, variant_hash
from ..plan.planner import NO_ATTENTION_ADDED, Block, Plan, plan
from ..plan.skip import failed_shorter, reason_to_skip
from ..plan.suite import Suite
from ..plan.tuning import stored_choice
from ..process.ask import Told, ask, end_children
from ..store.learning_rates import RateChoice, first_results
from ..store.store import Store
from .events import CellFinished, Event, OnEvent
from .executors.executor import Executor, Needs
from .executors.local import LocalExecutor
from .job import Job
from .questions import DATA_PATIENCE, FindData, ShapeOf, TryBuild

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

    def __post_init__(self) -> None:
        """Raises SelectionError for a value that this machine, or any other, cannot run with."""
        cores = os.cpu_count() or 1
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
    work on data. `executor`: where Blocks run, by default this machine. `left_out`: tasks that are no part of the run,
    and why; `broken`: tasks, and variants on a task, whose Cells get an outcome without being tried.
    """

    request: RunRequest
    on_warning: Callable[[str], None]
    on_progress: Callable[[str, int, int], None]
    executor: Executor = field(default=None)  # type: ignore[assignment]
    device: torch.device = field(init=False)
    machine: Machine = field(init=False)
    store: Store = field(init=False)
    preset: Spec = field(init=False)
    seeds: int = field(init=False)
    tasks: list[Spec] = field(init=False)
    threads: int = field(init=False)
    data: dict[Spec, Provenance | None] = field(init=False, default_factory=dict)
    left_out: dict[Spec, AttnbenchError] = field(init=False, default_factory=dict)
    broken: dict[tuple[Spec, Spec | None], PluginError] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        request = self.request
        self.device = choose_device(request.device)
        _refuse_interpreted_timings(request, self.device)
        # Threads are part of the machine's identity, so they are set before it is described.
        self.threads = request.threads or len(os.sched_getaffinity(0))
        torch.set_num_threads(self.threads)
        self.machine = describe(self.device)
        self.store = Store(request.results, self.on_warning)
        self.executor = self.executor or LocalExecutor(self.machine)
        self.tasks = self._answering(request.suite.tasks, self._described)
        self.preset = request.suite.preset or Spec(default_preset(self.tasks, self.device.type))
        self.tasks = self._answering(self.tasks, self._with_recipe)
        self.seeds = request.suite.seeds or DEFAULT_SEEDS.get(self.preset.name, 3)

    def plan(self) -> Plan:
        """The cells, what is done and what is left; data that is there is read, none is fetched."""
        for task in self.tasks:
            self._build_variants(task)
            if task not in self.data:
                # A plan must cost seconds: it never downloads.
                self.data[task] = self._find_data(task, fetch=False)
        made = plan(
            variants=self.request.suite.variants,
            tasks=self.tasks,
            preset=self.preset,
            seeds=self.seeds,
            selection=self.request.suite.selection,
            store=self.store,
            digest_of=self._digest,
            machine_id=self.machine.id,
            retry=self.request.retry,
        )
        found = (f"{error}; its cells get the outcome {error.outcome}" for error in self.broken.values())
        notices = tuple(dict.fromkeys(found))
        made = _only(made, self.request.lanes)
        return replace(made, data=dict(self.data), notices=made.notices + notices)

    def prepare(self) -> None:
        """Fetches and prepares the data of all tasks; a task of a suite that has none is left out, with a warning.

        Raises DataError, before anything runs, for a task that was named by itself, and where no task has any data.
        """
        # A folder that cannot be written is found out now and not after an hour of training.
        self.store.prepare()
        lacking: dict[Spec, DataError] = {}
        for task in self.tasks:
            try:
                self.data[task] = self._find_data(task, fetch=True)
            except DataError as error:
                lacking[task] = error
                if not self.request.suite.name or len(lacking) == len(self.tasks):
                    raise
        self.tasks = [task for task in self.tasks if task not in lacking]
        for task, lack in lacking.items():
            self.on_warning(
                f"{task} is left out of this run, and the other {len(self.tasks)} of {self.request.suite.name} go on: "
                f"{lack}; once its data is here, the same command adds it"
            )

    def run(self, blocks: Iterable[Block], on_event: OnEvent) -> None:
        """All Blocks to their end; `on_event` gets every event, that of a Record after the Record is stored."""

        def store(event: Event) -> None:
            if isinstance(event, CellFinished):
                self.store.append(event.record)
            on_event(event)

        for block in blocks:
            # only now: which lengths are skipped depends on the Records of the Blocks before
            cells = self._worth_trying(block, store)
            if cells:
                job = self._job(block, cells)
                # a plugin that was asked something may have left a thread that takes a core
                end_children()
                self.executor.submit(job, Needs(device=job.device, threads=job.threads))
                for _ in self.executor.finished(store):
                    pass

    def _job(self, block: Block, cells: tuple[Cell, ...]) -> Job:
        request = self.request
        return Job(
            block=block.id,
            cells=cells,
            digests={cell.key: self._digest(cell) for cell in cells},
            sources={cell.key: variant_hash(cell) for cell in cells},
            rates={cell.key: rate for cell in cells if (rate := self._choice(cell).rate) is not None},
            device=str(self.device),
            results=request.results,
            data_dir=request.data_dir,
            offline=request.offline,
            threads=self.threads,
            timeout=request.timeout,
        )

    def _worth_trying(self, block: Block, on_event: OnEvent) -> tuple[Cell, ...]:
        """The cells of a Block to be tried; the others get Records that say why they are not."""
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
            and self.store.finished(cell, self._digest(cell), self.machine.id, retry=self.request.retry)
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

    def _skip_expected_failures(self, cells: list[Cell], block: Block, on_event: OnEvent) -> list[Cell]:
        """The cells of a sweep to be tried; the others get Records that name their failure at a shorter length."""
        records = list(self.store.records())

        def length_of(spec: Spec) -> int:
            return recipe_facts(spec, self.preset).length

        left = []
        for cell in cells:
            failure = failed_shorter(cell, self._digest(cell), self.machine.id, records, length_of)
            if failure is None:
                left.append(cell)
                continue
            reason = reason_to_skip(failure, length_of(failure.cell.task))
            on_event(CellFinished(self._untried(cell, block, failure.outcome, reason)))
        return left

    def _untried(self, cell: Cell, block: Block, outcome: Outcome, reason: str) -> Record:
        try:
            setting = recipe_facts(cell.task, cell.preset).setting
        except PluginError:
            setting = {}
        return Record(
            cell=cell,
            outcome=outcome,
            reason=reason,
            machine=self.machine,
            data=self.data[cell.task],
            digest=self._digest(cell),
            block=block.id,
            setting=setting,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
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
            shape = ask(TASKS, task.name, ShapeOf(task=task, preset=self.preset, device=str(self.device)))
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
                told=Told(self.on_warning, self.on_progress),
                patience=DATA_PATIENCE,
                # who wants cells to be short does not want to wait longer for their data
                most_seconds=self.request.timeout,
            )
        except PluginError as error:
            self.broken[task, None] = error
            return None

    def _digest(self, cell: Cell) -> str:
        return digest_of_cell(cell, self.data[cell.task])


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


def _only(made: Plan, lanes: tuple[Lane, ...]) -> Plan:
    """The part of these lanes; training needs the lane that chooses its learning rates."""
    kept = {*lanes, *(["tune"] if "train" in lanes else [])}
    return Plan(
        steps=tuple(step for step in made.steps if step.cell.lane in kept),
        blocks=tuple(block for block in made.blocks if block.lane in kept),
        notices=tuple(notice for notice in made.notices if "train" in lanes or notice != NO_ATTENTION_ADDED),
    )
