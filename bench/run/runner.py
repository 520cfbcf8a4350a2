"""Run a selection: its data first, then the plan, then Block by Block until every Cell has a Record in the store."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import torch

from ...tasks.contract import Dataset, Task
from ...tasks.data.data import place
from ..core.cell import REFERENCE, Cell, Lane
from ..core.errors import DataError, SelectionError
from ..core.record import Machine, Provenance, Record
from ..core.registry import TASKS, VARIANTS
from ..core.spec import Spec
from ..measure.machine import choose_device, describe
from ..models.blocks import attention_shape
from ..plan.fingerprint import digest_of_cell, variant_hash
from ..plan.planner import Block, Plan, plan
from ..plan.skip import failed_shorter, reason_to_skip
from ..plan.suite import Suite
from ..store.store import Store
from .events import CellFinished, Event, OnEvent
from .executors.executor import Executor, Needs
from .executors.local import LocalExecutor
from .job import Job

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


@dataclass(slots=True, kw_only=True)
class Runner:
    """A request made concrete on this machine.

    `on_warning` gets sentences for the person who asked, `on_progress` the name, the amount done and the whole of long
    work on data. `executor`: where Blocks run, by default this machine.
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
    data: dict[Spec, Provenance | None] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        request = self.request
        self.device = choose_device(request.device)
        _refuse_interpreted_timings(request, self.device)
        # Threads are part of the machine's identity, so they are set before it is described.
        torch.set_num_threads(request.threads or len(os.sched_getaffinity(0)))
        self.machine = describe(self.device)
        self.store = Store(request.results, self.on_warning)
        self.executor = self.executor or LocalExecutor(self.machine)
        self.tasks = [TASKS.resolve(task) for task in request.suite.tasks]
        self.preset = request.suite.preset or Spec(default_preset(self.tasks, self.device.type))
        self.seeds = request.suite.seeds or DEFAULT_SEEDS.get(self.preset.name, 3)

    def plan(self) -> Plan:
        """The cells, what is done and what is left; data that is there is read, none is fetched."""
        for task in self.tasks:
            built: Task = TASKS.build(task)
            self._build_variants(built)
            if task not in self.data:
                # A plan must cost seconds: it never downloads.
                is_ready = any(way.ready for way in built.availability(self._place()))
                self.data[task] = self._load(built).provenance if is_ready else None
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
        return replace(_only(made, self.request.lanes), data=dict(self.data))

    def prepare(self) -> None:
        """Fetches and prepares the data of all tasks; a task of a suite that has none is left out, with a warning.

        Raises DataError, before anything runs, for a task that was named by itself, and where no task has any data.
        """
        # A folder that cannot be written is found out now and not after an hour of training.
        self.store.prepare()
        lacking: dict[Spec, DataError] = {}
        for task in self.tasks:
            built: Task = TASKS.build(task)
            try:
                self.data[task] = self._load(built).provenance
            except DataError as error:
                lacking[task] = error
                if not self.request.suite.name or len(lacking) == len(self.tasks):
                    raise
        self.tasks = [task for task in self.tasks if task not in lacking]
        for task, lack in lacking.items():
            self.on_warning(
                f"{task} is left out of this run, and the other {len(self.tasks)} of {self.request.suite.name} go on: "
                f"{lack}\n  once its data is here, the same command adds it"
            )

    def run(self, blocks: Iterable[Block], on_event: OnEvent) -> None:
        """All Blocks to their end; `on_event` gets every event, that of a Record after the Record is stored."""

        def store(event: Event) -> None:
            if isinstance(event, CellFinished):
                self.store.append(event.record)
            on_event(event)

        for block in blocks:
            # only now: which lengths are skipped depends on the Records of the Blocks before
            cells = self._skip_expected_failures(block, store)
            if cells:
                job = self._job(block, cells)
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
            device=str(self.device),
            results=request.results,
            data_dir=request.data_dir,
            offline=request.offline,
            threads=torch.get_num_threads(),
            timeout=request.timeout,
        )

    def is_swept(self, task: Spec) -> bool:
        """Whether a task is only timed, so that its lengths belong side by side."""
        return tuple(TASKS.build(task).lanes) == ("time",)

    def _skip_expected_failures(self, block: Block, on_event: OnEvent) -> tuple[Cell, ...]:
        """The cells of a Block to be tried; the others get Records that name their failure at a shorter length."""
        if not self.is_swept(block.cells[0].task):
            return block.cells
        task: Task = TASKS.build(block.cells[0].task)
        records = list(self.store.records())
        lengths: dict[Spec, int] = {}

        def length_of(spec: Spec) -> int:
            if spec not in lengths:
                lengths[spec] = TASKS.build(spec).recipe(self.preset).length
            return lengths[spec]

        left = []
        for cell in block.cells:
            digest = self._digest(cell)
            failure = failed_shorter(cell, digest, self.machine.id, records, length_of)
            if failure is None:
                left.append(cell)
                continue
            record = Record(
                cell=cell,
                outcome=failure.outcome,
                reason=reason_to_skip(failure, length_of(failure.cell.task)),
                machine=self.machine,
                data=self.data[cell.task],
                digest=digest,
                block=block.id,
                setting=asdict(task.recipe(self.preset)),
                started=datetime.now(UTC).isoformat(timespec="seconds"),
            )
            on_event(CellFinished(record))
        # a reference that is done was to be measured again for the others alone, none of which may be left
        if all(
            cell.variant == Spec(REFERENCE)
            and self.store.finished(cell, self._digest(cell), self.machine.id, retry=self.request.retry)
            for cell in left
        ):
            return ()
        return tuple(left)

    def _build_variants(self, task: Task) -> None:
        """Builds every variant once, so that a parameter it refuses raises now and not after hours."""
        recipe = task.recipe(self.preset)
        shape = attention_shape(task.problem(), recipe, 0, str(self.device))
        for variant in self.request.suite.variants:
            VARIANTS.build(variant, shape)

    def _load(self, task: Task) -> Dataset:
        return task.load(self._place(), task.recipe(self.preset), 0, self.request.suite.selection)

    def _digest(self, cell: Cell) -> str:
        return digest_of_cell(cell, self.data[cell.task])

    def _place(self) -> Any:
        return place(self.request.data_dir, self.request.offline, self.on_warning, self.on_progress)


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
    presets = [TASKS.build(task).presets() for task in tasks]
    wanted = DEFAULT_PRESETS.get(device, ("quick",))
    return next((name for name in wanted if all(name in known for known in presets)), wanted[-1])


def _only(made: Plan, lanes: tuple[Lane, ...]) -> Plan:
    unknown = set(lanes) - set(get_args(Lane))
    if unknown:
        raise SelectionError(f"expected lanes among {', '.join(get_args(Lane))}, got {', '.join(sorted(unknown))}")
    return Plan(
        steps=tuple(step for step in made.steps if step.cell.lane in lanes),
        blocks=tuple(block for block in made.blocks if block.lane in lanes),
        notices=made.notices,
    )
