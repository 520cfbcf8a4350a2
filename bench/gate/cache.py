"""A cache of gate verdicts, so that a sweep of a hundred points examines each short shape once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

import torch

from ...variants.contract import AttentionShape, Variant
from ..core.errors import Unsupported
from ..core.files import is_trusted, make_private
from ..core.hashing import content_hash
from ..core.paths import PACKAGE
from ..core.registry import VARIANTS
from ..core.spec import Spec
from ..models.blocks import BuildVariant
from .build import build_checked, build_unchecked
from .checked_variant import BASE_LENGTH

Builder = Callable[[Spec], BuildVariant]


def build_checked_cached(cache: Path, machine_id: str) -> Builder:
    """As `build_checked`, but a variant that passed on this machine, with the same files, is not examined again.

    A failure is never stored: it may have come from a machine that was short of memory. A cache that cannot be written,
    or that others can write in, is done without.
    """

    def build_with(spec: Spec) -> BuildVariant:
        checked, unchecked = build_checked(spec), build_unchecked(spec)

        def build(shape: AttentionShape) -> Variant:
            file = cache / "passed" / _key(spec, shape, machine_id)
            # a verdict that somebody else could have put there is none
            if is_trusted(file):
                return unchecked(shape)
            variant = checked(shape)
            with suppress(OSError):
                make_private(file.parent)
                file.touch(mode=0o600)
            return variant

        return build

    return build_with


def _key(spec: Spec, shape: AttentionShape, machine_id: str) -> str:
    """Hash of all that a verdict depends on. The gate takes a short form of the shape, and longer ones where a variant
    refuses that one."""
    short = replace(shape, max_length=min(BASE_LENGTH, shape.max_length))
    try:
        build_unchecked(spec)(short)
    except Unsupported:
        short = shape
    source = VARIANTS.source(spec.name)
    folders = [PACKAGE / "bench" / "gate", PACKAGE / "variants", *([source.parent] if source else [])]
    files = sorted({state for folder in folders for state in _states(folder)})
    return content_hash([str(spec), asdict(short), machine_id, torch.__version__, files])


def _states(folder: Path) -> Iterator[tuple[str, int, int]]:
    # Times and sizes of files instead of their contents, since this runs for every point of a sweep. Kernels are
    # written in C++ too, so every file of a folder counts.
    for file in folder.rglob("*"):
        if file.is_file() and file.suffix not in (".pyc", ".md"):
            status = file.stat()
            yield str(file), status.st_mtime_ns, status.st_size
