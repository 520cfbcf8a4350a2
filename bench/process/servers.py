"""Servers of children of this process: one for each environment, started when its first child is asked for.

`server.py` is what they run. Caches of compilers that a child may use are named here.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil

from ..core.files import is_trusted, make_private

ERROR_BYTES = 4096
"""Bytes of the end of an error stream that are kept to explain a death."""

_MODULE = "attnbench.bench.process.server"


@dataclass(frozen=True, slots=True)
class _Server:
    """The server of one environment; `error_stream`: a file."""

    process: subprocess.Popen[bytes]
    requests: socket.socket
    error_stream: IO[bytes]

    @property
    def errors(self) -> bytes:
        """The end of what it wrote, such as why torch cannot be imported."""
        if self.error_stream.closed:
            return b""
        self.error_stream.seek(max(self.error_stream.seek(0, os.SEEK_END) - ERROR_BYTES, 0))
        return self.error_stream.read()

    def end(self) -> None:
        self.requests.close()
        left: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error):
            left = psutil.Process(self.process.pid).children(recursive=True)
        self.process.kill()
        for each in left:
            with contextlib.suppress(psutil.Error):
                each.kill()
        self.process.wait()
        self.error_stream.close()


def environment_of_child(more: Mapping[str, str]) -> dict[str, str]:
    """The environment of a child that is given `more`."""
    found = {**os.environ, **more}
    return found | _compiler_caches(found.get("TRITON_CACHE_DIR"), found.get("TORCHINDUCTOR_CACHE_DIR"))


@functools.cache
def _compiler_caches(*named: str | None) -> dict[str, str]:
    """Variables that name caches of Triton and of torch.compile in which nobody else could have written.

    Whoever uses such a cache runs what lies there. The folders that are `named` count if they can be trusted, else two
    folders of this account: what torch.compile takes by itself is a name in `/tmp`, which anybody may make first.
    """
    found = {}
    for name, folder in zip(("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"), named, strict=True):
        for each in filter(None, (folder, f"~/.cache/attnbench/{name.split('_')[0].lower()}")):
            with contextlib.suppress(OSError, RuntimeError):
                chosen = Path(each).expanduser().absolute()
                make_private(chosen)
                if chosen.is_dir() and is_trusted(chosen):
                    found[name] = str(chosen)
                    break
    if "TRITON_CACHE_DIR" in found:
        _forget_damaged(Path(found["TRITON_CACHE_DIR"]))
    return found


def _forget_damaged(cache: Path) -> None:
    """Leaves out of Triton's cache what has an empty file: a machine that goes down leaves some, and none loads."""
    with contextlib.suppress(OSError):
        for each in cache.glob("*/*"):
            if each.is_file() and not each.stat().st_size:
                # a kernel without the list of its files is compiled anew
                for stale in each.parent.glob("__grp__*.json") if each.suffix != ".so" else [each]:
                    stale.unlink()


_READ_AT_USE = ("ATTNBENCH_", "PYTEST_", "CUBLAS_")
"""Beginnings of variables that nothing reads when it is imported."""

_SERVERS: dict[frozenset[tuple[str, str]], _Server] = {}
_STARTING = threading.Lock()


def start_server() -> None:
    """Start the server of children, which imports torch, as long as this process is busy with its own imports.

    Called by a child before it does anything else, it is forked: a child has imported all that a server imports.
    """
    _server(environment_of_child({}), forks=True)


_BEGAN_WITH: list[frozenset[tuple[str, str]]] = []
"""In a child: the variables that its libraries have read."""


def note_environment() -> None:
    """In a child, before its target runs."""
    _BEGAN_WITH[:] = [_read_at_import(os.environ)]


def _is_like_server(key: frozenset[tuple[str, str]]) -> bool:
    """True if a fork of this process is a server for these variables; of several threads it would have but one."""
    return key in _BEGAN_WITH and psutil.Process().num_threads() == 1


def _serve(theirs: int, parent: int) -> None:
    """In a fork, in place of its program; it never returns to what this process has run."""
    # the parent waits until a pipe among these is closed, as by a program that starts
    os.closerange(3, theirs)
    os.closerange(theirs + 1, os.sysconf("SC_OPEN_MAX"))
    code: Any = 1
    try:
        # this thread has it, and so has the fork
        _STARTING.release()
        _SERVERS.clear()
        code = importlib.import_module(_MODULE).main(socket.socket(fileno=theirs), parent)
    except SystemExit as error:
        code = error.code
    except BaseException:
        traceback.print_exc()
    finally:
        # each child of this server ends here too
        end_servers()
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


def _read_at_import(environment: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    return frozenset(each for each in environment.items() if not each[0].startswith(_READ_AT_USE))


def fork_child(environment: Mapping[str, str], descriptors: list[int]) -> _Server:
    """Asks the server of this environment for a child; the letter waits where the server still imports."""
    server = _server(environment)
    # one that has died closes the channel of the child, whose end is seen there
    with contextlib.suppress(OSError):
        socket.send_fds(server.requests, [b"f"], descriptors)
    return server


def _server(environment: Mapping[str, str], *, forks: bool = False) -> _Server:
    """The server of this environment, since libraries read variables when they are imported; it may be started here."""
    key = _read_at_import(environment)
    with _STARTING:
        server = _SERVERS.get(key)
        if server is not None and server.process.poll() is not None:
            server.end()
            server = None
        if server is None:
            requests, theirs = socket.socketpair()
            error_stream = tempfile.TemporaryFile()  # noqa: SIM115
            # -P: a file beside the person who runs it must not stand in for a module of the same name
            command = (sys.executable, "-P", "-m", _MODULE, str(theirs.fileno()))
            fork = functools.partial(_serve, theirs.fileno(), os.getpid()) if forks and _is_like_server(key) else None
            with theirs:
                process = subprocess.Popen(
                    (*command, str(os.getpid())),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=error_stream,
                    pass_fds=(theirs.fileno(),),
                    env=environment,
                    preexec_fn=fork,
                    # Ctrl-C at the terminal is for the process that started it
                    start_new_session=True,
                )
            server = _SERVERS[key] = _Server(process, requests, error_stream)
    return server


@atexit.register
def end_servers() -> None:
    """Ends the servers of this process, as at the end of a command; the next child starts another."""
    while _SERVERS:
        _SERVERS.popitem()[1].end()
