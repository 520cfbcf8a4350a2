"""Changes of what the variants of a process share are seen, and named."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from attnbench.bench.core.spec import Spec
from attnbench.bench.gate import build
from attnbench.bench.run.global_state import StateWatch


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


def test_the_code_of_a_function_is_looked_at_too(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = StateWatch(quick=True)
    monkeypatch.setattr(torch.nn.functional.softmax, "__code__", (lambda *arguments, **options: None).__code__)
    assert "the function torch.nn.functional.softmax" in watch.changes()


def test_a_priority_that_anybody_may_change_counts_for_timings_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    timing, training = StateWatch(), StateWatch(speeds=False)
    monkeypatch.setattr(os, "getpriority", lambda which, who: 7)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {511})
    assert "processors from " in (changes := timing.changes()) and "to 7" in changes
    assert training.changes() == ""


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
