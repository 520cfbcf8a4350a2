"""A folder of your own parallel text: any number of sets, whose names say which are held out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ..contract import Availability, DataPlace
from ..data.prepared import PreparedData
from .corpora import invalid_sets
from .parallel import find_sets, list_sets
from .sources import PairsSource

TEST = re.compile(r"test([._\d-].*)?", re.IGNORECASE)
VALIDATION = re.compile(r"(valid|validation|val|dev|devtest)([._\d-].*)?", re.IGNORECASE)
"""Such as `test`, `test.2020` and `Test-b`, but not `testament`."""

FIDELITY = "own"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnFolderSource(PairsSource):
    """Sets whose name matches `TEST` or `VALIDATION` are held out; all others train. The set called `test` ranks."""

    path: Path

    def availability(self, place: DataPlace) -> Availability:
        problem = self._problem(place)
        return Availability(
            source="folder of parallel text",
            fidelity=FIDELITY,
            ready=not problem,
            detail=f"{self._root(place)}: {problem or ', '.join(self._names(place))}",
            advice="put SET.L1 and SET.L2, one sentence a line, there; a set called test is needed",
        )

    def prepared(self, place: DataPlace) -> PreparedData | None:
        if self._problem(place):
            return None
        root = self._root(place)
        # a set may lie there as SET.L1 and as SET.L1-L2.L1: the first that is found is read
        training, validation, tests = (
            [find_sets(root, name, self.corpus.languages)[0] for name in names]
            for names in (
                [name for name in self._training(place) if self.cut.includes(name)],
                self._validation(place),
                self.tests(place),
            )
        )
        return self.prepare_files(
            place, "folder", f"{root.name}/", training=training, validation=validation, tests=tests, fidelity=FIDELITY
        )

    def tests(self, place: DataPlace) -> tuple[str, ...]:
        """Names of the test sets, the one that ranks first."""
        names = [name for name in self._names(place) if TEST.fullmatch(name)]
        # the set called test ranks, so it comes first; the others follow by name
        return tuple(sorted(names, key=lambda name: (name.lower() != "test", name)))

    def _validation(self, place: DataPlace) -> list[str]:
        return [name for name in self._names(place) if VALIDATION.fullmatch(name)]

    def _training(self, place: DataPlace) -> list[str]:
        held_out = {*self.tests(place), *self._validation(place)}
        return [name for name in self._names(place) if name not in held_out]

    def _problem(self, place: DataPlace) -> str:
        """The reason why the folder cannot be used; empty if it can."""
        names, training, validation = self._names(place), self._training(place), self._validation(place)
        if not self._root(place).is_dir():
            return "there is no such folder"
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
