"""stack: the value that was pushed last and not yet popped, of each of several stacks."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import numpy as np

from ..contract import Range, Recipe
from ..problems.token_prediction import UNASKED, Setting, TokenBatch, TokenPrediction, TokenRecipe
from .task import SyntheticTask, lengths_up_to


class Stack(SyntheticTask):
    """Name the value on top of a stack, at each instruction that pops it: last in, first out.

    `stacks`: how many there are; each instruction names one of them. `values`: kinds of values. A sequence of length N
    has N / 2 pairs of an instruction and a value: a push with the value that it puts on top, or a pop, followed by the
    value that it takes away. An empty stack is pushed; of others half are popped. The last pair is a pop,
    unless all stacks are empty.
    """

    name = "stack"
    paper = "Kimi team 2025, Kimi Linear: An Expressive, Efficient Attention Architecture, figure 4"
    recipes: ClassVar[dict[str, Recipe]] = {
        "smoke": TokenRecipe(
            width=32, feed_forward=64, convolution=2, shortest=16, length=32, longest=64, batch=8, steps=6, warmup=2,
            evaluate_every=3, validation_examples=16, test_examples=24, ranked=False, timing_seconds=4.0,
        ),
        "quick": TokenRecipe(
            layers=2, convolution=2, shortest=16, length=64, longest=256, batch=64, steps=3_200,
            schedule="until_solved", learning_rate=2e-3, validation_examples=128, test_examples=400,
        ),
    }  # fmt: skip

    def __init__(self, *, stacks: Annotated[int, Range(1, 64)] = 1, values: Annotated[int, Range(2, 4_096)] = 16):
        self.stacks, self.kinds = stacks, values
        self.chance = 1 / values

    @property
    def parameters(self) -> dict[str, Any]:
        return {"stacks": self.stacks, "values": self.kinds}

    def problem(self) -> TokenPrediction:
        return TokenPrediction(vocabulary=1 + 2 * self.stacks + self.kinds)

    def settings(self, recipe: TokenRecipe) -> tuple[Setting, ...]:
        return tuple({"length": n} for n in lengths_up_to(recipe.longest, 64))

    def training_setting(self, random: np.random.Generator, length: int) -> Setting:
        # a push and its pop
        return {"length": max(length, 4)}

    def draw(self, random: np.random.Generator, examples: int, setting: Setting) -> TokenBatch:
        pairs, each = int(setting["length"]) // 2, np.arange(examples)
        stacks = random.integers(self.stacks, size=(examples, pairs))
        pops = random.random((examples, pairs)) < 0.5
        values = random.integers(self.kinds, size=(examples, pairs))
        # by stack and depth, the pair that pushed what lies there
        pushed = np.zeros((examples, self.stacks, pairs + 1), dtype=np.int64)
        depth = np.zeros((examples, self.stacks), dtype=np.int64)
        places = np.zeros((examples, pairs), dtype=np.int64)
        pops[:, -1] = True
        for at in range(pairs):
            if at == pairs - 1:
                stacks[:, at] = depth.argmax(axis=1)
            mine = stacks[:, at]
            pops[:, at] &= depth[each, mine] > 0
            # all stacks may be empty before the last pair
            top = np.maximum(depth[each, mine] - 1, 0)
            places[:, at] = np.where(pops[:, at], pushed[each, mine, top], at)
            values[:, at] = values[each, places[:, at]]
            pushed[each, mine, np.where(pops[:, at], pairs, depth[each, mine])] = at
            depth[each, mine] += np.where(pops[:, at], -1, 1)
        ids = np.stack([1 + 2 * stacks + pops, 1 + 2 * self.stacks + values], axis=2).reshape(examples, -1)
        # the pops of each sequence first, in their order, as many places as the sequence with most has
        order = np.argsort(~pops, axis=1, kind="stable")[:, : max(int(pops.sum(1).max()), 1)]
        is_pop = np.take_along_axis(pops, order, axis=1)
        answers = np.where(is_pop, ids[each[:, None], 2 * order + 1], UNASKED)
        return TokenBatch.of(ids, 2 * order, answers, right_keys=2 * np.take_along_axis(places, order, axis=1) + 1)
