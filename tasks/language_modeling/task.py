"""Modelling: what all tasks of language modelling share, from texts to windows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from ...bench.core.errors import DataError, SelectionError
from ...bench.core.record import Provenance
from ..contract import Availability, Baseline, DataPlace, Dataset, Metric, Recipe, Split, Task
from ..data.data import DataSource, first_of
from ..data.prepared import Prepared
from ..problems.language_modeling import LANGUAGE_PRESETS, Language, LanguageRecipe, Windows
from ..problems.vocabulary import BYTES, RAW_BYTES, Character, Spelling
from .baselines import bigram, unigram
from .packing import joined, texts
from .subwords import LEAST, MOST, in_subwords


class Modelling(Task):
    """Predict each token of a text from those before it: bytes, or with `subwords=N` up to N byte pairs.

    Training reads the texts end to end; validation and test read each text by itself, in windows that slide. The first
    token of a text is given, not predicted. Bits are counted by the characters of the text, whatever the tokens are.
    """

    name: ClassVar[str]
    character: ClassVar[Character] = "unicode"
    metric: ClassVar[Metric] = Metric(name="bits_per_character", margin=0.02)
    shared: ClassVar[Mapping[str, Recipe]] = LANGUAGE_PRESETS
    baselines: ClassVar[Mapping[str, Baseline]] = {"unigram": unigram, "bigram": bigram}

    def __init__(self, *, subwords: int = 0):
        if subwords and not LEAST <= subwords <= MOST:
            raise SelectionError(
                f"{self.name}: expected 0 subwords, for bytes, or {LEAST} to {MOST:,} of them, got {subwords}"
            )
        self.subwords = subwords
        if subwords:
            # what blind guessing costs is known of bytes
            self.metric = replace(self.metric, chance=None)  # type: ignore[misc]

    @abstractmethod
    def sources(self) -> Sequence[DataSource]:
        """The ways to the texts, in the order in which they are tried."""

    def problem(self) -> Language:
        return Language(vocabulary=self.subwords or len(BYTES.pieces))

    def availability(self, place: DataPlace) -> list[Availability]:
        return [source.availability(place) for source in self.sources()]

    def load(self, place: DataPlace, recipe: Recipe, seed: int, selection: str) -> Dataset:
        prepared = first_of(self.sources(), place, self.name)
        assert isinstance(recipe, LanguageRecipe)
        spelling = RAW_BYTES if self.character == "byte" else BYTES
        if self.subwords:
            prepared, spelling = in_subwords(prepared, self.subwords, place, self.name, self.character)
        return windowed(prepared, recipe, selection, spelling)


def windowed(prepared: Prepared, recipe: LanguageRecipe, selection: str, spelling: Spelling) -> Dataset:
    """Windows of prepared texts. With `selection='test'` validation is the test windows.

    Slices are spread evenly over the text and are the same for every seed. Raises DataError for a split without text.
    """
    for name, part in prepared.splits.items():
        if not (np.diff(part.starts) > 1).any():
            raise DataError(
                f"expected a text of at least two tokens in {name}, got none from {prepared.provenance.source}"
            )
    notes = list(prepared.provenance.notes)
    train = Windows.over(joined(prepared.splits["train"]), recipe.length, recipe.length, spelling)
    chosen = {}
    for split, count in (("validation", recipe.validation_examples), ("test", recipe.test_examples)):
        whole = Windows.over(prepared.splits[split], recipe.length, recipe.stride, spelling)
        chosen[split] = whole.spread(count)
        if len(chosen[split]) < len(whole):
            notes.append(f"{split}: {len(chosen[split]):,} windows spread over {len(whole):,}")
    if selection == "test":
        chosen["validation"] = chosen["test"]
        notes.append("the best checkpoint is chosen on the test split")
    counts = {"train": len(train), "validation": len(chosen["validation"]), "test": len(chosen["test"])}
    provenance = replace(prepared.provenance, counts=counts, notes=tuple(notes))
    return Dataset(train=train, validation=chosen["validation"], test=chosen["test"], provenance=provenance)


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
