"""Run a selection: its data first, then the plan, then job by job until every Cell has a Record in the store."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from ..core.cell import FIRST_TUNING_SEED, REFERENCE, Cell, Job, Lane
from ..core.entry_points import load_point
from ..core.errors import AttnbenchError, DataError, PluginError, SelectionError
from ..core.record import Outcome, Provenance, Record, Started
from ..core.registry import TASKS, VARIANTS
from ..core.spec import Spec
from ..measure.devices import devices
from ..plan.executor_settings import GROUP, LocalOptions
from ..plan.facts import RecipeFacts, TaskFacts, recipe_facts, resolve, task_facts
from ..plan.fingerprint import digest_of_cell
from ..plan.options import Options
from ..plan.planner import Plan, Planner
from ..plan.skip import failed_shorter, reason_to_skip
from ..process.ask import ask, end_children
from ..store.records import Records
from ..store.store import Store
from .estimate import Estimator
from .events import CellFinished, Event, RunListener
from .executors.engines import left_by_engines
from .executors.executor import JOBS, Executor, Needs, Resources
from .executors.local import is_elsewhere, local_resources, planned_resources
from .gate_first import gate_first
from .questions import DATA_PATIENCE, FindData, ShapeOf, TryBuild

DEFAULT_SEEDS = {"smoke": 1}
"""Seeds of a preset where none are asked for; 3 for every other, the fewest that can be ranked."""

DEFAULT_PRESETS = {"cuda": ("pt-2x64", "quick")}
"""Presets where none is asked for, by kind of device: the first that all tasks have; `quick` for every other."""

A = TypeVar("A")


@dataclass(slots=True, kw_only=True)
class Runner:
    """Options made concrete on this machine.

    `executor`: where jobs run, by default this machine. `only_plans`: nothing is fetched or run. `left_out`: tasks that
    are not run, and why; `broken`: tasks, and variants on a task, whose Cells are not tried.
    """

    options: Options
    listener: RunListener
    executor: Executor | None = None
    only_plans: bool = False
    resources: Resources = field(init=False)
    store: Store = field(init=False)
    preset: Spec = field(init=False)
    seeds: int = field(init=False)
    variants: list[Spec] = field(init=False, default_factory=list)
    tasks: dict[Spec, tuple[TaskFacts, RecipeFacts]] = field(init=False, default_factory=dict)
    data: dict[Spec, Provenance | None] = field(init=False, default_factory=dict)
    left_out: dict[Spec, AttnbenchError] = field(init=False, default_factory=dict)
    broken: dict[tuple[Spec, Spec | None], PluginError] = field(init=False, default_factory=dict)
    _digests: dict[Cell, str] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        options, warn = self.options, self.listener.notice
        engine, device, threads = options.executor, options.device, options.threads
        if self.only_plans and is_elsewhere(engine, device):
            self.resources = planned_resources(engine, threads)
        elif self.executor is not None or isinstance(engine.options, LocalOptions):
            self.resources = local_resources(engine, device, threads, warn, self.executor)
        else:
            self.resources = load_point(GROUP, engine.name).resources(options, warn, not self.only_plans)
        kind = self.resources.device.type
        interpreted = [str(spec) for spec in options.variants if spec.get("impl") == "triton"]
        if interpreted and kind == "cpu" and "time" in options.lanes and os.environ.get("TRITON_INTERPRET") == "1":
            # their times would be a thousandth of what kernels are
            raise SelectionError(
                f"expected compiled kernels to time, got TRITON_INTERPRET=1 and {', '.join(interpreted)}: leave "
                "timings out with `--lanes train,baseline`, examine the kernels with `attnbench check`, or time them "
                "on a GPU"
            )
        self.store = Store(options.results, warn)
        facts = self._answering(options.tasks, task_facts)
        self.preset = options.preset or default_preset(list(facts.values()), kind)
        self.seeds = options.seeds or DEFAULT_SEEDS.get(self.preset.name, 3)
        recipes = self._answering([each.task for each in facts.values()], lambda task: recipe_facts(task, self.preset))
        self.tasks = {each.task: (each, recipes[each.task]) for each in facts.values() if each.task in recipes}
        if self.seeds > FIRST_TUNING_SEED and any(recipe.rates for recipe in recipes.values()):
            raise SelectionError(
                f"expected at most {FIRST_TUNING_SEED} seeds with learning_rates, whose choice is made on seeds from "
                f"{FIRST_TUNING_SEED} on, got {self.seeds:,}"
            )

    def _answering(self, tasks: Sequence[Spec], ask_task: Callable[[Spec], A]) -> dict[Spec, A]:
        """The answers of `ask_task`, by task; tasks of plugins that do not answer are left out, with a warning.

        So are those of a suite that lack the preset. Raises the error of the last where no other is left.
        """
        answers: dict[Spec, A] = {}
        lacking: dict[Spec, AttnbenchError] = {}
        for task in tasks:
            try:
                answers[task] = ask_task(task)
            except (PluginError, SelectionError) as error:
                lacking[task] = error
                if len(lacking) == len(tasks) or not (isinstance(error, PluginError) or self.options.suite):
                    raise
        for task, lack in lacking.items():
            self.listener.notice(f"{task} is left out of this run, and the others go on: {lack}")
        self.left_out |= {task: lack for task, lack in lacking.items() if isinstance(lack, PluginError)}
        return answers

    def plan(self, *, fetch: bool = False) -> Plan:
        """The cells, what is done and what is left. Data that is here is read; `fetch` gets and prepares the rest.

        Raises DataError, before anything runs, where data cannot be had for a task that was named by itself, or for any
        task of a suite; another task of a suite is left out, with a warning.
        """
        # digests name the data, which may have come since
        self._digests.clear()
        self._try_variants()
        if fetch:
            # a folder that cannot be written is found out now and not after an hour of training
            self.store.prepare()
            if (self.options.results / JOBS).exists():
                for event in left_by_engines(self.options.results, self.listener.notice):
                    # two commands that start at once collect the same events
                    self.store.append(event.record, event.line, unless=lambda: False)
        self._find_data(fetch)
        return self._planned()

    def _try_variants(self) -> None:
        """Builds each variant once for each task: a parameter that it refuses raises now and not after hours."""
        variants: dict[Spec, None] = {}
        for variant in self.options.variants:
            try:
                variants[resolve(VARIANTS, variant)] = None
            except PluginError as error:
                variants[variant] = None
                self.broken |= {(task, variant): error for task in self.tasks}
        self.variants = [*variants]
        for task in self.tasks:
            try:
                shape = ask(TASKS, task.name, ShapeOf(task=task, preset=self.preset, device=self.resources.device.type))
            except PluginError as error:
                self.broken[task, None] = error
                continue
            for variant in self.variants:
                if (task, variant) in self.broken:
                    continue
                try:
                    if how_called := ask(VARIANTS, variant.name, TryBuild(variant, shape)):
                        self.listener.notice(how_called)
                except PluginError as error:
                    self.broken[task, variant] = error

    def _find_data(self, fetch: bool) -> None:
        """Finds the data of all tasks; one of a suite whose data is not to be had leaves the run, with a warning."""
        options, lacking = self.options, dict[Spec, DataError]()
        for task in self.tasks:
            find = FindData(
                task=task,
                preset=self.preset,
                selection=options.selection,
                data_dir=options.data_dir,
                offline=options.offline,
                fetch=fetch,
            )
            try:
                # who wants cells to be short does not want to wait longer for their data
                self.data[task] = ask(
                    TASKS,
                    task.name,
                    find,
                    reporter=self.listener,
                    patience=DATA_PATIENCE,
                    most_seconds=options.timeout,
                )
            except PluginError as error:
                self.data[task], self.broken[task, None] = None, error
            except DataError as error:
                lacking[task] = error
                if not options.suite or len(lacking) == len(self.tasks):
                    raise
        self.tasks = {task: facts for task, facts in self.tasks.items() if task not in lacking}
        for task, lack in lacking.items():
            self.listener.notice(
                f"{task} is left out of this run, and the other {len(self.tasks)} of {options.suite} go on: "
                f"{lack}; once its data is here, the same command adds it"
            )

    def _planned(self, ended: Collection[str] = ()) -> Plan:
        """The plan as the store is now, without the jobs that have `ended`."""
        options, resources = self.options, self.resources
        card = options.device if options.device in devices() else ""
        # training needs the lane that chooses its learning rates
        lanes: set[Lane] = {*options.lanes, "tune"} if "train" in options.lanes else {*options.lanes}
        planner = Planner(
            variants=self.variants,
            questions=[*self.tasks.values()],
            seeds=self.seeds,
            selection=options.selection,
            lanes=lanes,
            store=self.store,
            digest_of=self.digest_of,
            site=resources.site,
            retry=options.retry,
            ended=ended,
            estimate=Estimator(resources, card) if self.only_plans or self._is_estimated else None,
        )
        made = planner.plan()
        broken = [f"{error}; its cells get the outcome {error.outcome}" for error in self.broken.values()]
        return replace(
            made,
            notices=(*made.notices, *dict.fromkeys(broken)),
            data=dict(self.data),
            at_once=resources.jobs or 1,
            timings_alone=resources.device.type == "cpu",
        )

    @property
    def _is_estimated(self) -> bool:
        """An engine of a cluster would take an estimate for the limit of a job."""
        return self.listener.estimates and self.resources.site.executor == "local"

    def run_all(self) -> Records:
        """Plans with the data fetched, runs what is left and returns the Records of the whole selection."""
        made, listener, site = self.plan(fetch=True), self.listener, self.resources.site
        for notice in made.notices:
            listener.notice(notice)
        for task, data in made.data.items():
            if data is not None and data.fidelity == "surrogate":
                listener.notice(
                    f"{task} runs on a surrogate ({data.source}), since the original is not here; "
                    f"`attnbench data list {task.name}` says how to get it"
                )
        if made.jobs and not site.machine_id:
            listener.notice(f"{len(made.jobs)} jobs go to {site.executor}; this machine only submits and collects them")
        measured, ended = dict[str, Record](), set[str]()
        while True:
            listener.begin(made, str(self.preset), self.resources.machine)
            measured |= self.run(made)
            ended |= {job.id for job in made.jobs}
            if not made.undecided:
                break
            # Records of trials say which rates are tried next; a trial that was lost is left to a later command
            made = self._planned(ended)
            if not made.jobs:
                break
        # another command may have measured a part of it meanwhile
        records = [measured.get(step.cell.key) or step.record or self.record_of(step.cell) for step in made.steps]
        return Records(
            results=self.options.results,
            records=tuple(record for record in records if record is not None),
            missing=tuple(step.cell for step, record in zip(made.steps, records, strict=True) if record is None),
            measured=tuple(measured.values()),
            left_out=tuple(self.left_out),
        )

    def run(self, made: Plan) -> dict[str, Record]:
        """All jobs of a plan to their end; the listener gets every event, that of a Record after it is stored.

        Returns the Records that were stored, by the keys of their cells.
        """
        options, resources = self.options, self.resources
        if resources.site.executor == "local" and resources.device.type == "cuda":
            cells = [cell for job in made.jobs for cell in job.cells]
            gate_first(cells, str(resources.device), options.data_dir, options.offline, self.listener.on_event)
        queue = _Queue(self, made)
        queue.submit()
        for ended in resources.executor.finished(queue.keep):
            del queue.running[ended]
            queue.submit()
        return queue.measured

    def record_of(self, cell: Cell, *, retry: bool = False) -> Record | None:
        """The Record of a cell as it is stored now, whoever has measured it; with `retry` only that of a success."""
        return self.store.finished(cell, self.digest_of(cell), self.resources.site, retry=retry)

    def digest_of(self, cell: Cell) -> str:
        """The digest that a Record of the cell gets in this run, looked up once: sources may be edited meanwhile."""
        if cell not in self._digests:
            self._digests[cell] = digest_of_cell(cell, self.data[cell.task], self.resources.device.type)
        return self._digests[cell]


class _Queue:
    """The jobs of a plan: those that wait, those that the executor has, and the Records that were stored."""

    def __init__(self, runner: Runner, made: Plan):
        self.running: dict[str, Job] = {}
        self.measured: dict[str, Record] = {}
        self._runner, self._plan, self._waiting = runner, made, deque(made.jobs)
        self._before = {step.cell.key: step.record for step in made.left}
        self._seconds = {step.cell.key: step.seconds for step in made.left}
        self._again = {step.cell.key for step in made.left if step.state == "again"}

    def submit(self) -> None:
        """Gives the executor the next jobs, as many as it has room for."""
        runner, resources = self._runner, self._runner.resources
        for job in [*self._waiting]:
            if len(self.running) >= resources.executor.room:
                break
            if job.series and job.series in [each.series for each in self.running.values()]:
                continue
            self._waiting.remove(job)
            cells = self._left_of(job)
            # what is measured for others alone is left out with them
            if self._again.issuperset(cell.key for cell in cells):
                continue
            self.running[job.id] = job
            # a timing on a processor has its machine to itself
            is_timing, on_gpu = job.lane == "time", resources.device.type == "cuda"
            threads = resources.time_threads if is_timing else resources.train_threads
            known = [seconds for cell in cells if (seconds := self._seconds[cell.key]) is not None]
            needs = Needs(
                gpus=int(on_gpu),
                threads=threads,
                alone=is_timing and not on_gpu,
                seconds=sum(known) if len(known) == len(cells) else None,
            )
            chosen = {cell.key: self._plan.rates[cell] for cell in cells if cell in self._plan.rates}
            # a plugin that was asked something may have left a thread that takes a core
            end_children()
            job = replace(
                job,
                cells=tuple(cells),
                rates={key: one.rate for key, one in chosen.items() if one.rate is not None},
                scales={key: one.scale for key, one in chosen.items() if one.scale is not None},
                device=str(resources.device),
                results=runner.options.results,
                data_dir=runner.options.data_dir,
                offline=runner.options.offline,
                threads=threads,
                timeout=runner.options.timeout,
                even_if_wrong=runner.options.even_if_wrong,
                executor=resources.site.executor,
            )
            resources.executor.submit(job, needs)

    def keep(self, event: Event) -> None:
        """Stores the Record of a finished cell, unless it is stored already, and passes the event on."""
        runner = self._runner
        if isinstance(event, CellFinished):
            record = event.record
            # it may come from a file that was read before, as far as it went, or from another command
            asks = record.key in self._before and record.key not in self._again
            if not runner.store.append(record, event.line, unless=lambda: asks and self._is_done(record.cell)):
                return
            self.measured[record.key] = record
        runner.listener.on_event(event)

    def _is_done(self, cell: Cell) -> bool:
        """True if a Record is stored that the plan has not seen and would not run again."""
        record = self._runner.record_of(cell, retry=self._runner.options.retry)
        return record is not None and record != self._before[cell.key]

    def _left_of(self, job: Job) -> list[Cell]:
        """The cells of a job that are to be tried now; others of it get a Record that says why they are not."""
        done = {cell for cell in job.cells if self._is_done(cell)}
        # ratios are of the same rounds, whoever has timed the reference since
        self._again |= {cell.key for cell in done if cell.lane == "time" and cell.variant == Spec(REFERENCE)}
        records = [*self._runner.store.records()] if job.series else []
        left = []
        for cell in job.cells:
            if cell in done and cell.key not in self._again:
                continue
            failure = self._expected_failure(cell, records)
            if failure is None:
                left.append(cell)
            else:
                self.keep(CellFinished(self._untried(cell, job, *failure)))
        return left

    def _expected_failure(self, cell: Cell, records: Sequence[Record]) -> tuple[Outcome, str] | None:
        """The outcome and the reason of a cell that is not worth trying; `records`: of its sweep, if it is of one."""
        runner = self._runner
        problem = runner.broken.get((cell.task, None))
        if cell.lane != "baseline":
            problem = problem or runner.broken.get((cell.task, cell.variant))
        if problem is not None:
            return Outcome(problem.outcome), problem.reason
        choice = self._plan.rates.get(cell)
        if choice is not None and choice.outcome is not Outcome.OK:
            return choice.outcome, choice.reason
        if not records:
            return None

        def length_of(task: Spec) -> int:
            return recipe_facts(task, runner.preset).length

        failure = failed_shorter(cell, runner.digest_of(cell), runner.resources.site, records, length_of)
        if failure is None:
            return None
        return failure.outcome, reason_to_skip(failure, length_of(failure.cell.task))

    def _untried(self, cell: Cell, job: Job, outcome: Outcome, reason: str) -> Record:
        runner = self._runner
        try:
            setting = recipe_facts(cell.task, cell.preset).setting
        except PluginError:
            setting = {}
        return Record.of(
            cell,
            outcome,
            reason,
            Started(),
            machine=runner.resources.machine,
            data=runner.data[cell.task],
            digest=runner.digest_of(cell),
            block=job.id,
            setting=setting,
            executor=runner.resources.site.executor,
        )


def default_preset(tasks: Sequence[TaskFacts], device: str) -> Spec:
    """The preset of a run that names none; where tasks share none, one that the lookup of the first of them refuses."""
    wanted = DEFAULT_PRESETS.get(device, ("quick",))
    return Spec(next((name for name in wanted if all(name in task.presets for task in tasks)), wanted[-1]))
