"""A CUDA device where there is none: `torch.cuda` answers, tensors lie in the memory of the CPU.

What is checked before a driver is called is PyTorch's own code, such as that `set_device` wants an index and that an
optimiser refuses to be captured. Kernels take what time a test gives them, on a queue beside the host's clock: the host
goes on while the device works, events are stamped when the device reaches them, and `synchronize` waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CLOCK_HZ = 2e9


def on_cpu(value: Any) -> Any:
    """`value`, or the CPU where it names a CUDA device."""
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    return "cpu" if isinstance(value, str) and value.startswith("cuda") else value


class Redirected(TorchFunctionMode):
    """Tensors that are made on, or moved to, a CUDA device come to lie on the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.device:
            return func(*args, **(kwargs or {}))
        return func(*map(on_cpu, args), **{name: on_cpu(value) for name, value in (kwargs or {}).items()})


@dataclass(eq=False)
class FakeEvent:
    """A stamp that the device makes when it gets there."""

    cuda: FakeCuda
    at: float = float("nan")

    def record(self, stream: object = None) -> None:
        self.cuda.check()
        self.at = self.cuda.free_at = max(self.cuda.free_at, self.cuda.now)

    def query(self) -> bool:
        return self.at <= self.cuda.now

    def elapsed_time(self, end: FakeEvent) -> float:
        return (end.at - self.at) * 1000.0


class Recorded(TorchDispatchMode):
    """Operators as a capture keeps them: with the very tensors that they read and write.

    They run once, since the code between them needs tensors; what they wrote to is put back at the end, as if nothing
    had been executed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self.kept: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        named = {argument.name: at for at, argument in enumerate(func._schema.arguments)}
        for argument in func._schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                at = named[argument.name]
                written = kwargs.get(argument.name, args[at] if at < len(args) else None)
                for storage in {x.untyped_storage() for x in tree_leaves(written) if isinstance(x, torch.Tensor)}:
                    self.kept.setdefault(storage.data_ptr(), (storage, storage.clone()))
        found = func(*args, **kwargs)
        self.calls.append((func, args, kwargs, found))
        return found

    def put_back(self) -> None:
        for storage, content in self.kept.values():
            storage.copy_(content)

    @torch.no_grad()
    def run(self) -> None:
        for func, args, kwargs, before in self.calls:
            returned = func._schema.returns
            if returned and all(each.alias_info is not None and not each.alias_info.is_write for each in returned):
                # a view of memory that others fill
                continue
            for own, found in zip(tree_leaves(before), tree_leaves(func(*args, **kwargs)), strict=True):
                if isinstance(own, torch.Tensor) and own.data_ptr() != found.data_ptr():
                    own.copy_(found)


@dataclass(eq=False)
class FakeGraph:
    """What was captured runs without the host and without operators that anybody could count."""

    cuda: FakeCuda
    seconds: float = 0.0
    replays: int = 0
    recorded: Recorded = field(default_factory=Recorded)

    def replay(self) -> None:
        self.replays += 1
        self.cuda.launch(self.seconds, host_seconds=1e-6)
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.Python)):
            self.recorded.run()


@dataclass(eq=False)
class FakeCuda:
    """`now`: seconds of the host; `free_at`: when the queue will be empty; `lost`: the text of a sticky error.

    `given_back`: streams that were set as the current one. `pools`: of captures that go on for the allocator, which is
    not told of the end of one that fails. `capture_streams`: what each capture was asked to run on.
    """

    now: float = 1.0
    free_at: float = 0.0
    lost: str = ""
    allocated: int = 0
    peak: int = 0
    free: int = 80 * 2**30
    pins: int = 0
    host_draws: int = 0
    given_back: list[object] = field(default_factory=list)
    capturing: FakeGraph | None = None
    graphs: list[FakeGraph] = field(default_factory=list)
    pools: list[object] = field(default_factory=list)
    capture_streams: list[object] = field(default_factory=list)
    chosen: list[int] = field(default_factory=list)

    def launch(self, seconds: float, host_seconds: float = 5e-6) -> None:
        """A kernel of `seconds`, which the host is busy for `host_seconds` to start."""
        self.check()
        if self.capturing is not None:
            self.capturing.seconds += seconds
            return
        self.now += host_seconds
        self.free_at = max(self.free_at, self.now) + seconds

    def allocate(self, bytes_: int) -> None:
        """Memory that a piece of work takes and gives back; a graph keeps what it was captured with."""
        self.peak = max(self.peak, self.allocated + bytes_)
        if self.capturing is not None:
            self.allocated += bytes_

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        self.pins += 1
        return tensor

    def check(self) -> None:
        if self.lost:
            raise torch.AcceleratorError(self.lost)

    def draw_on_host(self) -> float:
        """A random number that a capture does not keep: the generator of the host moves on, also in a capture."""
        self.host_draws += 1
        return float(torch.rand(()))

    def synchronize(self, device: object = None) -> None:
        self.check()
        if self.capturing is not None:
            raise torch.AcceleratorError("CUDA error: operation not permitted when stream is capturing")
        self.now = max(self.now, self.free_at)

    def end_pool(self, index: int, pool: object) -> None:
        if pool not in self.pools:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.pools.remove(pool)

    @contextmanager
    def graph(self, graph: FakeGraph, pool: object = None, stream: object = None, **_: object) -> Iterator[None]:
        self.synchronize()
        self.capturing = graph
        self.pools.append(pool)
        self.capture_streams.append(stream)
        self.graphs.append(graph)
        random, self.host_draws = torch.get_rng_state(), 0
        try:
            with graph.recorded:
                yield
            self.end_pool(0, pool)
        finally:
            self.capturing = None
            graph.recorded.put_back()
            # what is drawn on the device is drawn by replays; here the generator of the host stands for that too
            torch.set_rng_state(random)
            torch.rand(self.host_draws)


@contextmanager
def _nothing(*_: object, **__: object) -> Iterator[None]:
    yield


def install(monkeypatch: pytest.MonkeyPatch, *, clock: bool = False) -> FakeCuda:
    """Puts a device behind `torch.cuda`; with `clock`, `time.perf_counter` is the host's clock of `FakeCuda`.

    Tensors are redirected inside `Redirected()`, which a test enters.
    """
    fake = FakeCuda()
    properties = SimpleNamespace(uuid="00000000", total_memory=80 * 2**30, major=9, minor=0, multi_processor_count=132)
    stream = SimpleNamespace(wait_stream=lambda other: None)
    generator = SimpleNamespace(clone_state=torch.get_rng_state, graphsafe_set_state=torch.set_rng_state)
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_name": lambda device=None: "Fake H100",
        "get_device_capability": lambda device=None: (9, 0),
        "get_device_properties": lambda device=None: properties,
        # draws of the device are those of the host
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
        "default_generators": (generator,),
        "is_bf16_supported": lambda *_, **__: True,
        "is_current_stream_capturing": lambda: fake.capturing is not None,
        "synchronize": fake.synchronize,
        "Event": lambda **_: FakeEvent(fake),
        "Stream": lambda device=None: stream,
        "stream": _nothing,
        "set_stream": fake.given_back.append,
        "current_stream": lambda device=None: stream,
        "CUDAGraph": lambda: FakeGraph(fake),
        "graph": fake.graph,
        "graph_pool_handle": lambda: (0, len(fake.graphs) + 1),
        "_sleep": lambda cycles: fake.launch(cycles / CLOCK_HZ),
        "empty_cache": lambda: None,
        "memory_allocated": lambda device=None: fake.allocated,
        "max_memory_allocated": lambda device=None: fake.peak,
        "reset_peak_memory_stats": lambda device=None: setattr(fake, "peak", fake.allocated),
        "memory_reserved": lambda device=None: fake.allocated,
        "mem_get_info": lambda device=None: (fake.free, 80 * 2**30),
        "max_memory_reserved": lambda device=None: fake.peak,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    load = torch.load
    monkeypatch.setattr(
        torch, "load", lambda file, map_location=None, **kinds: load(file, map_location=on_cpu(map_location), **kinds)
    )
    # of the class and not by `Redirected`, which holds in one thread
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor, device=None: fake.pin(tensor))
    # what optimisers ask before a step, by the names of two versions of PyTorch
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("cuda"))
    capture = SimpleNamespace(is_capturing=lambda: fake.capturing is not None)
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda device=None: capture)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", fake.end_pool, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_setDevice", fake.chosen.append, raising=False)
    monkeypatch.setattr("attnbench.bench.measure.system_load.read_gpu", lambda uuid: None)
    if clock:
        monkeypatch.setattr(time, "perf_counter", lambda: fake.now)
    return fake
