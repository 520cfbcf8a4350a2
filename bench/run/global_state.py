"""The state of a process that every variant in it shares: settings, patched functions, threads, child processes.

A variant that changes it is measured by other rules than the rest, or decides over theirs. The variant is found by
comparing the state before and after it, and the others get a new process.
"""

from __future__ import annotations

import gc
import inspect
import math
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import psutil
import torch
from torch.nn import functional as F

WATCHED: tuple[ModuleType | type, ...] = (
    torch, torch.Tensor, torch.nn.Module, torch.nn.Linear, torch.nn.functional, torch.autograd, torch.cuda,
    torch.optim.AdamW, gc, math, statistics, threading, time,
)  # fmt: skip
"""Modules and classes, beside attnbench's own, whose functions decide over what is measured."""

READ_LATE = ("ATEN_", "ATTNBENCH_", "CUBLAS_", "CUDA_", "CUDNN_", "KMP_", "MKL_", "NVIDIA_", "OMP_", "OPENBLAS_",
             "PYTORCH_", "TORCH_", "TRITON_INTERPRET")  # fmt: skip
"""Beginnings of variables that libraries may read after their import."""

TORCH = str(Path(torch.__file__).parent)

NUMBERS = torch.linspace(-3.0, 3.0, 64).reshape(1, 1, 8, 8)


@dataclass(frozen=True, slots=True)
class GlobalState:
    """`settings` by name; `functions` by module or class and name, each with its code; threads and child processes."""

    settings: dict[str, Any]
    functions: dict[tuple[str, str], tuple[Any, Any]]
    threads: frozenset[threading.Thread]
    processes: frozenset[int]

    @classmethod
    def now(cls, *, quick: bool = False, speeds: bool = True) -> GlobalState:
        """`quick`: in a few milliseconds, without attnbench's own functions and without child processes.

        `speeds`: with the settings that decide over speeds alone.
        """
        processes = () if quick else _processes()
        settings = dict(_settings()) | (dict(_settings_of_speed()) if speeds else {})
        return cls(settings, dict(_functions(quick)), frozenset(_threads()), frozenset(processes))

    def changes(self, after: GlobalState) -> list[str]:
        """What differs in `after`, in words; empty where nothing does."""
        found = [
            f"{name} from {_brief(value)} to {_brief(after.settings.get(name))}"
            for name, value in self.settings.items()
            if after.settings.get(name) != value
        ]
        for (owner, name), (function, code) in self.functions.items():
            there, code_there = after.functions.get((owner, name), (None, None))
            if (there is not function or code_there is not code) and not _wraps(there, function):
                found.append(f"the function {owner}.{name}")
        found += [f"the live thread {thread.name}" for thread in after.threads - self.threads]
        started = after.processes - self.processes
        return found + ([f"{len(started)} live child processes"] if started else [])


class StateWatch:
    """Compares the state of this process with that of the last look; `speeds`: what decides over speeds alone too."""

    def __init__(self, *, quick: bool = False, speeds: bool = True) -> None:
        self.quick, self.speeds = quick, speeds
        self.before = self._now()

    def changes(self) -> str:
        """What has changed since, in one line; empty where nothing has."""
        now = self._now()
        found, self.before = self.before.changes(now), now
        listed = ", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")
        return f"it changed what others in its process share: {listed}" if found else ""

    def _now(self) -> GlobalState:
        return GlobalState.now(quick=self.quick, speeds=self.speeds)


def _settings_of_speed() -> Iterator[tuple[str, Any]]:
    """No learned number depends on these, and others may change them for a running process (`renice`, `taskset`, a
    batch system), so that a training is never blamed for them."""
    yield "processors", tuple(sorted(os.sched_getaffinity(0)))
    yield "priority", os.getpriority(os.PRIO_PROCESS, 0)


def _settings() -> Iterator[tuple[str, Any]]:
    yield "default dtype", torch.get_default_dtype()
    yield "default device", str(torch.get_default_device())
    yield "number of threads", torch.get_num_threads()
    yield "number of threads between operations", torch.get_num_interop_threads()
    yield "denormal numbers", bool((torch.full((8,), 1e-310, dtype=torch.float64) * 0.5 != 0).all())
    yield "deterministic algorithms", torch.are_deterministic_algorithms_enabled()
    yield "warnings of deterministic algorithms", torch.is_deterministic_algorithms_warn_only_enabled()
    yield "precision of float32 products", torch.get_float32_matmul_precision()
    yield "TF32", (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
    yield (
        "reduced precision of sums",
        (
            torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
            torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        ),
    )
    cudnn = torch.backends.cudnn
    yield "cuDNN", (cudnn.enabled, cudnn.benchmark, cudnn.deterministic)
    yield "oneDNN", torch._C._get_mkldnn_enabled()
    yield (
        "backends of attention",
        (
            torch._C._get_flash_sdp_enabled(),
            torch._C._get_mem_efficient_sdp_enabled(),
            torch._C._get_math_sdp_enabled(),
        ),
    )
    yield "gradients", torch.is_grad_enabled()
    yield "inference mode", torch.is_inference_mode_enabled()
    yield "autocast", (torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda"))
    yield "anomaly detection", torch.is_anomaly_enabled()
    yield "function modes", (torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack())
    yield "errors of NumPy", tuple(np.geterr().items())
    yield "garbage collection", (gc.isenabled(), gc.get_threshold())
    yield "tracing", (sys.gettrace(), sys.getprofile())
    yield "switch interval", sys.getswitchinterval()
    yield "signal handlers", tuple(signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM))
    yield "working directory", _folder()
    yield "environment", tuple(sorted(each for each in os.environ.items() if each[0].startswith(READ_LATE)))
    # kernels may be replaced below Python, where no function changes
    yield "value of softmax", _value(lambda: NUMBERS.softmax(-1))
    yield "value of attention", _value(lambda: F.scaled_dot_product_attention(NUMBERS, NUMBERS, NUMBERS))


def _value(work: Callable[[], torch.Tensor]) -> object:
    with torch.inference_mode(False), torch.no_grad():
        try:
            return tuple(work().flatten().tolist())
        except Exception as error:
            return f"raises {type(error).__name__}"


def _functions(quick: bool) -> Iterator[tuple[tuple[str, str], tuple[Any, Any]]]:
    own = [] if quick else [module for name, module in sys.modules.items() if name.startswith("attnbench.")]
    for owner in (*WATCHED, *own):
        yield from _functions_of(owner)
        if owner in own:
            for each in list(vars(owner).values()):
                if isinstance(each, type) and each.__module__ == owner.__name__:
                    yield from _functions_of(each)


def _functions_of(owner: ModuleType | type) -> Iterator[tuple[tuple[str, str], tuple[Any, Any]]]:
    where = owner.__name__ if isinstance(owner, ModuleType) else f"{owner.__module__}.{owner.__qualname__}"
    # of a class, what it inherits too: a patch of the heir hides it
    kinds = [kind for kind in reversed(owner.__mro__) if kind is not object] if isinstance(owner, type) else [owner]
    known = {name: value for kind in kinds for name, value in list(vars(kind).items())}
    for name, value in known.items():
        if callable(value) or isinstance(value, staticmethod | classmethod | property):
            code = value.__code__ if isinstance(value, FunctionType) else None
            yield (where, name), (value, code)


def _wraps(there: Any, function: Any) -> bool:
    """Whether torch itself has wrapped or replaced a function, as its compiler does when it is first used."""
    file = getattr(getattr(there, "__code__", None), "co_filename", "")
    wrapped = file.startswith(TORCH) and inspect.unwrap(there) is inspect.unwrap(function)
    return wrapped or file.startswith(f"{TORCH}/_dynamo/")


def _threads() -> Iterator[threading.Thread]:
    """Threads of Python but those that torch keeps for compiling; its pools of C++ threads belong to the settings."""
    compiler = "torch._inductor" in sys.modules
    for thread in threading.enumerate():
        module = str(getattr(getattr(thread, "_target", None), "__module__", ""))
        # the pool of torch's compiler is one of the standard library
        if not module.startswith("torch.") and not (compiler and module == "concurrent.futures.thread"):
            yield thread


def _processes() -> Iterator[int]:
    """Processes that this one has started and that live, but those that torch keeps for compiling."""
    me = psutil.Process()
    for process in _supervisor().children(recursive=True):
        try:
            compiles = any("torch/_inductor" in part for part in process.cmdline())
            if process != me and process.status() != psutil.STATUS_ZOMBIE and not compiles:
                yield process.pid
        except psutil.Error:
            continue


@cache
def _supervisor() -> psutil.Process:
    """The supervisor of this process, which adopts what its children leave behind; itself where it has none.

    It has the command line of the server that it was forked from."""
    me = psutil.Process()
    parent = me.parent()
    supervised = parent is not None and "attnbench.bench.process.server" in parent.cmdline()
    return parent if parent is not None and supervised else me


def _folder() -> str:
    try:
        return os.getcwd()  # noqa: PTH109
    except OSError:
        return "none"


def _brief(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:37] + "…"
