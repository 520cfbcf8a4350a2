"""lra-pathfinder and lra-pathx: whether both markers lie on the same dashed contour."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from ..contract import (
    METRICS,
    Availability,
    Baseline,
    Classification,
    DataError,
    DataPlace,
    Dataset,
    Metric,
    Range,
    Recipe,
    SelectionError,
    Spec,
    Task,
)
from ..data.baselines import majority
from ..data.data import make_dataset
from ..data.prepared import MANIFEST, prepared_folder
from ._pathfinder.archive import OfficialImages
from ._pathfinder.images import VERSION, Scene
from ._pathfinder.shards import OFFICIAL_EXAMPLES, generated, generator_identity
from .image import mean_intensity
from .recipes import PATHFINDER, PATHX

SIDE, PATHX_SIDE = 32, 128
SECONDS = {32: 0.0015, 64: 0.04, 128: 0.03}
"""Seconds that one core takes for a hard image, by size, for estimates."""

MAX_UNREQUESTED = 20_000
"""The most Path-X images that are generated without an explicit request: some minutes of work."""

SMOKE = Recipe(
    length=SIDE**2,
    batch=2,
    steps=4,
    warmup=2,
    evaluate_every=2,
    evaluate_batch=8,
    train_examples=160,
    validation_examples=8,
    test_examples=16,
    ranked=False,
    timing_seconds=4.0,
)


class PathfinderTask(Task):
    """A Pathfinder set of one size and level: official images if the data root has them, else generated ones."""

    name: ClassVar[str]
    metric: ClassVar[Metric] = METRICS["accuracy"].with_chance(0.5)
    baselines: ClassVar[dict[str, Baseline]] = {"majority": majority, "mean-intensity": mean_intensity}

    def __init__(self, size: int, level: str, examples: int):
        self.scene = Scene(size=size, level=level)
        self.examples = examples

    def problem(self) -> Classification:
        return Classification(vocabulary=257, classes=2, padded=False)

    def official(self) -> OfficialImages:
        return OfficialImages(task=self.name, size=self.scene.size, level=self.scene.level)

    def availability(self, place: DataPlace) -> list[Availability]:
        return [
            self.official().availability(place),
            Availability(
                source=f"generator {VERSION}",
                fidelity="regenerated",
                ready=True,
                detail=f"made on this machine{self.on_request}",
                estimate=f"{self.estimate(self.examples)}; less for a preset that asks for fewer{self.on_request}",
            ),
        ]

    @property
    def on_request(self) -> str:
        """The command that asks for images which no run makes by itself; empty where a run does."""
        return ""

    def estimate(self, examples: int) -> str:
        """Time and disk that generating takes."""
        minutes = max(1, round(SECONDS[self.scene.size] * examples / 60))
        gigabytes = 2 * examples * self.scene.size**2 / 1e9
        return (
            f"{examples:,} images: some {minutes:,} minutes of one core, {gigabytes:.2f} GB (2.5 times that meanwhile)"
        )

    def load(self, place: DataPlace, recipe: Recipe, seed: int, selection: str) -> Dataset:
        prepared = self.official().prepared(place) if self.examples == OFFICIAL_EXAMPLES else None
        if prepared is None:
            wanted = self.wanted(recipe)
            self.require_request(wanted, place)
            prepared = generated(self.scene, wanted, place, self.name)
        pixels = self.scene.size**2
        if recipe.length < pixels:
            prepared = prepared.with_note(f"images cut to their first {recipe.length:,} of {pixels:,} pixels")
        return make_dataset(prepared, task=self.name, recipe=recipe, seed=seed, selection=selection)

    def wanted(self, recipe: Recipe) -> int:
        """The number of images that a preset needs. With `train_examples` it is what its slices ask for."""
        if recipe.train_examples is None:
            return self.examples
        # eight tenths train, one tenth validates and one tests, so the largest slice decides
        tenths = max(-(-recipe.train_examples // 8), recipe.validation_examples or 0, recipe.test_examples or 0)
        return min(self.examples, 10 * tenths)

    def require_request(self, wanted: int, place: DataPlace) -> None:
        """Raises DataError where generating takes long and nobody asked for it."""


class Pathfinder(PathfinderTask):
    """Tell whether both markers lie on one dashed contour, from the pixels in raster order (Pathfinder).

    Token id = gray value + 1, and nothing is padding: two pixels in three are black. `size`: side of an image;
    `level`: 6, 9 or 14 paddles a contour; `examples`: number of images to generate, 80 in 100 for training and 10 each
    for validation and test. The default is Long Range Arena's Pathfinder: 32, hard and 200,000.
    """

    name = "lra-pathfinder"
    paper: ClassVar[str] = "Tay et al. 2020, Long Range Arena, 2.2.5; generator: Linsley et al. 2018"

    recipes: ClassVar[dict[str, Recipe]] = {
        "smoke": SMOKE,
        # Whole images of the official difficulty, in a minute a cell on two cores. The steps are too few to leave
        # chance: published models need thousands. The scores of 4 images fit in the processor's cache.
        "quick": Recipe(
            length=SIDE**2,
            batch=4,
            steps=60,
            learning_rate=1e-3,
            warmup=10,
            dropout=0.0,
            attention_dropout=0.0,
            evaluate_every=30,
            evaluate_batch=2,
            train_examples=4_000,
            validation_examples=64,
            test_examples=300,
        ),
        **PATHFINDER,
    }

    def __init__(
        self,
        *,
        size: Literal[32, 64, 128] = 32,
        level: Literal["easy", "intermediate", "hard"] = "hard",
        examples: Annotated[int, Range(10, 10_000_000)] = OFFICIAL_EXAMPLES,
    ):
        super().__init__(size, level, examples)

    def recipe(self, preset: Spec) -> Recipe:
        """The preset, at the length of an image of this size unless the preset sets one."""
        recipe = super().recipe(preset)
        named = "length" in dict(preset.parameters)
        return recipe if named or recipe.length != SIDE**2 else replace(recipe, length=self.scene.size**2)


class PathX(PathfinderTask):
    """Pathfinder on 128 × 128 pixels, 16,384 tokens (Path-X).

    Generating all 200,000 images takes long, so it needs a request by number: `lra-pathx[examples=200000]`. Once they
    are prepared, `lra-pathx` finds them. `smoke` cuts images to their first 4 rows: it proves that a Cell runs.
    """

    name = "lra-pathx"
    paper: ClassVar[str] = "Tay et al. 2020, Long Range Arena, 2.2.6; generator: Linsley et al. 2018"

    recipes: ClassVar[dict[str, Recipe]] = {
        "smoke": replace(SMOKE, length=4 * PATHX_SIDE, train_examples=80, test_examples=10),
        **PATHX,
    }

    def __init__(
        self,
        *,
        level: Literal["easy", "intermediate", "hard"] = "hard",
        examples: Annotated[int, Range(10, 10_000_000)] | None = None,
    ):
        super().__init__(PATHX_SIDE, level, OFFICIAL_EXAMPLES if examples is None else examples)
        self.asked = examples is not None

    def recipe(self, preset: Spec) -> Recipe:
        """One of the presets named here. Raises SelectionError for any other: training takes hours."""
        if preset.name not in self.recipes:
            known = ", ".join(self.recipes)
            raise SelectionError(
                f"{self.name} has no preset {preset.name!r}; training on it takes hours, and it has: {known}"
            )
        return super().recipe(preset)

    @property
    def on_request(self) -> str:
        command = f"attnbench data get '{self.name}[examples={self.examples}]' --preset pt-2x64"
        return "" if self.asked else f"; more than {MAX_UNREQUESTED:,} only after `{command}`"

    def require_request(self, wanted: int, place: DataPlace) -> None:
        """Raises DataError for a large set that was not asked for by number and is not prepared."""
        folder = prepared_folder(place, self.name, generator_identity(self.scene, wanted))
        if wanted > MAX_UNREQUESTED and not self.asked and not (folder / MANIFEST).is_file():
            raise DataError(
                f"{self.name} is not prepared, and generating it is long work ({self.estimate(wanted)}); ask for it by "
                f"number: `attnbench data get '{self.name}[examples={wanted}]' --preset pt-2x64`, or for fewer"
            )
