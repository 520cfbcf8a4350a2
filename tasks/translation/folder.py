"""Folder: a person's own parallel text, any number of sets in one folder; the names of sets say what is held out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ..contract import Availability, DataPlace
from ..data.checksums import file_checksum
from ..data.data import Unavailable
from ..data.prepared import PreparedData, prepare
from .build import CorpusSlice, RawCorpus, arrange
from .corpora import Corpus, invalid_sets
from .parallel import found, list_sets
from .sources import identity

TEST = re.compile(r"test([._\d-].*)?", re.IGNORECASE)
VALIDATION = re.compile(r"(valid|validation|val|dev|devtest)([._\d-].*)?", re.IGNORECASE)
"""Such as `test`, `test.2020` and `Test-b`, but not `testament`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnFolderSource:
    """Sets that `TEST` or `VALIDATION` matches are held out, all others train. The test set called `test` ranks."""

    task: str
    path: Path
    corpus: Corpus
    cut: CorpusSlice

    def availability(self, place: DataPlace) -> Availability:
        lack = self._lack(place)
        return Availability(
            source="folder of parallel text",
            fidelity="surrogate",
            ready=not lack,
            detail=f"{self._root(place)}: {lack or ', '.join(self._names(place))}",
            advice="put SET.L1 and SET.L2, one sentence a line, there; a set called test is needed",
        )

    def prepared(self, place: DataPlace) -> PreparedData | Unavailable:
        availability = self.availability(place)
        if not availability.ready:
            return Unavailable(reason=f"{availability.detail}; {availability.advice}")
        root = self._root(place)
        training = [name for name in self._training(place) if self.cut.takes(name)]
        tests, validation = self.tests(place), self._validation(place)
        pairs = {name: found(root, name, self.corpus.languages)[0] for name in [*training, *tests, *validation]}
        files = {
            path.name: file_checksum(place, self.task, path)
            for pair in pairs.values()
            for path in (pair.source, pair.target)
        }

        def build() -> PreparedData:
            raw = RawCorpus(
                source=f"{root.name}/",
                files=files,
                training=[pairs[name].read() for name in training],
                validation=pairs[validation[0]].read() if validation else None,
                tests=[pairs[name].read() for name in tests],
                official_training=False,
            )
            return arrange(raw, self.corpus, self.cut, place)

        return prepare(place, self.task, identity("folder", files, self.corpus, self.cut), build)

    def tests(self, place: DataPlace) -> tuple[str, ...]:
        """Names of the test sets, the one that ranks first."""
        names = [name for name in self._names(place) if TEST.fullmatch(name)]
        return tuple(sorted(names, key=lambda name: (name.lower() != "test", name)))

    def _validation(self, place: DataPlace) -> list[str]:
        return [name for name in self._names(place) if VALIDATION.fullmatch(name)]

    def _training(self, place: DataPlace) -> list[str]:
        held_out = {*self.tests(place), *self._validation(place)}
        return [name for name in self._names(place) if name not in held_out]

    def _lack(self, place: DataPlace) -> str:
        """What keeps the folder from being used; empty where nothing does."""
        names, training, validation = self._names(place), self._training(place), self._validation(place)
        if not names:
            return "no set of these languages"
        if not self.tests(place) or not training:
            return f"{', '.join(names)}, and none {'to train on' if self.tests(place) else 'called test'}"
        if len(validation) > 1:
            return f"expected one set to validate on, got {', '.join(validation)}: join them into one"
        return invalid_sets(self.cut.sets, training)

    def _names(self, place: DataPlace) -> list[str]:
        return list_sets(self._root(place), self.corpus.languages)

    def _root(self, place: DataPlace) -> Path:
        return place.root / self.path.expanduser()
