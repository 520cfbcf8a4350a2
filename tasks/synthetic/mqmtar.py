"""mqmtar: associative recall of several keys at once, where keys and values are pairs of tokens."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import numpy as np

from ..contract import Range, Recipe
from ..problems.token_prediction import UNKNOWN, Setting, TokenBatch, TokenPrediction, TokenRecipe
from .rewrite import published
from .task import SyntheticTask, distinct, lengths_up_to

SPACE, SEPARATOR, QUERY, START, END = 1, 2, 3, 4, 5
"""Tokens that stand between pairs, between a key and its value, and before a question and its answer; 0 is padding."""

FIRST = 6
QUERIES = 4
PAIR = 5
"""Tokens of key, separator and value."""


class MQMTAR(SyntheticTask):
    """Name the values of four keys, each of them two tokens, among pairs that fill most of the sequence (MQMTAR).

    `values`: kinds of tokens. A sequence of length N has 0.8 N / 6 pairs `k k : v v` with spaces at random between
    them, then four questions `Q k k`, a start, and the answer `Q v v` for each, with an end to be written after them.
    It is right where greedy decoding writes all of them right.
    """

    name = "mqmtar"
    paper = "Vasylenko et al. 2025, Long-Context Generalization with Sparse Attention, MQMTAR"
    even = False
    chance = 0.0
    recipes: ClassVar[dict[str, Recipe]] = {
        "smoke": TokenRecipe(
            width=32, heads=2, feed_forward=64, positions="rope", shortest=30, length=40, longest=64, batch=8, steps=6,
            warmup=2, evaluate_every=3, validation_examples=16, test_examples=24, ranked=False, timing_seconds=4.0,
        ),
        **published(390_625, layers=4, width=512, learning_rate=2e-4, longest=16_384),
    }  # fmt: skip

    def __init__(self, *, values: Annotated[int, Range(64, 4_096)] = 256):
        self.kinds = values

    @property
    def parameters(self) -> dict[str, Any]:
        return {"values": self.kinds}

    def problem(self) -> TokenPrediction:
        return TokenPrediction(vocabulary=FIRST + self.kinds, extra=6 * QUERIES + 1, exact=True)

    def settings(self, recipe: TokenRecipe) -> tuple[Setting, ...]:
        return tuple({"length": n} for n in lengths_up_to(recipe.longest, 64, 4))

    def training_setting(self, random: np.random.Generator, length: int) -> Setting:
        return {"length": max(length, 30)}

    def draw(self, random: np.random.Generator, examples: int, setting: Setting) -> TokenBatch:
        length = int(setting["length"])
        pairs = int(0.8 * length / 6)
        # a key is a number below values², written as two tokens, so that no two keys are the same
        key = distinct(random, examples, pairs, self.kinds**2)
        keys = FIRST + np.stack([key // self.kinds, key % self.kinds], axis=2)
        values = FIRST + random.integers(self.kinds, size=(examples, pairs, 2))
        between = np.full((examples, pairs, 1), SEPARATOR)
        written = np.concatenate([keys, between, values], axis=2)
        # spaces before each pair: of all ways to spread them over the gaps each is as likely
        free = length - PAIR * pairs
        bars = np.sort(distinct(random, examples, pairs, free + pairs), axis=1)
        starts = bars + (PAIR - 1) * np.arange(pairs)
        ids = np.full((examples, length), SPACE)
        at = starts[:, :, None] + np.arange(PAIR)
        np.put_along_axis(ids, at.reshape(examples, -1), written.reshape(examples, -1), axis=1)
        which = random.random((examples, pairs)).argsort(axis=1)[:, :QUERIES]
        asks, gives = (np.take_along_axis(each, which[:, :, None], axis=1) for each in (keys, values))
        mark = np.full((examples, QUERIES, 1), QUERY)
        questions, answers = (np.concatenate([mark, each], axis=2).reshape(examples, -1) for each in (asks, gives))
        ends = np.full((examples, 1), END)
        whole = np.concatenate([ids, questions, np.full((examples, 1), START), answers], axis=1)
        asked = np.tile(length + 3 * QUERIES + np.arange(3 * QUERIES + 1), (examples, 1))
        # the mark and the end come from no key
        at_value = np.take_along_axis(starts, which, axis=1)[:, :, None] + np.array([UNKNOWN, 3, 4])
        at_value[:, :, 0] = UNKNOWN
        right = np.concatenate([at_value.reshape(examples, -1), np.full((examples, 1), UNKNOWN)], axis=1)
        return TokenBatch.of(whole, asked, np.concatenate([answers, ends], axis=1), right)
