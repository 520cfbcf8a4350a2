"""Contrasts: differences of two variants' quality. Ranks, verdicts and intervals of every board come from here.

Trainings can fail, so a contrast has two parts: the mean of the seeds that learned, and the share of seeds that did.
Where no training of the two failed, its noise over seeds is moderated by the declared variants. Where exactly one of
the two learned nowhere, a mean of successes would be held against a mean of failures, so only the shares decide. Where
nothing says which trainings learned, all seeds are compared, from six on. Intervals are corrected for the pairs of the
declared variants: nothing depends on who else has Records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ..core.cell import LEAST_SEEDS, REFERENCE
from ..core.metrics import Interval, Metric
from ..stats.intervals import (
    LEVEL,
    POWER,
    Estimate,
    NoiseSource,
    Share,
    minimal_detectable_effect,
    pooled_mean_of,
    seeds_needed,
)
from ..stats.moderation import moderated_variances, noise_of_difference
from ..stats.ranking import RankInterval, ranked_by
from ..stats.scoring import Verdict, verdict
from ..stats.shares import is_proven
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

SEEDS_IN_DOUBT = 6
"""The fewest seeds whose means are compared where nothing says which trainings learned: fewer can be of one mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """The advantage of `one` over `other`, in the unit of the metric and whichever way it points.

    `seeds`: those that both have and at which both learned. `advantage`: of the means over these; `of_all`: of the
    means over all seeds that both have. `shares`: of these seeds, how many of each learned. `possible`: the least and
    the largest difference that there can be. `pairs`: so many comparisons the interval is corrected for. `noise_of`:
    the noise that another number of seeds would have. `other_learned`: whether the task was learned by `other`.
    `failures`: whether trainings of the two failed, so that both parts are tested. `may_be_worse`: of each of the two,
    False where no loss counts against it (`SeedScores.may_be_worse`).
    `by_shares`: whether only these decide, since one of the two learned nowhere and the other somewhere; then `seeds`
    are all, and the advantage is of all. `is_certain`: False where nothing says which trainings learned, so that all
    seeds are compared.
    `is_moderated`: whether the declared variants lend their variance; `own`: which of the two keep their own all the
    same, being far outside. `tasks`: over how many it is a mean.
    """

    one: str
    other: str
    metric: Metric
    seeds: tuple[int, ...]
    pairs: int
    advantage: Estimate
    of_all: float
    shares: tuple[Share, Share]
    noise_of: NoiseOf = field(repr=False, compare=False)
    possible: tuple[float, float] = (-math.inf, math.inf)
    other_learned: bool = True
    failures: bool = False
    by_shares: bool = False
    is_certain: bool = True
    may_be_worse: tuple[bool, bool] = (True, True)
    is_moderated: bool = True
    own: tuple[str, ...] = ()
    tasks: int = 1

    @property
    def level(self) -> float:
        """The level of one interval, so that all `pairs` hold at once at 95 % (Bonferroni)."""
        return 1 - self._alpha(self.pairs)

    @property
    def has_enough_seeds(self) -> bool:
        return len(self.seeds) >= LEAST_SEEDS

    @property
    def compares_means(self) -> bool:
        """True if a difference of means can prove anything."""
        return not self.by_shares and len(self.seeds) >= self.least_seeds

    @property
    def least_seeds(self) -> int:
        """The fewest seeds whose means are compared."""
        return LEAST_SEEDS if self.is_certain else SEEDS_IN_DOUBT

    @property
    def interval(self) -> Interval:
        """The advantage with its corrected interval, no end of which is beyond what is possible.

        All that is possible where only the shares decide.
        """
        if self.by_shares:
            return Interval(self.advantage.value, *self.possible)
        found, (least, most) = self.advantage.interval(self.level), self.possible
        return Interval(found.value, max(found.low, min(least, found.value)), min(found.high, max(most, found.value)))

    def direction(self, pairs: int) -> int:
        """1 where `one` is proven better, -1 where `other` is, 0 where neither is; corrected for so many pairs.

        One part must show it, and neither the other part nor the means over all seeds may say the opposite. 0 too where
        no loss counts against the one that is behind.
        """
        found = self._shown(pairs)
        return found if found == 0 or self.may_be_worse[1 if found > 0 else 0] else 0

    def _shown(self, pairs: int) -> int:
        """The direction, whether a loss counts or not."""
        alpha, value = self._alpha(pairs), self.advantage.value
        shown = {0}
        if self.compares_means and self.advantage.half_width(1 - alpha) < abs(value):
            shown.add(1 if value > 0 else -1)
        one, other = self.shares
        if one.trained and is_proven(one, other, pairs):
            shown.add(1 if one > other else -1)
        found = (self.of_all > 0) - (self.of_all < 0)
        return found if shown == {0, found} else 0

    @property
    def is_separated(self) -> bool:
        """True if either is proven better than the other."""
        return self.direction(self.pairs) != 0

    @property
    def is_spared(self) -> bool:
        """True if one is proven better, and no loss counts against the other."""
        return not self.is_separated and self._shown(self.pairs) != 0

    @property
    def is_ahead(self) -> bool:
        """True if it is better, by however little."""
        return self.direction(self.pairs) > 0

    @property
    def is_behind(self) -> bool:
        """True if it is worse, by however little."""
        return self.direction(self.pairs) < 0

    def verdict(self, margin: float) -> Verdict:
        """The judgement of both parts; `margin` in the unit of the metric's values, not in points.

        Being within a margin of a variant that did not learn, or was still improving, says nothing, so that is
        undecided. It is also undecided of a variant of which more trainings failed: a handful of seeds never shows that
        they fail as rarely.
        """
        if not self.has_enough_seeds:
            return "undecided"
        found, direction = verdict(self.interval, margin), self.direction(self.pairs)
        if direction > 0:
            return "better"
        if direction < 0 and found == "worse":
            return "worse"
        if (
            not self.compares_means
            or not self.other_learned
            or not self.may_be_worse[1]
            or self.shares[0] < self.shares[1]
        ):
            return "undecided"
        return "within margin" if found in ("better", "within margin") else "undecided"

    def _alpha(self, pairs: int) -> float:
        """The chance to err of the means of one pair; half of the pair's, where shares are tested too."""
        return (1 - LEVEL) / pairs / (2 if self.failures else 1)

    def minimal_detectable_effect(self, power: float = POWER) -> float:
        """The smallest true difference that would be separated with that probability, at most the largest possible."""
        return min(minimal_detectable_effect(self.advantage.noise, self.level, power), max(map(abs, self.possible)))

    def seeds_needed(self, difference: float | None = None, power: float = POWER) -> int | None:
        """The number of seeds of both that would separate a true difference of that size; None: of the size found.

        None where no number of seeds up to `stats.power.MOST_SEEDS` does, since the test examples are too few.
        """
        wanted = self.advantage.value if difference is None else difference
        return seeds_needed(wanted, self.noise_of, self.level, power, least=self.least_seeds)


class _SeedNoise(NamedTuple):
    """Moderated variances of one seed's score by variant, over the same seeds; `weights`: what the pool lent."""

    variances: Mapping[str, float]
    freedom: Mapping[str, float]
    weights: Mapping[str, float]
    own: Collection[str]
    pooled_freedom: float

    def of_mean(self, name: str, seeds: int) -> NoiseSource:
        """The noise over seeds of the mean of one variant."""
        return NoiseSource(math.sqrt(self.variances[name] / seeds), self.freedom[name])


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
        self._noise: dict[tuple[tuple[int, ...], bool, bool], _SeedNoise] = {}

    def pairs(self, *names: str) -> int:
        """The number of comparisons that a rank of these is corrected for: all pairs of the declared variants.

        With a variant that is not declared, all pairs of twice as many: the declared ones cannot know how many others
        a board will show, and up to as many again keep the chance of any false difference at 5 % (simulated).

        >>> contrasts = Contrasts({}, ["softmax", "rela", "linear"])
        >>> contrasts.pairs("rela", "linear"), contrasts.pairs("rela", "mine"), contrasts.pairs("mine", "theirs")
        (3, 15, 15)
        """
        count = self._family(*names)
        return max(count * (count - 1) // 2, 1)

    def shown_pairs(self, one: str, other: str) -> int:
        """The number of comparisons that an interval or verdict is corrected for: with the reference, those with it.

        >>> Contrasts({}, ["softmax", "rela", "linear"]).shown_pairs("rela", "softmax")
        2
        """
        return max(self._family(one, other) - 1, 1) if REFERENCE in (one, other) else self.pairs(one, other)

    def _family(self, *names: str) -> int:
        return len(self.declared) * (1 if self.declared.issuperset(names) else 2)

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
        """The mean score of the seeds that learned, or of all where none did, with its interval at 95 %.

        Of this variant alone: it is no comparison, and not corrected.
        """
        own = self.scores[name].compared
        if len(own.seeds) < 2:
            return own.level()
        noise = self._noise_over(own.seeds, own.seeds != self.scores[name].seeds)
        return own.level(noise.of_mean(name, len(own.seeds)))

    def share_of(self, name: str) -> Share:
        """The share of its trainings that learned."""
        learned = self.scores[name].learned
        return Share(sum(learned), len(learned))

    def failing(self, names: Iterable[str]) -> list[str]:
        """The variants among these that learned at some seeds only."""
        return [name for name in names if name in self.scores and self.scores[name].learned_in_part]

    def rank_intervals(self, names: Sequence[str]) -> list[RankInterval]:
        """Rank intervals of `names`, who all have enough seeds in common."""
        return contrast_ranks(names, self.between, self.pairs)

    def _between(self, one: str, other: str) -> Contrast:
        seeds = self.seeds_of(one, other)
        # what either has beyond them says nothing of the pair
        mine, theirs = (self.scores[name].on_seeds(seeds) for name in (one, other))
        shares = tuple(Share(sum(own.learned), len(seeds)) for own in (mine, theirs))
        of_all = mine.advantage_over(theirs)
        by_shares = mine.learned_nowhere != theirs.learned_nowhere
        is_certain = mine.is_certain and theirs.is_certain
        # no seeds are left out where one side learned nowhere, or nothing says which of them learned
        modes = [own.compared if is_certain and not by_shares else own for own in (mine, theirs)]
        in_mode = set(modes[0].seeds).intersection(modes[1].seeds)
        both = tuple(seed for seed in seeds if seed in in_mode)
        found = modes[0].advantage_over(modes[1]) if both and both != seeds else of_all
        of_test = tuple(source for source in found.noise if source.freedom is None)
        failures = mine.learned_in_part or theirs.learned_in_part
        own: tuple[str, ...] = ()
        is_moderated = False
        possible = (-1.0, 1.0) if mine.metric.is_share else (-math.inf, math.inf)
        if len(both) < 2 or by_shares:
            noise_of: NoiseOf = lambda count: of_test  # noqa: E731
        else:
            noise = self._noise_over(both, failures or not is_certain, of_all=not is_certain)
            noise_of = _noise_of(noise, one, other, len(both), of_test)
            own = tuple(name for name in (one, other) if name in noise.own)
            is_moderated = math.isfinite(noise.pooled_freedom)
            if mine.metric.is_share:
                # wherever in its interval `other` is, no share is below 0 or above 1
                level = theirs.on_seeds(both).level(noise.of_mean(other, len(both)))
                possible = -level.high, 1 - level.low
        return Contrast(
            one=one,
            other=other,
            metric=mine.metric,
            seeds=both,
            pairs=self.shown_pairs(one, other),
            advantage=Estimate(found.value, noise_of(len(both))),
            of_all=of_all.value,
            shares=(shares[0], shares[1]),
            noise_of=noise_of,
            possible=possible,
            other_learned=theirs.has_learned,
            failures=failures,
            by_shares=by_shares,
            is_certain=is_certain,
            may_be_worse=(mine.may_be_worse, theirs.may_be_worse),
            is_moderated=is_moderated,
            own=own,
        )

    def _noise_over(self, seeds: tuple[int, ...], failures: bool, of_all: bool = False) -> _SeedNoise:
        """Variances over exactly these seeds, of all who have them; each its own where trainings of a pair failed.

        `of_all`: whether seeds count that did not learn beside others that did.
        """
        if (seeds, failures, of_all) not in self._noise:
            parts = {name: own.on_seeds(seeds) for name, own in self.scores.items() if set(seeds) <= set(own.seeds)}
            there = sorted(name for name, own in parts.items() if of_all or failures or not own.learned_in_part)
            scores = np.array([parts[name].scores for name in there])
            # who did not learn the task has the noise of guessing, and who fails is told apart by few seeds
            usual = [parts[name].has_learned and not parts[name].learned_in_part for name in there]
            pool = np.array([name in self.declared for name in there]) & usual & (not failures)
            found = moderated_variances(scores, pool)
            self._noise[seeds, failures, of_all] = _SeedNoise(
                variances=dict(zip(there, found.variances.tolist(), strict=True)),
                freedom=dict(zip(there, found.freedom.tolist(), strict=True)),
                weights=dict(zip(there, found.weights.tolist(), strict=True)),
                own=frozenset(name for name, keeps in zip(there, found.keeps_own, strict=True) if keeps),
                pooled_freedom=float(found.pooled_freedom),
            )
        return self._noise[seeds, failures, of_all]


def contrast_ranks(
    names: Sequence[str], between: Callable[[str, str], Contrast], pairs: Callable[[str, str], int]
) -> list[RankInterval]:
    """Rank intervals of `names` by both parts of the contrasts of all pairs."""
    return ranked_by(names, lambda one, other: between(one, other).direction(pairs(one, other)))


def mean_contrast(contrasts: Sequence[Contrast]) -> Contrast:
    """The mean of contrasts of the same two variants over tasks, of these tasks and not of others.

    Trainings that learned are counted over all of them.
    """
    first = contrasts[0]

    def noise_of(seeds: int) -> tuple[NoiseSource, ...]:
        return pooled_mean_of([Estimate(0.0, each.noise_of(seeds)) for each in contrasts]).noise

    def mean(values: Iterable[float]) -> float:
        return math.fsum(values) / len(contrasts)

    def total(at: int) -> Share:
        return Share(*(sum(counts) for counts in zip(*(each.shares[at] for each in contrasts), strict=True)))

    return Contrast(
        one=first.one,
        other=first.other,
        metric=first.metric,
        seeds=min((each.seeds for each in contrasts), key=len),
        pairs=first.pairs,
        advantage=pooled_mean_of([each.advantage for each in contrasts]),
        of_all=mean(each.of_all for each in contrasts),
        shares=(total(0), total(1)),
        noise_of=noise_of,
        possible=(mean(each.possible[0] for each in contrasts), mean(each.possible[1] for each in contrasts)),
        other_learned=all(each.other_learned for each in contrasts),
        failures=any(each.failures for each in contrasts),
        by_shares=any(each.by_shares for each in contrasts),
        is_certain=all(each.is_certain for each in contrasts),
        may_be_worse=(
            all(each.may_be_worse[0] for each in contrasts),
            all(each.may_be_worse[1] for each in contrasts),
        ),
        is_moderated=all(each.is_moderated for each in contrasts),
        own=tuple(sorted({name for each in contrasts for name in each.own})),
        tasks=len(contrasts),
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
