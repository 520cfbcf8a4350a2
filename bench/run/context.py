"""Context of a worker: tools that every lane needs to turn Cells into Records, and failures into outcomes."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from time import perf_counter

import numpy as np
import torch

from ...tasks.contract import DataPlace, Dataset, Recipe, Task
from ...variants.contract import AttentionShape, Variant
from ..core.cell import Cell, Job
from ..core.errors import AttnbenchError, PluginError, Unsupported, crash_text
from ..core.metrics import Metric
from ..core.record import Machine, Measurement, Outcome, Provenance, Record, Started
from ..core.registry import TASKS, VARIANTS
from ..core.spec import Spec
from ..core.targets import LARGEST_SOURCE
from ..gate.build import Builder, Incorrect, build_checked, build_checked_cached, built
from ..gate.twins import left_out
from ..measure.machine import describe, device_name
from ..models.blocks import BuildVariant, parameters_with_projections
from ..store.store import Store
from ..train.objectives.objective import Evaluation
from .events import Alive, Event, OnEvent, TrainingProgress

QUIET_SECONDS = 0.5
"""The least time between two reports of a Cell: a step of a small model takes a millisecond."""


@dataclass(slots=True, kw_only=True)
class WorkerContext:
    """A job where it runs. `send` passes events to the parent process. `wrong`: why the gate fails what is measured.

    `apart`: of a foreign variant in each way of use, what its own process has shown; None where the gate holds.
    """

    job: Job
    place: DataPlace
    store: Store
    send: OnEvent
    device: torch.device = field(init=False)
    machine: Machine = field(init=False)
    device_name: str = field(init=False)
    wrong: dict[Spec, str] = field(default_factory=dict)
    apart: dict[tuple[Spec, bool, bool], Exception | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.device = torch.device(self.job.device)
        self.machine = describe(self.device)
        self.device_name = device_name(self.device)

    def builder(self, batch: int, *, cached: bool = False) -> Builder:
        """Builds variants that pass the gate, and others where the job says so.

        `cached`: verdicts are kept, as on a GPU, where other processes make them first.
        """
        kept = cached or self.device.type == "cuda"
        checked: Builder = partial(build_checked, batch=batch)
        if kept:
            checked = build_checked_cached(self.place.cache, self.verdicts_of, batch)
        checked = partial(self._build_as_examined, checked)
        return partial(self._build_anyway, checked) if self.job.even_if_wrong else checked

    def _build_as_examined(self, checked: Builder, spec: Spec) -> BuildVariant:
        examine = checked(spec)

        def build(shape: AttentionShape) -> Variant:
            use = spec.at(shape.layer), shape.causal, shape.cross
            if use not in self.apart:
                return examine(shape)
            if failure := self.apart[use]:
                raise failure
            return built(spec, shape)

        return build

    def _build_anyway(self, checked: Builder, spec: Spec) -> BuildVariant:
        def build(shape: AttentionShape) -> Variant:
            try:
                return checked(spec)(shape)
            except Incorrect as failure:
                self.wrong.setdefault(spec, str(failure))
                return built(spec, shape)

        return build

    @property
    def verdicts_of(self) -> str:
        """The machine of which verdicts are kept: on a GPU the threads of the processor decide nothing."""
        return self.machine.id if self.device.type == "cuda" else self.machine.speed_id


@dataclass(slots=True)
class RecordBuilder:
    """One Cell being worked on: its task, its data, what was measured so far, and in the end its Record.

    `absent`: why what could have been measured was not, by the name of its metric.
    """

    context: WorkerContext
    cell: Cell
    begun: Started = field(default_factory=Started)
    recipe: Recipe | None = None
    metric: Metric | None = None
    data: Provenance | None = None
    implementation: str = ""
    measurements: list[Measurement] = field(default_factory=list)
    artifacts: dict[str, str] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    reported: float = 0.0

    def load(self) -> tuple[Task, Recipe, Dataset]:
        """The Cell's task, its recipe and its data; raises AttnbenchError where they cannot be had."""
        task: Task = TASKS.build(self.cell.task)
        self.recipe, self.metric = task.recipe(self.cell.preset), task.metric
        dataset = task.load(self.context.place, self.recipe, self.cell.seed, self.cell.selection)
        self.data = dataset.provenance
        return task, self.recipe, dataset

    def report(self, event: Callable[[], Event], at_once: bool = False) -> None:
        """Sends an event, unless another has just been sent and it is not to be sent `at_once`."""
        if at_once or perf_counter() - self.reported > QUIET_SECONDS:
            self.reported = perf_counter()
            self.context.send(event())

    def heartbeat(self) -> None:
        """Called in long work, so that it is not taken to hang."""
        self.report(lambda: Alive(self.cell.key))

    def filling(self, done: int, of: int) -> None:
        """Called while the state of a decoding is filled, before its timing."""
        self.report(lambda: TrainingProgress(self.cell.key, done, of, ""))

    def keep_predictions(self, found: Evaluation) -> None:
        """Stores what was predicted for each example: intervals and pairings are computed from it."""
        file = io.BytesIO()
        np.savez_compressed(file, **found.predictions())  # type: ignore[arg-type]
        self.artifacts["predictions"] = self.context.store.put_artifact(file.getvalue(), ".npz")

    def record(self, outcome: Outcome, reason: str = "") -> Record:
        if outcome is Outcome.OK and (failure := self.context.wrong.get(self.cell.variant)):
            # with its numbers, which no board takes from such a Record
            outcome, reason = Outcome.INCORRECT, failure
        setting = asdict(self.recipe) if self.recipe else {}
        if self.context.device.type == "cuda":
            # these decide over digits and speed of float32 products on a GPU: TF32 or not
            convolutions = "tf32" if torch.backends.cudnn.allow_tf32 else "highest"
            setting |= {
                "float32_products": torch.get_float32_matmul_precision(),
                "float32_convolutions": convolutions,
            }
        ran = self.implementation
        if ran and self.context.device.type == "cuda" and (kernels := left_out()):
            ran += f"; without {', '.join(kernels)}"
        return Record.of(
            self.cell,
            outcome,
            reason,
            self.begun,
            measurements=tuple(self.measurements),
            machine=self.context.machine,
            data=self.data,
            digest=self.context.job.digests[self.cell.key],
            block=self.context.job.id,
            metric=self.metric if self.cell.lane != "time" else None,
            setting=setting,
            absent=self.absent,
            implementation=ran,
            artifacts=self.artifacts | self._sources(),
            executor=self.context.job.executor,
            node=self.context.job.node,
            device=self.context.device_name,
        )

    def _sources(self) -> dict[str, str]:
        """The text of files that the cell names, which nobody else may have."""
        cell = self.cell
        files = [] if cell.lane == "baseline" else VARIANTS.named_files(cell.variant.name)
        files += TASKS.named_files(cell.task.name)
        return {
            f"source-{file.name}": self.context.store.put_artifact(file.read_bytes(), ".py")
            for file in files
            if file.stat().st_size <= LARGEST_SOURCE
        }

    def failure(self, error: Exception) -> Record:
        """The Record of a Cell that `error` ended; errors that the person who runs it must cure are raised again."""
        if isinstance(error, Incorrect):
            return self.record(Outcome.INCORRECT, str(error))
        if isinstance(error, Unsupported):
            return self.record(Outcome.UNSUPPORTED, str(error))
        if isinstance(error, PluginError):
            return self.record(Outcome(error.outcome), error.reason)
        # Missing data or a full disk are no property of the variant, and must not be stored as its outcome.
        if isinstance(error, AttnbenchError):
            raise error
        if is_out_of_memory(error):
            return self.record(Outcome.OUT_OF_MEMORY, _one_line(error))
        return self.record(Outcome.CRASHED, crash_text(error))


def implementation_of(variants: Iterable[Variant]) -> str:
    """The code that the last forward of a model's layers went through."""
    return "+".join(sorted({variant.implementation for variant in variants}))


def own_projections(variants: Iterable[Variant]) -> list[Measurement]:
    """The parameters of layers with projections of their own; none of a model without such layers."""
    count = parameters_with_projections(variants)
    return [Measurement.of("own_projections", count)] if count else []


def decode_state(variants: Sequence[Variant], length: int) -> list[Measurement]:
    """The bytes that decoding holds of one sequence of the longest that `variants` are built for, `length` tokens.

    Nothing where a layer cannot decode.
    """
    # that of the causal form, whatever the direction of the task
    states = [variant.state_bytes(replace(variant.shape, causal=True)) for variant in variants]
    held = [state for state in states if state is not None]
    return [Measurement.of("state_bytes", sum(held), length=length)] if len(held) == len(states) else []


def is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    # Allocators of the CPU raise plain RuntimeErrors, in words that changed between versions of PyTorch.
    return isinstance(error, RuntimeError) and tells_of_memory(str(error))


def tells_of_memory(text: str) -> bool:
    """True if a message, or the end of an error stream, is that of an allocation that failed."""
    words = ("can't allocate memory", "cannot allocate memory", "out of memory", "bad_alloc", "memoryerror")
    return any(word in text.lower() for word in words)


def is_lost(device: torch.device) -> bool:
    """True if an error, such as an illegal access, left a CUDA device on which every later call of this process fails.

    Asked of the device itself: such errors have several classes, and not every error of those classes is of this kind.
    """
    if device.type != "cuda":
        return False
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:500]
