"""Compile the kernels of a job before its gate: in several processes at once, where a GPU is there.

The gate makes a dozen specialisations of a kernel, of some seconds each and one after the other. Here parts of the gate
run side by side, and what they find is forgotten: their kernels come to lie in Triton's cache on the disk, where the
gate, whose verdict counts, finds them. A process that fails, hangs or runs out of memory costs time and no verdict.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch

from ...tasks.sweep_point import Point
from ...variants.contract import AttentionShape
from ..core.cell import Cell
from ..core.errors import AttnbenchError
from ..core.files import make_private
from ..core.registry import TASKS
from ..core.spec import Spec
from ..gate.build import verdict_key
from ..gate.case import BASE_LENGTH
from ..gate.suite import run_part
from ..gate.variant import VariantFactory
from ..models.blocks import attention_shape
from ..process.child import ChannelError, Child, encode_order, end_servers
from .context import WorkerContext
from .events import Alive, CellStarted
from .job import WORKER, GatePartJob
from .workloads.sweep_point import shape_of

MOST_PROCESSES = 12
"""Each has a context on the GPU, of half a GiB."""

MOST_PARTS = 4
"""Of one variant: all parts compile the plainest kernels, so that more of them compile the same ones twice."""

SECONDS = 300.0
"""That one process may take, its start included."""


Run = Callable[[GatePartJob], None]


def compile_first(context: WorkerContext, cells: Sequence[Cell]) -> int:
    """Compiles for `cells` what nobody has compiled here before; returns how many processes that took.

    For a GPU alone. None of it raises: whoever cannot be built is told so by its lane.
    """
    fresh: dict[Path, Cell] = {}
    for cell in cells:
        # a stranger's task may raise anything, which is told where its lane builds it
        with suppress(Exception):
            if has_kernels(cell.variant) and not (mark := _mark(context, cell)).exists():
                fresh.setdefault(mark, cell)
    jobs = parts_of(list(fresh.values()), str(context.device), len(os.sched_getaffinity(0)))
    if not jobs:
        return 0
    context.send(CellStarted(jobs[0].cell.key))
    for job in run_side_by_side(jobs, in_child):
        # it may take minutes, in which nothing else is heard of this process
        context.send(Alive(job.cell.key))
    # nothing runs beside what is timed next
    end_servers()
    for mark in fresh:
        with suppress(OSError):
            make_private(mark.parent)
            mark.touch(mode=0o600)
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


def parts_of(cells: Sequence[Cell], device: str, cores: int) -> list[GatePartJob]:
    """As many parts of the gate of each as there are processes for it; none where one core would do all the work."""
    processes = min(cores, MOST_PROCESSES)
    if not cells or processes < 2:
        return []
    parts = min(max(1, processes // len(cells)), MOST_PARTS)
    return [GatePartJob(cell=cell, device=device, part=part, parts=parts) for part in range(parts) for cell in cells]


def run_side_by_side(jobs: Sequence[GatePartJob], run: Run) -> Iterator[GatePartJob]:
    """`run` of each, some at once, and each once it has ended; what one of them raises is its own."""

    def one(job: GatePartJob) -> GatePartJob:
        with suppress(Exception):
            run(job)
        return job

    with ThreadPoolExecutor(min(len(jobs), MOST_PROCESSES)) as pool:
        yield from pool.map(one, jobs)


def in_child(job: GatePartJob) -> None:
    """Runs the job in a process of its own and waits for its end."""
    with Child(WORKER) as child, suppress(TimeoutError, ChannelError):
        child.send(encode_order(job))
        child.receive(SECONDS)


def pass_through(job: GatePartJob) -> None:
    """In the child: the part of the gate, whose findings nobody reads."""
    torch.set_num_threads(1)
    with suppress(Exception):
        shape, batch = examined(job.cell, torch.device(job.device))
        run_part(job.cell.variant, shape, job.part, job.parts, batch=batch)


def _mark(context: WorkerContext, cell: Cell) -> Path:
    """The file that says that it was compiled here, by these versions."""
    shape, batch = examined(cell, context.device)
    # lengths share their kernels, and the short form of the gate
    shape = replace(shape, max_length=min(shape.max_length, BASE_LENGTH))
    return context.place.cache / "compiled" / verdict_key(cell.variant, "compiled", shape, batch, context.machine.id)
