"""The exact peak of allocated bytes over one piece of work, and a limit to it; what a decode state holds."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import gc
import os
import resource
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import psutil
import torch
from torch.profiler import ProfilerActivity, profile

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""The names of two options of malloc (malloc.h)."""

_MAPPED_BYTES, _MOST_BYTES, _LARGEST_ROOM = 2**16, 2**25, 2**34


class _MallocInfo(ctypes.Structure):
    """The answer of mallinfo (malloc.h). `mapped`: the number of blocks with pages of their own."""

    _fields_ = (("before", ctypes.c_int * 3), ("mapped", ctypes.c_int), ("after", ctypes.c_int * 6))


def peak_bytes(work: Callable[[], object], device: torch.device) -> int:
    """Peak of allocated bytes during `work` above what was allocated before it.

    On CUDA from the allocator's counters, reset first. On CPU the running sum of the profiler's allocation events:
    exact to the byte, and it sees the workspaces of fused kernels. It slows `work`, which must therefore not be timed.
    """
    if device.type == "cuda":
        before = _settled(device)
        work()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with _quiet_stderr(), profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        work()
    # Frees of what was allocated before are negative too, so that the sum is relative to the start.
    running = highest = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            running += event.nbytes()
            highest = max(highest, running)
    return highest


def reserved_bytes(work: Callable[[], object], device: torch.device) -> int:
    """Growth of what the CUDA allocator holds during `work`, from a state without idle blocks of earlier work."""
    _settled(device)
    before = torch.cuda.memory_reserved(device)
    work()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_reserved(device) - before


def _settled(device: torch.device) -> int:
    """Gives idle blocks back, starts the counters anew, and returns the bytes allocated now."""
    torch.cuda.synchronize(device)
    # A cycle that Python has not yet collected still holds its tensors.
    gc.collect()
    # Idle blocks that earlier work left behind would be reused without a trace in the counters of reserved memory.
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


@contextlib.contextmanager
def mapped_alone() -> Iterator[None]:
    """Inside, a block of memory from 64 KiB on has pages of its own, which are given back when it is freed (glibc).

    So the pages that a process touches are the memory that it needs. Else a large heap with room at many places lends
    another place at each call: 500 MiB were touched by a step that never holds more than 48.
    """
    libc = ctypes.CDLL(None)
    if not all(hasattr(libc, name) for name in ("mallopt", "malloc_trim", "mallinfo")):
        yield
        return
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes, libc.mallinfo.restype = [ctypes.c_void_p], _MallocInfo
    libc.malloc_trim(0)
    libc.mallopt(_MMAP_THRESHOLD, _MAPPED_BYTES)
    # rooms of the heap come first whatever the threshold is, so they are taken; nothing is written to them
    taken, size = [], _LARGEST_ROOM
    while size >= _MAPPED_BYTES:
        mapped = libc.mallinfo().mapped
        block = libc.malloc(size)
        if block and libc.mallinfo().mapped == mapped:
            taken.append(block)
        else:
            libc.free(block)
            size //= 2
    try:
        yield
    finally:
        for block in taken:
            libc.free(block)
        # glibc raises both by itself, to this at most
        libc.mallopt(_MMAP_THRESHOLD, _MOST_BYTES)
        libc.mallopt(_TRIM_THRESHOLD, 2 * _MOST_BYTES)


def held_bytes(*owners: torch.nn.Module | torch.optim.Optimizer) -> int:
    """Bytes of parameters, gradients, buffers and optimiser state held between steps."""
    seen: dict[int, int] = {}
    for owner in owners:
        for tensor in _tensors(owner):
            storage = tensor.untyped_storage()
            # By address: tied parameters and views share one storage.
            seen[storage.data_ptr()] = storage.nbytes()
    return sum(seen.values())


def storages(state: Any) -> dict[int, int]:
    """Bytes of every storage that a decode state holds, by address, so that views count once."""
    return dict(_each_storage(state))


def reordered(state: Any, rows: torch.Tensor) -> Any:
    """A state whose tensors have these rows of the old ones, wherever they are inside it."""
    # of a tensor, or of what lies in another process
    if hasattr(state, "index_select"):
        return state.index_select(0, rows)
    if isinstance(state, tuple):
        return tuple(reordered(each, rows) for each in state)
    if isinstance(state, list):
        return [reordered(each, rows) for each in state]
    if isinstance(state, dict):
        return {name: reordered(each, rows) for name, each in state.items()}
    if is_dataclass(state) and not isinstance(state, type):
        other = copy.copy(state)
        for field in fields(state):
            # frozen ones too: the copy is ours
            object.__setattr__(other, field.name, reordered(getattr(state, field.name), rows))
        return other
    return state


def _each_storage(state: Any) -> Iterator[tuple[int, int]]:
    if isinstance(state, torch.Tensor):
        storage = state.untyped_storage()
        yield storage.data_ptr(), storage.nbytes()
    # A state may refer to its variant, whose parameters are no part of it.
    elif isinstance(state, torch.nn.Module):
        return
    elif is_dataclass(state):
        for field in fields(state):
            yield from _each_storage(getattr(state, field.name))
    elif isinstance(state, dict):
        for value in state.values():
            yield from _each_storage(value)
    elif isinstance(state, list | tuple):
        for value in state:
            yield from _each_storage(value)
    elif hasattr(state, "__dict__"):
        yield from _each_storage(vars(state))


@contextlib.contextmanager
def memory_limit(bytes_more: float) -> Iterator[None]:
    """Limits the address space of this process: on a CPU an allocation beyond it fails, and nothing is killed.

    Without effect outside Linux, where address space says nothing about memory.
    """
    if not psutil.LINUX:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = int(psutil.Process().memory_info().vms + bytes_more)
    resource.setrlimit(resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _tensors(owner: torch.nn.Module | torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    if isinstance(owner, torch.nn.Module):
        yield from owner.buffers()
        for parameter in owner.parameters():
            yield parameter.data
            if parameter.grad is not None:
                yield parameter.grad
    else:
        for state in owner.state.values():
            yield from (value for value in state.values() if isinstance(value, torch.Tensor))


@contextlib.contextmanager
def _quiet_stderr() -> Iterator[None]:
    """Silences the C++ side of the profiler, which writes about every block freed that it did not see allocated."""
    sys.stderr.flush()
    saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(null)
