"""One file of sentence pairs of your own: SOURCE, a tab, TARGET on each line."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ..contract import Availability, DataError, DataPlace
from ..data.prepared import PreparedData
from ..data.sources import checksum
from .build import RawCorpus, carve_validation
from .folder import FIDELITY
from .parallel import ParallelSet, read_lines
from .sources import PairsSource

FEWEST = 20
"""Pairs of a file: a tenth tests, and a tenth of the rest validates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnFileSource(PairsSource):
    """A file that is named from the folder where the command runs. A seeded tenth of its pairs tests, 1,000 at most."""

    path: Path

    def availability(self, place: DataPlace) -> Availability:
        return Availability(
            source="a file of your own",
            fidelity=FIDELITY,
            ready=self.path.is_file(),
            detail=f"{self.path}{'' if self.path.is_file() else ' is no file'}",
            advice=f"name a file with SOURCE<tab>TARGET on each line, from {Path.cwd()}",
        )

    def prepared(self, place: DataPlace) -> PreparedData | None:
        if not self.path.is_file():
            return None
        files = {self.path.name: checksum(place, self.task, self.path.absolute())}
        return self.prepare_raw(place, "file", files, lambda: self._read(files))

    def _read(self, files: dict[str, str]) -> RawCorpus:
        training, test = carve_validation([read_pairs(self.path)], self.cut.document)
        return RawCorpus(
            source=self.path.name,
            files=files,
            training=training,
            validation=None,
            tests=[replace(test, name="test")],
            official_training=False,
            fidelity=FIDELITY,
        )


def read_pairs(path: Path) -> ParallelSet:
    """The pairs of a file; columns after the second are left out. Raises DataError for a line without a tab."""
    columns = [line.split("\t") for line in read_lines(path)]
    wrong = next((at for at, each in enumerate(columns, start=1) if len(each) < 2), 0)
    if wrong:
        raise DataError(f"expected SOURCE<tab>TARGET in {path}, line {wrong:,}; got no tab")
    if len(columns) < FEWEST:
        raise DataError(f"expected at least {FEWEST} pairs in {path}, got {len(columns)}")
    source, target = (tuple(each[side] for each in columns) for side in (0, 1))
    return ParallelSet(name=path.name, source=source, target=target)
