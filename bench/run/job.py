"""Job: one Block as a child process receives it, on its standard input, as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.cell import Cell


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """`digests`: what the Records carry, `sources`: hashes of the variants' source, both by cell key.

    `threads`: processor threads to pin, 0 = as the machine has cores.
    """

    block: str
    cells: tuple[Cell, ...]
    digests: dict[str, str]
    sources: dict[str, str]
    device: str
    results: Path
    data_dir: Path | None
    offline: bool
    threads: int = 0

    def without(self, cell: Cell) -> Job:
        """The same Block after `cell` has ended it."""
        return self.keep(tuple(c for c in self.cells if c != cell))

    def keep(self, cells: tuple[Cell, ...]) -> Job:
        return Job(**{name: getattr(self, name) for name in self.__dataclass_fields__} | {"cells": cells})

    def dumps(self) -> str:
        values: dict[str, Any] = {name: getattr(self, name) for name in self.__dataclass_fields__}
        values["cells"] = [cell.to_json() for cell in self.cells]
        values["results"] = str(self.results)
        values["data_dir"] = str(self.data_dir) if self.data_dir else None
        return json.dumps(values)

    @classmethod
    def loads(cls, text: str) -> Job:
        values = json.loads(text)
        values["cells"] = tuple(Cell.from_json(cell) for cell in values["cells"])
        values["results"] = Path(values["results"])
        values["data_dir"] = Path(values["data_dir"]) if values["data_dir"] else None
        return cls(**values)
