"""Capture of work as a CUDA graph, from which a capture that fails leaves no trace."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import torch


def capture(
    work: Callable[[], object], device: torch.device, stream: torch.cuda.Stream | None = None
) -> torch.cuda.CUDAGraph:
    """A graph of `work`, which has run before: what libraries allocate at their first call cannot be captured.

    `stream`: the side stream on which it ran, to which belongs what autograd has kept since. Nothing of `work` is
    executed. Raises what `work` raises, or what CUDA says where a part of it cannot be captured.
    """
    current = torch.cuda.current_stream(device)
    generator = torch.cuda.default_generators[device.index or 0]
    random = generator.clone_state()
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    try:
        # Only this thread may do nothing that a capture forbids: another one may be pinning memory.
        with torch.cuda.graph(graph, pool, stream, capture_error_mode="thread_local"):
            work()
    except BaseException:
        # Where the end of the capture fails too, PyTorch leaves its side stream the current one, and a generator that
        # takes every later draw for one outside its capture, and refuses it.
        torch.cuda.set_stream(current)
        generator.graphsafe_set_state(random)
        # Up to 2.11 its allocator goes on as in a capture too: where memory runs short it fails an assertion instead of
        # giving back what is cached. Later ones say that nothing goes on.
        with suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(device.index or 0, pool)
        raise
    return graph
