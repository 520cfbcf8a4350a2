"""Run a selection: its data first, then the plan, then job by job until every Cell has a Record in the store."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar, get_args

from ..core.cell import REFERENCE, Cell, Lane
from ..core.entry_points import load_point
from ..core.errors import AttnbenchError, DataError, PluginError, SelectionError, StoreError
from ..core.record import Begun, Outcome, Provenance, Record
from ..core.registry import TASKS, VARIANTS
from ..core.spec import Spec
from ..plan.executor_settings import GROUP, ExecutorSettings, LocalOptions
from ..plan.facts import TaskFacts, recipe_facts, resolve, task_facts
from ..plan.fingerprint import digest_of_cell
from ..plan.planner import NO_ATTENTION_ADDED, Plan, PlannedJob, plan, search_of
from ..plan.skip import failed_shorter, reason_to_skip
from ..plan.suite import Suite
from ..process.ask import Reporter, ask, end_children
from ..store.learning_rates import first_results
from ..store.records import Records
from ..store.store import Store
from .estimate import Estimator
from .events import CellFinished, Event, OnEvent, RunListener
from .executors.engines import left_by_engines
from .executors.executor import Executor, Needs, Resources
from .executors.local import is_elsewhere, local_resources, planned_resources
from .gate_first import gate_first
from .job import Job
from .questions import DATA_PATIENCE, FindData, ShapeOf, TryBuild

DEFAULT_SEEDS = {"smoke": 1}
"""Seeds of a preset where none are asked for; 3 for every other, the fewest that can be ranked."""

DEFAULT_PRESETS = {"cuda": ("pt-2x64", "quick")}
"""Presets where none is asked for, by kind of device: the first that all tasks have; `quick` for every other."""

A = TypeVar("A")


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
    work on data. `executor`: where jobs run, by default this machine. `left_out`: tasks that are not run, and why;
    `broken`: tasks, and variants on a task, whose Cells are not tried. `only_plans`: nothing is fetched or run.
    """

    request: RunRequest
    on_warning: Callable[[str], None]
    on_progress: Callable[[str, int, int], None]
    executor: Executor | None = None
    only_plans: bool = False
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
        request, warn = self.request, self.on_warning
        engine, device, threads = request.executor, request.device, request.threads
        if self.only_plans and is_elsewhere(engine, device):
            self.resources = planned_resources(engine, threads)
        elif self.executor is not None or isinstance(engine.options, LocalOptions):
            self.resources = local_resources(engine, device, threads, warn, self.executor)
        else:
            self.resources = load_point(GROUP, engine.name).resources(
                engine, device, threads, request.results, warn, not self.only_plans
            )
        kind = self.resources.device.type
        interpreted = [str(spec) for spec in request.suite.variants if spec.get("impl") == "triton"]
        if interpreted and kind == "cpu" and "time" in request.lanes and os.environ.get("TRITON_INTERPRET") == "1":
            # their times would be a thousandth of what kernels are
            raise SelectionError(
                f"expected compiled kernels to time, got TRITON_INTERPRET=1 and {', '.join(interpreted)}: leave "
                "timings out with `--lanes train,baseline`, examine the kernels with `attnbench check`, or time them "
                "on a GPU"
            )
        self.store = Store(request.results, self.on_warning)
        facts = self._answering(request.suite.tasks, task_facts)
        self.preset = request.suite.preset or default_preset(list(facts.values()), kind)
        tasks = [each.task for each in facts.values()]
        self.tasks = list(self._answering(tasks, lambda task: recipe_facts(task, self.preset)))
        self.seeds = request.suite.seeds or DEFAULT_SEEDS.get(self.preset.name, 3)

    def plan(self, *, fetch: bool = False) -> Plan:
        """The cells, what is done and what is left. Data that is here is read; `fetch` gets and prepares the rest.

        Raises DataError, before anything runs, where data cannot be had for a task that was named by itself, or for any
        task of a suite; another task of a suite is left out, with a warning.
        """
        # digests name the data, which may have come since
        self._digests.clear()
        for task in self.tasks:
            # a parameter that a variant refuses raises now and not after hours
            try:
                shape = ask(TASKS, task.name, ShapeOf(task=task, preset=self.preset, device=self.resources.device.type))
            except PluginError as error:
                self.broken[task, None] = error
                continue
            for variant in self.request.suite.variants:
                canonical = variant
                try:
                    canonical = resolve(VARIANTS, variant)
                    if found := ask(VARIANTS, variant.name, TryBuild(canonical, shape)):
                        self.on_warning(found)
                except PluginError as error:
                    self.broken[task, canonical] = error
        if fetch:
            # A folder that cannot be written is found out now and not after an hour of training.
            self.store.prepare()
            for event in left_by_engines(self.request.results, self.on_warning):
                # two commands that start at once collect the same events
                self.store.append(event.record, event.line, unless=lambda: False)
        lacking: dict[Spec, DataError] = {}
        made = plan(
            variants=self.request.suite.variants,
            tasks=self.tasks,
            preset=self.preset,
            seeds=self.seeds,
            selection=self.request.suite.selection,
            store=self.store,
            digest_of=self._digest,
            site=self.resources.site,
            has_data=partial(self._has_data, fetch, lacking),
            retry=self.request.retry,
            estimate=Estimator(self.resources) if self.only_plans else None,
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
            undecided=made.undecided if "train" in lanes else (),
        )

    def run_all(self, listener: RunListener) -> Records:
        """Plans with the data fetched, runs what is left and returns the Records of the whole selection."""
        made = self.plan(fetch=True)
        for notice in made.notices:
            listener.notice(notice)
        for task, data in made.data.items():
            if data is not None and data.fidelity == "surrogate":
                listener.notice(
                    f"{task} runs on a surrogate ({data.source}), since the original is not here; "
                    f"`attnbench data list {task.name}` says how to get it"
                )
        listener.begin(made, str(self.preset), self.resources.machine)
        site = self.resources.site
        if made.blocks and not site.machine_id:
            listener.notice(
                f"{len(made.blocks)} jobs go to {site.executor}; this machine only submits and collects them"
            )
        measured = self.run(made, listener.on_event)
        ran = {block.id for block in made.blocks}
        # Records of trials say which rates are tried next; a trial that was lost is left to a later command
        while made.undecided:
            made = self.plan()
            if ran.issuperset(block.id for block in made.blocks):
                break
            listener.begin(made, str(self.preset), self.resources.machine)
            measured |= self.run(made, listener.on_event)
            ran.update(block.id for block in made.blocks)
        # another command may have measured a part of it meanwhile
        found = [measured.get(step.cell.key) or step.record or self.record_of(step.cell) for step in made.steps]
        return Records(
            results=self.request.results,
            records=tuple(record for record in found if record is not None),
            missing=tuple(step.cell for step, record in zip(made.steps, found, strict=True) if record is None),
            measured=tuple(measured.values()),
            left_out=tuple(self.left_out),
        )

    def run(self, made: Plan, on_event: OnEvent) -> dict[str, Record]:
        """All jobs of a plan to their end; `on_event` gets every event, that of a Record after it is stored.

        Returns the Records that were stored, by the keys of their cells.
        """
        request, resources, measured = self.request, self.resources, dict[str, Record]()
        seconds = {step.cell.key: step.seconds for step in made.steps}
        before = {step.cell.key: step.record for step in made.left}
        again = {step.cell.key for step in made.left if step.state == "again"}
        blocks = {block.id: block for block in made.blocks}
        waiting, running, unended = deque(made.blocks), set[str](), set(blocks)
        # jobs that are one length of a sweep, by the sweep
        sweeps = {
            block.id: (Spec(cell.task.name, tuple(p for p in cell.task.parameters if p[0] != "length")),
                       cell.preset, block.lane)
            for block in made.blocks
            if task_facts((cell := block.cells[0]).task).only_timed
        }  # fmt: skip

        def store(event: Event) -> None:
            if isinstance(event, CellFinished):
                record = event.record
                # it may come from a file that was read before, as far as it went, or from another command
                asks = record.key in before and record.key not in again
                if not self.store.append(
                    record, event.line, unless=lambda: asks and self._is_done(record.cell, before[record.key])
                ):
                    return
                measured[record.key] = record
            on_event(event)

        def submit() -> None:
            held = {sweeps.get(block) for block in running} - {None}
            for block in [*waiting]:
                if len(running) >= resources.executor.room:
                    break
                # which lengths are skipped depends on the Records of the shorter ones, which are therefore waited for
                if any(first in unended for first in block.after) or sweeps.get(block.id) in held:
                    continue
                waiting.remove(block)
                done = {cell for cell in block.cells if self._is_done(cell, before[cell.key])}
                # ratios are of the same rounds, whoever has timed the reference since
                again.update(cell.key for cell in done if block.lane == "time" and cell.variant == Spec(REFERENCE))
                left = tuple(cell for cell in block.cells if cell not in done or cell.key in again)
                rates = self._worth_trying(replace(block, cells=left), store)
                # what is measured for others alone is left out with them
                if again.issuperset(cell.key for cell in rates):
                    unended.discard(block.id)
                    continue
                running.add(block.id)
                held |= {sweeps.get(block.id)} - {None}
                known = [seconds.get(cell.key) for cell in rates]
                estimate = None if None in known else sum(each or 0.0 for each in known)
                is_timing, on_gpu = block.lane == "time", resources.device.type == "cuda"
                # a timing on a processor has its machine to itself
                needs = Needs(
                    gpus=int(on_gpu),
                    threads=resources.time_threads if is_timing else resources.train_threads,
                    alone=is_timing and not on_gpu,
                    seconds=estimate,
                )
                # a plugin that was asked something may have left a thread that takes a core
                end_children()
                job = Job(
                    block=block.id,
                    cells=tuple(rates),
                    digests={cell.key: self._digest(cell) for cell in rates},
                    rates={cell.key: rate for cell, rate in rates.items() if rate is not None},
                    device=str(resources.device),
                    results=request.results,
                    data_dir=request.data_dir,
                    offline=request.offline,
                    threads=needs.threads,
                    timeout=request.timeout,
                    executor=resources.site.executor,
                )
                resources.executor.submit(job, needs)

        if resources.site.executor == "local" and resources.device.type == "cuda":
            cells = [cell for block in made.blocks for cell in block.cells]
            gate_first(cells, str(resources.device), request.data_dir, request.offline, on_event)
        submit()
        for ended in resources.executor.finished(store):
            running.discard(ended)
            unended.discard(ended)
            if blocks[ended].lane == "tune" and any(self.record_of(cell) is None for cell in blocks[ended].cells):
                # what was lost leaves no rate to train at; a later command tries both
                left_out = [each for each in waiting if ended in each.after]
                waiting = deque(each for each in waiting if each not in left_out)
                unended -= {each.id for each in left_out}
            submit()
        return measured

    def _is_done(self, cell: Cell, before: Record | None) -> bool:
        """Whether a Record of the cell that `plan` would not run again is stored, since it found the one `before`."""
        found = self.store.finished(cell, self._digest(cell), self.resources.site, retry=self.request.retry)
        return found is not None and found != before

    def record_of(self, cell: Cell) -> Record | None:
        """The Record of a cell as it is stored now, whoever has measured it."""
        return self.store.finished(cell, self._digest(cell), self.resources.site)

    def _worth_trying(self, block: PlannedJob, on_event: OnEvent) -> dict[Cell, float | None]:
        """The cells of a job to be tried, with their learning rates where their preset has a grid of several.

        The other cells get Records that say why they are not tried.
        """
        left: dict[Cell, float | None] = {}
        for cell in block.cells:
            problem = self.broken.get((cell.task, None))
            if cell.lane != "baseline":
                problem = problem or self.broken.get((cell.task, cell.variant))
            if problem is not None:
                on_event(CellFinished(self._untried(cell, block, Outcome(problem.outcome), problem.reason)))
                continue
            left[cell] = None
            recipe = recipe_facts(cell.task, cell.preset) if cell.lane == "train" else None
            if recipe is not None and recipe.grid:
                counted = first_results(record for record in self.store.records() if record.cell.lane == "tune")
                _, choice = search_of(cell, recipe, counted, self._digest)
                if choice is None:
                    raise StoreError(f"not every learning rate of `{cell}` has a Record; run the same command again")
                left[cell] = choice.rate
                if choice.outcome is not Outcome.OK:
                    del left[cell]
                    on_event(CellFinished(self._untried(cell, block, choice.outcome, choice.reason)))
        if left and block.lane == "time" and task_facts(block.cells[0].task).only_timed:
            left = dict.fromkeys(self._skip_expected_failures([*left], block, on_event))
        return left

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

    def _answering(self, tasks: Sequence[Spec], ask_task: Callable[[Spec], A]) -> dict[Spec, A]:
        """What `ask_task` answers, by task; tasks of plugins that do not answer are left out, with a warning.

        So are those of a suite that lack the preset. Raises the error of the last where no other is left.
        """
        found: dict[Spec, A] = {}
        lacking: dict[Spec, AttnbenchError] = {}
        for task in tasks:
            try:
                found[task] = ask_task(task)
            except (PluginError, SelectionError) as error:
                lacking[task] = error
                if len(lacking) == len(tasks) or not (isinstance(error, PluginError) or self.request.suite.name):
                    raise
        for task, lack in lacking.items():
            self.on_warning(f"{task} is left out of this run, and the others go on: {lack}")
        self.left_out |= {task: lack for task, lack in lacking.items() if isinstance(lack, PluginError)}
        return found

    def _has_data(self, fetch: bool, lacking: dict[Spec, DataError], task: Spec) -> bool:
        """Whether the task stays in the run: `lacking` gets another. One whose plugin does not answer is `broken`."""
        question = FindData(
            task=task,
            preset=self.preset,
            selection=self.request.suite.selection,
            data_dir=self.request.data_dir,
            offline=self.request.offline,
            fetch=fetch,
        )
        try:
            self.data[task] = ask(
                TASKS,
                task.name,
                question,
                reporter=Reporter(self.on_warning, self.on_progress),
                patience=DATA_PATIENCE,
                # who wants cells to be short does not want to wait longer for their data
                most_seconds=self.request.timeout,
            )
        except PluginError as error:
            self.data[task], self.broken[task, None] = None, error
        except DataError as error:
            lacking[task] = error
            if not self.request.suite.name or len(lacking) == len(self.tasks):
                raise
        return task not in lacking

    def _digest(self, cell: Cell) -> str:
        """The digest that a Record of the cell gets in this run, looked up once: sources may be edited meanwhile."""
        found = self._digests.get(cell)
        if found is None:
            found = digest_of_cell(cell, self.data[cell.task], self.resources.device.type)
            self._digests[cell] = found
        return found


def default_preset(tasks: Sequence[TaskFacts], device: str) -> Spec:
    """The preset of a run that names none; where tasks share none, one that the lookup of the first of them refuses."""
    wanted = DEFAULT_PRESETS.get(device, ("quick",))
    return Spec(next((name for name in wanted if all(name in task.presets for task in tasks)), wanted[-1]))
