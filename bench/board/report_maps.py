"""Attention maps of trained models, small enough for a page."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..store.rows import ResultRow
from .report import FigureRow, FigureRows

Maps = Callable[[str], npt.NDArray[Any] | None]
"""Reads an artifact: weights of (examples, layers, heads, rows, keys); None where it is not at hand."""

SIDE = 64


def sound(maps: npt.NDArray[Any]) -> bool:
    """Whether these are weights of that shape: half floats, none negative or infinite, no side above 64."""
    if maps.ndim != 5 or maps.dtype != np.float16 or 0 in maps.shape or max(maps.shape[3:]) > SIDE:
        return False
    return bool(np.isfinite(maps).all() and (maps >= 0).all())


def attention_maps(runs: Iterable[ResultRow], read: Maps, room: int) -> tuple[FigureRows, int]:
    """The maps of each variant, of its lowest seed and first example; and how many do not fit in `room` characters."""
    found: list[FigureRow] = []
    left_out = 0
    by_variant: dict[str, list[str]] = {}
    for run in sorted(runs, key=lambda run: (run.variant, run.seed)):
        if "maps" in run.artifacts:
            by_variant.setdefault(run.variant, []).append(run.artifacts["maps"])
    for variant, names in by_variant.items():
        maps = read(names[0])
        if maps is None or not sound(maps):
            continue
        _, layers, heads, height, width = maps.shape
        first = maps[0].astype(np.float64)
        if 4 * -(-first.size // 3) > room:
            left_out += 1
            continue
        tops = first.max(axis=(2, 3))
        shades = np.rint(255 * first / np.where(tops > 0, tops, 1)[:, :, None, None]).astype(np.uint8)
        text = base64.b64encode(shades.tobytes()).decode()
        room -= len(text)
        found.append(
            {
                "variant": variant, "layers": layers, "heads": heads, "rows": height, "keys": width,
                "tops": tuple(float(top) for top in tops.ravel()), "shades": text,
            }
        )  # fmt: skip
    return tuple(found), left_out
