"""The gate of a run's variants before its jobs, each variant in a process of its own, where a GPU is there.

On a GPU a gate is mostly waiting: for compilers, of which each uses one core, and for cuDNN, which plans every new
shape anew in every process. In turn eight variants took over two minutes on an H100 with 16 cores. Here they take as
long as the slowest. A dry pass notes all kernels that a gate will ask for, so that they are compiled side by side
first. What passes is kept, and no job examines it again; what fails, hangs or runs out of memory is examined by its job
as ever, which has the words for its Record.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ...tasks.data.data import place
from ...tasks.sweep_point import Point
from ...variants.contract import AttentionShape
from ...variants.kernels import gpu
from ..core.cell import Cell
from ..core.errors import AttnbenchError
from ..core.registry import TASKS
from ..core.spec import Spec
from ..gate.build import build_checked_cached, has_passed
from ..gate.case import BASE_LENGTH
from ..gate.suite import run_short
from ..gate.variant import VariantFactory
from ..measure.machine import describe
from ..models.blocks import attention_shape
from ..process.child import ChannelError, Child, encode_order
from ..process.side_by_side import side_by_side
from .events import OnEvent, Warned
from .executors.run_job import WORKER
from .workloads.sweep_point import shape_of

MOST_PROCESSES = 12
"""Each has a context on the GPU, of half a GiB."""

SECONDS = 120.0
"""The time that one process may take for all shapes of a variant; its jobs examine the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateOrder:
    """Examine the one variant of `cells` at all of their shapes, and compile in `threads` threads."""

    cells: tuple[Cell, ...]
    device: str
    data_dir: Path | None
    offline: bool
    threads: int


def gate_first(cells: Sequence[Cell], device: str, data_dir: Path | None, offline: bool, on_event: OnEvent) -> int:
    """Examines the variants of `cells`, each at every shape that it has there; returns how many processes that took.

    It never raises: a variant that cannot be built, or fails, gets its outcome from its job.
    """
    of_variant: dict[Spec, list[Cell]] = {}
    for cell in cells:
        if cell.lane != "baseline":
            of_variant.setdefault(cell.variant, []).append(cell)
    if not of_variant:
        return 0
    cores = len(os.sched_getaffinity(0))
    processes = min(cores, MOST_PROCESSES, len(of_variant))
    orders = [
        GateOrder(cells=tuple(each), device=device, data_dir=data_dir, offline=offline, threads=cores // processes)
        for each in of_variant.values()
    ]
    on_event(Warned(f"the gate examines the variants of this run first, {processes} at once"))
    for _ in side_by_side(orders, processes, WORKER, _examined_in):
        pass
    return len(orders)


def _examined_in(child: Child, order: GateOrder) -> None:
    with suppress(TimeoutError, ChannelError):
        child.send(encode_order(order))
        child.receive(SECONDS)


def examine_here(order: GateOrder) -> None:
    """In the child: compiles what the gate will launch, then the gate, whose verdict is kept where it is good."""
    torch.set_num_threads(1)
    device = torch.device(order.device)
    if device.type == "cuda":
        torch.cuda.set_device(device.index or 0)
    # as `verdicts_of` of a job's context
    machine, cache = describe(device).id, place(order.data_dir, order.offline, lambda message: None).cache
    compiled: set[AttentionShape] = set()
    for cell in order.cells:
        # one that raises costs the others nothing
        with suppress(Exception):
            shape, batch = examined(cell, device)
            if has_passed(cache, machine, batch, cell.variant, shape):
                continue
            # lengths share their kernels
            short = replace(shape, max_length=min(BASE_LENGTH, shape.max_length))
            if short not in compiled:
                compile_for(cell.variant.at(shape.layer), short, batch, order.threads)
                compiled.add(short)
            build_checked_cached(cache, machine, batch)(cell.variant)(shape)


def examined(cell: Cell, device: torch.device) -> tuple[AttentionShape, int]:
    """The shape and the batch that the gate of this Cell examines; raises AttnbenchError for a preset of no task."""
    task = TASKS.build(cell.task)
    recipe = task.recipe(cell.preset)
    if isinstance(recipe, Point) and recipe.level != "model":
        return shape_of(recipe, device), recipe.batch
    return attention_shape(task.problem(), recipe, 0, str(device)), recipe.batch


def has_kernels(variant: Spec) -> bool:
    """True if a form in Triton may run: there is one, and no other is asked for."""
    try:
        factory = VariantFactory.of(variant)
    except AttnbenchError:
        return False
    return "triton" in factory.implementations and factory.forced in ("", "auto", "triton")


def compile_for(variant: Spec, shape: AttentionShape, batch: int, threads: int) -> None:
    """Compiles in `threads` threads all that the short form of the gate launches on this GPU."""
    if not has_kernels(variant) or not gpu.installed():
        return
    # what cannot be noted is compiled by the gate, one after the other
    with suppress(Exception):
        with gpu.recording() as noted:
            run_short(variant, shape, batch=batch)
        gpu.compile_all(list(noted.values()), threads)
