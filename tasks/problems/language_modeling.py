"""Language modeling: the problem, its recipe with presets, and the windows of text that a model reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from ..contract import BatchLayout, Ids, Problem, Recipe, SelectionError, Spec, Split, Subset, TokenRows, Whole
from ..preset import recipe_with
from .vocabulary import BYTES, Vocabulary


@recipe_with(
    width=128, heads=4, feed_forward=512, dropout=0.0, attention_dropout=0.0, length=128, batch=8,
    steps=1_500, learning_rate=3e-3, warmup=100, schedule="cosine", beta2=0.98, epsilon=1e-8,
    evaluate_every=250, evaluate_batch=32, validation_examples=200, test_examples=500,
)  # fmt: skip
class LanguageRecipe(Recipe):
    """A preset of language modeling. `length`: tokens of context; `stride`: distance between evaluation windows.

    Every predicted token but the first `length` of a text has at least length - stride tokens before it. Examples are
    windows; `validation_examples` and `test_examples` are spread evenly over the text. `pooling` has no effect.
    `longest`: the test reads windows of so many tokens too, and says what a character costs by its position in them;
    0 = no such windows.
    """

    stride: int = 64
    longest: int = 0

    def with_overrides(self, preset: Spec) -> Self:
        changed = Recipe.with_overrides(self, preset)
        if changed.stride > changed.length:
            raise SelectionError(
                f"expected a stride of at most the length, got stride={changed.stride}, length={changed.length}"
            )
        if 0 < changed.longest < changed.length:
            raise SelectionError(
                f"expected longest of at least the length, or 0, got longest={changed.longest}, length={changed.length}"
            )
        changed.check_tested_positions(changed.longest)
        if changed.train_examples is not None:
            raise SelectionError(
                "expected no train_examples: training reads the text from end to end; set steps to train on less"
            )
        return changed


@dataclass(frozen=True, slots=True, kw_only=True)
class Language(Problem):
    """Predict the next token of a text: by default the next byte, whose id is byte + 1.

    Its data are `Windows` and its recipe is a `LanguageRecipe`.
    """

    objective: ClassVar[str] = "language_modeling"
    recipe: ClassVar[type[Recipe]] = LanguageRecipe
    recipe_words: ClassVar[tuple[str, ...]] = (
        "{layers} causal {layer_noun}, width {width}, {heads} {head_noun}, feed-forward {feed_forward}",
        "{positions} positions (no table for a variant with positions of its own), output tied to the embedding",
        "context {length}, evaluated in windows {stride} apart, batch {batch}, {steps:,} steps",
    )
    causal: ClassVar[bool] = True

    vocabulary: int = 257
    padded: bool = False


LANGUAGE_PRESETS: dict[str, Recipe] = {
    "smoke": LanguageRecipe(
        width=32, heads=2, feed_forward=64, length=64, stride=32, batch=8, steps=6, warmup=2, evaluate_every=3,
        validation_examples=16, test_examples=32, ranked=False, timing_seconds=4.0,
    ),
    # Many small steps: with softmax on tinyshakespeare 200 steps of 16 × 256 bytes and 400 of 8 × 256 end at 3.6 bits a
    # byte, where a bigram stands; 1,500 of 8 × 128 leave that level after some 500 and end at 2.8
    "quick": LanguageRecipe(),
    # the size at which papers compare character models of enwik8: 12 layers, width 512 (Al-Rfou et al. 2018)
    "base": LanguageRecipe(
        layers=12, width=512, heads=8, feed_forward=2048, dropout=0.1, attention_dropout=0.1, length=512, stride=256,
        batch=32, steps=50_000, learning_rate=5e-4, warmup=2_000, label_smoothing=0.0, weight_decay=0.1,
        evaluate_every=1_000, validation_examples=None, test_examples=None, precision="bfloat16",
    ),
}  # fmt: skip
"""The presets of a language modeling task without presets of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows(Subset):
    """Windows of a text, in an order. A language model reads each and predicts the next token at every position.

    Window i reads `reads[i]` tokens from position `places[i]` and predicts the tokens one position later. Only the last
    `scored[i]` predictions count, so that overlapping windows count every token once. `indices`: the windows in use;
    `vocabulary`: the text of the tokens. `longer`: the windows of `longest` tokens that a test reads too.
    """

    places: Whole
    reads: Whole
    scored: Whole
    vocabulary: Vocabulary = BYTES
    longer: Windows | None = None

    @classmethod
    def over(cls, split: Split, length: int, stride: int, vocabulary: Vocabulary = BYTES) -> Windows:
        """All windows of up to `length` tokens, `stride` apart, inside each example of `split`.

        The last window of an example ends where the example ends. Every token but an example's first is predicted once,
        from at least length - stride tokens where the example has as many before it.
        """
        rows = [
            _windows(int(start), int(end), length, stride)
            for start, end in zip(split.starts[:-1], split.starts[1:], strict=True)
            if end - start > 1
        ]
        places, reads, scored = np.concatenate(rows, axis=1) if rows else np.zeros((3, 0), dtype=np.int64)
        used = np.arange(len(places), dtype=np.int64)
        return cls(split=split, indices=used, places=places, reads=reads, scored=scored, vocabulary=vocabulary)

    def full(self, length: int) -> Windows:
        """The windows of `length` tokens, without those of shorter texts. All their predictions count."""
        return replace(self, indices=self.indices[self.reads[self.indices] == length], scored=self.reads)

    @property
    def labels(self) -> Whole:
        # a window has no class; code that groups examples by label sees one group
        return np.zeros(len(self), dtype=np.int64)

    def moved(self, by: int) -> Windows:
        """The same windows `by` tokens later, as far as the text goes. All their predictions count."""
        last = np.maximum(len(self.split.tokens) - 1 - self.reads, 0)
        return replace(self, places=np.minimum(self.places + by, last), scored=self.reads)

    def taken(self, at: Whole) -> Windows:
        """Windows `at` (positions in this subset), in that order, as a subset that is cheap to move."""
        chosen = self.indices[at]
        alone = np.arange(len(chosen), dtype=np.int64)
        places, reads, scored = (each[chosen] for each in (self.places, self.reads, self.scored))
        return replace(self, indices=alone, places=places, reads=reads, scored=scored)

    def sequences(self) -> Iterator[Ids]:
        for index in self.indices:
            yield self.split.tokens[self.places[index] : self.places[index] + self.reads[index]]

    def layout(self, at: Whole, length: int) -> BatchLayout:
        """Windows `at` (positions in this subset), each at most `length` long.

        They are read as ids (batch, 1, longest) with 0 as padding, lengths (batch, 1), targets (batch, longest) with 0
        where no prediction counts.
        """
        chosen = self.indices[at]
        places, reads = self.places[chosen], self.reads[chosen]
        longest = int(min(reads.max(initial=0), length))
        # the target of a position is the token after it, so targets are read one token further on
        targets = TokenRows(starts=places + 1, lengths=reads, width=longest, skipped=reads - self.scored[chosen])
        return BatchLayout(ids=TokenRows(starts=places, lengths=reads, width=longest), towers=1, labels=targets)


def _windows(start: int, end: int, length: int, stride: int) -> Whole:
    """`places`, `reads` and `scored` of the windows over tokens [start, end), (3, windows)."""
    # the first token of a text is given and not predicted
    predicted = end - start - 1
    first = min(length, predicted)
    # the number of predictions made by the end of each window
    ends = np.unique(np.append(np.arange(first, predicted, stride), predicted))
    places = start + np.maximum(ends - length, 0)
    return np.stack([places, start + ends - places, np.diff(ends, prepend=0)])
