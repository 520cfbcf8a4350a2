"""Gaps: how far every variant of a question is ahead of every other, worked out together where that is possible."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from ..stats.intervals import Estimate, NoiseSource
from ..stats.ranking import Gap
from .quality import SeedScores


def pairwise_differences(trials: Mapping[str, SeedScores]) -> Gap:
    """`SeedScores.gap` of any two, to the rounding of the last bits.

    Scores that are shares, over the same seeds and examples, are held against each other as arrays: hundreds of
    variants make many thousands of pairs. All else goes pair by pair.
    """
    every = list(trials.values())
    if not every or not _alike(every):
        return lambda one, other: trials[one].gap(trials[other])
    seeds, examples = len(every[0].seeds), every[0].examples
    scores = np.array([t.scores for t in every])
    mean = scores.mean(axis=1)
    if every[0].correct is not None:
        right = np.array([np.mean(np.stack(t.correct or ()), axis=0) for t in every])
        tests = [(own - right).std(axis=1, ddof=1) / math.sqrt(examples) for own in right]
    else:
        blur = mean * (1 - mean) / examples
        tests = list(np.sqrt(blur + blur[:, None]))
    value = [(own - mean).tolist() for own in mean]
    of_test = [np.maximum(row, 1 / examples).tolist() for row in tests]
    spread = [(own - scores).std(axis=1, ddof=1) / math.sqrt(seeds) for own in scores] if seeds > 1 else []
    of_seeds = [row.tolist() for row in spread]
    place = {name: at for at, name in enumerate(trials)}

    def gap(one: str, other: str) -> Estimate:
        i, j = place[one], place[other]
        noise = (NoiseSource(of_seeds[i][j], seeds - 1),) if of_seeds else ()
        return Estimate(value[i][j], (*noise, NoiseSource(of_test[i][j])))

    return gap


def _alike(trials: list[SeedScores]) -> bool:
    """Whether one array holds all their scores, and one all that is known of their examples or none does."""
    first = trials[0]
    shapes = {None if t.correct is None else len(t.correct[0]) for t in trials}
    return (
        bool(first.seeds)
        and len(shapes) == 1
        and all(t.metric.is_share and t.seeds == first.seeds and t.examples == first.examples for t in trials)
    )
