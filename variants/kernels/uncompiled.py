"""Operators of the C++ kernels that compute nothing, for a count of work: their outputs have shapes and no values."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.library import Library
from torch.utils._python_dispatch import TorchDispatchMode

from ..ops.written import Written
from . import dispatch
from .cpu import build, tiles, written

_SCHEMA = re.compile(r"m\.def\(\s*((?:\"[^\"]*\"\s*)+)\)")
_ENTMAX_ROWS = 128
_RECURRENCE_STEPS = 64


@contextmanager
def uncompiled() -> Iterator[None]:
    """Neither build nor call kernels inside: a count costs no half minute where nothing is built yet.

    Where they could not be built, nothing changes: a variant goes its eager way. What variants run is patched and not
    changed, since its source is a part of their digests.
    """
    if not build.compiler() or shutil.which("ninja") is None:
        yield
        return
    library = None
    if not hasattr(torch.ops.attnbench_cpu, "tiles_forward"):
        library = Library("attnbench_cpu", "FRAGMENT")  # type: ignore[no-untyped-call]
        for source in build.SOURCES:
            for words in _SCHEMA.findall(source.read_text(encoding="utf-8")):
                library.define("".join(re.findall(r"\"([^\"]*)\"", words)))  # type: ignore[no-untyped-call]
    try:
        with (
            patch.object(build, "failure", lambda: None),
            patch.object(dispatch, "_has_kernels", lambda: True),
            patch.object(written, "address", _kind),
            patch.object(tiles, "address", _kind),
            _ShapesAlone(),  # type: ignore[no-untyped-call]
        ):
            yield
    finally:
        if library is not None:
            # the kernels themselves may be loaded later
            library._destroy()  # type: ignore[no-untyped-call]


def _kind(written: Written) -> int:
    """A number in place of a map's address: bit 0 if it sums, bit 1 if it takes the top score, then what it learns."""
    return written.sums + 2 * written.tops + 4 * len(written.learned)


class _ShapesAlone(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace != "attnbench_cpu":
            return func(*args, **(kwargs or {}))
        given = {each.name: value for each, value in zip(func._schema.arguments, args, strict=True)}
        return _OUTPUTS[func._opname](given)  # type: ignore[no-untyped-call]


def _tiles_forward(given: dict[str, Any]) -> tuple[Tensor, ...]:
    query, kind = given["query"], given["map"]
    rows = query.shape[:2]
    output = query.new_zeros(*rows, given["value"].shape[2])
    # as `_kind` says it
    of_query = (query.new_zeros(rows[0] if kind & bit else 0, rows[1]) for bit in (2, 1))
    return output, *of_query, query.new_zeros(rows[0] if given["collect"] else 0, rows[1], _distances(given))


def _tiles_backward(given: dict[str, Any]) -> tuple[Tensor, ...]:
    query = given["query"]
    rows = query.shape[:2]
    shapes = (given["map"] // 4, *rows), rows[:1], (*rows, _distances(given))
    return *(torch.zeros_like(given[name]) for name in ("query", "key", "value")), *map(query.new_zeros, shapes)


def _distances(given: dict[str, Any]) -> int:
    return 0 if given["bias"] is None else given["bias"].shape[-1]


def _entmax_forward(given: dict[str, Any]) -> tuple[Tensor, ...]:
    query = given["query"]
    heads, queries = query.shape[:2]
    pieces = heads * -(-queries // _ENTMAX_ROWS), given["room"] * min(_ENTMAX_ROWS, queries)
    weights, levels = query.new_zeros(*pieces), query.new_zeros(heads * queries, 3)
    index, counts = (query.new_zeros(*shape, dtype=torch.int32) for shape in (pieces, (heads * queries,)))
    return query.new_zeros(heads, queries, given["value"].shape[2]), weights, index, counts, levels


def _entmax_backward(given: dict[str, Any]) -> tuple[Tensor, ...]:
    heads, queries = given["query"].shape[:2]
    to_alpha = given["query"].new_zeros(heads if given["learns"] else 0, queries)
    return *(torch.zeros_like(given[name]) for name in ("query", "key", "value")), to_alpha


def _norm_forward(given: dict[str, Any]) -> tuple[Tensor, ...]:
    sums = given["sums"]
    return torch.zeros_like(sums), sums.new_zeros(sums.shape[0], sums.shape[1] // given["group"], sums.shape[2])


def _recurrence_forward(given: dict[str, Any]) -> tuple[Tensor, ...]:
    query, value = given["query"], given["value"]
    batch, heads, _, width = query.shape
    wide, blocks = value.shape[3], -(-value.shape[2] // _RECURRENCE_STEPS)
    states = query.new_zeros(batch * heads if given["keep"] else 0, blocks, width, wide)
    return query.new_zeros(*query.shape[:3], wide), query.new_zeros(batch, heads, width, wide), states


def _recurrence_backward(given: dict[str, Any]) -> tuple[Tensor, ...]:
    key, value = given["key"], given["value"]
    of_decay, of_erase = (
        key.new_zeros(0) if given[name] is None else torch.zeros_like(given[name]) for name in ("log_decay", "erase")
    )
    of_state = key.new_zeros(*key.shape[:2], key.shape[3], value.shape[3])
    return *(torch.zeros_like(given[name]) for name in ("query", "key", "value")), of_decay, of_erase, of_state


_OUTPUTS = {
    "tiles_forward": _tiles_forward,
    "tiles_backward": _tiles_backward,
    "entmax_forward": _entmax_forward,
    "entmax_backward": _entmax_backward,
    "gated_norm_forward": _norm_forward,
    "recurrence_forward": _recurrence_forward,
    "recurrence_backward": _recurrence_backward,
    "gated_norm_backward": lambda given: tuple(torch.zeros_like(given[name]) for name in ("sums", "scale", "gate")),
}
