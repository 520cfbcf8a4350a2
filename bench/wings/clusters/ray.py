"""Jobs as Ray tasks (extra `ray`): on a cluster by its address, or on one that is started on this machine.

Where the nodes share the results folder, a job writes its events there; where they do not, its Records and what
belongs to them come back as the value of the task. Ray starts a job again where its node or its worker was lost;
whatever else goes wrong is a Record, which was made where it happened. Tasks end with this process, so that the same
command starts them again: from their checkpoints where the folder is shared.

Ray sends code as pickles and asks nobody for a password: its cluster must be one that you trust.
"""

from __future__ import annotations

import importlib
import math
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...core.cell import Job
from ...core.errors import AttnbenchError, SelectionError, StoreError
from ...core.files import replacing
from ...process.child import decode_order, encode_order
from ...run.events import CellFinished, Event, Failed, OnEvent, decode, encode
from ...run.executors.executor import JOBS, Needs
from ...run.executors.run_job import WorkerError
from ...store.store import Store, is_artifact_name
from .job_files import Followed, JobFiles, submission_of
from .node import describe_node, prepare_data, run_here
from .settings import RayOptions, gigabytes_of

POLL_SECONDS = 1.0

OBJECT_STORE_BYTES = 100 * 2**20
"""The object store of a cluster that is started here: Records are small."""


@dataclass(slots=True)
class _Running:
    """A job that Ray has, with the reference to what it returns."""

    followed: Followed
    ref: Any


class RayExecutor:
    """`jobs`: how many Ray is given at once; None gives it all."""

    room = math.inf

    def __init__(
        self,
        results: Path,
        files: JobFiles,
        options: RayOptions,
        jobs: int | None,
        on_warning: Callable[[str], None],
    ):
        self.results, self.files, self.options, self.jobs = results.absolute(), files, options, jobs
        self.on_warning = on_warning
        self._waiting: deque[tuple[Job, Needs]] = deque()
        self._running: dict[str, _Running] = {}

    def submit(self, job: Job, needs: Needs) -> None:
        data_dir = job.data_dir.absolute() if job.data_dir else None
        job = replace(job, executor="ray", results=self.results, data_dir=data_dir)
        self.files.submit(submission_of(job, needs.seconds))
        self._waiting.append((job, needs))

    def finished(self, on_event: OnEvent) -> Iterator[str]:
        if not self._waiting:
            return
        with self.files.submitting(), _cluster(self.options) as ray:
            token = self.files.folder / f"shared-{uuid.uuid4().hex}"
            with replacing(token):
                pass
            try:
                yield from self._follow(ray, token.name, on_event)
            finally:
                for block in list(self._running):
                    self._cancel_running(ray, block)
                token.unlink(missing_ok=True)

    def cancel(self, block: str) -> None:
        self._waiting = deque(each for each in self._waiting if each[0].id != block)
        if block in self._running:
            self._cancel_running(_ray(), block)
        self.files.forget(block)

    def _follow(self, ray: Any, token: str, on_event: OnEvent) -> Iterator[str]:
        while self._waiting or self._running:
            while self._waiting and (self.jobs is None or len(self._running) < self.jobs):
                job, needs = self._waiting.popleft()
                self._running[job.id] = _Running(Followed(job, self.files), self._task(ray, job, needs, token))
            refs = [running.ref for running in self._running.values()]
            try:
                done, _ = ray.wait(refs, num_returns=1, timeout=POLL_SECONDS)
            except SystemError as error:
                # in Ray's own code the exception of a signal handler becomes this
                raise error.__cause__ or error.__context__ or error from None
            for block, running in list(self._running.items()):
                for event in running.followed.news():
                    on_event(event)
                if running.ref in done or not running.followed.left:
                    self._end(ray, running, on_event)
                    del self._running[block]
                    yield block
                    running.followed.end()

    def _end(self, ray: Any, running: _Running, on_event: OnEvent) -> None:
        """Take what came back as the value of a task, once it has ended."""
        try:
            lines, artifacts = ray.get(running.ref)
        except ray.exceptions.RayError as error:
            # its last words may be in the folder, though the worker that spoke them is gone
            for event in running.followed.news():
                on_event(event)
            if running.followed.left:
                self.on_warning(
                    f"ray lost job {running.followed.block}, and its cells have no Record: "
                    f"{' '.join(str(error).split())[:300]}; the same command tries again"
                )
                self.files.forget(running.followed.block)
            return
        store = Store(self.results, self.on_warning)
        for name, content in artifacts.items():
            if not is_artifact_name(name) or store.put_artifact(content, name[24:]) != name:
                raise StoreError(f"expected an artifact of the name that its content has, got {name[:60]!r}")
        for event in running.followed.taken([decode(line) for line in lines]):
            on_event(event)

    def _task(self, ray: Any, job: Job, needs: Needs, token: str) -> Any:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        # a timing on a processor takes all that a node has, so that nothing else comes there
        most = max((int(node.get("CPU", 0)) for node in nodes), default=0)
        cpus = most if needs.alone else needs.threads
        memory = gigabytes_of(self.options.memory) * 2**30 if self.options.memory else None
        if not any(node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= needs.gpus for node in nodes):
            raise SelectionError(
                f"expected a node of the Ray cluster with {cpus} processors and {needs.gpus} GPUs, got "
                + (", ".join(sorted({f"{n.get('CPU', 0):g} and {n.get('GPU', 0):g}" for n in nodes})) or "no node")
                + "; choose less with --threads and --executor-option gpus=0"
            )
        task = ray.remote(
            num_cpus=cpus,
            num_gpus=needs.gpus,
            memory=memory,
            max_retries=self.options.retries,
            # an exception of ours would only come again
            retry_exceptions=False,
        )(run_on_ray)
        return task.remote(encode_order(job), token)

    def _cancel_running(self, ray: Any, block: str) -> None:
        running = self._running.pop(block)
        with suppress(Exception):
            ray.cancel(running.ref, force=True)


def run_on_ray(line: bytes, token: str) -> tuple[list[bytes], dict[str, bytes]]:
    """Run a job on a node. Returns the Records as lines, and artifacts by name where the driver has another folder."""
    job = decode_order(line)
    assert isinstance(job, Job)
    job = replace(job, node=platform.node())
    if (job.results / JOBS / token).exists():
        _run(job)
        return [], {}
    own = Path(tempfile.mkdtemp(prefix="attnbench-"))
    try:
        job = replace(job, results=own)
        said = _run(job)
        folder = own / "artifacts"
        kept = {path.name: path.read_bytes() for path in folder.iterdir()} if folder.is_dir() else {}
        return [encode(event) for event in said], kept
    finally:
        shutil.rmtree(own, ignore_errors=True)


def _run(job: Job) -> list[Event]:
    """The Records of a job, and the failure that a person must cure; both stand in its job files too."""
    files, said = JobFiles(job.results), list[Event]()
    try:
        prepare_data(job, files)
        said += (e for e in run_here(job, describe_node(job), files, patience=60.0) if isinstance(e, CellFinished))
    except WorkerError as error:
        said.append(Failed(str(error), error.exit_code))
    return said


def _ray() -> Any:
    """Ray, which is imported only where it is used: that takes a second."""
    return importlib.import_module("ray")


class _cluster:
    """The cluster at the address of the options, or one on this machine, which ends with the `with` statement."""

    def __init__(self, options: RayOptions):
        self.options = options
        self._folder: str | None = None
        self._watch: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Any:
        try:
            ray = _ray()
        except ImportError:
            raise SelectionError("expected ray for --executor ray: pip install 'attnbench[ray]'") from None
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        common = {"log_to_driver": False, "logging_level": "ERROR", "include_dashboard": False}
        address = self.options.address or os.environ.get("RAY_ADDRESS")
        try:
            if address:
                del common["include_dashboard"]
                ray.init(address=address, **common)
            else:
                # the names of its sockets may have 107 bytes
                self._folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
                command = [sys.executable, "-m", f"{__package__}.ray_watch", self._folder]
                # in a session of its own, since what ends this process must not end it
                self._watch = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
                ray.init(
                    address="local",
                    num_cpus=len(os.sched_getaffinity(0)),
                    object_store_memory=OBJECT_STORE_BYTES,
                    _temp_dir=self._folder,
                    **common,
                )
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            self._clear()
            reason = " ".join(str(error).split())[:300]
            raise AttnbenchError(f"cannot reach Ray at {address or 'this machine'}: {reason}") from None
        # Ray answers a signal with the state of its stack
        for number, handler in handlers.items() if threading.current_thread() is threading.main_thread() else ():
            signal.signal(number, handler)
        return ray

    def __exit__(self, *_: object) -> None:
        _ray().shutdown()
        self._clear()

    def _clear(self) -> None:
        if self._folder is not None:
            time.sleep(0.1)
            shutil.rmtree(self._folder, ignore_errors=True)
        if self._watch is not None and self._watch.stdin is not None:
            self._watch.stdin.close()
            self._watch.wait()
