"""Verdicts: what audit and gate said of a variant, kept beside the Records, so that the same command goes on."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import msgspec
import torch

from ...core.cell import Cell
from ...core.decode import read_json
from ...core.errors import AttnbenchError
from ...core.files import PACKAGE, replacing
from ...core.harness import EDITED, FOLDERS, harness_name
from ...core.hashing import content_hash
from ...core.spec import Spec
from ...plan.fingerprint import variant_hash
from .score import Audited, Examined

FOLDER = "judged"
"""Below the results folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """`file`: named by a hash of the variant's source, the harness and the device; None where nothing is kept."""

    file: Path | None
    audit: Audited | None = None
    examined: Examined | None = None

    @classmethod
    def of(cls, spec: Spec, causal: bool | None, device: str, results: Path, *, again: bool) -> Self:
        """Those that were kept, unless they are asked for `again`."""
        try:
            source = variant_hash(Cell(variant=spec, task=Spec("recall"), preset=Spec("quick"), lane="train"), device)
        except AttnbenchError:
            # the check says why it does not load
            return cls(file=None)
        harness = harness_name()
        if harness.endswith(EDITED):
            # after the next edit the verdict may be another
            files = (file for folder in FOLDERS for file in sorted((PACKAGE / folder).rglob("*.py")))
            harness += content_hash([file.read_text(encoding="utf-8") for file in files])
        key = content_hash([str(spec), source, causal, device, harness, torch.__version__])
        file = results / FOLDER / f"{key}.json"
        if not again:
            with suppress(OSError, AttnbenchError):
                found = read_json(_KeptVerdicts, file, "verdicts of audit and gate")
                return cls(file=file, audit=found.audit, examined=found.examined)
        return cls(file=file)

    def with_more(self, **found: Audited | Examined) -> Self:
        """With an `audit` or what was `examined`, which is kept."""
        more = replace(self, **found)  # type: ignore[arg-type]
        if self.file is not None:
            # without it the next command tests anew
            with suppress(OSError), replacing(self.file) as file:
                file.write(msgspec.json.encode(_KeptVerdicts(audit=more.audit, examined=more.examined)))
        return more


@dataclass(frozen=True, slots=True)
class _KeptVerdicts:
    audit: Audited | None = None
    examined: Examined | None = None
