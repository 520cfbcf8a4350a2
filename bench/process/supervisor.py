"""The supervisor of a child: forked from the server, it forks the child, and ends everything that the child started.

It waits for the end of the child, or for that of the process that asked for it, whichever comes first. The child runs
its target: a module with a function `main(orders, channel)`, or a script, in which `orders` and `channel` are global
variables: the lines that arrive, and the file that answers are written to.
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
import struct
import sys
import time

import msgspec
import psutil

from .wire import decode_line

CLEANING_SECONDS = 5.0
"""How long the supervisor goes on killing what starts new processes faster than they are found."""

NUMBER = struct.Struct("i")
"""What a supervisor writes on its lifeline: first its process id, at the end the exit code of the child."""


class Start(msgspec.Struct, frozen=True):
    """The first order to a child: what it runs, and its variables."""

    target: str
    environment: dict[str, str]


_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


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
    code = os.waitstatus_to_exitcode(_watch(worker, lifeline, waking))
    _end_descendants(worker)
    with contextlib.suppress(OSError):
        os.write(lifeline, NUMBER.pack(code))
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
    target = start.target
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
        for each in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                each.kill()
        time.sleep(0.005)


def _prctl(option: int, value: int) -> None:
    """Linux only; without it a process group is all that can be ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
