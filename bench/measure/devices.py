"""Devices: the cards that an estimate can be asked for, by the sizes of their data sheets (`devices.toml`)."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

GB = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """`card`: as its driver's name begins. FLOPs and bytes a second are peaks; `source`: where they stand.

    `kind`: `card`, or `processor`.
    """

    name: str
    card: str
    memory_bytes: float
    bytes_per_second: float
    bfloat16: float
    float32: float
    source: str
    kind: str = "card"


@cache
def devices() -> dict[str, Device]:
    """The cards by name, such as `h100`."""
    read = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return {
        name: Device(
            name=name,
            card=said["card"],
            memory_bytes=said["memory_gb"] * GB,
            bytes_per_second=said["gb_per_second"] * GB,
            bfloat16=said["bfloat16"] * 1e12,
            float32=said["float32"] * 1e12,
            source=said["source"],
        )
        for name, said in read.items()
    }
