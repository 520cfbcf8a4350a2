"""The worker: runs one job, the first line of its orders, in a child process, and answers with events."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import IO

import torch

from ...tasks.data.data import place
from ..core.cell import Job
from ..core.errors import AttnbenchError, SelectionError, StoreError
from ..core.record import Record
from ..core.registry import VARIANTS, import_foreign_plugins_here
from ..measure.machine import describe, device_name
from ..plan.fingerprint import variant_hash
from ..process.child import decode_order
from ..process.servers import end_servers, start_server
from ..store.store import Store
from .context import WorkerContext
from .events import (
    CellFinished,
    CellStarted,
    Event,
    Failed,
    JobStarted,
    OnEvent,
    SampleBegun,
    SampleEnded,
    Warned,
    encode,
)
from .executors.run_job import DescribeOrder, ScoreOrder
from .gate_first import GateOrder, examine_here, gate_first
from .global_state import StateWatch
from .lanes.baseline import baseline_cell
from .lanes.max_length import MaxLengthOrder, tried_lengths
from .lanes.time import time_cells
from .lanes.train import train_cell
from .score_apart import score_cell


def main(orders: IO[bytes], channel: IO[bytes]) -> int:
    # the server that it was forked from may have been changed by a process of foreign code
    StateWatch.undo_from_outside()
    import_foreign_plugins_here()

    def send(event: Event) -> None:
        channel.write(encode(event))
        channel.flush()
        if isinstance(event, SampleBegun | SampleEnded) and event.waits:
            orders.readline()

    job = decode_order(orders.readline())
    if isinstance(job, GateOrder):
        examine_here(job)
        return 0
    scores = isinstance(job, ScoreOrder)
    if isinstance(job, ScoreOrder):
        job = job.job
    cells = [cell for cell in job.cells if cell.lane != "baseline"] if isinstance(job, Job) else []
    if not all(VARIANTS.is_own(cell.variant.name) for cell in cells):
        # of the children that hold their code, before anything here starts a thread
        start_server()
    device = torch.device(job.device)
    torch.set_num_threads(job.threads or len(os.sched_getaffinity(0)))
    # read from the environment once, at its first use: now, before a plugin can change that
    torch.backends.cpu.get_cpu_capability()
    if isinstance(job, MaxLengthOrder):
        for tried in tried_lengths(job, iter(orders.readline, b"")):
            send(tried)
        return 0
    if isinstance(job, DescribeOrder):
        count = torch.cuda.device_count() if device.type == "cuda" and device.index is None else 1
        for each in [device] if count == 1 else [torch.device("cuda", index) for index in range(count)]:
            send(JobStarted(describe(each), device=device_name(each)))
        return 0
    # A timing is of the code as a user would run it; training must end with the same bits when it is resumed, which
    # the atomic additions of some backward passes would break.
    deterministic = all(cell.lane != "time" for cell in job.cells)
    torch.use_deterministic_algorithms(deterministic, warn_only=True)
    if deterministic:
        # cuBLAS reads it when it is loaded; with workspaces of its own choice the sums of a product change their order
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # filling every new tensor is no part of determinism for code that reads no uninitialised memory, and costs time
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if device.type == "cuda":
        # it takes no device without an index
        torch.cuda.set_device(device.index or 0)
    try:
        for cell in job.cells:
            if variant_hash(cell, device.type) != job.digests[cell.key].rpartition("-")[2]:
                # its digest would name another source
                raise SelectionError(
                    f"the code of `{cell}` was edited while the run went on; finished cells are stored; "
                    "start the same command again"
                )
        for record in records_of(job, send, scores=scores):
            try:
                finished = CellFinished(record)
            except StoreError as error:
                # A plugin has chosen numbers that no file takes: its own cell crashes with this process, and the others
                # run.
                raise ValueError(str(error)) from None
            send(finished)
    except AttnbenchError as error:
        send(Failed(str(error), error.exit_code))
        return error.exit_code
    return 0


def records_of(job: Job, send: OnEvent, *, scores: bool = False) -> Iterator[Record]:
    """The Records of a job's Cells, each as soon as it is known. `scores`: of trained models that are tested again."""

    def warn(message: str) -> None:
        send(Warned(message))

    context = WorkerContext(
        job=job, place=place(job.data_dir, job.offline, warn), store=Store(job.results, warn), send=send
    )  # fmt: skip
    # the clock of a board without a battery may stand before 1970
    send(JobStarted(context.machine, job.node, context.device_name, max(time.time(), 0.0)))
    if context.device.type == "cuda" and job.executor != "local":
        # jobs of this machine are examined together, before the first of them
        gate_first(job.cells, job.device, job.data_dir, job.offline, send)
        # nothing runs beside what is timed next
        end_servers()
    timed = [cell for cell in job.cells if cell.lane == "time"]
    if timed:
        yield from time_cells(context, timed)
    for cell in job.cells:
        if cell.lane != "time":
            send(CellStarted(cell.key))
            if cell.lane == "baseline":
                yield baseline_cell(context, cell)
            else:
                yield score_cell(context, cell) if scores else train_cell(context, cell)
