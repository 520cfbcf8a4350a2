"""Children that work at once: each has one order, and an interrupt ends all of them at once."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from attnbench.bench.process import side_by_side as module
from attnbench.bench.process.child import Child
from attnbench.bench.process.side_by_side import side_by_side


class Silent:
    """A child that says nothing until it is stopped."""

    def __init__(self, target: str):
        self.stopped = threading.Event()
        self.open = {0}

    def receive(self, seconds: float) -> bytes | None:
        if self.open:
            raise TimeoutError
        return None

    def end(self) -> None:
        self.open.clear()

    def stop(self) -> None:
        self.stopped.set()


def test_orders_run_at_the_same_time_and_are_answered_as_they_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Child", Silent)
    meeting = threading.Barrier(3, timeout=20)

    def ask(child: object, order: int) -> int:
        meeting.wait()
        time.sleep(0.1 * order)
        return order * order

    assert list(side_by_side([2, 1, 0], 3, "anything", ask)) == [(0, 0), (1, 1), (2, 4)]


def test_whoever_stops_listening_ends_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Child", Silent)
    asked: list[int] = []

    def ask(child: Any, order: int) -> int:
        asked.append(order)
        if order:
            assert child.stopped.wait(20)
        return order

    answers = side_by_side([0, 1, 2, 3, 4], 3, "anything", ask)
    assert next(answers) == (0, 0)
    begun = time.monotonic()
    answers.close()
    # those that had not begun never do
    assert time.monotonic() - begun < 10 and 4 not in asked


def test_a_child_gets_the_next_order_unless_it_was_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Silent] = []

    class Counted(Silent):
        def __init__(self, target: str):
            super().__init__(target)
            started.append(self)

    monkeypatch.setattr(module, "Child", Counted)

    def ask(child: Any, order: int) -> int:
        assert child.open
        if order == 1:
            child.end()
        return started.index(child)

    assert list(side_by_side([0, 1, 2, 3], 1, "anything", ask, keep=True)) == [(0, 0), (1, 0), (2, 1), (3, 1)]
    answers = side_by_side([0, 0], 1, "anything", ask, keep=True)
    assert next(answers)
    answers.close()
    assert not any(child.open for child in started)
    assert [child for _, child in side_by_side([0, 0], 1, "anything", ask)] == [3, 4]


def test_a_child_that_dies_between_two_orders_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Child", Silent)

    def ask(child: Any, order: int) -> bool:
        was_new = not child.stopped.is_set()
        child.stopped.set()
        # its channel ends once the next order looks at it
        monkeypatch.setattr(child, "receive", lambda seconds: None)
        return was_new

    assert [new for _, new in side_by_side([0, 1, 2], 1, "anything", ask, keep=True)] == [True, True, True]


@pytest.mark.slow  # a process that imports torch
def test_a_child_that_is_stopped_is_heard_of_by_the_thread_that_waits_for_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import time\nchannel.write(b'1\\n'); channel.flush()\ntime.sleep(600)\n", encoding="utf-8")
    with Child(str(script)) as child:
        assert child.receive(60) == b"1"
        threading.Timer(0.3, child.stop).start()
        begun = time.monotonic()
        assert child.receive(60) is None and time.monotonic() - begun < 20
