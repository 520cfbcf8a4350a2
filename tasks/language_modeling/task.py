"""The base of all language modeling tasks: from texts to windows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar

import numpy as np

from ..contract import (
    METRICS,
    Baseline,
    DataError,
    DataPlace,
    Dataset,
    Metric,
    Provenance,
    Range,
    Recipe,
    SelectionError,
    Split,
)
from ..data.data import SourcedTask, load_first
from ..data.prepared import PreparedData
from ..problems.language_modeling import LANGUAGE_PRESETS, Language, LanguageRecipe, Windows
from ..problems.vocabulary import BYTES, RAW_BYTES, Character, Vocabulary
from .baselines import bigram, unigram
from .packing import joined, texts
from .subwords import MAX_SUBWORDS, MIN_SUBWORDS, to_subwords


class LanguageModelingTask(SourcedTask):
    """Predict each token of a text from those before it: bytes, or with `subwords=N` up to N byte pairs.

    Training reads all texts end to end. Validation and test read each text by itself, in sliding windows. The first
    token of a text is given, not predicted. Bits are counted per character of the text, whatever the tokens are.
    """

    character: ClassVar[Character] = "unicode"
    metric: ClassVar[Metric] = METRICS["bits_per_character"]
    shared: ClassVar[Mapping[str, Recipe]] = LANGUAGE_PRESETS
    baselines: ClassVar[Mapping[str, Baseline]] = {"unigram": unigram, "bigram": bigram}

    def __init__(self, *, subwords: Annotated[int, Range(0, 65_535)] = 0):
        if subwords and not MIN_SUBWORDS <= subwords <= MAX_SUBWORDS:
            raise SelectionError(
                f"{self.name}: expected 0 subwords, for bytes, or {MIN_SUBWORDS} to {MAX_SUBWORDS:,}, got {subwords}"
            )
        self.subwords = subwords
        if subwords:
            # blind guessing costs 8 bits a byte; of subwords the cost per character is not known
            self.metric = self.metric.with_chance(None)  # type: ignore[misc]

    def problem(self) -> Language:
        return Language(vocabulary=self.subwords or len(BYTES.pieces))

    def load(self, place: DataPlace, recipe: Recipe, seed: int, selection: str) -> Dataset:
        prepared = load_first(self.sources(place), place, self.name)
        assert isinstance(recipe, LanguageRecipe)
        vocabulary = RAW_BYTES if self.character == "byte" else BYTES
        if self.subwords:
            prepared, vocabulary = to_subwords(prepared, self.subwords, place, self.name, self.character)
        return make_windows(prepared, recipe, selection, vocabulary)


def make_windows(prepared: PreparedData, recipe: LanguageRecipe, selection: str, vocabulary: Vocabulary) -> Dataset:
    """Windows of prepared texts. With `selection='test'` validation is the test windows.

    A slice is spread evenly over the text, and is the same for every seed. Raises DataError for a split without text.
    """
    for name, part in prepared.splits.items():
        if not (np.diff(part.starts) > 1).any():
            raise DataError(
                f"expected a text of at least two tokens in {name}, got none from {prepared.provenance.source}"
            )
    notes = list(prepared.provenance.notes)
    # a stride of the length: training reads every token once an epoch
    train = Windows.over(joined(prepared.splits["train"]), recipe.length, recipe.length, vocabulary)
    chosen = {}
    for split, count in (("validation", recipe.validation_examples), ("test", recipe.test_examples)):
        whole = Windows.over(prepared.splits[split], recipe.length, recipe.stride, vocabulary)
        chosen[split] = whole.spread(count)
        if len(chosen[split]) < len(whole):
            notes.append(f"{split}: {len(chosen[split]):,} windows spread over {len(whole):,}")
    if selection == "test":
        chosen["validation"] = chosen["test"]
        notes.append("the best checkpoint is chosen on the test split")
    if recipe.longest:
        longer = Windows.over(prepared.splits["test"], recipe.longest, recipe.longest, vocabulary).full(recipe.longest)
        if not len(longer):
            raise DataError(f"expected a text of more than {recipe.longest:,} tokens in test, for longest: got none")
        chosen["test"] = replace(chosen["test"], longer=longer.spread(recipe.test_examples))
    counts = {"train": len(train), "validation": len(chosen["validation"]), "test": len(chosen["test"])}
    provenance = replace(prepared.provenance, counts=counts, notes=tuple(notes))
    return Dataset(train=train, validation=chosen["validation"], test=chosen["test"], provenance=provenance)


def prepared_texts(
    splits: Mapping[str, Iterable[bytes] | Split],
    *,
    source: str,
    fidelity: str,
    files: dict[str, str],
    notes: Sequence[str] = (),
) -> PreparedData:
    """Texts by split as prepared data, with their provenance."""
    return PreparedData(
        splits={name: split if isinstance(split, Split) else texts(split) for name, split in splits.items()},
        provenance=Provenance(source=source, fidelity=fidelity, files=files, notes=tuple(notes)),
    )
