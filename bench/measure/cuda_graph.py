"""Capture of work as a CUDA graph, from which a capture that fails leaves no trace."""

from __future__ import annotations

from collections.abc import Callable

import torch


def capture(work: Callable[[], object], device: torch.device) -> torch.cuda.CUDAGraph:
    """A graph of `work`, which has run before: what libraries allocate at their first call cannot be captured.

    Nothing of `work` is executed. Raises what `work` raises, or what CUDA says where a part of it cannot be captured.
    """
    stream = torch.cuda.current_stream(device)
    generator = torch.cuda.default_generators[device.index or 0]
    random = generator.clone_state()
    graph = torch.cuda.CUDAGraph()
    try:
        # Only this thread may do nothing that a capture forbids: another one may be pinning memory.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            work()
    except BaseException:
        # Where the end of the capture fails too, PyTorch leaves its side stream the current one, and a generator that
        # takes every later draw for one outside its capture, and refuses it.
        torch.cuda.set_stream(stream)
        generator.graphsafe_set_state(random)
        raise
    return graph
