"""Build variants for a model, each checked by the gate before anything is measured.

Verdicts are kept, so that a sweep of a hundred points examines the short form of them once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import torch

from ...variants.contract import AttentionShape, Variant
from ..core.errors import Unsupported
from ..core.files import PACKAGE, is_trusted, make_private
from ..core.hashing import content_hash
from ..core.registry import VARIANTS
from ..core.spec import Spec
from ..models.blocks import BuildVariant
from .case import BASE_LENGTH, WIDE_BATCH, WIDEST_BATCH
from .result import Result
from .suite import Form, quick_gate
from .twins import SWITCHES, left_out

Builder = Callable[[Spec], BuildVariant]


class Incorrect(Exception):
    """A property of the gate fails; the message names it."""


def built(spec: Spec, shape: AttentionShape) -> Variant:
    """The variant, not examined; raises Unsupported with its reason where it refuses the shape."""
    variant: Variant = VARIANTS.build(spec, shape)
    reason = variant.supports(shape)
    if reason:
        raise Unsupported(reason)
    return variant


def build_unchecked(spec: Spec) -> BuildVariant:
    """Build a variant that has passed the gate on the same shape already."""
    return partial(built, spec)


def build_checked(spec: Spec, batch: int = 1) -> BuildVariant:
    """Makes the variant for each layer's shape; raises Unsupported with its reason, Incorrect where the gate fails.

    `batch`: how many sequences are to be measured at once.
    """
    # A translation model uses a variant in three ways, and each may be wrong by itself. Layers of one variant differ
    # in nothing else that the gate looks at, so that one of each is enough.
    checked: set[tuple[Spec, bool, bool]] = set()

    def build(shape: AttentionShape) -> Variant:
        variant = built(spec, shape)
        of_layer = spec.at(shape.layer)
        use = (of_layer, shape.causal, shape.cross)
        if use not in checked:
            require_correct(of_layer, shape, batch)
            checked.add(use)
        return variant

    return build


def require_correct(spec: Spec, shape: AttentionShape, batch: int, form: Form = "both") -> None:
    """Raises Incorrect where `form` of the gate fails.

    On a CUDA device it may fail by one of PyTorch's own kernels, which is then left out until the process ends.
    """
    failure, kernels = quick_gate(spec, shape, batch=batch, form=form), ""
    if failure is not None and torch.device(shape.device).type == "cuda":
        wrong = switch_off_wrong(shape, batch, form)
        kernels = f"; of PyTorch's attention kernels {', '.join(wrong.values()) or 'each is right here'}"
        if wrong and (failure := quick_gate(spec, shape, batch=batch, form=form)) is None:
            warnings.warn(f"{spec} goes on without what is wrong here{kernels}", RuntimeWarning, stacklevel=2)
    if failure is not None:
        raise Incorrect(f"{words(failure)}{kernels}")


def switch_off_wrong(shape: AttentionShape, batch: int, form: Form) -> dict[str, str]:
    """Softmax by each of PyTorch's attention kernels: those that are wrong, and how; they are switched off."""
    found = {}
    for name, (_, switch) in SWITCHES.items():
        # flash takes no mask, so it is examined without one
        examined = replace(shape, padding=shape.padding and name != "flash")
        failure = quick_gate(f"softmax[impl={name}]", examined, batch=batch, form=form)
        if failure is not None:
            found[name] = f"{name} is wrong ({words(failure)})"
            switch(False)
    return found


def words(failure: Result) -> str:
    """The property that fails, where, and by how much."""
    sized = f": {failure.measured:.2g}, allowed {failure.allowed:.2g}" if failure.allowed > 0 else ""
    return f"{failure.property}: {failure.detail or failure.measured}{sized}"


def build_checked_cached(cache: Path, machine_id: str, batch: int = 1) -> Builder:
    """The same as `build_checked`, but a variant that passed here before, with the same files, is not examined again.

    The short form of a shape is examined once for all lengths, the length and the batch to be measured by themselves. A
    failure is never stored: it may have come from a machine that was short of memory. A cache that cannot be written,
    or that others can write in, is done without.
    """

    def build_with(spec: Spec) -> BuildVariant:
        def build(shape: AttentionShape) -> Variant:
            variant = built(spec, shape)
            for form, file in verdicts(cache, machine_id, batch, spec, shape).items():
                # a verdict that somebody else could have put there is none
                if is_trusted(file):
                    continue
                require_correct(spec.at(shape.layer), shape, batch, form)
                if left_out():
                    # the next process has all kernels again
                    continue
                with suppress(OSError):
                    make_private(file.parent)
                    file.touch(mode=0o600)
            return variant

        return build

    return build_with


def verdicts(cache: Path, machine_id: str, batch: int, spec: Spec, shape: AttentionShape) -> dict[Form, Path]:
    """The file, by form of the gate, that is there once `spec` has passed it on this machine."""
    # layers differ in nothing that the gate looks at; see `build_checked`
    of_layer, shape = spec.at(shape.layer), replace(shape, layer=0)
    # Where the gate takes a longer form, since the variant refuses the short one, its verdict is not shared.
    short = replace(shape, max_length=min(BASE_LENGTH, shape.max_length))
    try:
        built(of_layer, short)
    except Unsupported:
        short = shape
    # of the batch the short form takes as many as it can afford
    sizes = {"short": (short, min(max(batch, WIDE_BATCH), WIDEST_BATCH)), "own": (shape, batch)}
    forms: tuple[Form, Form] = ("short", "own")
    return {form: cache / "passed" / verdict_key(of_layer, form, *sizes[form], machine_id) for form in forms}


def has_passed(cache: Path, machine_id: str, batch: int, spec: Spec, shape: AttentionShape) -> bool:
    """True if `build_checked_cached` would build it without examining it."""
    return all(is_trusted(file) for file in verdicts(cache, machine_id, batch, spec, shape).values())


def verdict_key(spec: Spec, form: str, shape: AttentionShape, batch: int, machine_id: str) -> str:
    """Hash of all that a verdict depends on. `form`: that of the gate, or what else is remembered of the same."""
    sources = VARIANTS.sources(spec.name)
    folders = [PACKAGE / "bench" / "gate", PACKAGE / "variants", *(source.parent for source in sources if source)]
    files = sorted({state for folder in folders for state in _states(folder)})
    return content_hash([str(spec), form, asdict(shape), batch, machine_id, torch.__version__, files])


def _states(folder: Path) -> Iterator[tuple[str, int, int]]:
    # Times and sizes of files instead of their contents, since this runs for every point of a sweep. Kernels are
    # written in C++ too, so every file of a folder counts.
    for file in folder.rglob("*"):
        if file.is_file() and file.suffix not in (".pyc", ".md"):
            status = file.stat()
            yield str(file), status.st_mtime_ns, status.st_size
