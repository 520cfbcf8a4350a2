"""Modelling: what all tasks of language modelling share, from texts to windows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import ClassVar

import numpy as np

from ...bench.record import Provenance
from ..contract import Availability, Baseline, DataPlace, Dataset, Ids, Metric, Recipe, Split, Task
from ..data import Source, first_of
from ..language import LANGUAGE_PRESETS, Character, Language, LanguageRecipe, Windows
from ..prepared import Prepared, pack, writing
from .ngrams import bigram, unigram


class Modelling(Task):
    """Predict each byte of a text from those before it.

    Training reads the texts end to end; validation and test read each text by itself, in windows that slide. The first
    byte of a text is given, not predicted.
    """

    name: ClassVar[str]
    character: ClassVar[Character] = "unicode"
    metric: ClassVar[Metric] = Metric(name="bits_per_character", margin=0.02)
    shared: ClassVar[Mapping[str, Recipe]] = LANGUAGE_PRESETS
    baselines: ClassVar[Mapping[str, Baseline]] = {"unigram": unigram, "bigram": bigram}

    @abstractmethod
    def sources(self) -> Sequence[Source]:
        """The ways to the texts, in the order in which they are tried."""

    def problem(self) -> Language:
        return Language()

    def availability(self, place: DataPlace) -> list[Availability]:
        return [source.availability(place) for source in self.sources()]

    def load(self, place: DataPlace, recipe: Recipe, seed: int, selection: str) -> Dataset:
        prepared = first_of(self.sources(), place, self.name)
        assert isinstance(recipe, LanguageRecipe)
        return windowed(prepared, recipe, selection, self.character)


def windowed(prepared: Prepared, recipe: LanguageRecipe, selection: str, character: Character) -> Dataset:
    """Windows of prepared texts. With `selection='test'` validation is the test windows.

    Slices are spread evenly over the text and are the same for every seed.
    """
    notes = list(prepared.provenance.notes)
    train = Windows.over(joined(prepared.splits["train"]), recipe.length, recipe.length, character)
    chosen = {}
    for split, count in (("validation", recipe.validation_examples), ("test", recipe.test_examples)):
        whole = Windows.over(prepared.splits[split], recipe.length, recipe.stride, character)
        chosen[split] = whole.spread(count)
        if len(chosen[split]) < len(whole):
            notes.append(f"{split}: {len(chosen[split]):,} windows spread over {len(whole):,}")
    if selection == "test":
        chosen["validation"] = chosen["test"]
        notes.append("the best checkpoint is chosen on the test split")
    counts = {"train": len(train), "validation": len(chosen["validation"]), "test": len(chosen["test"])}
    provenance = replace(prepared.provenance, counts=counts, notes=tuple(notes))
    return Dataset(train=train, validation=chosen["validation"], test=chosen["test"], provenance=provenance)


def joined(split: Split) -> Split:
    """The same tokens as one text."""
    return replace(split, starts=np.array([0, len(split.tokens)]), labels=np.zeros(1, dtype=np.int64))


def byte_ids(text: bytes) -> Ids:
    """Byte + 1, so that 0 stays free for padding."""
    return np.frombuffer(text, dtype=np.uint8).astype(np.uint16) + np.uint16(1)


def texts(split: Iterable[bytes]) -> Split:
    """A split of one example for each text."""
    parts = [byte_ids(text) for text in split]
    return pack(parts, [0] * len(parts))


def streamed(paths: Iterable[Path], scratch: Path) -> Split:
    """As `texts`, of files that are read one by one; their tokens lie in a nameless file under `scratch`.

    The space is free again when the split is no longer used. Raises DataError where `scratch` cannot be written.
    """
    ends = [0]
    with writing(scratch), TemporaryFile(dir=scratch) as file:
        for path in paths:
            ids = byte_ids(path.read_bytes())
            file.write(ids.tobytes())
            ends.append(ends[-1] + len(ids))
        file.flush()
        # the map outlives the open file; of nothing there is none
        tokens = np.memmap(file, dtype=np.uint16, mode="r") if ends[-1] else np.zeros(0, dtype=np.uint16)
    return Split(tokens=tokens, starts=np.array(ends), labels=np.zeros(len(ends) - 1, dtype=np.int64))


def arranged(
    splits: Mapping[str, Iterable[bytes] | Split],
    *,
    source: str,
    fidelity: str,
    files: dict[str, str],
    notes: Sequence[str] = (),
) -> Prepared:
    """Texts by split as prepared data."""
    return Prepared(
        splits={name: split if isinstance(split, Split) else texts(split) for name, split in splits.items()},
        provenance=Provenance(source=source, fidelity=fidelity, files=files, notes=tuple(notes)),
    )
