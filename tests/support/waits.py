"""What makes the host wait for a GPU, found where there is none: a step on tensors of the device `meta`.

They have no numbers, so that whoever reads one fails, and code that looks at numbers on a CPU alone goes the way of a
GPU. What a GPU waits for and `meta` does not is noted: copies from memory that is not pinned, operators that check what
they computed, and Boolean masks as indexes.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

META = torch.device("meta")

WAITING = {"_local_scalar_dense", "_linalg_check_errors", "nonzero", "masked_select", "equal", "is_nonzero", "bincount",
           "_unique", "_unique2", "unique_dim", "unique_consecutive", "repeat_interleave"}  # fmt: skip
INDEXING = {"index", "index_put", "index_put_"}


def _of_meta(tensors: Any) -> bool:
    return any(isinstance(each, torch.Tensor) and each.is_meta for each in tree_leaves(tensors))


class _Operators(TorchDispatchMode):
    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if (name in WAITING and _of_meta(args)) or (name in INDEXING and self._masks(name, args)):
            self.found.append(_told(name))
        elif name == "_to_copy" and not args[0].is_meta and torch.device(kwargs.get("device") or "cpu") == META:
            self.found.append(_told("a copy from the host"))
        elif name == "copy_" and args[0].is_meta != args[1].is_meta:
            self.found.append(_told("a copy between host and device"))
        return func(*args, **kwargs)

    @staticmethod
    def _masks(name: str, args: Any) -> bool:
        masks = [at for at in args[1] if at is not None and at.dtype in (torch.bool, torch.uint8)]
        # one number for all places of a mask is `masked_fill`
        return _of_meta(masks) and (name == "index" or args[2].numel() > 1)


class _Made(TorchFunctionMode):
    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if (
            func in (torch.tensor, torch.as_tensor, torch.asarray)
            and torch.device(kwargs.get("device") or "cpu") == META
        ):
            self.found.append(_told("a tensor made from numbers of the host"))
        return func(*args, **kwargs)


def _told(what: str) -> str:
    """With the line of ours that asked for it."""
    own = [frame for frame in traceback.extract_stack() if "/site-packages/" not in frame.filename]
    asked = next(frame for frame in reversed(own) if frame.filename != __file__)
    return f"{what} at {asked.filename}:{asked.lineno}"


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets models run on `meta`, for which PyTorch has no autocast."""
    autocast, enabled = torch.autocast, torch.is_autocast_enabled

    def on_meta(device: Any = "cuda") -> bool:
        return torch.device(device) == META

    def nothing_or_autocast(device: Any, *settings: Any, **more: Any) -> Any:
        return nullcontext() if on_meta(device) else autocast(device, *settings, **more)

    monkeypatch.setattr(torch, "autocast", nothing_or_autocast)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device="cuda": not on_meta(device) and enabled(device))


@contextmanager
def waits() -> Iterator[list[str]]:
    """What waits inside, in words with its line; what reads a number raises."""
    found: list[str] = []
    with _Made(found), _Operators(found):
        yield found
