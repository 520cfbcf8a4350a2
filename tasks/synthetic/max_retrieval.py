"""max and max-pooled: the class of the one item with the highest priority."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar

import numpy as np

from ...bench.core.hashing import axis_seed
from ..contract import (
    METRICS,
    Availability,
    Baseline,
    Classification,
    DataPlace,
    Dataset,
    Lane,
    Metric,
    Provenance,
    Range,
    Recipe,
    Split,
    Subset,
    Task,
    Whole,
)
from ..problems.token_prediction import Setting, TokenBatch, TokenExamples, TokenPrediction, TokenRecipe
from .task import SOURCE, SyntheticTask, lengths_up_to, majority

QUESTION = 1
"""The token that asks; 0 is padding."""

CLASSES = 8

Levels = Annotated[int, Range(2, 4_096)]


def draw_items(random: np.random.Generator, examples: int, length: int, levels: int) -> tuple[Whole, Whole, Whole]:
    """Items (examples, length) as token ids, the place of the highest and its class, (examples,) each.

    An item of priority p and class c is the id 2 + 8 p + c. The highest priority is drawn from the upper half of the
    levels; every other item is below it, so that one step may separate the two.
    """
    top = random.integers(levels // 2, levels, size=(examples, 1))
    priorities = (random.random((examples, length)) * top).astype(np.int64)
    classes = random.integers(CLASSES, size=(examples, length))
    places = random.integers(length, size=(examples, 1))
    np.put_along_axis(priorities, places, top, axis=1)
    highest = np.take_along_axis(classes, places, axis=1)[:, 0]
    return 2 + CLASSES * priorities + classes, places[:, 0], highest


def last_item(dataset: Dataset, recipe: Recipe) -> Whole:
    """Give the class of the last item."""
    assert isinstance(dataset.test, TokenExamples)
    # the last token asks, and the item stands before it
    ends = dataset.test.split.starts[1:][dataset.test.indices] - 2
    classes = (dataset.test.split.tokens[ends].astype(np.int64) - 2) % CLASSES
    return np.broadcast_to(2 + classes[:, None], dataset.test.answers[dataset.test.indices].shape).copy()


class MaxRetrieval(SyntheticTask):
    """Name the class of the item with the highest priority; the number of items grows far beyond training.

    `levels`: of priority; with more of them the highest item is nearer to the next. An item is one token, which stands
    for its priority and one of 8 classes; a last token asks. Attention has to find one item among N: how its weight
    there falls with N is what the task measures.
    """

    name = "max"
    paper = "Veličković et al. 2024, softmax is not enough (for sharp out-of-distribution); items as tokens here"
    even = False
    chance = 1 / CLASSES
    recipes: ClassVar[dict[str, Recipe]] = {
        "smoke": TokenRecipe(
            width=32, feed_forward=64, query_key_scale=0.1, shortest=4, length=16, longest=64, batch=8, steps=6,
            warmup=2, evaluate_every=3, validation_examples=16, test_examples=24, ranked=False, timing_seconds=4.0,
        ),
        # Small scores at the start: with ordinary ones the maps with exact zeros stay at chance
        "quick": TokenRecipe(
            query_key_scale=0.1, shortest=4, length=16, longest=1_024, batch=64, steps=8_000,
            schedule="until_solved", learning_rate=4e-3, learning_rates=(1e-3, 4e-3),
            query_key_scales=(0.1, 1.0), evaluate_every=100, validation_examples=512, test_examples=2_000,
            evaluate_batch=256,
        ),
        "control": TokenRecipe(
            query_key_scale=0.1, shortest=4, length=16, longest=16, batch=64, steps=600, learning_rate=4e-3,
            evaluate_every=100, validation_examples=256, test_examples=500, evaluate_batch=256, ranked=False,
        ),
        "base": TokenRecipe(
            width=128, feed_forward=512, query_key_scale=0.1, shortest=4, length=16, longest=16_384, batch=256,
            steps=50_000, learning_rate=1e-3, warmup=1_000, evaluate_every=1_000, validation_examples=4_096,
            test_examples=6_000, evaluate_batch=4_096, precision="bfloat16",
        ),
    }  # fmt: skip
    baselines: ClassVar[dict[str, Baseline]] = {"majority": majority, "last-item": last_item}

    def __init__(self, *, levels: Levels = 32):
        self.levels = levels

    @property
    def parameters(self) -> dict[str, Any]:
        return {"levels": self.levels}

    def problem(self) -> TokenPrediction:
        return TokenPrediction(vocabulary=2 + CLASSES * self.levels, extra=1)

    def settings(self, recipe: TokenRecipe) -> tuple[Setting, ...]:
        return tuple({"length": n} for n in lengths_up_to(recipe.longest, 16))

    def training_setting(self, random: np.random.Generator, length: int) -> Setting:
        return {"length": length}

    def draw(self, random: np.random.Generator, examples: int, setting: Setting) -> TokenBatch:
        length = int(setting["length"])
        items, places, classes = draw_items(random, examples, length, self.levels)
        ids = np.concatenate([items, np.full((examples, 1), QUESTION)], axis=1)
        # the answer is the id of priority 0 and that class
        return TokenBatch.of(ids, np.full((examples, 1), length), 2 + classes[:, None], right_keys=places[:, None])


class MaxPooled(Task):
    """The class of the highest of up to `length` items, from the mean of all states: for attention without a mask.

    `levels` as in `max`, whose form for bidirectional attention this is: variants without a causal form take part. Sets
    of 4 items and more are padded, there is no token that asks, and nothing is longer than training.
    """

    lanes: ClassVar[tuple[Lane, ...]] = ("baseline", "train")
    paper = MaxRetrieval.paper
    metric: ClassVar[Metric] = METRICS["accuracy"].with_chance(1 / CLASSES)
    shared: ClassVar[dict[str, Recipe]] = {}
    recipes: ClassVar[dict[str, Recipe]] = {
        "smoke": Recipe(
            layers=1, width=32, heads=1, feed_forward=64, dropout=0.0, attention_dropout=0.0, positions="none",
            deviation=0.5, query_key_scale=0.1, length=16, batch=8, steps=6, warmup=2, evaluate_every=3,
            train_examples=64, validation_examples=32, test_examples=64, ranked=False, timing_seconds=4.0,
        ),
        "quick": Recipe(
            layers=1, width=64, heads=1, feed_forward=128, dropout=0.0, attention_dropout=0.0, positions="none",
            deviation=0.5, query_key_scale=0.1, length=64, batch=64, steps=1_500, learning_rate=4e-3, warmup=50,
            schedule="cosine", weight_decay=0.01, beta2=0.98, evaluate_every=100, train_examples=96_000,
            validation_examples=512, test_examples=2_000,
        ),
        "control": Recipe(
            layers=1, width=64, heads=1, feed_forward=128, dropout=0.0, attention_dropout=0.0, positions="none",
            deviation=0.5, query_key_scale=0.1, length=16, batch=64, steps=600, learning_rate=4e-3, warmup=50,
            schedule="cosine", weight_decay=0.01, beta2=0.98, evaluate_every=100, train_examples=38_400,
            validation_examples=256, test_examples=500, ranked=False,
        ),
        "base": Recipe(
            layers=1, width=128, heads=1, feed_forward=512, dropout=0.0, attention_dropout=0.0, positions="none",
            deviation=0.5, query_key_scale=0.1, length=256, batch=256, steps=20_000, learning_rate=1e-3, warmup=1_000,
            schedule="cosine", weight_decay=0.01, beta2=0.98, evaluate_every=1_000, train_examples=1_000_000,
            validation_examples=4_096, test_examples=6_000, precision="bfloat16",
        ),
    }  # fmt: skip

    def __init__(self, *, levels: Levels = 32):
        self.levels = levels

    def problem(self) -> Classification:
        return Classification(vocabulary=2 + CLASSES * self.levels, classes=CLASSES)

    def availability(self, place: DataPlace) -> list[Availability]:
        return [Availability(source=SOURCE, fidelity="regenerated", ready=True, detail="nothing is needed")]

    def load(self, place: DataPlace, recipe: Recipe, seed: int, selection: str) -> Dataset:
        counts = {
            "train": recipe.train_examples or recipe.batch * recipe.steps,
            "validation": recipe.validation_examples or 512,
            "test": recipe.test_examples or 2_000,
        }
        found = {
            # the test is the same for every seed
            name: self._subset(count, recipe.length, name, 0 if name == "test" else seed)
            for name, count in counts.items()
        }
        notes = ["the best checkpoint is chosen on the test split"] if selection == "test" else []
        provenance = Provenance(
            source=f"{SOURCE}, max-pooled version {self.version}", fidelity="regenerated", counts=counts,
            notes=tuple(notes),
        )  # fmt: skip
        found |= {"validation": found["test"]} if selection == "test" else {}
        return Dataset(**found, provenance=replace(provenance, counts={k: len(v) for k, v in found.items()}))

    def _subset(self, count: int, length: int, use: str, seed: int) -> Subset:
        random = np.random.default_rng(axis_seed(use=use, task="max-pooled", levels=self.levels, seed=seed))
        lengths = np.sort(random.integers(4, length + 1, size=count))
        rows, labels = [], []
        for each in np.unique(lengths):
            items, _, classes = draw_items(random, int((lengths == each).sum()), int(each), self.levels)
            rows.append(items.astype(np.uint16).reshape(-1))
            labels.append(classes)
        starts = np.append(0, lengths.cumsum()).astype(np.int64)
        split = Split(tokens=np.concatenate(rows), starts=starts, labels=np.concatenate(labels).astype(np.int64))
        return split.all()
