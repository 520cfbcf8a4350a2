"""two-back: the token that stood two places before."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import numpy as np

from ..contract import Range, Recipe
from ..problems.token_prediction import Setting, TokenBatch, TokenPrediction, TokenRecipe
from .task import SyntheticTask, lengths_up_to


class TwoBack(SyntheticTask):
    """Name the token two places back, at every position: a control, which needs positions and nothing else.

    `vocabulary`: token ids, 0 among them, which is padding.
    """

    name = "two-back"
    paper = "Vasylenko et al. 2025, Long-Context Generalization with Sparse Attention, 2Back"
    even = False
    recipes: ClassVar[dict[str, Recipe]] = {
        "smoke": TokenRecipe(
            width=32, feed_forward=64, convolution=2, shortest=16, length=32, longest=64, batch=8, steps=6, warmup=2,
            evaluate_every=3, validation_examples=16, test_examples=24, ranked=False, timing_seconds=4.0,
        ),
        "quick": TokenRecipe(
            layers=2, heads=4, positions="alibi", convolution=2, shortest=32, length=64, longest=1_024, batch=32,
            steps=1_600, schedule="until_solved", validation_examples=64, test_examples=192,
        ),
        "control": TokenRecipe(
            shortest=64, length=64, longest=64, batch=32, steps=1_200, schedule="until_solved", learning_rate=4e-3,
            validation_examples=64, test_examples=100, ranked=False,
        ),
        "base": TokenRecipe(
            layers=4, width=256, heads=8, feed_forward=512, positions="rope", shortest=32, length=64, longest=4_096,
            batch=128, steps=7_800, learning_rate=4e-4, warmup=1_000, beta2=0.99, weight_decay=0.0,
            evaluate_every=500, validation_examples=1_000, test_examples=2_000, precision="bfloat16",
        ),
    }  # fmt: skip

    def __init__(self, *, vocabulary: Annotated[int, Range(3, 65_536)] = 17):
        self.vocabulary = vocabulary
        self.chance = 1 / (vocabulary - 1)

    @property
    def parameters(self) -> dict[str, Any]:
        return {"vocabulary": self.vocabulary}

    def problem(self) -> TokenPrediction:
        return TokenPrediction(vocabulary=self.vocabulary)

    def settings(self, recipe: TokenRecipe) -> tuple[Setting, ...]:
        return tuple({"length": n} for n in lengths_up_to(recipe.longest, 64))

    def training_setting(self, random: np.random.Generator, length: int) -> Setting:
        return {"length": max(length, 3)}

    def draw(self, random: np.random.Generator, examples: int, setting: Setting) -> TokenBatch:
        length = int(setting["length"])
        ids = random.integers(1, self.vocabulary, size=(examples, length))
        asked = np.tile(np.arange(2, length), (examples, 1))
        return TokenBatch.of(ids, asked, ids[:, :-2], right_keys=asked - 2)
