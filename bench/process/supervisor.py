"""The supervisor of a child: `python -m attnbench.bench.process.supervisor CHANNEL LIFELINE TARGET`.

It forks before anything heavy is imported. The child runs TARGET; the supervisor waits for its end, or for the end of
the process that started it, and then ends everything that the child has started. TARGET is a module with a function
`main(orders, channel)`, or a script, in which `orders` and `channel` are global variables: the lines that arrive on
standard input, and the file that answers are written to.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import resource
import runpy
import select
import signal
import sys
import time
from typing import IO

CLEANING_SECONDS = 5.0
"""How long the supervisor goes on killing what starts new processes faster than they are found."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36

Lines = IO[bytes]


def main(channel: int, lifeline: int, target: str) -> int:
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
        return _work(channel, target)
    os.close(channel)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    status = _watch(worker, lifeline, waking)
    _end_descendants(worker)
    return _end_like(status)


def _work(channel: int, target: str) -> int:
    """In the child: TARGET with channels that no library reads or writes by accident."""
    orders = os.fdopen(os.dup(0), "rb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    # a library that prints would otherwise write between two answers
    os.dup2(2, 1)
    os.set_inheritable(channel, False)
    answers = os.fdopen(channel, "wb")
    if target.endswith(".py"):
        runpy.run_path(target, {"orders": orders, "channel": answers}, "__main__")
        return 0
    code: int = importlib.import_module(target).main(orders, answers)
    return code


def _watch(worker: int, lifeline: int, waking: int) -> int:
    """The wait status of the worker; SIGKILL where it had to be ended because nobody waits for it any more."""
    while True:
        status = _reaped(worker)
        if status is not None:
            return status
        ready, _, _ = select.select([lifeline, waking], [], [])
        told = os.read(waking, 4096) if waking in ready else b""
        if lifeline in ready or signal.SIGTERM in told or signal.SIGHUP in told:
            return signal.SIGKILL


def _reaped(worker: int) -> int | None:
    """Collects everything that has ended; the wait status of the worker if it is among it."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == worker:
                found = status
    return found


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
        import psutil

        for each in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                each.kill()
        time.sleep(0.005)


def _end_like(status: int) -> int:
    """Ends this process as the worker has ended, so that its exit code is the worker's."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        # its memory tells nothing about the fault
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.pause()
    return os.WEXITSTATUS(status)


def _prctl(option: int, value: int) -> None:
    """Linux only; without it a process group is all that can be ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
