"""Speed of the Pathfinder generator: `pytest tests/perf`; nothing here asserts a time."""

import numpy as np
import pytest

from attnbench.tasks.lra._pathfinder.images import Scene, draw

pytest.importorskip("pytest_benchmark", reason="pytest-benchmark is not installed")


@pytest.mark.parametrize(("size", "level", "images"), [(32, "easy", 400), (32, "hard", 400), (128, "hard", 60)])
def test_drawing_images(benchmark: object, size: int, level: str, images: int) -> None:
    scene = Scene(size=size, level=level)
    draw(scene, 1_000_000, 2)
    drawing = benchmark.pedantic(draw, (scene, 0, images), rounds=3)  # type: ignore[attr-defined]
    benchmark.extra_info["milliseconds_per_image"] = 1e3 * benchmark.stats["median"] / images  # type: ignore[attr-defined]
    assert np.all(drawing.images.max((1, 2)) == 255)
