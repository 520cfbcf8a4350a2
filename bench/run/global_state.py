"""The state of a process that every variant in it shares: settings, patched functions, threads, child processes.

A variant that changes it is measured by other rules than the rest, or decides over theirs. The variant is found by
comparing the state before and after it, and the others get a new process.
"""

from __future__ import annotations

import builtins
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
from contextlib import suppress
from operator import is_
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.decode import brief

WATCHED: tuple[ModuleType | type, ...] = (
    torch, torch.Tensor, torch.nn.Module, torch.nn.Linear, torch.nn.functional, torch.autograd, torch.cuda,
    torch.cuda.Event, torch.linalg, torch.optim.AdamW, builtins, gc, math, statistics, threading, time,
)  # fmt: skip
"""Modules and classes, beside attnbench's own, whose functions decide over what is measured."""

_TIMING = ("attnbench.bench.measure.", "attnbench.bench.run.")
"""Beginnings of the names of attnbench's own modules that a timing goes through."""

READ_LATE = ("ATEN_", "ATTNBENCH_", "CUBLAS_", "CUDA_", "CUDNN_", "KMP_", "MKL_", "NVIDIA_", "OMP_", "OPENBLAS_",
             "PYTORCH_", "TORCH_", "TRITON_INTERPRET")  # fmt: skip
"""Beginnings of variables that libraries may read after their import."""

TORCH = str(Path(torch.__file__).parent)

Functions = dict[tuple[str, str], tuple[Any, ...]]
"""The functions of modules and classes by owner and name, each with what it is made of."""

_DESCRIPTORS = (staticmethod, classmethod, property)

NUMBERS = torch.linspace(-3.0, 3.0, 64).reshape(1, 1, 8, 8)


_BEGUN = sorted(os.sched_getaffinity(0)), os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)
"""Processors, scheduling class and priority of this process, or of that it was forked from, before foreign code ran."""


class StateWatch:
    """Compares the state of this process with that of the last look.

    `quick`: in a few milliseconds, of attnbench's own modules those of `_TIMING` alone, and without child processes.
    `speeds`: with the settings that decide over speeds alone: no learned number depends on these, and others may change
    them for a running process (`renice`, `taskset`, a batch system), so that a training is never blamed for them.
    """

    def __init__(self, *, quick: bool = False, speeds: bool = True) -> None:
        self.quick, self.speeds = quick, speeds
        self._look()

    def changes(self) -> str:
        """The changes since the last look, in one line; empty where nothing has changed."""
        settings, functions, threads, processes = self.settings, self.functions, self.threads, self.processes
        self._look()
        found = [
            f"{name} from {brief(value, 37)} to {brief(self.settings.get(name), 37)}"
            for name, value in settings.items()
            if self.settings.get(name) != value
        ]
        found += _replaced(functions, self.functions)
        found += [f"the live thread {thread.name}" for thread in self.threads - threads]
        started = self.processes - processes
        found += [f"{len(started)} live child processes"] if started else []
        return _in_words(found)

    @staticmethod
    def undo_from_outside() -> None:
        """Takes back what another process may have changed in this one since it began, as far as the system allows."""
        processors, kind, priority = _BEGUN
        with suppress(OSError):
            os.sched_setaffinity(0, processors)
        with suppress(OSError):
            if os.sched_getscheduler(0) != kind:
                os.sched_setscheduler(0, kind, os.sched_param(0))
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, priority)

    def _look(self) -> None:
        self.settings = dict(_settings())
        if self.speeds:
            self.settings["processors"] = tuple(sorted(os.sched_getaffinity(0)))
            self.settings["scheduling class"] = os.sched_getscheduler(0)
            self.settings["priority"] = os.getpriority(os.PRIO_PROCESS, 0)
        self.functions = dict(_functions(self.quick))
        # of Python, but those that torch keeps for compiling, one of them a pool of the standard library; its pools of
        # C++ threads belong to the settings
        pool = "concurrent.futures.thread" if "torch._inductor" in sys.modules else "torch."
        self.threads = {
            thread
            for thread in threading.enumerate()
            if not str(getattr(getattr(thread, "_target", None), "__module__", "")).startswith(("torch.", pool))
        }
        self.processes = set() if self.quick else set(_processes())


def note_functions() -> None:
    """Remember the functions of modules that are new, before foreign code is imported: the server of children does."""
    for place, parts in _functions(quick=False):
        _NOTED.setdefault(place, parts)


def changes_since_noted() -> str:
    """The functions that differ from those that were noted, in one line; empty where none does."""
    return _in_words(_replaced(_NOTED, dict(_functions(quick=False))))


_NOTED: Functions = {}


def _in_words(found: list[str]) -> str:
    listed = ", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")
    return f"it changed what others in its process share: {listed}" if found else ""


def _replaced(before: Functions, after: Functions) -> list[str]:
    found = []
    for place, parts in before.items():
        there = after.get(place, (None,))
        if len(parts) == len(there) and all(map(is_, parts, there)):
            continue
        # torch itself wraps or replaces functions when its compiler is first used
        file = getattr(getattr(there[0], "__code__", None), "co_filename", "")
        wrapped = file.startswith(TORCH) and inspect.unwrap(there[0]) is inspect.unwrap(parts[0])
        if not wrapped and not file.startswith(f"{TORCH}/_dynamo/"):
            found.append(f"the {'function' if callable(parts[0]) else 'value'} {'.'.join(place)}")
    return found


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
    yield "garbage collection", (gc.isenabled(), gc.get_threshold(), tuple(gc.callbacks))
    hooks = vars(torch.nn.modules.module)
    yield "hooks of all modules", tuple(name for name in sorted(hooks) if name.startswith("_global_") and hooks[name])
    # torch.optim has removed the name of the module
    steps = vars(sys.modules["torch.optim.optimizer"])
    yield (
        "hooks of all optimisers",
        tuple(name for name in sorted(steps) if name.startswith("_global_") and steps[name]),
    )
    yield "tracing", (sys.gettrace(), sys.getprofile())
    yield "switch interval", sys.getswitchinterval()
    yield "signal handlers", tuple(signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM))
    try:
        yield "working directory", os.getcwd()  # noqa: PTH109
    except OSError:
        yield "working directory", "none"
    yield "environment", tuple(sorted(each for each in os.environ.items() if each[0].startswith(READ_LATE)))
    # kernels may be replaced below Python, where no function changes
    kernels: dict[str, tuple[Callable[..., Tensor], tuple[Any, ...]]] = {
        "value of softmax": (Tensor.softmax, (NUMBERS, -1)),
        "value of attention": (F.scaled_dot_product_attention, (NUMBERS, NUMBERS, NUMBERS)),
    }
    for name, (kernel, arguments) in kernels.items():
        with torch.inference_mode(False), torch.no_grad():
            try:
                value: object = tuple(kernel(*arguments).flatten().tolist())
            except Exception as error:
                value = f"raises {type(error).__name__}"
        yield name, value


def _functions(quick: bool) -> Iterator[tuple[tuple[str, str], tuple[Any, ...]]]:
    """The functions by module or class and by name, each with its parts; of our own modules, modules and constants too.

    A clock is read through the name of a module, and a limit is a constant. Values are compared by identity.
    """
    own = [module for name, module in list(sys.modules.items()) if name.startswith(_TIMING if quick else "attnbench.")]
    ours = (
        (module, kind)
        for module in own
        for kind in list(vars(module).values())
        if isinstance(kind, type) and kind.__module__ == module.__name__
    )
    for owner in (*WATCHED, *own, *(kind for _, kind in ours)):
        where = owner.__name__ if isinstance(owner, ModuleType) else f"{owner.__module__}.{owner.__qualname__}"
        # of a class, what it inherits too: a patch of the heir hides it
        kinds = [kind for kind in reversed(owner.__mro__) if kind is not object] if isinstance(owner, type) else [owner]
        is_own = where.startswith("attnbench.")
        for name, value in {name: value for kind in kinds for name, value in list(vars(kind).items())}.items():
            if isinstance(value, FunctionType):
                yield (where, name), (value, value.__code__, value.__defaults__)
            elif callable(value) or isinstance(value, _DESCRIPTORS):
                yield (where, name), (value,)
            elif is_own and (isinstance(value, ModuleType) or name.isupper()):
                # a table may be changed in place; what a private name holds is kept from call to call
                shared = isinstance(value, dict) and not name.startswith("_")
                yield (where, name), (value, *(value.values() if shared else ()))


def _processes() -> Iterator[int]:
    """Processes that this one has started and that live, but those that torch keeps for compiling."""
    me = psutil.Process()
    parent = me.parent()
    # a supervisor adopts what its children leave behind; it has the command line of the server it was forked from
    supervised = parent is not None and "attnbench.bench.process.server" in parent.cmdline()
    for process in (parent if parent is not None and supervised else me).children(recursive=True):
        try:
            compiles = any("torch/_inductor" in part for part in process.cmdline())
            if process != me and process.status() != psutil.STATUS_ZOMBIE and not compiles:
                yield process.pid
        except psutil.Error:
            continue
