"""selective-copy: the few tokens that lie among many blanks, in their order."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import numpy as np

from ..contract import Baseline, Range, Recipe
from ..problems.token_prediction import Setting, TokenBatch, TokenPrediction, TokenRecipe
from .task import SyntheticTask, distinct, first_value, lengths_up_to, majority

BEGIN, START, BLANK = 1, 2, 3
"""0 is padding."""


class SelectiveCopy(SyntheticTask):
    """Repeat the few tokens among N blanks, in their order, one after the other.

    `tokens`: how many there are, at random places; `values`: how many kinds. A sequence is a first token, N places, a
    token that starts the copy, and the copy: asked are all its tokens, each from those before it.
    """

    name = "selective-copy"
    paper = "Gu & Dao 2023, Mamba: Linear-Time Sequence Modeling with Selective State Spaces, section 4.1.1"
    even = False
    recipes: ClassVar[dict[str, Recipe]] = {
        "smoke": TokenRecipe(
            layers=2, width=32, feed_forward=64, convolution=2, shortest=16, length=32, longest=64, batch=8, steps=6,
            warmup=2, evaluate_every=3, validation_examples=16, test_examples=24, ranked=False, timing_seconds=4.0,
        ),
        # Two layers and a token shift, without positions: the order comes from causal attention alone
        "quick": TokenRecipe(
            layers=2, convolution=2, shortest=32, length=64, longest=1_024, batch=64, steps=3_200,
            schedule="until_solved", learning_rate=2e-3, learning_rates=(1e-3, 4e-3),
            query_key_scales=(0.3, 1.0), validation_examples=128, test_examples=600,
        ),
        "base": TokenRecipe(
            layers=2, width=128, feed_forward=512, convolution=2, shortest=64, length=256, longest=16_384, batch=128,
            steps=50_000, learning_rate=1e-3, warmup=1_000, evaluate_every=1_000, validation_examples=1_000,
            test_examples=4_000, precision="bfloat16",
        ),
    }  # fmt: skip
    baselines: ClassVar[dict[str, Baseline]] = {"majority": majority, "first-value": first_value}

    def __init__(self, *, tokens: Annotated[int, Range(1, 32)] = 4, values: Annotated[int, Range(2, 4_096)] = 8):
        self.tokens, self.kinds = tokens, values
        self.chance = 1 / values

    @property
    def parameters(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "values": self.kinds}

    def problem(self) -> TokenPrediction:
        return TokenPrediction(vocabulary=4 + self.kinds, extra=1 + self.tokens)

    def settings(self, recipe: TokenRecipe) -> tuple[Setting, ...]:
        return tuple({"length": n} for n in lengths_up_to(recipe.longest, 64))

    def training_setting(self, random: np.random.Generator, length: int) -> Setting:
        return {"length": max(length, self.tokens)}

    def draw(self, random: np.random.Generator, examples: int, setting: Setting) -> TokenBatch:
        length, tokens = int(setting["length"]), self.tokens
        data = 4 + random.integers(self.kinds, size=(examples, tokens))
        places = 1 + np.sort(distinct(random, examples, tokens, length), axis=1)
        ids = np.full((examples, 1 + length + tokens), BLANK)
        ids[:, 0], ids[:, length + 1], ids[:, length + 2 :] = BEGIN, START, data[:, :-1]
        np.put_along_axis(ids, places, data, axis=1)
        asked = np.tile(length + 1 + np.arange(tokens), (examples, 1))
        return TokenBatch.of(ids, asked, data, right_keys=places)
