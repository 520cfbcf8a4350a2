"""Signals end a run with one line and the exit code of the signal; no process of it is left."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands_under_test import Command
from seeds import seed
from tally import Extent, Tally

from attnbench.bench.cli.main import Interrupted, signals_raise

TASK, PRESET = "sweep[batch=1,heads=1,length=64]", "smoke[timing_seconds=30]"

RUN = ("run", "--variants", "linear", "--task", TASK, "--preset", PRESET, "--device", "cpu", "--results", "results")

CASES = [
    (number, whole_group, moment)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
    for whole_group in (False, True)
    for moment in ("start", "measuring")
]


def wait_for(command: Command, moment: str, folder: Path) -> None:
    """`start`: the command has its handlers, which it sets before anything heavy; `measuring`: a child is at work."""
    ends = time.monotonic() + 120.0
    while time.monotonic() < ends and command.process.poll() is None:
        if moment == "start" and _handles_sigterm(command.process.pid):
            return
        # the supervisor and the worker that it has forked
        if moment == "measuring" and len(command.children()) >= 2:
            time.sleep(1.0)
            return
        time.sleep(0.01)


def _handles_sigterm(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return False
    caught = next(line for line in status.split("\n") if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def test_signals(extent: Extent, tally: Tally, tmp_path: Path) -> None:
    """signals: one line, exit code 128 + signal, no process a second later."""
    for number, whole_group, moment in extent.of(CASES, sample=1):
        name = f"{number.name} to {'its group' if whole_group else 'the command'}, {moment}"
        folder = tmp_path / name.replace(" ", "-")
        folder.mkdir()
        command = Command(*RUN, folder=folder)
        wait_for(command, moment, folder)
        if whole_group:
            os.killpg(command.process.pid, number)
        else:
            command.send(number)
        ended = command.ended(30.0)
        if number == signal.SIGKILL:
            problem = ended.problem(-signal.SIGKILL)
        else:
            problem = ended.problem(128 + number)
            lines = [line for line in ended.errors.split("\n") if "interrupted" in line]
            said = f"attnbench: interrupted by {number.name}; finished results are kept, and the same command resumes"
            problem = problem or (None if lines == [said] else f"it said {lines}")
        tally.check(name, problem)
    tally.verdict()


def test_interrupts(extent: Extent, tally: Tally, tmp_path: Path) -> None:
    """interrupts at random moments: one line, exit code 130, and no process a second later."""
    drawn = random.Random(seed())
    for number in range(30 if extent.all_cases else 1):
        # to the measuring and beyond: samples are taken for 30 s
        moment = drawn.uniform(0.0, 8.0)
        command = Command(*RUN, folder=tmp_path)
        wait_for(command, "start", tmp_path)
        time.sleep(moment)
        command.send(signal.SIGINT)
        tally.check(f"{number}, after {moment:.2f} s", command.ended(30.0).problem(130))
    tally.verdict()


def test_an_ignored_hangup_stays_ignored(tmp_path: Path) -> None:
    command = Command("list", "variants", folder=tmp_path, ignored=[signal.SIGHUP])
    for _ in range(20):
        command.send(signal.SIGHUP)
        time.sleep(0.01)
    assert command.ended(60.0).problem(0) is None


@pytest.fixture
def heard() -> Iterator[None]:
    """A process that was started in the background ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heard")
def test_an_interrupt_that_meets_the_end_of_an_object_ends_the_command_all_the_same() -> None:
    class Ends:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted) as found, signals_raise():
        ends = [Ends()]
        ends.clear()
        # nobody hears of what is raised while an object is finalised
        time.sleep(60.0)
    assert found.value.exit_code == 130


@pytest.mark.usefixtures("heard")
def test_an_interrupt_waits_for_the_import_of_torch() -> None:
    """Torch's C++ code aborts the process for an exception there, about once in sixty interrupts of an import."""
    done: list[int] = []
    code = compile("signal.raise_signal(signal.SIGINT)\ndone.append(1)", "<module>", "exec")
    with pytest.raises(Interrupted), signals_raise():
        exec(code, {"__name__": "torch.autograd", "signal": signal, "done": done})
        done.append(2)
        time.sleep(60.0)
    assert done == [1, 2]


@pytest.mark.usefixtures("heard")
def test_an_interrupt_that_has_not_come_again_ends_with_the_command() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with signals_raise():
        exec(compile("signal.raise_signal(signal.SIGINT)", "<module>", "exec"), {"__name__": "torch", "signal": signal})
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0) and signal.getsignal(signal.SIGALRM) is before
