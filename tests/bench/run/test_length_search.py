"""What the death of the child that tries lengths means: memory only where memory ran out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attnbench.bench.core.cell import Cell
from attnbench.bench.core.errors import Unsupported
from attnbench.bench.core.spec import Spec
from attnbench.bench.run.events import LengthTried, encode
from attnbench.bench.run.lanes import max_length as module
from attnbench.bench.run.lanes.max_length import LengthSearch
from attnbench.tasks.sweep_point import Point


def attempt(monkeypatch: pytest.MonkeyPatch, answer: bytes | None, **death: Any) -> str:
    """The verdict on a length, of a child that answers so, or that dies so."""
    killed = iter([0, int(death.pop("killed", False))])
    monkeypatch.setattr(module, "oom_kills", lambda: next(killed))

    class Scripted:
        exit_code, last_errors = death.get("exit_code", 0), death.get("last_errors", "")

        def __init__(self, target: str):
            self.target = target

        def send(self, line: bytes) -> None:
            """Takes any order."""

        def receive(self, seconds: float) -> bytes | None:
            return answer

        def end(self, patience: float = 0.0) -> None:
            """Has ended already."""

    monkeypatch.setattr(module, "Child", Scripted)
    cell = Cell(variant=Spec("rela"), task=Spec("sweep"), preset=Spec("quick"), seed=0, lane="time")
    context = SimpleNamespace(send=lambda event: None, device=torch.device("cpu"))
    point = Point(memory_bytes=1000)
    return LengthSearch(context=context, cell=cell, point=point).attempt(256)  # type: ignore[arg-type]


def test_a_child_that_dies_of_an_error_is_a_crash_and_no_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the one that every child met on a GPU; it was published as the longest length that fits."""
    errors = "ValueError: Expected a torch.device with a specified index or an integer, but got:cuda"
    for death in ({"exit_code": 1, "last_errors": errors}, {"exit_code": -11}, {"exit_code": -9}):
        with pytest.raises(RuntimeError, match=r"at length 256: the process ended with"):
            attempt(monkeypatch, None, **death)


@pytest.mark.parametrize(
    "death",
    [
        {"exit_code": -9, "killed": True},
        {"exit_code": -6, "last_errors": "terminate called after throwing an instance of 'std::bad_alloc'"},
        {"exit_code": 1, "last_errors": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"},
        {"exit_code": 1, "last_errors": "OSError: [Errno 12] Cannot allocate memory"},
    ],
)
def test_a_child_that_dies_of_an_allocation_wanted_more_memory(
    monkeypatch: pytest.MonkeyPatch, death: dict[str, Any]
) -> None:
    assert attempt(monkeypatch, None, **death) == "memory"


def test_an_answer_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert attempt(monkeypatch, encode(LengthTried(999.0))) == "fits"
    assert attempt(monkeypatch, encode(LengthTried(1001.0))) == "memory"
    assert attempt(monkeypatch, encode(LengthTried())) == "memory"
    with pytest.raises(Unsupported, match="at length 256: no causal form"):
        attempt(monkeypatch, encode(LengthTried(error="no causal form")))
    with pytest.raises(RuntimeError, match="at length 256: AcceleratorError"):
        attempt(monkeypatch, encode(LengthTried(error="AcceleratorError: CUDA error", crashed=True)))
