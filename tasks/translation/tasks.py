"""Translation tasks: the shared tasks of the papers on sparse attention, and any parallel text of your own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import numpy.typing as npt

from ..contract import (
    METRICS,
    Availability,
    Baseline,
    DataPlace,
    Dataset,
    Metric,
    Range,
    Recipe,
    SelectionError,
    Spec,
    Split,
    Task,
    untrained,
)
from ..data.data import DataSource, load_first
from ..data.prepared import PreparedData
from ..splits import bytes_of
from .alignments import aligned_pairs, alignment_files
from .build import CorpusSlice, texts
from .corpora import EN_DE_2014, EN_FI_2018, EN_FR_2014, MULTI30K_EN_DE, RO_EN_2016, ZH_EN_2018, Corpus, invalid_sets
from .documents import MAX_TOKENS
from .folder import OwnFolderSource
from .own_file import OwnFileSource
from .problem import (
    KINDS,
    TRANSLATION_PRESETS,
    AlignedIds,
    EvaluationPairs,
    SentencePairs,
    Translation,
    TranslationRecipe,
    bleu_metric,
)
from .sources import sources
from .subwords import BEGIN, END, Subwords

MAX_IDS = 2**16
"""Ids are stored in 16 bits. The preset decides how many are used."""


def copy_source(dataset: Dataset, recipe: Recipe) -> npt.NDArray[np.str_]:
    """Predict the source itself: names, numbers and words that both languages share are right."""
    test = dataset.test
    assert isinstance(test, EvaluationPairs)
    return np.array([test.sources[index] for index in test.indices])


class TranslationTask(Task):
    """Translation of sentences or documents."""

    metric: ClassVar[Metric] = METRICS["bleu"].with_chance(0.0)
    shared: ClassVar[Mapping[str, Recipe]] = TRANSLATION_PRESETS
    baselines: ClassVar[dict[str, Baseline]] = {"copy": copy_source, "untrained": untrained}
    corpus: Corpus
    name: str

    def __init__(
        self,
        *,
        pairs: Annotated[int, Range(1, 10**9)] | None = None,
        max_length: Annotated[int, Range(1, 65_536)] | None = 128,
        document: Annotated[int, Range(1, 10_000)] = 1,
        sets: str = "",
        where: str = "encoder+decoder+cross",
    ):
        self.pairs, self.max_length, self.document, self.sets = pairs, max_length, document, sets
        self.where = tuple(kind for kind in KINDS if kind in where.split("+"))
        if set(where.split("+")) - set(KINDS):
            raise SelectionError(f"expected where to join some of {', '.join(KINDS)} by plus signs, got {where!r}")
        # the sets of a folder of one's own are known only when it is read
        wrong = invalid_sets(sets, self.corpus.training) if self.corpus.training else ""
        if wrong:
            raise SelectionError(wrong)

    def recipe(self, preset: Spec) -> TranslationRecipe:
        recipe = super().recipe(preset)
        assert isinstance(recipe, TranslationRecipe)
        if recipe.vocabulary > MAX_IDS:
            raise SelectionError(f"expected a vocabulary of at most {MAX_IDS:,}, got {recipe.vocabulary:,}")
        if self.document > 1 and preset.get("length") is None:
            return replace(recipe, length=min(recipe.length * self.document, MAX_TOKENS))
        return recipe

    def problem(self) -> Translation:
        return Translation(vocabulary=MAX_IDS, where=self.where, begin=BEGIN, end=END, sentences=self.document)

    def sources(self, cut: CorpusSlice) -> tuple[DataSource, ...]:
        return sources(self.name, self.corpus, cut)

    def availability(self, place: DataPlace) -> list[Availability]:
        return [source.availability(place) for source in self.sources(self.cut(TranslationRecipe()))]

    def tests(self, place: DataPlace) -> tuple[str, ...]:
        """Names of the test sets, the one that ranks first."""
        return self.corpus.tests

    def cut(self, recipe: TranslationRecipe) -> CorpusSlice:
        return CorpusSlice(
            vocabulary=recipe.vocabulary,
            pairs=self.pairs if self.pairs is not None else recipe.train_examples,
            max_length=self.max_length,
            document=self.document,
            sets=self.sets,
        )

    def load(self, place: DataPlace, recipe: Recipe, seed: int, selection: str) -> Dataset:
        assert isinstance(recipe, TranslationRecipe)
        # a missing package fails here, before hours of training and not after
        bleu_metric(self.corpus.target)
        prepared = load_first(self.sources(self.cut(recipe)), place, self.name)
        notes = list(prepared.provenance.notes)
        subwords = Subwords(bytes_of(prepared.splits["subwords"].tokens))
        test = self._test(prepared, subwords, place).spread(recipe.test_examples)
        if selection == "test":
            # without the references: validation is a loss, as on any other validation set
            validation = SentencePairs(split=test.split, indices=test.indices)
            notes.append("the best checkpoint is chosen on the test split")
        else:
            validation = _pairs(prepared.splits["validation"]).spread(recipe.validation_examples)
        train = _pairs(prepared.splits["train"])
        whole = len(prepared.splits["test"])
        if len(test) < whole:
            notes.append(f"test: {len(test):,} of {whole:,} pairs, spread evenly")
        if test.cut(recipe.length):
            notes.append(f"{test.cut(recipe.length):,} test pairs are cut at {recipe.length:,} subwords")
        counts = prepared.provenance.counts | {"validation": len(validation), "test": len(test)}
        files = prepared.provenance.files | alignment_files(place, self.name, *self.corpus.languages)
        provenance = replace(prepared.provenance, files=files, counts=counts, notes=tuple(notes))
        return Dataset(train=train, validation=validation, test=test, provenance=provenance)

    def _test(self, prepared: PreparedData, subwords: Subwords, place: DataPlace) -> EvaluationPairs:
        split, written = prepared.splits["test"], prepared.splits["test.text"]
        return EvaluationPairs(
            split=split,
            indices=np.arange(len(split)),
            sources=tuple(texts(written, 0)),
            references=tuple(texts(written, 1)),
            sets=self.tests(place),
            language=self.corpus.target,
            decode=subwords.decode,
            pieces=subwords.pieces,
            encode=subwords.encode,
            aligned=tuple(self._aligned(subwords, place)),
        )

    def _aligned(self, subwords: Subwords, place: DataPlace) -> Iterator[AlignedIds]:
        for pair in aligned_pairs(place, *self.corpus.languages):
            source, source_words = subwords.encode_words(pair.source)
            target, target_words = subwords.encode_words(pair.target)
            yield AlignedIds(
                source=source,
                target=target,
                source_words=tuple(source_words),
                target_words=tuple(target_words),
                gold=pair.gold,
            )


def _pairs(split: Split) -> SentencePairs:
    return SentencePairs(split=split, indices=np.arange(len(split)))


class EnglishGerman(TranslationTask):
    """English to German of WMT 2014, tested on the 3,003 sentences of newstest2014."""

    name = "wmt14-en-de"
    corpus = EN_DE_2014
    paper: ClassVar[str] = "Bojar et al. 2014, Findings of WMT; Vaswani et al. 2017, section 6.1"


class Multi30k(TranslationTask):
    """English captions of pictures to German, tested on the 1,000 pairs of 2016; 29,000 pairs train."""

    name = "multi30k-en-de"
    corpus = MULTI30K_EN_DE
    paper: ClassVar[str] = "Elliott et al. 2016, Multi30K: Multilingual English-German Image Descriptions"
    recipes: ClassVar[Mapping[str, Recipe]] = {
        # the captions are seen some thirty times, so dropout pays here
        "quick": TranslationRecipe(
            dropout=0.1, attention_dropout=0.0, vocabulary=4_000, tokens=1_024, steps=4_000, warmup=300,
            schedule="linear", evaluate_every=500,
        ),
    }  # fmt: skip


class EnglishFrench(TranslationTask):
    """English to French of WMT 2014, tested on the 3,003 sentences of newstest2014."""

    name = "wmt14-en-fr"
    corpus = EN_FR_2014
    paper: ClassVar[str] = "Bojar et al. 2014, Findings of WMT; Zhang et al. 2021, table 1"


class RomanianEnglish(TranslationTask):
    """Romanian to English of WMT 2016, tested on newstest2016."""

    name = "wmt16-ro-en"
    corpus = RO_EN_2016
    paper: ClassVar[str] = "Bojar et al. 2016, Findings of WMT; Zhang et al. 2021, table 1"


class ChineseEnglish(TranslationTask):
    """Chinese to English of WMT 2018, tested on newstest2018."""

    name = "wmt18-zh-en"
    corpus = ZH_EN_2018
    paper: ClassVar[str] = "Bojar et al. 2018, Findings of WMT; Zhang et al. 2021, table 1"


class EnglishFinnish(TranslationTask):
    """English to Finnish of WMT 2018, tested on newstest2018."""

    name = "wmt18-en-fi"
    corpus = EN_FI_2018
    paper: ClassVar[str] = "Bojar et al. 2018, Findings of WMT; Zhang et al. 2021, table 1"


class Parallel(TranslationTask):
    """Translation learned from parallel text of your own: a folder of SET.L1 and SET.L2, one set called test, or a file
    of lines SOURCE<tab>TARGET, `parallel[file=my.tsv]` or `--pairs my.tsv`.
    """

    name = "parallel"

    def __init__(
        self,
        *,
        file: str = "",
        path: str = "",
        source: str = "",
        target: str = "",
        pairs: Annotated[int, Range(1, 10**9)] | None = None,
        max_length: Annotated[int, Range(1, 65_536)] | None = 128,
        document: Annotated[int, Range(1, 10_000)] = 1,
        sets: str = "",
        where: str = "encoder+decoder+cross",
    ):
        self.file, self.path = file, path
        if file:
            # BLEU splits words as their language does, where it is named
            source, target = source or "source", target or "target"
        self.corpus = Corpus(source=source, target=target, tests=("test",))
        super().__init__(pairs=pairs, max_length=max_length, document=document, sets=sets, where=where)

    def sources(self, cut: CorpusSlice) -> tuple[DataSource, ...]:
        if self.file:
            return (OwnFileSource(task=self.name, path=Path(self.file), corpus=self.corpus, cut=cut),)
        return (self._folder(cut),)

    def tests(self, place: DataPlace) -> tuple[str, ...]:
        if self.file:
            return self.corpus.tests
        return self._folder(self.cut(TranslationRecipe())).tests(place)

    def _folder(self, cut: CorpusSlice) -> OwnFolderSource:
        if not (self.path and self.corpus.source and self.corpus.target):
            raise SelectionError(
                "expected parallel[path=FOLDER,source=de,target=en], the folder under the data root; or "
                "parallel[file=my.tsv], which is --pairs my.tsv"
            )
        return OwnFolderSource(task=self.name, path=Path(self.path), corpus=self.corpus, cut=cut)
