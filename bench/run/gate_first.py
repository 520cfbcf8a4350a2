"""The gate of a job's variants before its lanes, each in a process of its own, where a GPU is there.

On a GPU a gate is mostly waiting: for compilers, of which each uses one core, and for cuDNN, which plans every new
shape anew in every process. In turn eight variants took over two minutes on an H100 with 16 cores. Here they take as
long as the slowest. A dry pass notes all kernels that a gate will ask for, so that they are compiled side by side
first. What passes is kept, and the lane does not examine it again; what fails, hangs or runs out of memory is examined
by the lane as ever, which has the words for its Record.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import torch

from ...tasks.sweep_point import Point
from ...variants.contract import AttentionShape
from ..core.cell import Cell
from ..core.errors import AttnbenchError
from ..core.registry import TASKS
from ..core.spec import Spec
from ..gate.build import build_checked_cached, has_passed
from ..gate.suite import run_short
from ..gate.variant import VariantFactory
from ..models.blocks import attention_shape
from ..process.child import ChannelError, Child, encode_order, end_servers
from .context import WorkerContext
from .events import Alive, CellStarted
from .job import WORKER, GateJob
from .workloads.sweep_point import shape_of

MOST_PROCESSES = 12
"""Each has a context on the GPU, of half a GiB."""

SECONDS = 300.0
"""That one process may take, its start included."""


Run = Callable[[GateJob], None]


def gate_first(context: WorkerContext, cells: Sequence[Cell]) -> int:
    """Examines for `cells` what has not passed here before; returns how many processes that took.

    For a GPU alone. None of it raises: whoever cannot be built is told so by its lane.
    """
    fresh: dict[tuple[Spec, AttentionShape, int], Cell] = {}
    for cell in cells:
        # a stranger's task may raise anything, which is told where its lane builds it
        with suppress(Exception):
            shape, batch = examined(cell, context.device)
            if not has_passed(context.place.cache, context.machine.speed_id, batch, cell.variant, shape):
                fresh.setdefault((cell.variant, shape, batch), cell)
    cores = len(os.sched_getaffinity(0))
    threads = max(1, cores // max(1, min(len(fresh), MOST_PROCESSES)))
    jobs = [
        GateJob(
            cell=cell, device=str(context.device), cache=context.place.cache, machine=context.machine.speed_id,
            threads=threads,
        )
        for cell in fresh.values()
    ]  # fmt: skip
    # with one core, or one to examine, the lane does it as well
    if len(jobs) < 2 and threads < 2:
        return 0
    if jobs:
        context.send(CellStarted(jobs[0].cell.key))
    for job in run_side_by_side(jobs, min(cores, MOST_PROCESSES), in_child):
        # it may take minutes, in which nothing else is heard of this process
        context.send(Alive(job.cell.key))
    if jobs:
        # nothing runs beside what is timed next
        end_servers()
    return len(jobs)


def examined(cell: Cell, device: torch.device) -> tuple[AttentionShape, int]:
    """The shape and the batch that the gate of this Cell examines; raises AttnbenchError for a preset of no task."""
    task = TASKS.build(cell.task)
    recipe = task.recipe(cell.preset)
    if isinstance(recipe, Point) and recipe.level != "model":
        return shape_of(recipe, device), recipe.batch
    return attention_shape(task.problem(), recipe, 0, str(device)), recipe.batch


def has_kernels(variant: Spec) -> bool:
    """Whether it has a form in Triton that may run unless another one is asked for."""
    try:
        factory = VariantFactory.of(variant)
    except AttnbenchError:
        return False
    return "triton" in factory.implementations and factory.forced in ("", "auto", "triton")


def run_side_by_side(jobs: Sequence[GateJob], processes: int, run: Run) -> Iterator[GateJob]:
    """`run` of each, so many at once, and each once it has ended; what one of them raises is its own."""

    def one(job: GateJob) -> GateJob:
        with suppress(Exception):
            run(job)
        return job

    with ThreadPoolExecutor(processes) as pool:
        yield from pool.map(one, jobs)


def in_child(job: GateJob) -> None:
    """Runs the job in a process of its own and waits for its end."""
    with Child(WORKER) as child, suppress(TimeoutError, ChannelError):
        child.send(encode_order(job))
        child.receive(SECONDS)


def examine_here(job: GateJob) -> None:
    """In the child: compiles what the gate will launch, then the gate, whose verdict is kept where it is good."""
    torch.set_num_threads(1)
    with suppress(Exception):
        device = torch.device(job.device)
        if device.type == "cuda":
            torch.cuda.set_device(device.index or 0)
        shape, batch = examined(job.cell, device)
        compile_for(job.cell.variant.at(shape.layer), shape, batch, job.threads)
        build_checked_cached(job.cache, job.machine, batch)(job.cell.variant)(shape)


def compile_for(variant: Spec, shape: AttentionShape, batch: int, threads: int) -> None:
    """Compiles in `threads` threads all that the short form of the gate launches on this GPU."""
    if not has_kernels(variant) or importlib.util.find_spec("triton") is None:
        return
    from ...variants.kernels.triton.launch import compile_all, recording

    # what cannot be noted is compiled by the gate, one after the other
    with suppress(Exception):
        with recording() as noted:
            run_short(variant, shape, batch=batch)
        compile_all(list(noted.values()), threads)
