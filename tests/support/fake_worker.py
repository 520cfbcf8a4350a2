"""A worker without torch: it answers each Cell of its job as the file `NAME.does` among the notes asks it to.

`die` ends the process; `sleep` waits until a file `NAME.go` is there; nothing, or no file, is a Record at once. Each
start of a Cell adds a line to `NAME.starts`.
"""

import json
import os
import signal
import time
from pathlib import Path

from attnbench.bench.core.record import Machine, Measurement, Outcome, Record
from attnbench.bench.process.child import decode_order

job = decode_order(orders.readline())  # noqa: F821
machine = Machine(id="fake", system="s", processor="p", cores=2, threads=1, memory_bytes=2**30)
# the folder of results is that of a node where it is not shared
notes = Path(os.environ["FAKE_NOTES"])


def send(**event):
    channel.write(json.dumps(event).encode() + b"\n")  # noqa: F821
    channel.flush()  # noqa: F821


for cell in job.cells:
    name = cell.variant.name
    with (notes / f"{name}.starts").open("a") as file:
        file.write(f"{os.getpid()}\n")
    send(event="subject", key=cell.key)
    asked = notes / f"{name}.does"
    does = asked.read_text() if asked.exists() else ""
    if does == "die":
        os.kill(os.getpid(), signal.SIGSEGV)
    while does == "sleep" and not (notes / f"{name}.go").exists():
        send(event="alive", key=cell.key)
        time.sleep(0.05)
    record = Record(
        cell=cell,
        outcome=Outcome.OK,
        machine=machine,
        measurements=(Measurement.of("loss", len(name), split="test"),),
        digest=job.digests[cell.key],
        block=job.id,
        started="2026-01-01T00:00:00+00:00",
        executor=job.executor,
        node=job.node,
        device="cpu",
    )
    send(event="record", record=record.to_json())
