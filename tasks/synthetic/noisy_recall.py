"""noisy-recall: associative recall among tokens that mean nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar

import numpy as np

from ..contract import Baseline, Range, Recipe
from ..problems.token_prediction import Setting, TokenBatch, TokenPrediction, TokenRecipe
from .recall import Recall
from .task import SyntheticTask, distinct, first_value, majority

QUESTIONS = 8
"""Pairs that are asked about at the end, at most."""

TESTED = (128, 512, 2_048, 8_192)
"""Lengths at which as many pairs as in training are asked about."""

SHARES = (0.2, 0.4, 0.6, 0.8)
"""Shares of noise tokens at the first of these lengths (Poli et al. 2024 test these)."""


class NoisyRecall(SyntheticTask):
    """Name the value of each key that returns; pairs of key and value lie among noise tokens (MAD).

    `vocabulary`: token ids; `noise`: how many of them are noise, the others are half keys, half values. `pairs`: of key
    and value in training. A sequence of length N has its pairs at even places, noise elsewhere, then up to 8 keys
    again, each followed by its value. Asked is the value, at the key.
    """

    name = "noisy-recall"
    paper = "Poli et al. 2024, Mechanistic Design and Scaling of Hybrid Architectures (MAD), noisy in-context recall"
    recipes: ClassVar[dict[str, Recipe]] = {
        "smoke": replace(Recall.recipes["smoke"], longest=128),
        "quick": replace(Recall.recipes["quick"], shortest=32),
        "base": Recall.recipes["base"],
    }
    """The settings of `recall`, at lengths that leave room for noise."""

    baselines: ClassVar[dict[str, Baseline]] = {"majority": majority, "first-value": first_value}

    def __init__(
        self,
        *,
        vocabulary: Annotated[int, Range(160, 65_536)] = 160,
        noise: Annotated[int, Range(1, 50)] = 16,
        pairs: Annotated[int, Range(1, 50)] = 8,
    ):
        self.vocabulary, self.noise, self.pairs = vocabulary, noise, pairs
        # 0 is padding
        self.half = (vocabulary - 1 - noise) // 2
        self.chance = 1 / self.half

    @property
    def parameters(self) -> dict[str, Any]:
        return {"vocabulary": self.vocabulary, "noise": self.noise, "pairs": self.pairs}

    def problem(self) -> TokenPrediction:
        return TokenPrediction(vocabulary=self.vocabulary, extra=2 * QUESTIONS)

    def settings(self, recipe: TokenRecipe) -> tuple[Setting, ...]:
        shortest = TESTED[0]
        noisy = [{"length": shortest, "pairs": round((1 - share) * shortest / 2), "noise": share} for share in SHARES]
        far = [{"length": n, "pairs": self.pairs, "noise": round(1 - 2 * self.pairs / n, 4)} for n in TESTED]
        return tuple(each for each in (*noisy, *far) if each["length"] <= recipe.longest)

    def training_setting(self, random: np.random.Generator, length: int) -> Setting:
        # few pairs too, which are learned first
        return {"length": length, "pairs": int(random.integers(1, min(self.pairs, length // 2) + 1))}

    def draw(self, random: np.random.Generator, examples: int, setting: Setting) -> TokenBatch:
        length, pairs = int(setting["length"]), int(setting["pairs"])
        questions = min(pairs, QUESTIONS)
        keys = 1 + self.noise + distinct(random, examples, pairs, self.half)
        values = 1 + self.noise + self.half + random.integers(self.half, size=(examples, pairs))
        ids = 1 + random.integers(self.noise, size=(examples, length + 2 * questions))
        places = 2 * distinct(random, examples, pairs, length // 2)
        np.put_along_axis(ids, places, keys, axis=1)
        np.put_along_axis(ids, places + 1, values, axis=1)
        # pairs are in random order already, so that the first ones are any of them
        ids[:, length::2], ids[:, length + 1 :: 2] = keys[:, :questions], values[:, :questions]
        asked = np.tile(length + 2 * np.arange(questions), (examples, 1))
        return TokenBatch.of(ids, asked, values[:, :questions], right_keys=places[:, :questions] + 1)
