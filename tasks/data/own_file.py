"""A file of a person's own, named from the folder where the command runs: what it must be, and its checksum."""

from __future__ import annotations

import os
from pathlib import Path

from ...bench.core.files import open_regular
from ..contract import Availability, DataError, DataPlace
from .sources import checksum

MOST_BYTES = 2**30
"""The largest file, packed or unpacked; preparing it takes some five times as much memory."""


def own_file(path: Path, wanted: str) -> Availability:
    """The state of a file; it is ready where it is a regular file of 1 to MOST_BYTES bytes that can be read.

    wanted: what to name instead, in words.
    """
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
        problem = "" if size else "it is empty"
        if size > MOST_BYTES:
            problem = f"it has {size:,} bytes, and at most {MOST_BYTES:,} are read; take a part of it"
    except OSError as error:
        problem = error.strerror or str(error)
    return Availability(
        source="a file of your own",
        fidelity="own",
        ready=not problem,
        detail=f"{path}: {problem}" if problem else str(path),
        advice=f"name {wanted}, from {Path.cwd()}",
    )


def own_checksum(place: DataPlace, task: str, path: Path, wanted: str) -> dict[str, str]:
    """The checksum of a file by its name. Raises DataError where `own_file` finds it not ready."""
    way = own_file(path, wanted)
    if not way.ready:
        raise DataError(f"{way.detail}; {way.advice}")
    return {path.name: checksum(place, task, path.absolute())}
