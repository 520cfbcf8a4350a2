"""Build prepared data from raw sentence pairs: the slice, its vocabulary, token ids and the texts themselves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ...bench.core.hashing import axis_seed
from ..contract import DataError, DataPlace, Ids, Provenance, Split
from ..data.prepared import PreparedData, pack
from ..splits import byte_ids, bytes_of
from .corpora import Corpus
from .documents import joined, joined_text, runs, spans
from .parallel import ParallelSet, without
from .subwords import Subwords, learned

BUILDER = 2
"""Raised when the same originals give other arrays. 2: documents join neighbours only; `official` counts the pairs."""

CARVED = 1_000
"""Validation pairs that are taken from training where a corpus has no validation set; a tenth of it at most."""

OFFICIAL_SHARE = 0.9
"""Share of the official number of training pairs. A text with fewer is not official, whatever its name."""

TEST_DIGESTS = {
    "4bc3fa75b55b83ee78846d0e17c185bac1863c9e0334d9fd5bc2924ccce8bdfb": "newstest2014, en-de, 3,003 lines",
    "a5d8e54137fbc8da57ee884591c0138f5fbf60943caae6bab97f2fd3ab860bcc": "newstest2014, en-fr, 3,003 lines",
    "16ac6edd39ce52b24e791222b6e046261a3d4176cd2f413e6254a863f62d9dc5": "newstest2016, ro-en, 1,999 lines",
    "2434ba9e1f6a3d17787e2cfba5df982072723075719b25f401bd29ffcf103e29": "newstest2018, zh-en, 3,981 lines",
    "a7be2a898f0dd94a84366023876161c9bb1eea9813500182662b3aa28ac95a14": "multi30k test_2016_flickr, en-de, 1,000 lines",
    "5da85357c5fa71212d245f6dd160274b1915d61d94489117049346251a93815d": "newstest2018, en-fi, 3,000 lines",
}
"""SHA-256 of the ranked test sets, source first (`ParallelSet.digest`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusSlice:
    """A slice of a corpus: `pairs` drawn by a fixed seed, None = all; at most `max_length` subwords on either side.

    `document`: consecutive pairs that are joined into one. Then whole runs of so many are drawn, and the last run may
    exceed `pairs`. `sets`: parts of names of training sets, joined by plus signs; empty = all. `vocabulary`: size of
    the joint vocabulary.
    """

    vocabulary: int
    pairs: int | None = None
    max_length: int | None = None
    document: int = 1
    sets: str = ""

    def includes(self, name: str) -> bool:
        return not self.sets or any(part in name for part in self.sets.split("+"))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class RawCorpus:
    """Sentence pairs as a source has them, before any slice. The first of `tests` ranks.

    `fidelity`: what a Record says of pairs that are not official.
    """

    source: str
    files: dict[str, str]
    training: Sequence[ParallelSet]
    validation: ParallelSet | None
    tests: Sequence[ParallelSet]
    official_training: bool
    fidelity: str = "surrogate"


def arrange(raw: RawCorpus, corpus: Corpus, cut: CorpusSlice, place: DataPlace) -> PreparedData:
    """Splits train, validation and test: source and target ids of a pair as two towers, the number of its set as label.

    `validation.text` and `test.text` hold the same pairs as UTF-8 (byte + 1), and `subwords` the model of the
    vocabulary, so that translations can be scored again when the originals are gone. Raises DataError for a slice
    without training pairs.
    """
    # held-out sentences leave training first, so that the slice and its notes count usable pairs only
    held_out = [*raw.tests, *([raw.validation] if raw.validation else [])]
    training, dropped = without(raw.training, held_out)
    notes = []
    if dropped:
        notes.append(f"{dropped:,} training pairs left out: one side is empty or stands in a held-out set")
    training = sample_pairs(training, cut.pairs, cut.document)
    available = sum(map(len, raw.training))
    if cut.pairs is not None and cut.pairs < available - dropped:
        slice_pairs = sum(map(len, training))
        in_runs = f", in runs of {cut.document}" if cut.document > 1 else ""
        notes.append(f"train: seeded slice of {slice_pairs:,} of {available - dropped:,} pairs{in_runs}")
    if raw.validation is None:
        training, validation = carve_validation(training, cut.document)
        notes.append(f"no validation set of its own: {len(validation):,} training pairs validate")
    else:
        validation = raw.validation
    if not sum(map(len, training)):
        raise DataError(f"expected training pairs in {raw.source}, got none after the slice {cut.to_json()}")
    # the vocabulary is learned on the training slice alone: test words must not shape it
    lines = [line for each in training for side in (each.source, each.target) for line in side]
    subwords = learned(place, lines, cut.vocabulary, corpus.languages)
    train, kept = encoded_training(training, subwords, cut)
    pairs = sum(map(len, training))
    if kept < pairs:
        notes.append(f"{pairs - kept:,} training pairs are longer than {cut.max_length} subwords")
    if cut.document > 1:
        notes.append(f"documents of up to {cut.document} consecutive sentences")
    trains_officially = raw.official_training and available >= OFFICIAL_SHARE * corpus.official_pairs
    official = trains_officially and raw.tests[0].digest() in TEST_DIGESTS
    if raw.official_training and not trains_officially:
        least = f"{OFFICIAL_SHARE:.0%} of {corpus.official_pairs:,}"
        notes.append(f"the official training sets are not whole: {available:,} pairs are here, fewer than {least}")
    if not trains_officially:
        instead = f" instead of the {corpus.official_pairs:,} official ones" if corpus.official_pairs else ""
        notes.append(f"trained on {kept:,} pairs of {', '.join(each.name for each in training)}{instead}")
    splits = {"train": train, "subwords": pack([byte_ids(subwords.model)], [0])}
    for name, sets in (("validation", [validation]), ("test", raw.tests)):
        splits[name], splits[f"{name}.text"] = encoded(sets, subwords, cut)
    counts = {"train": kept, "validation": len(validation), **{each.name: len(each) for each in raw.tests}}
    provenance = Provenance(
        source=raw.source,
        fidelity="official" if official else raw.fidelity,
        files=raw.files,
        counts=counts,
        notes=tuple(notes),
    )
    return PreparedData(splits=splits, provenance=provenance)


def sample_pairs(sets: Sequence[ParallelSet], count: int | None, document: int = 1) -> list[ParallelSet]:
    """`count` pairs of all sets together, in their order. A smaller slice is a part of a larger one.

    Whole runs of `document` consecutive pairs are drawn until there are at least `count` pairs.
    """
    if count is None or count >= sum(map(len, sets)):
        return list(sets)
    return _pick_runs(sets, count, document, axis_seed(use="translation slice"))


def carve_validation(sets: Sequence[ParallelSet], document: int = 1) -> tuple[list[ParallelSet], ParallelSet]:
    """Training sets without a seeded sample, and the sample as a validation set. No sentence is in both.

    The sample consists of runs of `document` consecutive pairs; runs are shorter where the sample is smaller than one.
    """
    count = min(CARVED, sum(map(len, sets)) // 10)
    chosen = _pick_runs(sets, count, max(min(document, count), 1), axis_seed(use="translation validation"))
    # the chosen parts of different sets are no neighbours, so each begins with a gap
    firsts = np.cumsum([0, *map(len, chosen)]).tolist()
    validation = ParallelSet(
        name="validation",
        source=tuple(line for each in chosen for line in each.source),
        target=tuple(line for each in chosen for line in each.target),
        gaps=frozenset(first + gap for first, each in zip(firsts, chosen, strict=False) for gap in (0, *each.gaps)),
    )
    return without(sets, [validation])[0], validation


def encoded_training(sets: Sequence[ParallelSet], subwords: Subwords, cut: CorpusSlice) -> tuple[Split, int]:
    """The pairs that are short enough, joined into documents set by set; the number of these pairs."""
    sides: list[Ids] = []
    kept = 0
    for each in sets:
        source, target = subwords.encode(each.source), subwords.encode(each.target)
        most = cut.max_length
        short = [at for at in range(len(source)) if most is None or max(len(source[at]), len(target[at])) <= most]
        source, target = [source[at] for at in short], [target[at] for at in short]
        kept += len(short)
        documents = spans(source, target, cut.document, gaps=each.only(short).gaps)
        sides += interleaved(joined(source, documents), joined(target, documents))
    return pack(sides, [0] * (len(sides) // 2), towers=2), kept


def encoded(sets: Sequence[ParallelSet], subwords: Subwords, cut: CorpusSlice) -> tuple[Split, Split]:
    """Ids and texts of whole sets; labels number the sets. Test pairs are never dropped for their length."""
    ids: list[Ids] = []
    texts: list[Ids] = []
    labels: list[int] = []
    for number, each in enumerate(sets):
        source, target = subwords.encode(each.source), subwords.encode(each.target)
        documents = spans(source, target, cut.document, gaps=each.gaps)
        ids += interleaved(joined(source, documents), joined(target, documents))
        lines = [joined_text(side, documents) for side in (each.source, each.target)]
        texts += interleaved(*([byte_ids(line.encode()) for line in side] for side in lines))
        labels += [number] * len(documents)
    return pack(ids, labels, towers=2), pack(texts, labels, towers=2)


def interleaved(first: Iterable[Ids], second: Iterable[Ids]) -> list[Ids]:
    return [side for pair in zip(first, second, strict=True) for side in pair]


def texts(split: Split, tower: int) -> list[str]:
    """The lines of one tower of a text split."""
    return [bytes_of(split.sequence(at, tower)).decode() for at in range(len(split))]


def _pick_runs(sets: Sequence[ParallelSet], count: int, document: int, seed: int) -> list[ParallelSet]:
    """Runs of `document` consecutive pairs, taken in a seeded order until there are `count` pairs."""
    starts = runs(sets, document)
    sizes = np.diff(starts, append=sum(map(len, sets)))
    # RandomState: numpy promises that this stream never changes, and a slice must be the same under every version
    order = np.random.RandomState([seed & 0xFFFFFFFF, seed >> 32]).permutation(len(starts))
    enough = np.searchsorted(np.cumsum(sizes[order]), count) + 1 if count else 0
    is_taken = np.zeros(len(starts), dtype=bool)
    is_taken[order[:enough]] = True
    chosen = np.flatnonzero(np.repeat(is_taken, sizes))
    picked = []
    first = 0
    for each in sets:
        inside = chosen[(chosen >= first) & (chosen < first + len(each))] - first
        picked.append(each.only(inside.tolist()))
        first += len(each)
    return picked
