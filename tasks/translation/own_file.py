"""One file of sentence pairs of your own: SOURCE, a tab, TARGET on each line."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ...bench.core.files import open_regular
from ..contract import Availability, DataError, DataPlace
from ..data.own_file import MOST_BYTES, own_checksum, own_file
from ..data.prepared import PreparedData
from .build import RawCorpus, carve_validation
from .folder import FIDELITY
from .parallel import ParallelSet, read_lines
from .sources import PairsSource

WANTED = "a file with SOURCE<tab>TARGET on each line"
MOST_BYTES_OF_A_LINE = 2**20

FEWEST = 20
"""Pairs of a file: a tenth tests, and a tenth of the rest validates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnFileSource(PairsSource):
    """A file that is named from the folder where the command runs. A seeded tenth of its pairs tests, 1,000 at most."""

    path: Path

    def availability(self, place: DataPlace) -> Availability:
        found = own_file(self.path, WANTED)
        if found.ready and self.path.suffix != ".gz":
            with open_regular(self.path) as file:
                has_tab = b"\t" in file.readline(MOST_BYTES_OF_A_LINE)
            if not has_tab:
                return replace(found, ready=False, detail=f"{self.path}: line 1 has no tab")
        return found

    def prepared(self, place: DataPlace) -> PreparedData | None:
        way = self.availability(place)
        if not way.ready:
            raise DataError(f"{way.detail}; {way.advice}")
        files = own_checksum(place, self.task, self.path, WANTED)
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
    """The pairs of a file; columns after the second are left out.

    Raises DataError for a line without a tab, a first column of numbers, and too few sentences that differ.
    """
    columns = [line.split("\t") for line in read_lines(path, MOST_BYTES)]
    wrong = next((at for at, each in enumerate(columns, start=1) if len(each) < 2), 0)
    if wrong:
        raise DataError(f"expected SOURCE<tab>TARGET in {path}, line {wrong:,}; got no tab")
    source, target = (tuple(each[side] for each in columns) for side in (0, 1))
    full = [(s, t) for s, t in zip(source, target, strict=True) if s.strip() and t.strip()]
    # a sentence that is held out is not trained on: the same one on every line would leave nothing
    pairs = min((len(set(side)) for side in zip(*full, strict=True)), default=0)
    most = max(map(len, columns), default=2)
    others = f"; it has {most} columns, and `cut -f 2,{most} {path.name}` keeps two others" if most > 2 else ""
    if pairs < FEWEST:
        empty = f", and {len(source) - len(full):,} lines have an empty half" if len(full) < len(source) else ""
        raise DataError(
            f"expected at least {FEWEST} pairs in {path}, got {pairs} of different sentences{empty}; write "
            f"SOURCE<tab>TARGET on each line{others}"
        )
    if all(line.strip().isdecimal() for line in source):
        raise DataError(f"expected sentences in the first column of {path}, got numbers alone{others}")
    return ParallelSet(name=path.name, source=source, target=target)
