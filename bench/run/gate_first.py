"""The gate before what is measured, each variant in a process of its own.

Of our own variants where a GPU is there: before the jobs of a run, at once. On a GPU a gate is mostly waiting: for
compilers, of which each uses one core, and for cuDNN, which plans every new shape anew in every process. In turn eight
variants took over two minutes on an H100 with 16 cores. Here they take as long as the slowest. A dry pass notes all
kernels that a gate will ask for, so that they are compiled side by side first. What passes is kept, and no job examines
it again; what fails, hangs or runs out of memory is examined by its job as ever, which has the words for its Record.

Of foreign variants in every job: their code lies in a child, and what it returns is compared here, before this process
imports any of it. So no code is examined where it runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ...tasks.contract import Recipe, Task
from ...tasks.data.data import place
from ...tasks.sweep_point import Point
from ...variants.contract import AttentionShape, Variant
from ...variants.kernels import gpu
from ..core.cell import REFERENCE, Cell
from ..core.errors import AttnbenchError
from ..core.registry import TASKS, VARIANTS
from ..core.spec import Spec
from ..gate.build import Incorrect, build_checked_cached, built, has_passed, words
from ..gate.case import BASE_LENGTH
from ..gate.suite import quick_gate, run_short
from ..gate.variant import VariantFactory
from ..measure.machine import describe
from ..process.child import ChannelError, Child, encode_order
from ..process.servers import end_servers
from ..process.side_by_side import side_by_side
from ..train.objectives.registry import objective_for
from .context import WorkerContext
from .events import CellStarted, OnEvent, Warned
from .executors.run_job import WORKER
from .link import linked
from .remote import factory_of
from .remote_child import OpenVariant, ProcessSettings
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
        if cell.lane != "baseline" and VARIANTS.is_own(cell.variant.name):
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
            task = TASKS.build(cell.task)
            recipe = task.recipe(cell.preset)
            shape, batch = shapes_of(task, recipe, device)[0], recipe.batch
            if has_passed(cache, machine, batch, cell.variant, shape):
                continue
            # lengths share their kernels
            short = replace(shape, max_length=min(BASE_LENGTH, shape.max_length))
            if short not in compiled:
                compile_for(cell.variant.at(shape.layer), short, batch, order.threads)
                compiled.add(short)
            build_checked_cached(cache, machine, batch)(cell.variant)(shape)


def examine_apart(context: WorkerContext, foreign: Iterable[Cell], task: Task, recipe: Recipe) -> None:
    """The gate of the foreign Cells of a job, for `context.apart`; nothing that it has started is left.

    A task of the same package is all of their code that may be in this process before.
    """
    shapes = shapes_of(task, recipe, context.device)
    for cell in foreign:
        # the parent blames it for a time limit
        context.send(CellStarted(cell.key))
        for shape in shapes:
            spec = cell.variant.at(shape.layer)
            use = spec, shape.causal, shape.cross
            if use not in context.apart and not VARIANTS.is_own(spec.name):
                # it takes a minute, which no estimate counts
                context.send(Warned(f"gate: testing {spec}"))
                context.apart[use] = _refused(spec, shape, recipe.batch)
    end_servers()


def _refused(spec: Spec, shape: AttentionShape, batch: int) -> Exception | None:
    """Why the gate refuses the variant, or what its process has done instead of answering; None for neither."""
    before = ProcessSettings.now()
    try:
        with linked(VARIANTS, spec.name, OpenVariant(variant=spec)) as link:
            failure = quick_gate(factory_of(link), shape, batch=batch)
    except Exception as error:
        return error
    finally:
        # what the code changes there is changed here too
        before.apply()
    return Incorrect(words(failure)) if failure else None


def shapes_of(task: Task, recipe: Recipe, device: torch.device) -> list[AttentionShape]:
    """The shapes for which the layers of a Cell are built, in their order."""
    if isinstance(recipe, Point) and recipe.level != "model":
        return [shape_of(recipe, device)]
    shapes: list[AttentionShape] = []

    def noted(shape: AttentionShape) -> Variant:
        shapes.append(shape)
        return built(Spec(REFERENCE), shape)

    with torch.random.fork_rng(devices=[]):
        objective_for(task.problem(), recipe).model(noted, 0, str(device))
    return shapes


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
