"""lra-image: gray CIFAR-10 images, pixel by pixel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ..contract import (
    METRICS,
    Baseline,
    Classification,
    DataPlace,
    Dataset,
    Metric,
    Recipe,
    Subset,
    Whole,
)
from ..data.baselines import majority, ridge
from ..data.data import DataSource, SourcedTask, load_first, make_dataset
from ._image.cifar import NAME, PIXELS, at_length, sources
from .recipes import IMAGE


def mean_intensity(dataset: Dataset, recipe: Recipe) -> Whole:
    """Predict the class from the brightness alone: ridge regression on powers of the mean gray value."""
    return ridge(_powers(dataset.train), dataset.train.labels, _powers(dataset.test), penalty=1e-6)


def _powers(subset: Subset) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    # in the order of the file, in blocks: reading random rows of a memory map is slow
    means = np.empty(len(subset.split), dtype=np.float64)
    pixels = len(subset.split.tokens) // len(means)
    for low in range(0, len(means), 4096):
        block = subset.split.tokens[low * pixels : (low + 4096) * pixels]
        means[low : low + 4096] = block.reshape(-1, pixels).mean(1) / 128 - 1
    return means[subset.indices][:, None] ** np.arange(1, 8)


class Image(SourcedTask):
    """Class of a 32 × 32 gray image from its 1,024 pixels in raster order (CIFAR-10); Long Range Arena's Image.

    Token id = gray value + 1, and nothing is padding: black is a pixel like any other. Validation is a seeded 5,000 of
    the 50,000 training images, stratified by label (Long Range Arena takes the last tenth in the order of one library).
    A preset of 256 or 64 tokens averages blocks of pixels; any other length below 1,024 cuts the images.
    """

    name: ClassVar[str] = NAME
    metric: ClassVar[Metric] = METRICS["accuracy"].with_chance(0.1)
    paper: ClassVar[str] = "Tay et al. 2020, Long Range Arena, 2.2.4; data: Krizhevsky 2009"

    recipes: ClassVar[dict[str, Recipe]] = {
        # whole images, since half an image is another task; a small batch and few steps save the time instead
        "smoke": Recipe(
            length=PIXELS,
            batch=2,
            steps=4,
            warmup=2,
            evaluate_every=2,
            evaluate_batch=8,
            validation_examples=8,
            test_examples=16,
            ranked=False,
            timing_seconds=4.0,
        ),
        # 16 × 16 pixels, for a minute or two a cell on two cores: at 1,024 tokens 100 steps of 16 images would fit.
        # Positions and rate by validation, see README.md beside this file.
        "quick": Recipe(
            positions="sinusoidal",
            length=PIXELS // 4,
            batch=32,
            steps=1_000,
            learning_rate=2e-3,
            warmup=20,
            dropout=0.0,
            attention_dropout=0.0,
            evaluate_every=100,
            evaluate_batch=32,
            validation_examples=500,
            test_examples=2_000,
        ),
        **IMAGE,
    }

    baselines: ClassVar[dict[str, Baseline]] = {"majority": majority, "mean-intensity": mean_intensity}

    def problem(self) -> Classification:
        return Classification(vocabulary=257, classes=10, padded=False)

    def sources(self, place: DataPlace) -> Sequence[DataSource]:
        return sources()

    def load(self, place: DataPlace, recipe: Recipe, seed: int, selection: str) -> Dataset:
        prepared = at_length(load_first(sources(), place, NAME), recipe.length, place)
        return make_dataset(prepared, task=NAME, recipe=recipe, seed=seed, selection=selection)
