"""Translation: the problem, its recipe with presets, pairs of sentences as token ids, and gold word alignments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np

from ..contract import BatchLayout, DataError, Ids, Problem, Recipe, SelectionError, Spec, Subset, Whole
from ..preset import recipe_with

Links = frozenset[tuple[int, int]]
"""(source word, target word), counted from 0."""

KINDS = ("encoder", "decoder", "cross")
"""The attention layers of an encoder-decoder: encoder self, decoder self, decoder to encoder."""


@recipe_with(
    width=128, heads=4, feed_forward=512, positions="sinusoidal", length=192,
    steps=2_500, learning_rate=2e-3, warmup=500, schedule="rsqrt", beta2=0.98, epsilon=1e-8,
    label_smoothing=0.1, evaluate_every=250, evaluate_batch=32, validation_examples=1_000,
)  # fmt: skip
class TranslationRecipe(Recipe):
    """A preset of translation. `length`: most tokens of a source and of a translation; `tokens`: per batch and side.

    `vocabulary`: joint subwords. `norm`: before each sublayer, or after its residual as in Vaswani et al. 2017.
    `layers`: of the encoder, and of the decoder. `beam` and `length_penalty`: of the search whose output is scored (Wu
    et al. 2016, eq. 14). `batch` and `pooling` have no effect.
    """

    norm: Literal["pre", "post"] = "pre"
    vocabulary: int = 6_000
    tokens: int = 2_048
    beam: int = 4
    length_penalty: float = 0.6

    def with_overrides(self, preset: Spec) -> Self:
        changed = Recipe.with_overrides(self, preset)
        if changed.convolution:
            raise SelectionError(
                "the model of translation has no convolution before its blocks; leave convolution at 0, or choose a "
                "task of one sequence"
            )
        return changed


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation(Problem):
    """Translate a sequence into another, with one vocabulary for both.

    `where`: the KINDS of attention that use the variant under test; the others use softmax. `vocabulary`: upper bound
    of the ids; the preset decides how many there are. `begin`: id of the first decoder input; `end`: id of the last
    output; `sentences`: the most that are joined to one source.
    """

    objective: ClassVar[str] = "translation"
    recipe: ClassVar[type[Recipe]] = TranslationRecipe
    recipe_words: ClassVar[tuple[str, ...]] = (
        "{layers} + {layers} layers, {norm}-norm, width {width}, {heads} {head_noun}, feed-forward {feed_forward}",
        "{positions} positions, one vocabulary of at most {vocabulary:,}",
        "at most {length} tokens a sentence, batches of at most {tokens:,} a side, {steps:,} steps",
        "beam {beam}, length penalty {length_penalty:g}",
    )
    works_without_attention: ClassVar[bool] = False
    towers: ClassVar[float] = 2.5
    """Passes of the layers for a sequence, for estimates: a decoder has cross attention beside its own."""

    where: tuple[str, ...] = KINDS
    begin: int = 2
    end: int = 3
    sentences: int = 1


TRANSLATION_PRESETS: dict[str, Recipe] = {
    "smoke": TranslationRecipe(
        layers=1, width=32, heads=2, feed_forward=64, vocabulary=1_000, length=64, tokens=256, steps=6, warmup=2,
        evaluate_every=3, train_examples=2_000, validation_examples=32, test_examples=16, ranked=False,
        timing_seconds=4.0,
    ),
    # Many small steps: nothing is translated before cross attention has aligned source and target. A rate that ends at
    # zero: a slower decay needs a longer run. No dropout: it costs a fifth of a step on a CPU, and each pair is seen
    # only once or twice.
    "quick": TranslationRecipe(
        dropout=0.0, attention_dropout=0.0, tokens=1_024, steps=3_000, warmup=300, schedule="linear",
        evaluate_every=500,
    ),
    # Transformer base as ReLA trains it (Zhang et al. 2021, section 4); the peak of noam's schedule,
    # (512 * 4,000) ** -0.5 = 7.0e-4, with its scale of 1
    "base": TranslationRecipe(
        layers=6, width=512, heads=8, feed_forward=2048, norm="post", vocabulary=32_000, length=512, tokens=6_250,
        accumulate=4, steps=300_000, learning_rate=6.99e-4, warmup=4_000, clip=0.0, evaluate_every=5_000, averaged=5,
        validation_examples=None, precision="bfloat16",
    ),
}  # fmt: skip
"""The presets of a translation task without presets of its own."""


def bleu_metric(language: str, effective_order: bool = False) -> Any:
    """sacreBLEU's BLEU for references in `language`; `effective_order`: for single sentences.

    Raises DataError without the extra `translation`, and where the words of a language need what is not installed.
    """
    try:
        from sacrebleu import BLEU
    except ModuleNotFoundError:
        raise DataError("BLEU needs sacrebleu: pip install 'attnbench[translation]'") from None
    try:
        return BLEU(trg_lang=language, effective_order=effective_order)
    except RuntimeError as error:
        # Japanese and Korean are split into words by extra packages
        said = " ".join(str(error).split())
        raise DataError(f"BLEU of {language!r} needs more: pip install 'sacrebleu[{language}]' ({said})") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class SentencePairs(Subset):
    """Pairs of a source and a target, each with END as its last token; `split` has two towers."""

    def lengths(self) -> Whole:
        """Tokens of the longer side of each pair."""
        # the batch is padded on both sides, so the longer one costs
        both = np.diff(self.split.starts).reshape(-1, 2)
        return np.asarray(both.max(1)[self.indices], dtype=np.int64)

    def cut(self, length: int) -> int:
        """Number of pairs with a side that `batch` cuts at `length`."""
        return int((self.lengths() > length).sum())

    def layout(self, at: Whole, length: int) -> BatchLayout:
        """Pairs `at` (positions in this subset), each side cut to `length` and padded to the longest of the batch.

        They are read as source ids (batch, 1, sources) with 0 as padding, lengths (batch, 1), target ids (batch,
        targets).
        """
        # a cut source or target loses its END; such pairs are counted by `cut` and noted
        sources = 2 * self.indices[at]
        rows, targets = (self.split.rows(side, length) for side in (sources, sources + 1))
        return BatchLayout(ids=rows, towers=1, labels=targets)


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldLinks:
    """Gold links of a sentence pair. `possible` includes the `sure` ones (Och & Ney 2003)."""

    sure: Links
    possible: Links

    def swapped(self) -> GoldLinks:
        """The links of the other direction of translation."""
        sure, possible = (frozenset((b, a) for a, b in side) for side in (self.sure, self.possible))
        return GoldLinks(sure=sure, possible=possible)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignedPair:
    """One sentence pair as words, with its gold links."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    gold: GoldLinks

    def swapped(self) -> AlignedPair:
        return AlignedPair(source=self.target, target=self.source, gold=self.gold.swapped())


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignedIds:
    """An aligned pair as token ids, END last. `source_words`, `target_words`: the word of each id, -1 for none."""

    source: Ids
    target: Ids
    source_words: tuple[int, ...]
    target_words: tuple[int, ...]
    gold: GoldLinks


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPairs(SentencePairs):
    """Test pairs whose translations are decoded and scored as text.

    `sources` and `references`: lines, by index into `split`. `sets`: names of the test sets, by label; the first ranks.
    `language`: of the references. `decode` turns ids into text, `pieces` turns ids into subwords, `encode` turns lines
    into ids. `aligned`: sentences with gold word alignments, in this direction.
    """

    sources: tuple[str, ...]
    references: tuple[str, ...]
    sets: tuple[str, ...]
    language: str
    decode: Callable[[Iterable[int]], str]
    pieces: Callable[[Iterable[int]], list[str]]
    encode: Callable[[Sequence[str]], list[Ids]]
    aligned: tuple[AlignedIds, ...] = ()

    def __post_init__(self) -> None:
        """Raises DataError for a label without a name: no score would count that pair."""
        sets = int(self.labels.max(initial=-1)) + 1
        if sets > len(self.sets):
            raise DataError(f"expected a name for each of {sets} test sets, got {', '.join(self.sets) or 'none'}")
