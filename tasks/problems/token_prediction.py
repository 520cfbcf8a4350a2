"""Token prediction: the token that belongs at some positions of a sequence, with fresh sequences at every step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from ...bench.core.hashing import axis_seed
from ..contract import Ids, Problem, Recipe, SelectionError, Spec, Split, Subset, Whole
from ..preset import recipe_with

Setting = Mapping[str, float]
"""The length and the difficulty of sequences, such as {"length": 64, "pairs": 4}; every setting has a `length`."""

UNASKED = 0
"""The answer of a place that is not asked about: padding, which is no answer to anything."""

UNKNOWN = -1
"""The right key of a position for which no single key holds the answer."""


@recipe_with(
    layers=1, heads=1, dropout=0.0, attention_dropout=0.0, positions="none", deviation=0.5, length=64, batch=64,
    steps=1_000, learning_rate=2e-3, warmup=50, schedule="cosine", weight_decay=0.01, beta2=0.98, epsilon=1e-8,
    validation_examples=128, test_examples=600,
)  # fmt: skip
class TokenRecipe(Recipe):
    """A preset of token prediction: small, of one head, without positions, so that a task shows one ability at a time.

    Every step draws fresh sequences of one length between `shortest` and `length`. Tests go up to `longest`, and each
    setting gets an equal part of `test_examples`. `evaluate_batch` counts sequences of `length`; of longer ones fewer
    are evaluated at once. `pooling` has no effect. `query_key_scales`: factors like `query_key_scale`, of which each
    variant takes its best by the validation of trials at the rate that it has chosen; without them, all take that one.
    """

    shortest: int = 32
    longest: int = 1_024
    query_key_scales: tuple[float, ...] = ()

    def with_overrides(self, preset: Spec) -> Self:
        changed = Recipe.with_overrides(self, preset)
        if changed.shortest > changed.length:
            raise SelectionError(
                f"expected shortest of at most length, got shortest={changed.shortest}, length={changed.length}"
            )
        if changed.train_examples is not None:
            raise SelectionError("expected no train_examples: every step draws fresh ones; set steps to train on fewer")
        if changed.validation_examples is None or changed.test_examples is None:
            raise SelectionError("set validation_examples and test_examples: a generated task is infinite")
        given = dict(preset.parameters)
        if "query_key_scale" in given or not changed.learning_rates:
            # one factor, or one rate, in the place of what would be searched
            if "query_key_scales" in given:
                raise SelectionError(
                    "expected learning_rates=… beside query_key_scales, which are tried at the rate that is chosen of "
                    "them, and no query_key_scale"
                )
            changed = replace(changed, query_key_scales=())
        changed.check_tested_positions(changed.longest)
        return changed


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPrediction(Problem):
    """Name the token that belongs at the positions that are asked about; all other positions have no label.

    Its data are a `TokenStream` and `TokenExamples`, and its recipe is a `TokenRecipe`. A sequence of a setting of
    `length` n has at most copies · n + extra tokens. `exact`: an example is right where all of its answers are, which
    is what greedy decoding of the answers would find; otherwise it counts by the share of its answers that are right.
    """

    objective: ClassVar[str] = "token_prediction"
    recipe: ClassVar[type[Recipe]] = TokenRecipe
    recipe_words: ClassVar[tuple[str, ...]] = (
        "{layers} causal {layer_noun}, width {width}, {heads} {head_noun}, feed-forward {feed_forward}",
        "{positions} positions, an output of its own at the asked positions",
        "fresh sequences of length {shortest} to {length}, tested up to {longest:,}, batch {batch}, {steps:,} steps",
    )
    causal: ClassVar[bool] = True

    padded: bool = False
    copies: int = 1
    extra: int = 0
    exact: bool = False

    def tokens(self, length: int) -> int:
        """The most tokens of a sequence whose setting has that length."""
        return self.copies * length + self.extra


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """Sequences of one length, with what is asked of each.

    ids: (examples, tokens), 0 never comes. asked: (examples, most), positions, in order. answers: like `asked`, token
    ids; UNASKED where an example has fewer (its place in `asked` is then any). right_keys: like `asked`, the position
    that holds the answer, UNKNOWN where no single one does.
    """

    ids: Ids
    asked: Whole
    answers: Whole
    right_keys: Whole

    @classmethod
    def of(cls, ids: Whole, asked: Whole, answers: Whole, right_keys: Whole | None = None) -> Self:
        """Make a batch from whole numbers of any kind; without `right_keys` every right key is UNKNOWN."""
        answers = np.asarray(answers, dtype=np.int64)
        keys = np.full(answers.shape, UNKNOWN) if right_keys is None else right_keys
        return cls(
            ids=ids.astype(np.uint16),
            asked=np.asarray(asked, dtype=np.int64),
            answers=answers,
            right_keys=np.asarray(keys, dtype=np.int64),
        )

    def __len__(self) -> int:
        return len(self.ids)


Draw = Callable[[np.random.Generator, int], TokenBatch]
"""Draws so many sequences of training, all of one length, which it draws too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStream(Subset):
    """Fresh sequences for every step of training, made by `at` from the number of the step; nothing is stored."""

    draw: Draw

    @classmethod
    def of(cls, draw: Draw) -> Self:
        nothing = np.zeros(0, dtype=np.int64)
        split = Split(tokens=np.zeros(0, dtype=np.uint16), starts=np.zeros(1, dtype=np.int64), labels=nothing)
        return cls(split=split, indices=nothing, draw=draw)

    def at(self, step: int, batch: int, task: str, seed: int) -> TokenBatch:
        """The sequences of one step: a function of task, seed and step alone, so that a run resumes anywhere."""
        return self.draw(np.random.default_rng(axis_seed(use="stream", task=task, seed=seed, step=step)), batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenExamples(Subset):
    """Sequences that a model is evaluated on. `split.labels`: the place in `settings` of each one's setting.

    asked, answers, right_keys: (examples, most), as in `TokenBatch`, by index into `split`. `settings`: the settings
    that are reported one by one; empty for a validation, which is drawn as training is.
    """

    asked: Whole
    answers: Whole
    right_keys: Whole
    settings: tuple[Setting, ...] = ()

    @classmethod
    def joined(cls, batches: list[TokenBatch], settings: tuple[Setting, ...] = ()) -> Self:
        """The sequences of `batches`, which may differ in length, one batch for each setting where there are any."""
        most = max(batch.asked.shape[1] for batch in batches)
        columns = {
            name: np.concatenate(
                [
                    np.pad(getattr(batch, name), ((0, 0), (0, most - batch.asked.shape[1])), constant_values=empty)
                    for batch in batches
                ]
            )
            for name, empty in (("asked", 0), ("answers", UNASKED), ("right_keys", UNKNOWN))
        }
        lengths = np.concatenate([np.full(len(batch), batch.ids.shape[1]) for batch in batches])
        labels = np.concatenate([np.full(len(batch), at if settings else 0) for at, batch in enumerate(batches)])
        split = Split(
            tokens=np.concatenate([batch.ids.reshape(-1) for batch in batches]),
            starts=np.append(0, lengths.cumsum()).astype(np.int64),
            labels=labels.astype(np.int64),
        )
        return cls(split=split, indices=np.arange(len(lengths), dtype=np.int64), settings=settings, **columns)

    def lengths(self) -> Whole:
        """Tokens of each sequence, (examples,)."""
        return np.asarray(np.diff(self.split.starts)[self.indices], dtype=np.int64)

    def taken(self, at: Whole) -> tuple[TokenBatch, Whole]:
        """Sequences `at` (positions in this subset) and their lengths, (batch,); 0 is padding behind shorter ones."""
        chosen = self.indices[at]
        rows = self.split.rows(chosen, len(self.split.tokens))
        # no wider than what these sequences are asked
        most = max(int((self.answers[chosen] != UNASKED).sum(1).max(initial=0)), 1)
        asked, answers, keys = (each[chosen][:, :most] for each in (self.asked, self.answers, self.right_keys))
        ids = rows.read(self.split.tokens)
        return TokenBatch(ids=ids, asked=asked, answers=answers, right_keys=keys), rows.lengths
