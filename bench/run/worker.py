"""Worker: the child process that measures one Block. `python -m attnbench.bench.run.worker`, a Job on standard input.

Events go to standard output, one JSON object a line; a Record is an event like any other. What libraries print goes to
the error stream.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ...tasks.data.data import place
from ..core.errors import AttnbenchError, SelectionError
from ..core.record import Record
from ..plan.fingerprint import variant_hash
from ..store.store import Store
from .context import WorkerContext
from .job import Job
from .lanes.baseline import baseline_cell
from .lanes.time import time_cells
from .lanes.train import train_cell


def main() -> int:
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def send(event: dict[str, Any]) -> None:
        channel.write(json.dumps(event) + "\n")
        channel.flush()

    job = Job.loads(sys.stdin.read())
    torch.set_num_threads(job.threads or len(os.sched_getaffinity(0)))
    timed = any(cell.lane == "time" for cell in job.cells)
    # what is timed runs as a user would run it; what is trained must end with the same bits
    torch.use_deterministic_algorithms(not timed, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if job.device.startswith("cuda"):
        torch.cuda.set_device(torch.device(job.device))
    try:
        _same_code(job)
        for record in measure(job, send):
            send({"event": "record", "record": record.to_json()})
    except AttnbenchError as error:
        send({"event": "error", "message": str(error), "exit_code": error.exit_code})
        return error.exit_code
    return 0


def _same_code(job: Job) -> None:
    """Raises SelectionError where a file was edited after the run began: its digest would name another source."""
    for cell in job.cells:
        if variant_hash(cell) != job.sources[cell.key]:
            raise SelectionError(
                f"the code behind `{cell}` was edited while the run went on; what is finished is kept, start it again"
            )


def measure(job: Job, send: Any) -> Iterator[Record]:
    """The Records of a Job's cells, each as soon as it is known."""
    notice = lambda message: send({"event": "notice", "message": message})  # noqa: E731
    context = WorkerContext(
        device=torch.device(job.device),
        place=place(job.data_dir, job.offline, notice),
        store=Store(Path(job.results), notice),
        digests=job.digests,
        block=job.block,
        send=send,
    )
    timed = [cell for cell in job.cells if cell.lane == "time"]
    if timed:
        yield from time_cells(context, timed)
    for cell in job.cells:
        if cell.lane == "time":
            continue
        send({"event": "subject", "key": cell.key})
        yield train_cell(context, cell) if cell.lane == "train" else baseline_cell(context, cell)


if __name__ == "__main__":
    sys.exit(main())
