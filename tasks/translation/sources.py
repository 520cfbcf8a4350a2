"""Sources of the shared translation tasks, in the order in which they are tried."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

from ..contract import Availability, DataError, DataPlace
from ..data.data import DataSource
from ..data.download import RemoteFile, Unreachable, failure, fetch
from ..data.prepared import PreparedData, prepare
from ..data.sources import TfdsSource, checksum
from .build import BUILDER, CorpusSlice, RawCorpus, arrange
from .corpora import Corpus
from .parallel import FilePair, ParallelSet, find_sets


def sources(task: str, corpus: Corpus, cut: CorpusSlice) -> tuple[DataSource, ...]:
    """Every way to a shared task's pairs, in the order in which they are tried."""
    known = (
        (PlainTextSource, True),
        (TfdsPairsSource, bool(corpus.tfds)),
        (SacrebleuSource, bool(corpus.sacrebleu)),
        (DownloadedPairsSource, bool(corpus.downloads)),
    )
    return tuple(source(task=task, corpus=corpus, cut=cut) for source, has_pairs in known if has_pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairsSource:
    """A source of sentence pairs, of which `cut` is used."""

    task: str
    corpus: Corpus
    cut: CorpusSlice

    def prepare_raw(
        self, place: DataPlace, kind: str, files: dict[str, str], read: Callable[[], RawCorpus]
    ) -> PreparedData:
        """The pairs that `read` yields, prepared on first use. The checksums decide the folder in the cache."""
        identity = {
            "source": kind,
            "files": files,
            "languages": self.corpus.languages,
            "tests": self.corpus.tests,
            "cut": self.cut.to_json(),
            "builder": BUILDER,
        }
        return prepare(place, self.task, identity, lambda: arrange(read(), self.corpus, self.cut, place))

    def prepare_files(
        self,
        place: DataPlace,
        kind: str,
        source: str,
        *,
        training: Sequence[FilePair],
        validation: Sequence[FilePair],
        tests: Sequence[FilePair],
        official_training: bool = False,
        fidelity: str = "surrogate",
    ) -> PreparedData:
        """The pairs of these files, prepared on first use. At most one set validates."""
        files = {
            f"{PurePath(pair.name).name}.{language}": checksum(place, self.task, path)
            for pair in [*tests, *training, *validation]
            for language, path in zip(self.corpus.languages, (pair.source, pair.target), strict=True)
        }

        def read() -> RawCorpus:
            return RawCorpus(
                source=source,
                files=files,
                training=[pair.read() for pair in training],
                validation=validation[0].read() if validation else None,
                tests=[pair.read() for pair in tests],
                official_training=official_training,
                fidelity=fidelity,
            )

        return self.prepare_raw(place, kind, files, read)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainTextSource(PairsSource):
    """Files `SET.L1-L2.{L1,L2}` in wmt/newstest and wmt/train under the data root.

    The official training sets are used if all of them are there, and then alone. Otherwise the substitutes that are
    there are used. `sets` chooses among both, and such a choice never counts as official.
    """

    def availability(self, place: DataPlace) -> Availability:
        tests, training = self._tests(place), self._training(place)
        lacks = [self.corpus.tests[0]] * (not tests) + ["any training set"] * (not training)
        return Availability(
            source="plain parallel text",
            fidelity="official" if self._is_official(place) else "surrogate",
            ready=not lacks,
            detail=f"lacks {' and '.join(lacks)}" if lacks else ", ".join(pair.name for pair in tests + training),
            advice=self._advice(place),
            estimate="some 10 s for 70,000 pairs",
        )

    def prepared(self, place: DataPlace) -> PreparedData | None:
        if not self.availability(place).ready:
            return None
        return self.prepare_files(
            place,
            "plain parallel text",
            "plain parallel text",
            training=self._training(place),
            validation=self._found(place, self.corpus.validation)[:1],
            tests=self._tests(place),
            official_training=self._is_official(place),
        )

    def _advice(self, place: DataPlace) -> str:
        first = self.corpus.tests[0]
        if "/" in first:
            return f"put SET.L1 and SET.L2, such as {PurePath(first).name}, into {place.root / PurePath(first).parent}"
        return f"put SET.L1-L2.L1 and SET.L1-L2.L2, such as {first}, into {place.root / 'wmt'}"

    def _is_official(self, place: DataPlace) -> bool:
        official = self.corpus.official
        return bool(official) and not self.cut.sets and all(self._found(place, name) for name in official)

    def _training(self, place: DataPlace) -> list[FilePair]:
        names = self.corpus.official if self._is_official(place) else self.corpus.substitutes
        if self.cut.sets:
            names = self.corpus.training
        return [pair for name in names if self.cut.includes(name) for pair in self._found(place, name)]

    def _tests(self, place: DataPlace) -> list[FilePair]:
        """The files of each test set that is here; none if the first set, which ranks, is missing."""
        sets = [self._found(place, name)[:1] for name in self.corpus.tests]
        return [pair for pairs in sets for pair in pairs] if sets and sets[0] else []

    def _found(self, place: DataPlace, name: str) -> list[FilePair]:
        return find_sets(place.root, name, self.corpus.languages) if name else []


@dataclass(frozen=True, slots=True, kw_only=True)
class TfdsPairsSource(PairsSource):
    """TFDS `wmt*_translate`, prepared as array_record or parquet. It is never downloaded here."""

    def availability(self, place: DataPlace) -> Availability:
        way = self._tfds().availability(place)
        unfit = self._unfit()
        return replace(way, ready=False, detail=unfit, advice="use plain parallel text") if unfit else way

    def _unfit(self) -> str:
        """The reason why TFDS cannot give such a slice; empty if it can."""
        if self.cut.sets:
            return f"TFDS {self.corpus.tfds} has one training set, of which sets={self.cut.sets} cannot choose parts"
        if self.cut.document > 1:
            return f"TFDS shuffles the pairs of {self.corpus.tfds}, so document={self.cut.document} finds no neighbours"
        return ""

    def _tfds(self) -> TfdsSource:
        # it only looks for the folder; the pairs are read here, with the slice
        return TfdsSource(
            task=self.task, dataset=self.corpus.tfds, read=_never, estimate="minutes for millions of pairs"
        )

    def prepared(self, place: DataPlace) -> PreparedData | None:
        folder = self._tfds().folder(place)
        if folder is None or not self.availability(place).ready:
            return None
        records = [path for path in sorted(folder.iterdir()) if path.suffix != ".json"]
        files = {path.name: checksum(place, self.task, path) for path in records if path.is_file()}

        def read() -> RawCorpus:
            import tensorflow_datasets as tfds

            builder = tfds.builder_from_directory(str(folder))
            train, validation, test = (
                self._rows(builder.as_data_source(split), split) for split in ("train", "validation", "test")
            )
            return RawCorpus(
                source=f"TFDS {self.corpus.tfds}",
                files=files,
                training=[train],
                validation=validation,
                tests=[test],
                official_training=True,
            )

        return self.prepare_raw(place, "tfds", files, read)

    def _rows(self, rows: Any, split: str) -> ParallelSet:
        texts = [(_text(row, self.corpus.source), _text(row, self.corpus.target)) for row in rows]
        return ParallelSet(name=split, source=tuple(s for s, _ in texts), target=tuple(t for _, t in texts))


@dataclass(frozen=True, slots=True, kw_only=True)
class SacrebleuSource(PairsSource):
    """The test sets that sacreBLEU downloads. Those of other years are trained on."""

    def availability(self, place: DataPlace) -> Availability:
        known = importlib.util.find_spec("sacrebleu") is not None
        unfit = self._unfit() if known else "sacreBLEU is not installed"
        return Availability(
            source="sacreBLEU's test sets",
            fidelity="surrogate",
            ready=not unfit and self._is_downloaded(),
            detail=unfit or ", ".join(self._wanted()),
            advice=f"attnbench data get {self.task}" if known else "pip install 'attnbench[translation]'",
            estimate="some 10 MB to download",
        )

    def prepared(self, place: DataPlace) -> PreparedData | None:
        if importlib.util.find_spec("sacrebleu") is None or self._unfit():
            return None
        if place.offline and not self._is_downloaded():
            return None
        try:
            pairs = {name: self._files(name, its) for name, its in self._wanted().items()}
        # sacreBLEU ends the process where a download fails
        except (Exception, SystemExit) as error:
            place.notice(f"sacreBLEU's test sets cannot be downloaded: {type(error).__name__}: {error}")
            return None
        return self.prepare_files(
            place,
            "sacrebleu",
            "sacreBLEU's test sets",
            training=[pairs[name] for name in self._training()],
            validation=[pairs[name] for name in (self.corpus.validation,) if name in pairs],
            tests=[pairs[self.corpus.tests[0]]],
        )

    def _unfit(self) -> str:
        """The reason why sacreBLEU's sets cannot train this direction; empty if they can."""
        chosen = f" and is one of sets={self.cut.sets}" if self.cut.sets else ""
        return "" if self._training() else f"no set of this pair is older than the test set{chosen}"

    def _wanted(self) -> dict[str, str]:
        """Sets that sacreBLEU has for this direction: our name → its name."""
        from sacrebleu import DATASETS

        direction = "-".join(self.corpus.languages)
        known = self.corpus.sacrebleu or {}
        return {name: its for name, its in known.items() if its in DATASETS and direction in DATASETS[its].langpairs}

    def _training(self) -> list[str]:
        held_out = (*self.corpus.tests, self.corpus.validation)
        return [name for name in self._wanted() if name not in held_out and self.cut.includes(name)]

    def _is_downloaded(self) -> bool:
        from sacrebleu.utils import SACREBLEU_DIR

        wanted = self._wanted().values()
        return bool(wanted) and all((Path(SACREBLEU_DIR) / its).is_dir() for its in wanted)

    def _files(self, name: str, its: str) -> FilePair:
        from sacrebleu.utils import get_reference_files, get_source_file

        direction = "-".join(self.corpus.languages)
        source, references = get_source_file(its, direction), get_reference_files(its, direction)
        return FilePair(name=name, source=Path(source), target=Path(references[0]))


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadedPairsSource(PairsSource):
    """The files of `corpus.downloads`, each held against its SHA-256."""

    def availability(self, place: DataPlace) -> Availability:
        remotes = self._remotes()
        lacks = [remote for remote in remotes if not place.download(remote.name).is_file()]
        failed = next(filter(None, (failure(remote, place) for remote in lacks)), "")
        return Availability(
            source=f"download of {len(remotes)} files",
            fidelity="official",
            ready=not lacks and not self._unfit(),
            detail=self._unfit() or failed or remotes[0].urls[0],
            advice=f"attnbench data get {self.task}",
            estimate=f"{sum(remote.bytes for remote in remotes) / 1e6:.1f} MB to download",
        )

    def prepared(self, place: DataPlace) -> PreparedData | None:
        if self._unfit() or (place.offline and not self.availability(place).ready):
            return None
        try:
            pairs = {
                name: FilePair(name=name, source=fetch(both[0], place), target=fetch(both[1], place))
                for name, both in (self.corpus.downloads or {}).items()
            }
        except Unreachable:
            # `availability` shows the reason, which is remembered
            return None
        return self.prepare_files(
            place,
            "download",
            "download of the authors' files",
            training=[pairs[name] for name in self.corpus.official if self.cut.includes(name)],
            validation=[pairs[self.corpus.validation]],
            tests=[pairs[name] for name in self.corpus.tests],
            official_training=not self.cut.sets,
        )

    def _remotes(self) -> list[RemoteFile]:
        return [remote for both in (self.corpus.downloads or {}).values() for remote in both]

    def _unfit(self) -> str:
        has_training = any(map(self.cut.includes, self.corpus.official))
        return "" if has_training else f"no training set is in sets={self.cut.sets}"


def _text(row: Mapping[str, Any], language: str) -> str:
    value = row[language]
    # a line end inside a sentence would make two of it
    return " ".join((value.decode() if isinstance(value, bytes) else str(value)).split("\n"))


def _never(path: Path, source: str, files: dict[str, str]) -> PreparedData:
    raise DataError(f"{source} is read with a slice")
