"""parity: the running sum of bits, or of digits modulo a number: state that every token changes."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import numpy as np

from ..contract import Range, Recipe
from ..problems.token_prediction import Setting, TokenBatch, TokenPrediction, TokenRecipe
from .task import SyntheticTask

TESTED = (40, 64, 128, 256)
"""Lengths of the test: that of training, and up to 6.4 times as many tokens, as Grazzi et al. test."""


class Parity(SyntheticTask):
    """Name the sum of all digits so far, modulo 2: state tracking, in which no token may be forgotten.

    `modulus`: digits are the numbers below it, and so are the sums; 2 is parity. Asked is the sum at every token of the
    later half of a sequence, so that no answer of a long test is one that a shorter test asks. A linear recurrence
    whose eigenvalues all lie in [0, 1] cannot tell parities at every length in finite precision (Grazzi et al. 2024),
    and one that reaches towards -1 can.
    """

    name = "parity"
    paper = "Grazzi et al. 2024, Unlocking State-Tracking in Linear RNNs Through Negative Eigenvalues"
    even = False
    recipes: ClassVar[dict[str, Recipe]] = {
        "smoke": TokenRecipe(
            width=32, feed_forward=64, shortest=3, length=32, longest=64, batch=8, steps=6, warmup=2, evaluate_every=3,
            validation_examples=16, test_examples=24, ranked=False, timing_seconds=4.0,
        ),
        "control": TokenRecipe(
            shortest=3, length=40, longest=64, batch=64, steps=3_000, schedule="until_solved", learning_rate=4e-3,
            validation_examples=256, test_examples=400, ranked=False,
        ),
        "quick": TokenRecipe(
            shortest=3, length=40, longest=256, batch=64, steps=6_000, schedule="until_solved", learning_rate=4e-3,
            validation_examples=256, test_examples=800,
        ),
    }  # fmt: skip

    def __init__(self, *, modulus: Annotated[int, Range(2, 1_000)] = 2):
        self.modulus = modulus
        self.chance = 1 / modulus

    @property
    def parameters(self) -> dict[str, Any]:
        return {"modulus": self.modulus}

    def problem(self) -> TokenPrediction:
        return TokenPrediction(vocabulary=1 + self.modulus)

    def settings(self, recipe: TokenRecipe) -> tuple[Setting, ...]:
        return tuple({"length": n} for n in TESTED if n <= recipe.longest)

    def training_setting(self, random: np.random.Generator, length: int) -> Setting:
        return {"length": length}

    def draw(self, random: np.random.Generator, examples: int, setting: Setting) -> TokenBatch:
        length = int(setting["length"])
        digits = random.integers(self.modulus, size=(examples, length))
        asked = np.tile(np.arange(length // 2, length), (examples, 1))
        sums = digits.cumsum(axis=1) % self.modulus
        # the id 0 is padding
        return TokenBatch.of(1 + digits, asked, 1 + sums[:, length // 2 :])
