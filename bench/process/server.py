"""The server of children: `python -m attnbench.bench.process.server SOCKET PARENT`, a process with torch imported.

Every child is forked from it and starts in a tenth of the time that importing takes. It imports no plugin, starts no
thread, never asks for a GPU and computes nothing that would start torch's pool of threads: a fork keeps none of these
in order. What libraries read when they are imported they have read from this process's environment, so that there is
one server for each environment.

A request is a letter with four descriptors: the channel of the child, the lifeline of its supervisor, its error stream,
and the folder in which it runs. The supervisor is forked from the server and forks the child. It waits for the end of
the child, or for that of the process that asked for it, whichever comes first, and ends everything that the child
started. The child runs its target: a module with a function `main(orders, channel)`, or a script, in which `orders` and
`channel` are global variables: the lines that arrive, and the file that answers are written to.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import runpy
import select
import signal
import socket
import sys
import time
from pathlib import Path

import numpy as np
import psutil

from .child import NUMBER, Start, decode_line
from .servers import note_environment

WATCH = "attnbench.bench.run.global_state"

IMPORTED = (
    "attnbench.bench.run.worker", "attnbench.bench.run.check", "attnbench.bench.process.ask", WATCH,
    "torch.fx.experimental.symbolic_shapes",
)  # fmt: skip
"""With what torch imports at its first backward pass, which takes each child half a second else."""

ON_A_GPU = ("torch._dynamo", "torch._higher_order_ops.triton_kernel_wrap")
"""Torch imports them at its first calls on a GPU, which takes each child five seconds if the server has not done so."""

GPU = Path("/dev/nvidiactl")
"""There where a GPU is; to ask CUDA would leave a context behind, and no child could use it."""

CLEANING_SECONDS = 5.0
"""The time for which the supervisor kills processes that start new ones faster than they are found."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def main(requests: socket.socket, parent: int) -> int:
    """Returns 0 at the end of the process that asks, and in a child the child's exit code."""
    # it may be killed while this one imports, long before it reads its socket
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # what a supervisor that was killed leaves behind can be found here, and ends with this process
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    if os.getppid() != parent:
        return 1
    for name in (*IMPORTED, *(ON_A_GPU if GPU.exists() else ())):
        importlib.import_module(name)
    importlib.import_module(WATCH).note_functions()
    # supervisors tell their end themselves
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        letter, descriptors, _, _ = socket.recv_fds(requests, 1, 4)
        if not letter:
            return 0
        if os.fork() == 0:
            requests.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            # a process that starts by itself draws its own
            np.random.seed()
            return supervise(*descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def supervise(channel: int, lifeline: int, errors: int, folder: int) -> int:
    """Returns in the child alone, with its exit code.

    `channel`, `lifeline`: sockets. `errors`: where the child writes what it prints. `folder`: where it runs.
    """
    os.setsid()
    os.fchdir(folder)
    os.dup2(errors, 2)
    for descriptor in (errors, folder):
        os.close(descriptor)
    # descendants in sessions of their own, whose parents end, become children of this process and can be found
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    waking, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(waking, False)
    handled = (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for each in handled:
        signal.signal(each, lambda *_: None)
    me = os.getpid()
    with contextlib.suppress(OSError):
        os.write(lifeline, NUMBER.pack(me))
    worker = os.fork()
    if worker == 0:
        signal.set_wakeup_fd(-1)
        for each in handled:
            signal.signal(each, signal.default_int_handler if each == signal.SIGINT else signal.SIG_DFL)
        for end in (waking, wake, lifeline):
            os.close(end)
        # a session of its own: a plugin that kills its process group spares the supervisor
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != me:
            os._exit(1)
        return _work(channel)
    # both would stay open for whoever reads the other ends
    os.close(channel)
    os.dup2(0, 2)
    status = None
    while status is None:
        # collects everything that has ended, the orphans that it has adopted too
        with contextlib.suppress(ChildProcessError):
            while status is None and (ended := os.waitpid(-1, os.WNOHANG))[0]:
                status = ended[1] if ended[0] == worker else None
        if status is None:
            ready, _, _ = select.select([lifeline, waking], [], [])
            signals = os.read(waking, 4096) if waking in ready else b""
            if lifeline in ready or signal.SIGTERM in signals or signal.SIGHUP in signals:
                # nobody waits for the child any more
                status = int(signal.SIGKILL)
    _end_descendants(worker)
    with contextlib.suppress(OSError):
        os.write(lifeline, NUMBER.pack(os.waitstatus_to_exitcode(status)))
    os._exit(0)


def _work(channel: int) -> int:
    """In the child: the target, with channels that no library reads or writes by accident."""
    with socket.socket(fileno=channel) as both:
        orders, answers = both.makefile("rb"), both.makefile("wb")
    # what is printed is part of the last words
    os.dup2(2, 1)
    start: Start = decode_line(orders.readline(), Start)
    os.environ.clear()
    os.environ.update(start.environment)
    note_environment()
    target = start.target
    if target.endswith(".py"):
        runpy.run_path(target, {"orders": orders, "channel": answers}, "__main__")
        return 0
    code: int = importlib.import_module(target).main(orders, answers)
    return code


def _end_descendants(worker: int) -> None:
    """Kills everything below this process, until nothing is left of it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(worker, signal.SIGKILL)
    ends = time.monotonic() + CLEANING_SECONDS
    while time.monotonic() < ends:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        for each in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                each.kill()
        time.sleep(0.005)


def _prctl(option: int, value: int) -> None:
    """Linux only; without it a process group is all that can be ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])))
