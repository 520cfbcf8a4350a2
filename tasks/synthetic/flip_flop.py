"""flip-flop: the bit that was written last, after more or less that is to be ignored."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import numpy as np

from ..contract import Baseline, Dataset, Range, Recipe, Whole
from ..problems.token_prediction import UNASKED, Setting, TokenBatch, TokenExamples, TokenPrediction, TokenRecipe
from .task import SyntheticTask, lengths_up_to, majority

WRITE, READ, IGNORE, ZERO = 1, 2, 3, 4
"""Instructions, and the bit 0; the bit 1 is the id after it. 0 is padding."""

SHARES = (0.1, 0.8, 0.98)
"""Shares of instructions to ignore in the test: dense, as in training, and sparse (Liu et al. 2023, section 3)."""


def last_bit(dataset: Dataset, recipe: Recipe) -> Whole:
    """Give the bit that stands before the question, written or ignored."""
    test = dataset.test
    assert isinstance(test, TokenExamples)
    found = np.full_like(test.answers[test.indices], ZERO)
    for row, index in enumerate(test.indices):
        found[row] = test.split.sequence(int(index)).astype(np.int64)[test.asked[index] - 1]
    return found


class FlipFlop(SyntheticTask):
    """Name the bit that was written last, whenever it is read; other bits are to be ignored (flip-flop language).

    `ignored`: share of instructions to ignore in training; writes and reads share the rest. A sequence of length N has
    N / 2 pairs of an instruction and a bit, the first a write and the last a read. Dense sequences need little memory,
    sparse ones a long one: a window solves the first and fails the second.
    """

    name = "flip-flop"
    paper = "Liu et al. 2023, Exposing Attention Glitches with Flip-Flop Language Modeling"
    chance = 0.5
    recipes: ClassVar[dict[str, Recipe]] = {
        "smoke": TokenRecipe(
            width=32, feed_forward=64, convolution=2, shortest=16, length=32, longest=64, batch=8, steps=6, warmup=2,
            evaluate_every=3, validation_examples=16, test_examples=24, ranked=False, timing_seconds=4.0,
        ),
        "quick": TokenRecipe(
            layers=2, heads=4, positions="alibi", convolution=2, shortest=32, length=64, longest=1_024, batch=64,
            steps=2_000, schedule="until_solved", learning_rate=2e-3, validation_examples=128, test_examples=600,
        ),
        "base": TokenRecipe(
            layers=4, width=256, heads=8, feed_forward=512, positions="rope", shortest=32, length=64, longest=2_048,
            batch=128, steps=7_800, learning_rate=4e-4, warmup=1_000, beta2=0.99, weight_decay=0.0,
            evaluate_every=500, validation_examples=1_000, test_examples=4_500, precision="bfloat16",
        ),
    }  # fmt: skip
    baselines: ClassVar[dict[str, Baseline]] = {"majority": majority, "last-bit": last_bit}

    def __init__(self, *, ignored: Annotated[float, Range(0, 0.99)] = 0.8):
        self.ignored = ignored

    @property
    def parameters(self) -> dict[str, Any]:
        return {"ignored": self.ignored}

    def problem(self) -> TokenPrediction:
        return TokenPrediction(vocabulary=ZERO + 2)

    def settings(self, recipe: TokenRecipe) -> tuple[Setting, ...]:
        return tuple({"length": n, "ignored": p} for n in lengths_up_to(recipe.longest, 64) for p in SHARES)

    def training_setting(self, random: np.random.Generator, length: int) -> Setting:
        return {"length": length, "ignored": self.ignored}

    def draw(self, random: np.random.Generator, examples: int, setting: Setting) -> TokenBatch:
        pairs, ignored = int(setting["length"]) // 2, setting["ignored"]
        drawn = random.random((examples, pairs))
        instructions = np.where(drawn < ignored, IGNORE, np.where(drawn < (1 + ignored) / 2, WRITE, READ))
        instructions[:, 0], instructions[:, -1] = WRITE, READ
        bits = ZERO + random.integers(2, size=(examples, pairs))
        # the place of the last write up to each pair; the first pair is one
        writes = np.maximum.accumulate(np.where(instructions == WRITE, np.arange(pairs), 0), axis=1)
        reads = instructions == READ
        bits = np.where(reads, np.take_along_axis(bits, writes, axis=1), bits)
        ids = np.stack([instructions, bits], axis=2).reshape(examples, -1)
        # the reads of each sequence first, in their order; as many places as the sequence with most reads has
        order = np.argsort(~reads, axis=1, kind="stable")[:, : max(int(reads.sum(1).max()), 1)]
        is_read = np.take_along_axis(reads, order, axis=1)
        answers = np.where(is_read, np.take_along_axis(bits, order, axis=1), UNASKED)
        return TokenBatch.of(ids, 2 * order, answers, right_keys=2 * np.take_along_axis(writes, order, axis=1) + 1)
