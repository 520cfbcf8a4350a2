"""copy, reverse, sort: a sequence written once more, as it is, backwards, or in ascending order."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Any, ClassVar

import numpy as np

from ..contract import Range, Recipe, Whole
from ..problems.token_prediction import UNKNOWN, Setting, TokenBatch, TokenPrediction, TokenRecipe
from .task import SyntheticTask, lengths_up_to

SEPARATOR, END = 1, 2
"""The tokens between source and target, and after the target; 0 is padding."""

TENTH = 10
"""`asentmax` trains as long as the paper; `base` for a tenth of its steps."""

SMOKE = TokenRecipe(
    width=32, heads=2, feed_forward=64, positions="rope", shortest=4, length=8, longest=16, batch=8, steps=6, warmup=2,
    evaluate_every=3, validation_examples=16, test_examples=24, ranked=False, timing_seconds=4.0,
)  # fmt: skip

QUICK = TokenRecipe(
    layers=2, heads=2, positions="rope", convolution=2, shortest=4, length=16, longest=64, batch=64, steps=2_400,
    schedule="until_solved", learning_rate=2e-3, validation_examples=128, test_examples=384,
)  # fmt: skip
"""Short sources, which two cores learn in a minute where they do; no figure of the paper can be compared with it."""


def published(steps: int, **changes: Any) -> dict[str, TokenRecipe]:
    """The presets `asentmax`, at the size of the paper's experiments, and `base`, with a tenth of their steps.

    Vasylenko et al. 2025, as their published configurations have it: lengths 32 to 64, AdamW with 0.9 and 0.99, no
    weight decay, a cosine, bfloat16.
    """
    found = TokenRecipe(**{
        "layers": 2, "width": 256, "heads": 16, "feed_forward": 1024, "positions": "rope", "shortest": 32,
        "length": 64, "longest": 1_024, "batch": 128, "steps": steps, "warmup": 20_000, "beta2": 0.99,
        "weight_decay": 0.0, "deviation": 0.02, "evaluate_every": 5_000, "validation_examples": 1_000,
        "test_examples": 5_000, "precision": "bfloat16",
        "departures": "blocks of this harness, not Gemma 2's; the head_dim, positions and lengths are the paper's",
        **changes,
    })  # fmt: skip
    tenth = {name: getattr(found, name) // TENTH for name in ("steps", "warmup", "evaluate_every")}
    return {"asentmax": found, "base": TokenRecipe(**{**_settings(found), **tenth})}


def _settings(recipe: TokenRecipe) -> dict[str, Any]:
    return {name: getattr(recipe, name) for name in recipe.__dataclass_fields__}


class Rewrite(SyntheticTask):
    """Base of the tasks that write their source once more; a subclass says in which order.

    A sequence is N tokens, a separator, and N tokens of target, with an end to be written after them. It is right where
    greedy decoding writes all of them right.
    """

    even = False
    # all of at least 16 tokens right by guessing
    chance = 0.0
    paper = "Vasylenko et al. 2025, Long-Context Generalization with Sparse Attention"

    def __init__(self, *, values: Annotated[int, Range(2, 4_096)] = 32):
        self.kinds = values

    @property
    def parameters(self) -> dict[str, Any]:
        return {"values": self.kinds}

    def problem(self) -> TokenPrediction:
        return TokenPrediction(vocabulary=3 + self.kinds, copies=2, extra=1, exact=True)

    def settings(self, recipe: TokenRecipe) -> tuple[Setting, ...]:
        return tuple({"length": n} for n in lengths_up_to(recipe.longest, recipe.length, 2))

    def training_setting(self, random: np.random.Generator, length: int) -> Setting:
        return {"length": length}

    def draw(self, random: np.random.Generator, examples: int, setting: Setting) -> TokenBatch:
        length = int(setting["length"])
        source = 3 + random.integers(self.kinds, size=(examples, length))
        target, keys = self.rewritten(source)
        separator, end = (np.full((examples, 1), token) for token in (SEPARATOR, END))
        ids = np.concatenate([source, separator, target], axis=1)
        asked = np.tile(length + np.arange(length + 1), (examples, 1))
        nowhere = np.full((examples, 1), UNKNOWN)
        return TokenBatch.of(ids, asked, np.concatenate([target, end], 1), np.concatenate([keys, nowhere], 1))

    @abstractmethod
    def rewritten(self, source: Whole) -> tuple[Whole, Whole]:
        """The target of sources (examples, length), and the place in the source that each token of it comes from."""


class Copy(Rewrite):
    """Write a sequence once more.

    `values`: kinds of tokens.
    """

    name = "copy"
    recipes: ClassVar[dict[str, Recipe]] = {
        "smoke": SMOKE, "quick": QUICK, **published(156_250, learning_rate=1e-3, longest=4_096),
    }  # fmt: skip

    def rewritten(self, source: Whole) -> tuple[Whole, Whole]:
        return source, np.tile(np.arange(source.shape[1]), (len(source), 1))


class Reverse(Rewrite):
    """Write a sequence backwards.

    `values`: kinds of tokens.
    """

    name = "reverse"
    recipes: ClassVar[dict[str, Recipe]] = {
        "smoke": SMOKE, "quick": QUICK, **published(234_375, layers=6, learning_rate=4e-4),
    }  # fmt: skip

    def rewritten(self, source: Whole) -> tuple[Whole, Whole]:
        return source[:, ::-1], np.tile(np.arange(source.shape[1])[::-1], (len(source), 1))


class Sort(Rewrite):
    """Write a sequence in ascending order.

    `values`: kinds of tokens. Where a value occurs several times, no single place holds the answer.
    """

    name = "sort"
    recipes: ClassVar[dict[str, Recipe]] = {
        "smoke": SMOKE, "quick": QUICK, **published(312_500, heads=8, learning_rate=4e-4, longest=512),
    }  # fmt: skip

    def rewritten(self, source: Whole) -> tuple[Whole, Whole]:
        return np.sort(source, axis=1), np.full_like(source, UNKNOWN)
