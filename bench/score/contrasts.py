"""Contrasts: differences of two variants' quality. Ranks, verdicts and intervals of every board come from here.

A contrast is over the seeds that both have. Its noise over seeds is moderated by the declared variants, and its
interval is corrected for all pairs of these: neither depends on who else has Records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ..core.cell import REFERENCE
from ..core.interval import Interval
from ..core.metrics import Metric
from ..core.protocol import LEAST_SEEDS
from ..stats.intervals import LEVEL, Estimate, NoiseSource, mean_of
from ..stats.moderation import moderated_variances, noise_of_difference
from ..stats.power import POWER, minimal_detectable_effect, seeds_needed
from ..stats.ranking import RankInterval, rank_intervals
from ..stats.scoring import Verdict, verdict
from .quality import SeedScores

COMPARISON_SETS: Mapping[str, tuple[str, ...]] = {
    "accuracy": (REFERENCE, "entmax15", "fastformer", "linear", "local", "rela"),
    "bleu": (REFERENCE, "entmax15", "rela", "sparsemax"),
    "bits_per_character": (REFERENCE, "additive-lm", "local-routing", "relative"),
}
"""The declared variants of a board that no suite declares, by the metric of its task.

Those of the built-in suite `lra`, also for other metrics; those that papers on sparse attention translate with; and
those for language models.
"""

NoiseOf = Callable[[int], tuple[NoiseSource, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """How much better `one` is than `other`, in the unit of the metric and whichever way it points.

    `seeds`: those that both have. `pairs`: so many comparisons the interval is corrected for. `noise_of`: the noise
    that another number of seeds would have. `other_learned`: whether `other` is above the best constant prediction.
    `is_moderated`: whether the declared variants lend their variance; `own`: which of the two keep their own all the
    same, being far outside or having learned at some seeds only.
    """

    one: str
    other: str
    metric: Metric
    seeds: tuple[int, ...]
    pairs: int
    advantage: Estimate
    noise_of: NoiseOf = field(repr=False, compare=False)
    other_learned: bool = True
    is_moderated: bool = True
    own: tuple[str, ...] = ()

    @property
    def level(self) -> float:
        """The level of one interval, so that all `pairs` hold at once at 95 % (Bonferroni)."""
        return 1 - (1 - LEVEL) / self.pairs

    @property
    def has_enough_seeds(self) -> bool:
        return len(self.seeds) >= LEAST_SEEDS

    @property
    def interval(self) -> Interval:
        """The advantage with its corrected interval."""
        return self.advantage.interval(self.level)

    @property
    def is_separated(self) -> bool:
        """Whether the corrected interval leaves zero out, with enough seeds."""
        return self.has_enough_seeds and self.advantage.half_width(self.level) < abs(self.advantage.value)

    @property
    def is_behind(self) -> bool:
        """Whether it is worse, by however little."""
        return self.is_separated and self.advantage.value < 0

    def verdict(self, margin: float) -> Verdict:
        """The judgement of the corrected interval; `margin` in the unit of the metric's values, not in points.

        Being within a margin of a variant that did not learn says nothing, so that is undecided.
        """
        if not self.has_enough_seeds:
            return "undecided"
        found = verdict(self.interval, margin)
        return "undecided" if found == "within margin" and not self.other_learned else found

    def minimal_detectable_effect(self, power: float = POWER) -> float:
        """The smallest true difference that would be separated with that probability, with these seeds."""
        return minimal_detectable_effect(self.advantage.noise, self.level, power)

    def seeds_needed(self, difference: float | None = None, power: float = POWER) -> int | None:
        """How many seeds of both would separate a true difference of that size; None: of the size found.

        None where no number of seeds up to `stats.power.MOST_SEEDS` does, since the test examples are too few.
        """
        wanted = self.advantage.value if difference is None else difference
        return seeds_needed(wanted, self.noise_of, self.level, power, least=LEAST_SEEDS)


class _SeedNoise(NamedTuple):
    """Moderated variances of one seed's score by variant, over the same seeds; `weights`: what the pool lent."""

    variances: Mapping[str, float]
    freedom: Mapping[str, float]
    weights: Mapping[str, float]
    own: Collection[str]
    pooled_freedom: float


class Contrasts:
    """All contrasts of one board.

    `declared`: who estimates the usual variance, and is corrected for; None for the comparison set of the metric.
    """

    def __init__(self, scores: Mapping[str, SeedScores], declared: Collection[str] | None = None):
        metric = next((one.metric.name for one in scores.values()), "accuracy")
        usual = COMPARISON_SETS.get(metric, COMPARISON_SETS["accuracy"])
        self.scores = scores
        self.declared = frozenset({REFERENCE, *(usual if declared is None else declared)})
        self._found: dict[tuple[str, str], Contrast] = {}
        self._noise: dict[tuple[int, ...], _SeedNoise] = {}

    def pairs(self, *names: str) -> int:
        """How many comparisons one between these is corrected for: all pairs of the declared variants.

        With a variant that is not declared, all pairs of twice as many: the declared ones cannot know how many others
        a board will show, and up to as many again keep the chance of any false difference at 5 % (simulated).

        >>> contrasts = Contrasts({}, ["softmax", "rela", "linear"])
        >>> contrasts.pairs("rela", "linear"), contrasts.pairs("rela", "mine"), contrasts.pairs("mine", "theirs")
        (3, 15, 15)
        """
        count = len(self.declared) * (1 if self.declared.issuperset(names) else 2)
        return max(count * (count - 1) // 2, 1)

    def seeds_of(self, one: str, other: str) -> tuple[int, ...]:
        """The seeds that both have."""
        found = [set(self.scores[name].seeds) if name in self.scores else set() for name in (one, other)]
        return tuple(sorted(found[0] & found[1]))

    def between(self, one: str, other: str) -> Contrast:
        """Raises ValueError where the two have no seed in common."""
        if (one, other) not in self._found:
            self._found[one, other] = self._between(one, other)
        return self._found[one, other]

    def to_reference(self, name: str) -> Contrast | None:
        """The contrast with the reference; None for the reference itself, and without a seed in common."""
        return self.between(name, REFERENCE) if name != REFERENCE and self.seeds_of(name, REFERENCE) else None

    def level_of(self, name: str) -> Interval:
        """The mean score with its interval at 95 %, of this variant alone: it is no comparison, and not corrected."""
        own = self.scores[name]
        if len(own.seeds) < 2:
            return own.level()
        noise = self._noise_over(own.seeds)
        error = math.sqrt(noise.variances[name] / len(own.seeds))
        return own.level(NoiseSource(error, noise.freedom[name]))

    def rank_intervals(self, names: Sequence[str]) -> list[RankInterval]:
        """Rank intervals of `names`, who all have enough seeds in common."""
        return rank_intervals(names, lambda one, other: self.between(one, other).advantage, pairs=self.pairs)

    def _between(self, one: str, other: str) -> Contrast:
        mine, theirs = self.scores[one], self.scores[other]
        found = mine.advantage_over(theirs)
        seeds = self.seeds_of(one, other)
        of_test = tuple(source for source in found.noise if source.freedom is None)
        if len(seeds) < 2:
            noise_of: NoiseOf = lambda count: of_test  # noqa: E731
            own: tuple[str, ...] = ()
            is_moderated = False
        else:
            noise = self._noise_over(seeds)
            noise_of = _noise_of(noise, one, other, len(seeds), of_test)
            own = tuple(name for name in (one, other) if name in noise.own)
            is_moderated = math.isfinite(noise.pooled_freedom)
        return Contrast(
            one=one,
            other=other,
            metric=mine.metric,
            seeds=seeds,
            pairs=self.pairs(one, other),
            advantage=Estimate(found.value, noise_of(len(seeds))),
            noise_of=noise_of,
            other_learned=theirs.has_learned,
            is_moderated=is_moderated,
            own=own,
        )

    def _noise_over(self, seeds: tuple[int, ...]) -> _SeedNoise:
        """Variances over exactly these seeds, of all who have them."""
        if seeds not in self._noise:
            there = sorted(name for name, own in self.scores.items() if set(seeds) <= set(own.seeds))
            scores = np.array([self.scores[name].on_seeds(seeds).scores for name in there])
            learned = [self.scores[name].on_seeds(seeds).learned for name in there]
            # who learned at some seeds only has two levels; who learned at none has the noise of guessing
            pool = [name in self.declared and all(each) for name, each in zip(there, learned, strict=True)]
            mixed = [any(each) and not all(each) for each in learned]
            found = moderated_variances(scores, np.array(pool), np.array(mixed))
            self._noise[seeds] = _SeedNoise(
                variances=dict(zip(there, found.variances.tolist(), strict=True)),
                freedom=dict(zip(there, found.freedom.tolist(), strict=True)),
                weights=dict(zip(there, found.weights.tolist(), strict=True)),
                own=frozenset(name for name, keeps in zip(there, found.keeps_own, strict=True) if keeps),
                pooled_freedom=float(found.pooled_freedom),
            )
        return self._noise[seeds]


def mean_contrast(contrasts: Sequence[Contrast]) -> Contrast:
    """The mean of contrasts of the same two variants over tasks, of these tasks and not of others."""
    first = contrasts[0]
    count = len(contrasts)

    def noise_of(seeds: int) -> tuple[NoiseSource, ...]:
        return tuple(NoiseSource(n.error / count, n.freedom) for each in contrasts for n in each.noise_of(seeds))

    return Contrast(
        one=first.one,
        other=first.other,
        metric=first.metric,
        seeds=min((each.seeds for each in contrasts), key=len),
        pairs=first.pairs,
        advantage=mean_of([each.advantage for each in contrasts]),
        noise_of=noise_of,
        other_learned=all(each.other_learned for each in contrasts),
        is_moderated=all(each.is_moderated for each in contrasts),
        own=tuple(sorted({name for each in contrasts for name in each.own})),
    )


def _noise_of(noise: _SeedNoise, one: str, other: str, seeds: int, of_test: tuple[NoiseSource, ...]) -> NoiseOf:
    """The noise of a difference by the number of seeds: variances stay, their degrees of freedom grow."""

    def found(count: int) -> tuple[NoiseSource, ...]:
        grown = (count - 1) / (seeds - 1)
        variances, weights = ([by_name[one], by_name[other]] for by_name in (noise.variances, noise.weights))
        freedoms = [weight + count - 1 for weight in weights]
        error, freedom = noise_of_difference(
            np.array(variances[0]),
            np.array(variances[1]),
            np.array(freedoms[0]),
            np.array(freedoms[1]),
            np.array(noise.pooled_freedom * grown),
            count,
        )
        return (NoiseSource(float(error), float(freedom)), *of_test)

    return found
