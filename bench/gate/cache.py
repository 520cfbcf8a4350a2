"""Passed: what the gate has let through already, so that a sweep of a hundred points asks once for each short shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

import torch

from ...variants.contract import AttentionShape, Variant
from ..core.errors import Unsupported
from ..core.hashing import content_hash
from ..core.paths import PACKAGE
from ..core.registry import VARIANTS
from ..core.spec import Spec
from ..models.blocks import BuildVariant
from .build import build_checked, build_unchecked
from .subject import BASE_LENGTH

Builder = Callable[[Spec, torch.device], BuildVariant]


def build_checked_cached(cache: Path, machine_id: str) -> Builder:
    """As `build_checked`, but what passed on this machine, by the very same files, is not examined again.

    A red gate is never remembered. A cache that cannot be written is done without.
    """

    def build_with(spec: Spec, device: torch.device) -> BuildVariant:
        gated, free = build_checked(spec, device), build_unchecked(spec, device)

        def build(shape: AttentionShape) -> Variant:
            file = cache / "passed" / _key(spec, shape, machine_id)
            if file.is_file():
                return free(shape)
            variant = gated(shape)
            with suppress(OSError):
                file.parent.mkdir(parents=True, exist_ok=True)
                file.touch()
            return variant

        return build

    return build_with


def _key(spec: Spec, shape: AttentionShape, machine_id: str) -> str:
    """Of all that an examination hangs on: it looks at a short form, and at longer ones where that is refused."""
    short = replace(shape, max_length=min(BASE_LENGTH, shape.max_length))
    try:
        build_unchecked(spec, torch.device(shape.device))(short)
    except Unsupported:
        short = shape
    source = VARIANTS.source(spec.name)
    folders = [PACKAGE / "bench" / "gate", PACKAGE / "variants", *([source.parent] if source else [])]
    files = sorted({state for folder in folders for state in _states(folder)})
    return content_hash([str(spec), asdict(short), machine_id, torch.__version__, files])


def _states(folder: Path) -> Iterator[tuple[str, int, int]]:
    # kernels are written in C++ too, so every file of a folder counts
    for file in folder.rglob("*"):
        if file.is_file() and file.suffix not in (".pyc", ".md"):
            status = file.stat()
            yield str(file), status.st_mtime_ns, status.st_size
