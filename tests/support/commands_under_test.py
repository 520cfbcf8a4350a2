"""Whole commands in processes of their own: how they ended, and whether any process of theirs is left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

MARK = "ATTNBENCH_TEST_MARK"
"""A variable that every process of a command inherits, by which those that are left are found."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that has ended. `code`: None where it had to be killed; `orphans`: its processes a second later."""

    code: int | None
    output: str
    errors: str
    orphans: tuple[str, ...]

    def problem(self, *codes: int) -> str | None:
        """What is wrong with it, if anything, where `codes` are the right exit codes."""
        if self.code is None:
            return f"it hung: {self.errors[-200:]}"
        if "Traceback (most recent call last)" in self.output + self.errors:
            return f"a traceback: {self.errors[-300:]}"
        if self.orphans:
            return f"left behind: {', '.join(self.orphans)}"
        if self.code not in codes:
            return f"exit code {self.code}, expected {codes}: {(self.errors or self.output)[-300:]}"
        return None


def _begin(ignored: tuple[signal.Signals, ...]) -> None:
    # a shell ignores SIGINT in commands that it starts in the background, and nohup SIGHUP: their children would too
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)


class Command:
    """`attnbench …` in a folder of its own, started and then waited for. `ignored`: signals that it starts ignoring."""

    def __init__(
        self,
        *words: str,
        folder: Path,
        variables: Mapping[str, str] | None = None,
        ignored: Sequence[signal.Signals] = (),
    ):
        self.mark = uuid.uuid4().hex
        environment = os.environ | {MARK: self.mark, "ATTNBENCH_CACHE": str(folder / "cache")} | dict(variables or {})
        self.process = subprocess.Popen(
            [sys.executable, "-m", "attnbench", *words],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=partial(_begin, tuple(ignored)),
        )

    def send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, number)

    def children(self) -> list[psutil.Process]:
        """All processes of the command but itself."""
        return [process for process in _marked(self.mark) if process.pid != self.process.pid]

    def ended(self, seconds: float) -> Ended:
        """Waits for its end, and kills what is left of it after `seconds`, or a second after its end."""
        code: int | None
        try:
            output, errors = self.process.communicate(timeout=seconds)
            code = self.process.returncode
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL)
            # whoever holds the pipes would keep this waiting
            for process in _marked(self.mark):
                with contextlib.suppress(psutil.Error):
                    process.kill()
            output, errors = self.process.communicate()
            code = None
        orphans = self.orphans()
        return Ended(code, output.decode(errors="replace"), errors.decode(errors="replace"), orphans)

    def orphans(self) -> tuple[str, ...]:
        """What is left of its processes a second later; it is killed."""
        ends = time.monotonic() + 1.0
        while (left := self.children()) and time.monotonic() < ends:
            time.sleep(0.02)
        found = []
        for process in left:
            with contextlib.suppress(psutil.Error):
                found.append(" ".join(process.cmdline())[-80:] or process.name())
                process.kill()
        return tuple(found)


def run_command(*words: str, folder: Path, variables: Mapping[str, str] | None = None, seconds: float = 120.0) -> Ended:
    return Command(*words, folder=folder, variables=variables).ended(seconds)


def _marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == mark:
                found.append(process)
    return found
