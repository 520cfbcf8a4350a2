"""The server of children: `python -m attnbench.bench.process.server SOCKET PARENT`, a process with torch imported.

Every child is forked from it and starts in a tenth of the time that importing takes. It imports no plugin, starts no
thread, never asks for a GPU and computes nothing that would start torch's pool of threads: a fork keeps none of these
in order. What libraries read when they are imported they have read from this process's environment, so that there is
one server for each environment.

A request is a letter with four descriptors: the channel of the child, the lifeline of its supervisor, its error stream,
and the folder in which it runs.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import socket
import sys

import numpy as np

from .supervisor import supervise

IMPORTED = ("attnbench.bench.run.worker", "attnbench.bench.process.service")

_PR_SET_PDEATHSIG = 1


def main(requests: socket.socket, parent: int) -> int:
    """Returns 0 at the end of the process that asks, and in a child the child's exit code."""
    if sys.platform == "linux":
        # it may be killed while this one imports, long before it reads its socket
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            return 1
    for name in IMPORTED:
        importlib.import_module(name)
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


if __name__ == "__main__":
    sys.exit(main(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])))
