"""Changes of what the variants of a process share are seen, and named."""

from __future__ import annotations

import builtins
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import attnbench
from attnbench.bench.core.cell import Cell
from attnbench.bench.core.errors import PluginError
from attnbench.bench.core.metrics import METRICS
from attnbench.bench.core.spec import Spec
from attnbench.bench.gate import build, subject
from attnbench.bench.measure import timer
from attnbench.bench.run.global_state import StateWatch
from attnbench.bench.run.lanes.time import ChangedProcess, _shared


@pytest.fixture
def restored() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_flush_denormal(False)
    torch.set_float32_matmul_precision("highest")
    torch.use_deterministic_algorithms(False)
    torch.set_grad_enabled(True)
    torch.set_num_threads(threads)


CHANGES: dict[str, Callable[[], object]] = {
    "default dtype from torch.float32 to torch.float64": lambda: torch.set_default_dtype(torch.float64),
    "denormal numbers from True to False": lambda: torch.set_flush_denormal(True),
    "precision of float32 products from highest to medium": lambda: torch.set_float32_matmul_precision("medium"),
    "deterministic algorithms from False to True": lambda: torch.use_deterministic_algorithms(True),
    "gradients from True to False": lambda: torch.set_grad_enabled(False),
    "number of threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
}


@pytest.mark.parametrize("words", CHANGES)
@pytest.mark.usefixtures("restored")
def test_a_changed_setting_is_named(words: str) -> None:
    watch = StateWatch(quick=True)
    assert watch.changes() == ""
    CHANGES[words]()
    assert words in watch.changes()
    assert watch.changes() == ""


@pytest.mark.parametrize(
    ("owner", "name", "quick"),
    [
        (torch.nn.functional, "scaled_dot_product_attention", True),
        (torch.nn.functional, "softmax", True),
        (torch.Tensor, "softmax", True),
        (build, "build_checked", False),
        (Spec, "parse", False),
    ],
)
def test_a_patched_function_is_named(owner: object, name: str, quick: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = StateWatch(quick=quick)
    monkeypatch.setattr(owner, name, lambda *arguments, **options: None)
    assert f".{name}" in watch.changes()


@pytest.mark.parametrize(
    ("owner", "name", "quick"),
    [
        (timer, "time", True),
        (timer, "LEAST_SECONDS", True),
        (subject, "torch", False),
        (torch.Tensor, "item", True),
        (torch.Tensor, "__float__", True),
        (builtins, "max", True),
    ],
)
def test_a_module_a_constant_or_a_method_in_c_that_is_replaced_is_named(
    owner: object, name: str, quick: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = StateWatch(quick=quick)
    there = getattr(owner, name)
    stand_in = (lambda *arguments: there(*arguments)) if callable(there) else SimpleNamespace(**vars(time))
    monkeypatch.setattr(owner, name, stand_in)
    changes = watch.changes()
    assert f".{name}" in changes and changes.count(" the ") == 1


def test_a_table_that_is_changed_in_place_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = StateWatch()
    monkeypatch.setitem(METRICS, "loss", METRICS["accuracy"])
    assert "the value attnbench.bench.core.metrics.METRICS" in watch.changes()


def test_the_default_of_an_argument_is_looked_at_too(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = StateWatch()
    monkeypatch.setattr(build.build_checked, "__defaults__", (2,))
    assert "the function attnbench.bench.gate.build.build_checked" in watch.changes()


PATCHES = {
    "torch.Tensor.item": "torch.Tensor.item = torch.Tensor.__float__ = lambda self: 0.0",
    "gate.subject.torch": "import sys, types\nsys.modules['attnbench.bench.gate.subject'].torch = "
    "types.SimpleNamespace(**vars(torch))",
}


@pytest.mark.parametrize("named", PATCHES)
def test_code_that_replaces_what_examines_it_has_no_verdict(named: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        f"import torch\n{PATCHES[named]}\ndef attend(q, k, v): return torch.softmax(q @ k.transpose(-1, -2), -1) @ v\n"
    )
    with pytest.raises(PluginError, match=named):
        attnbench.audit(f"{path}:attend", compile="", causal=True)


def test_a_check_of_such_code_fails(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        f"import torch\n{PATCHES['torch.Tensor.item']}\nfrom attnbench.variants.maps.softmax import Softmax\n"
    )
    report = attnbench.check(f"{path}:Softmax")
    assert not report and "torch.Tensor.item" in str(report)


def test_the_code_of_a_function_is_looked_at_too(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = StateWatch(quick=True)
    monkeypatch.setattr(torch.nn.functional.softmax, "__code__", (lambda *arguments, **options: None).__code__)
    assert "the function torch.nn.functional.softmax" in watch.changes()


def test_a_priority_that_anybody_may_change_counts_for_timings_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    timing, training = StateWatch(), StateWatch(speeds=False)
    monkeypatch.setattr(os, "getpriority", lambda which, who: 7)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {511})
    monkeypatch.setattr(os, "sched_getscheduler", lambda pid: os.SCHED_IDLE)
    assert "processors from " in (changes := timing.changes()) and "to 7" in changes
    assert f"scheduling class from {os.SCHED_OTHER} to {os.SCHED_IDLE}" in changes
    assert training.changes() == ""


def test_what_another_process_has_changed_is_undone_and_is_the_outcome_of_foreign_code_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("class Mine: pass\nclass Done: pass", encoding="utf-8")
    own, done, foreign = (
        Cell(variant=Spec.parse(name), task=Spec("sweep"), preset=Spec("smoke"), lane="time")
        for name in ("softmax", f"{tmp_path}/mine.py:Done", f"{tmp_path}/mine.py:Mine")
    )
    builders: Any = {
        cell: SimpleNamespace(failure=lambda error, of=cell: (of, str(error))) for cell in (own, done, foreign)
    }
    before, watch = os.sched_getaffinity(0), StateWatch()
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    os.sched_setaffinity(0, {min(before)})
    blamed: list[Any] = []
    try:
        with pytest.raises(ChangedProcess):
            for each in _shared(watch, builders, own, None, {done}):
                blamed.append(each)
    finally:
        StateWatch.undo_from_outside()
    ((cell, why),) = blamed
    assert cell == foreign and "scheduling class from 0 to 3" in why
    assert (os.sched_getaffinity(0), os.sched_getscheduler(0)) == (before, os.SCHED_OTHER)


def test_a_live_thread_is_named() -> None:
    watch, done = StateWatch(quick=True), threading.Event()
    thread = threading.Thread(target=done.wait, name="left behind")
    thread.start()
    try:
        assert "the live thread left behind" in watch.changes()
    finally:
        done.set()
        thread.join()
    assert StateWatch(quick=True).changes() == ""


def test_a_variable_that_libraries_read_late_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = StateWatch(quick=True)
    monkeypatch.setenv("SOME_CACHE", "elsewhere")
    assert watch.changes() == ""
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    assert "environment" in watch.changes()


def test_the_compiler_of_torch_is_no_change() -> None:
    watch = StateWatch()
    # it wraps functions of torch when it is imported
    import torch._dynamo  # noqa: F401

    assert watch.changes() == ""
