"""Cost: the smallest difference that timings could have told."""

from __future__ import annotations

import math

import numpy as np
import pytest
from seeds import seed

from attnbench.bench.score.cost import RelativeCost, floor_of, resolution_of
from attnbench.bench.stats.intervals import Estimate, NoiseSource
from attnbench.bench.stats.scoring import log_ratio


def timed(name: str, error: float, null: float = 0.0) -> RelativeCost:
    return RelativeCost(
        variant=name,
        row=0,
        cost=Estimate(0.1, (NoiseSource(error, 9),)) if error else Estimate(0.0),
        null=Estimate(null, (NoiseSource(error / 10, 9),)),
        block=name,
    )


def test_resolution_is_that_of_the_noisiest_variant() -> None:
    quiet, noisy = timed("linear", 0.01), timed("local", 0.05)
    alone = resolution_of({"local": noisy})
    assert alone == pytest.approx(0.05 * 3.15, rel=0.02)
    both = resolution_of({"softmax": timed("softmax", 0.0), "linear": quiet, "local": noisy})
    # two comparisons, so each is corrected for two
    assert both is not None and alone is not None and alone < both < 1.5 * alone
    assert resolution_of({"softmax": timed("softmax", 0.0)}) is None


def test_resolution_is_never_below_the_noise_floor() -> None:
    timings = {"linear": timed("linear", 0.001, null=0.2)}
    assert resolution_of(timings) == floor_of(timings) > 0.2


def test_a_difference_of_that_size_is_found_in_four_of_five_runs() -> None:
    draw = np.random.default_rng(seed())
    noise, rounds = 0.07, 20
    ours, theirs = np.exp(noise * draw.standard_normal((2, 400, rounds)))
    error = noise * math.sqrt(2 / rounds)
    resolution = resolution_of({"a": timed("a", error)})
    assert resolution is not None
    found = [log_ratio(math.exp(resolution) * a, b).interval().low > 0 for a, b in zip(ours, theirs, strict=True)]
    assert 0.74 < float(np.mean(found)) < 0.86
