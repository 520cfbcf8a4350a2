"""recall: multi-query associative recall (MQAR), the value that a key had earlier in the sequence."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import numpy as np

from ..contract import Baseline, Range
from ..problems.token_prediction import Setting, TokenBatch, TokenPrediction, TokenRecipe
from .task import SyntheticTask, distinct, first_value, majority

FILLER = 1
"""The token between pairs; 0 is padding."""

TESTED = ((64, 4), (64, 8), (64, 16), (128, 16), (128, 32), (256, 64), (512, 16), (2_048, 16), (8_192, 16))
"""Length and pairs of each setting: more pairs, and the same number over longer distances."""


class Recall(SyntheticTask):
    """Name the value of each key that returns (MQAR): pairs of key and value first, then the keys again.

    `vocabulary`: token ids; half of them are keys, half are values. A sequence of length N with P pairs is
    k1 v1 … kP vP, then filler in which each key returns once, at an even place, followed by its value. Asked is the
    value, at the key. Training has P = N / 4 pairs.
    """

    name = "recall"
    paper = "Arora et al. 2023, Zoology: Measuring and Improving Recall in Efficient Language Models"
    recipes: ClassVar[dict[str, TokenRecipe]] = {
        "smoke": TokenRecipe(
            width=32, feed_forward=64, convolution=2, query_key_scale=0.3, shortest=16, length=32, longest=64, batch=8,
            steps=6, warmup=2, evaluate_every=3, validation_examples=16, test_examples=24, ranked=False,
            timing_seconds=4.0,
        ),
        # One layer and a token shift: without it two layers learn nothing in this time. Lengths from a range, since
        # short sequences are learned first and shorten the plateau
        "quick": TokenRecipe(
            convolution=2, query_key_scale=0.3, shortest=16, length=128, longest=2_048, batch=32, steps=4_000,
            schedule="until_solved", learning_rate=4e-3, learning_rates=(1e-3, 4e-3),
            query_key_scales=(0.3, 1.0), validation_examples=96, test_examples=448, evaluate_batch=32,
        ),
        # short, and at the ordinary start, for the positive controls of variants
        "control": TokenRecipe(
            convolution=2, shortest=16, length=64, longest=64, batch=32, steps=1_600,
            schedule="until_solved", learning_rate=4e-3, validation_examples=96, test_examples=300, evaluate_batch=96,
            ranked=False,
        ),
        "base": TokenRecipe(
            layers=2, width=128, feed_forward=512, convolution=3, query_key_scale=0.3, shortest=64, length=256,
            longest=8_192, batch=256, steps=25_000, learning_rate=1e-3, warmup=1_000, weight_decay=0.1,
            evaluate_every=500, validation_examples=1_000, test_examples=8_000, precision="bfloat16",
        ),
    }  # fmt: skip
    baselines: ClassVar[dict[str, Baseline]] = {"majority": majority, "first-value": first_value}

    def __init__(self, *, vocabulary: Annotated[int, Range(16, 65_536)] = 256):
        self.vocabulary = vocabulary
        self.half = (vocabulary - 2) // 2
        self.chance = 1 / self.half

    @property
    def parameters(self) -> dict[str, Any]:
        return {"vocabulary": self.vocabulary}

    def problem(self) -> TokenPrediction:
        return TokenPrediction(vocabulary=self.vocabulary)

    def settings(self, recipe: TokenRecipe) -> tuple[Setting, ...]:
        return tuple({"length": n, "pairs": p} for n, p in TESTED if n <= recipe.longest and p <= self.half)

    def training_setting(self, random: np.random.Generator, length: int) -> Setting:
        return {"length": length, "pairs": min(max(length // 4, 1), self.half)}

    def draw(self, random: np.random.Generator, examples: int, setting: Setting) -> TokenBatch:
        length, pairs = int(setting["length"]), int(setting["pairs"])
        keys = 2 + distinct(random, examples, pairs, self.half)
        values = 2 + self.half + random.integers(self.half, size=(examples, pairs))
        ids = np.full((examples, length), FILLER)
        ids[:, 0 : 2 * pairs : 2], ids[:, 1 : 2 * pairs : 2] = keys, values
        # the pair of the i-th asked place, in a random order, and its even place behind the pairs
        which = random.random((examples, pairs)).argsort(axis=1)
        asked = 2 * pairs + 2 * np.sort(distinct(random, examples, pairs, (length - 2 * pairs) // 2), axis=1)
        answers = np.take_along_axis(values, which, axis=1)
        np.put_along_axis(ids, asked, np.take_along_axis(keys, which, axis=1), axis=1)
        np.put_along_axis(ids, asked + 1, answers, axis=1)
        return TokenBatch.of(ids, asked, answers, right_keys=2 * which + 1)
