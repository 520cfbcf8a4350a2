"""How often comparisons of boards err and what they find, simulated with the scoring code itself.

    python tools/simulate_scoring.py [--boards 4000] [--out docs/scoring_simulations.md]

Ten minutes on one core. A score is the variant's level, the noise of the test set that all of its seeds share, and the
noise of the seed, all normal; the noise over test examples is taken to be known, which 2,000 examples and more allow.
"Before": each pair by the differences of its own seeds, Student's t with one degree of freedom less than seeds, and the
luck of a training counted among seeds and examples. "Now": `stats.moderation` and `score.contrasts`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from simulate_failures import bars, equals, failing, summary

from attnbench.bench.score.contrasts import Contrasts
from attnbench.bench.stats.intervals import LEVEL, Estimate, NoiseSource
from attnbench.bench.stats.moderation import moderated_variances, noise_of_difference

LUCK, SHARED = 30.0, 8.0
"""Points: deviation over one test example of what a training gets right by luck, and of what all seeds share. On the
committed board of lra-text they are 28 to 31 and 6 to 8; on ListOps 18 to 21 and 14 to 20."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One kind of board. `deviations` over seeds and `levels` by variant, in points; 0 examples: no noise of the test.

    `declared`: how many variants are declared, None for all. `shared`, `luck`: as above.
    """

    deviations: Sequence[float]
    seeds: int
    levels: Sequence[float] = ()
    examples: int = 0
    declared: int | None = None
    shared: float = SHARED
    luck: float = LUCK
    of_seed: float = 0.5

    @property
    def count(self) -> int:
        return len(self.deviations)


@dataclass(frozen=True, kw_only=True)
class Boards:
    """Scores (boards, variants, seeds), the true levels, and errors of a difference over examples, before and now."""

    setting: Setting
    scores: np.ndarray
    levels: np.ndarray
    of_test: tuple[float, float] = field(default=(0.0, 0.0))


def drawn(setting: Setting, boards: int, rng: np.random.Generator) -> Boards:
    shape = boards, setting.count, setting.seeds
    levels = np.array(setting.levels or [0.0] * setting.count)
    deviations = np.array(setting.deviations)
    scores = np.zeros(shape)
    of_test = 0.0, 0.0
    if setting.examples:
        luck, shared = setting.luck**2 / setting.examples, setting.shared**2 / setting.examples
        deviations = np.hypot(deviations, luck**0.5)
        scores = scores + rng.normal(0, shared**0.5, (*shape[:2], 1))
        of_test = (2 * (shared + luck / setting.seeds)) ** 0.5, (2 * shared) ** 0.5
    # the order of the data is the same for all variants
    scores = scores + rng.normal(0, setting.of_seed, (boards, 1, setting.seeds))
    scores = scores + levels[:, None] + rng.normal(0, 1, shape) * deviations[:, None]
    return Boards(setting=setting, scores=scores, levels=levels, of_test=of_test)


def half_before(boards: Boards, one: np.ndarray, other: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """Half-widths (boards, pairs) of each pair by its own seeds."""
    seeds = boards.setting.seeds
    errors = (boards.scores[:, one] - boards.scores[:, other]).std(axis=-1, ddof=1) / seeds**0.5
    return widths(errors, np.full(errors.shape, seeds - 1.0), boards.of_test[0], pairs)


def half_now(boards: Boards, one: np.ndarray, other: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """Half-widths (boards, pairs) by moderated variances, as `Contrasts` has them."""
    declared = np.arange(boards.setting.count) < (boards.setting.declared or boards.setting.count)
    found = moderated_variances(boards.scores, declared)
    errors, freedom = noise_of_difference(
        found.variances[:, one],
        found.variances[:, other],
        found.freedom[:, one],
        found.freedom[:, other],
        found.pooled_freedom[:, None],
        boards.setting.seeds,
    )
    return widths(errors, freedom, boards.of_test[1], pairs)


def widths(errors: np.ndarray, freedom: np.ndarray, of_test: float, pairs: np.ndarray) -> np.ndarray:
    def width(error: float, free: float, count: int) -> float:
        noise = (NoiseSource(error, free), NoiseSource(of_test))
        return Estimate(0.0, noise).half_width(1 - (1 - LEVEL) / count)

    return np.vectorize(width, otypes=[float])(errors, freedom, pairs)


HALVES: dict[str, Callable[[Boards, np.ndarray, np.ndarray, np.ndarray], np.ndarray]] = {
    "before": half_before,
    "now": half_now,
}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Shares of boards or pairs. `false`: boards with a false difference between any two.

    `covered`: pairs with the first variant whose uncorrected 95 % interval holds the truth. `first`: pairs of the first
    variant that are separated; `width`: mean number of places that a rank interval spans.
    """

    covered: float
    false: float
    first: float
    width: float


def outcome(setting: Setting, how: str, boards: int, seed: int) -> Outcome:
    found = drawn(setting, boards, np.random.default_rng(seed))
    one, other = np.triu_indices(setting.count, 1)
    means = found.scores.mean(axis=-1)
    differences = means[:, one] - means[:, other]
    truth = found.levels[one] - found.levels[other]
    half = HALVES[how](found, one, other, family(setting, how, one, other))
    alone = HALVES[how](found, one, other, np.ones(len(one)))
    separated = np.abs(differences) > half
    spans = np.ones((boards, setting.count)) * setting.count
    for at, (first, second) in enumerate(zip(one, other, strict=True)):
        spans[:, first] -= separated[:, at]
        spans[:, second] -= separated[:, at]
    of_first = one == 0
    return Outcome(
        covered=float((np.abs(differences - truth) <= alone)[:, of_first].mean()),
        false=float((np.abs(differences - truth) > half).any(axis=1).mean()),
        first=float(separated[:, of_first].mean()),
        width=float(spans.mean()),
    )


def family(setting: Setting, how: str, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The number of pairs for which each comparison is corrected."""
    if how == "before" or setting.declared is None:
        return np.full(len(one), len(one))
    names = ["softmax", *(f"v{at}" for at in range(1, setting.count))]
    contrasts = Contrasts({}, names[: setting.declared])
    return np.array([contrasts.pairs(names[a], names[b]) for a, b in zip(one, other, strict=True)])


def row(name: str, setting: Setting, boards: int) -> str:
    both = [outcome(setting, how, boards, 7) for how in HALVES]
    cells = [f"{100 * getattr(each, field):.1f}" for field in ("covered", "false") for each in both]
    mark = " ▲" if both[1].false > 0.05 else ""
    return f"| {name} | {setting.count} | {setting.seeds} | {' | '.join(cells)}{mark} |"


def errors(boards: int) -> list[str]:
    lines = [
        "| deviations of seeds | variants | seeds | covered before | now | false before | now |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for count in (6, 33):
        for seeds in (3, 5):
            for ratio in (1, 3, 5, 10):
                name = "equal" if ratio == 1 else f"one × {ratio}"
                lines.append(row(name, Setting(deviations=[ratio] + [1] * (count - 1), seeds=seeds), boards))
            for ratio in (3, 10):
                split = [ratio] * (count // 2) + [1] * (count - count // 2)
                lines.append(row(f"half × {ratio}", Setting(deviations=split, seeds=seeds), boards))
    for seeds in (4, 6):
        for ratio in (3, 5, 10):
            lines.append(row(f"one × {ratio}", Setting(deviations=[ratio] + [1] * 5, seeds=seeds), boards))
    for count in (3, 4):
        for ratio in (1, 5, 10):
            name = "equal" if ratio == 1 else f"one × {ratio}"
            lines.append(row(name, Setting(deviations=[ratio] + [1] * (count - 1), seeds=3), boards))
    return lines


def extras(boards: int) -> list[str]:
    lines = [
        "| beyond the declared six | variants | seeds | covered before | now | false before | now |",
        "|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for more in (1, 2, 6, 12, 27):
        for seeds in (3, 5):
            setting = Setting(deviations=[1.0] * (6 + more), seeds=seeds, declared=6)
            lines.append(row(str(more), setting, boards))
    return lines


def found(boards: int) -> list[str]:
    lines = ["| board of 6 | seeds | before | now | target |", "|---|--:|--:|--:|---|"]
    cases = {
        "1 point, 20,000 examples, seeds 0.2 in all": ({"luck": 0.0}, [0.2] * 6, [1.0] + [0.0] * 5, 20_000),
        "1 point, 20,000 examples, seeds 0.2 and the luck of lra-text": ({}, [0.2] * 6, [1.0] + [0.0] * 5, 20_000),
        "1 point, 20,000 examples, seeds 0.2, luck and shared noise of ListOps": (
            {"luck": 20.0, "shared": 17.0}, [0.2] * 6, [1.0] + [0.0] * 5, 20_000),
        "1 point, 2,000 examples, seeds 1.0 and the luck of lra-text": ({}, [1.0] * 6, [1.0] + [0.0] * 5, 2_000),
    }  # fmt: skip
    for name, (noise, deviations, levels, examples) in cases.items():
        for seeds in (3, 5):
            setting = Setting(deviations=deviations, levels=levels, seeds=seeds, examples=examples, **noise)
            both = [outcome(setting, how, boards, 11) for how in HALVES]
            target = ("≥ 50 %" if seeds == 3 else "≥ 90 %") if examples > 2_000 else ""
            lines.append(f"| {name} | {seeds} | {100 * both[0].first:.0f} % | {100 * both[1].first:.0f} % | {target} |")
    for step in (5.0, 6.0):
        for seeds in (3, 5):
            steps = [step * at for at in range(6)]
            setting = Setting(deviations=[1.0] * 6, levels=steps, seeds=seeds, examples=2_000)
            both = [outcome(setting, how, boards, 13) for how in HALVES]
            target = "≤ 2.5" if seeds == 3 else ""
            name = f"mean rank width, steps of {step:.0f} points, seeds 1.0, 2,000 examples"
            lines.append(f"| {name} | {seeds} | {both[0].width:.1f} | {both[1].width:.1f} | {target} |")
    return lines


PAGE = """\
# How often comparisons err, and what they find

Made by `python tools/simulate_scoring.py --boards {boards} --out docs/scoring_simulations.md`: {boards:,} boards a
row, half as many where trainings fail, with the functions that boards use. The rules are in `bench/stats/scoring.md`.
Shares are in %.

- **covered**: intervals of one pair with the first variant, at 95 % and not corrected, that hold the true difference.
- **false**: boards on which any corrected interval misses the truth; a false rank or verdict is one of these. It
  should be 5 or less; ▲ marks more.
- **before**: each pair by its own seeds, corrected for all pairs. Verdicts were not corrected at all.

## Seeds that scatter alike and not alike

One deviation of seeds, or half of them, is so many times the others'. The order of the data moves all variants alike.

{errors}

With equal deviations at most 5 % of boards err. One variant whose seeds scatter 3 to 10 times as much as the others'
raises that to 6 to 9 % with three seeds: its seeds may agree by luck, and then nothing tells it from the others. Boards
say so. Intervals of that one variant then hold the truth in 79 to 93 % instead of 95 %, before any correction. A cap on
the weight of the board keeps the error there: pooled variances without one err on 9 to 16 % of boards. A smaller cap
errs less and finds less: with two thirds of it 7 % instead of 9 %, and 50 % instead of 57 % in the third row of the
last table. No test whether deviations are equal comes first, since at three seeds it would nearly always say so.

## Variants beyond the declared ones

Comparisons with a variant beyond the declared six are corrected for the 66 pairs of twelve, however many there are, so
that no other variant changes them. More than twice as many variants raise the chance of a false difference anywhere on
the board; such boards say so, and that a suite's file which declares them corrects for all.

{extras}

## Differences that are found

Share of the pairs of the better variant that are separated.

{found}

"In all": the scores of seeds scatter by 0.2 on this test set. Otherwise the luck at 20,000 test examples comes on top,
as measured on the committed boards; ListOps shares more of its noise between seeds, which no number of seeds lessens.

## Variants that are equal

Boards of eleven variants that are all like one committed variant of the suite `synthetic`, the donor: its level and
scatter where it learns, its share of failed trainings, and the scores of these, from its twelve committed trainings. So
every order in the ranks and every verdict is false. A cell has the boards with a false order / with a false verdict
beside the first variant; both should be 5 or less. A column has the number of seeds, and the correlation of what makes
trainings of two variants fail at one seed.

{equals}

Orders and verdicts are two families of comparisons, of all 55 pairs and of ten, each at 5 %: on up to 7 % of boards one
or the other is false.

The rule of version 0.3.0 was worse on the same boards, since it held means of successes against means of failures where
exactly one of two variants learned nowhere, and let three seeds that all failed make a bar of their own. The worst
donors, 500 boards a cell, measured once by the rule of commit 6ca32224:

| by the rule of 0.3.0 | 3 seeds, 0 | 3 seeds, 0.5 | 6 seeds, 0 | 6 seeds, 0.5 | 12 seeds, 0 | 12 seeds, 0.5 |
|---|--:|--:|--:|--:|--:|--:|
| no failures: worst | 1.4 / 3.8 | 1.6 / 3.0 | 3.2 / 4.0 | 3.4 / 4.4 | 4.0 / 5.2 | 4.0 / 4.6 |
| recall: delta[decay=channel], 83% | 7.0 / 4.6 | 2.6 / 2.0 | 0.8 / 0.8 | 1.2 / 1.0 | 0.8 / 0.4 | 0.6 / 0.6 |
| recall: fox, 8% | 2.6 / 2.2 | 3.2 / 1.6 | 14.2 / 5.4 | 10.4 / 5.6 | 48.4 / 17.4 | 31.2 / 10.2 |
| noisy-recall: delta[decay=channel], 58% | 29.0 / 16.2 | 9.2 / 8.0 | 8.6 / 4.4 | 3.6 / 2.4 | 1.2 / 2.4 | 0.6 / 0.6 |
| max: entmax15, 83% | 7.0 / 6.0 | 2.6 / 2.2 | 1.0 / 1.0 | 1.4 / 1.4 | 1.0 / 0.8 | 1.2 / 1.8 |
| suite: delta[decay=channel] | 17.6 / 7.4 | 6.4 / 2.2 | 11.0 / 7.0 | 6.8 / 3.4 | 3.2 / 3.0 | 2.6 / 1.6 |
| suite: fox | 4.0 / 1.4 | 1.2 / 1.0 | 6.0 / 3.6 | 3.6 / 2.0 | 39.8 / 17.2 | 25.4 / 9.4 |

It costs nothing where nothing fails and levels are clear of the bar: of eleven variants with the modes of one donor,
one is made worse by 5 or 10 points, and its pairs that are ranked apart are, in % by both rules:

| modes of | seeds | 5 points: before | now | 10 points: before | now |
|---|--:|--:|--:|--:|--:|
| selective-copy: softmax | 3 | 0.6 | 0.6 | 6.3 | 6.3 |
| selective-copy: softmax | 6 | 3.9 | 3.9 | 44.1 | 44.1 |
| selective-copy: softmax | 12 | 17.7 | 17.7 | 93.7 | 93.6 |
| max: softmax | 3 | 1.3 | 1.3 | 18.3 | 18.3 |
| max: softmax | 6 | 10.9 | 10.9 | 81.4 | 81.4 |
| max: softmax | 12 | 44.8 | 44.8 | 100.0 | 100.0 |
| noisy-recall: linear | 3 | 3.6 | 3.6 | 48.2 | 48.2 |
| noisy-recall: linear | 6 | 28.8 | 28.8 | 98.9 | 98.9 |
| noisy-recall: linear | 12 | 81.7 | 81.7 | 100.0 | 100.0 |
| max: delta[decay=channel] | 3 | 23.2 | 19.9 | 94.9 | 0.2 |
| max: delta[decay=channel] | 6 | 87.1 | 71.3 | 100.0 | 39.1 |
| max: delta[decay=channel] | 12 | 100.0 | 99.0 | 100.0 | 42.0 |

KDA has 64 % on `max`, where the bar is at 56 %: ten points less fall below it. Elsewhere the price is paid where a
variant learned at no seed, as local attention on `recall`. Three trainings that all learned beside three that all
failed are then no order, nor can they be one: equal variants that fail at every second seed show it on most boards.
From six seeds on such pairs are ranked apart again (the table of the next section).

## Trainings that fail

Boards like those of the committed suite `synthetic`: on each task every variant has its own level, scatter and share of
failed trainings, as above. The rule knows nothing of that: it estimates who failed from the seeds of the board. A
committed training below 60 % of its variant's best is of the lower mode here, wherever the bar lies. A variant that no
seed learned has one level and no failures. No training failed on `selective-copy`; of the other three tasks the worst
is shown. Trainings that fail do so together: the correlation of what makes two variants fail at a seed is 0.5, since on
`max` six of seven failures fell on two seeds.

- **false order**: boards on which a rank rests on a part, the mean of the trainings that learned or their share, that
  is the other way round, or puts a variant first that is better in neither and not in the mean over all seeds; **false
  verdict**: the same beside softmax. Both should be 5 or less.
- **interval off**: boards on which a corrected interval misses the truth, of any pair or beside softmax. A variant of
  which no seed learned is said to be as good as its failed trainings are.
- **found**: of pairs whose means of learned trainings differ by over 15 points, those that are ranked apart.
- **against all seeds**: boards with an order that is right by its part, and that the true means over all seeds deny. It
  is the price of comparing trainings that learned: 6 of 6 may still fail at every third seed.

{failing}

The rule of version 0.3.0 found, in the order of these rows, 82.7, 94.1, 99.8, 64.1, 72.1, 78.2, 48.6, 78.2 and 82.6 %.
So three seeds now tell little where some variants learn and others do not, six lose some, and twelve find more.

FoX reached 26 % on `recall` at one seed of twelve, and 1 to 13 % at the others: all below the bar. The mean of so
skewed scores is no normal one: its interval is off on 9 to 11 % of boards, by a few points. Without FoX intervals are
off on 1 % of boards of `recall`.

The bar lies halfway from the best constant prediction to a perfect score. It has to lie between the modes: a quarter of
the way it passes failed trainings of KDA on `noisy-recall` (31 to 48 %, the others 58 to 86 %), and near a perfect
score it cuts through the upper mode. The suite, 11 variants, drawn anew:

{bars}

## With so many seeds and variants

A board's note *error rate* quotes this table: the row with no more seeds, the column with no fewer variants. False
orders and verdicts are the worst of three: boards like the committed ones, and boards of equal variants with the worst
donor, whose failures are correlated or not; among 6 and 33 variants, with two of the worst. Boards of 33 variants are a
quarter as many. With three seeds a variant that fails at one of them has no rank. Of 48,000 other boards of six equal
variants in a suite of three seeds 4.0 % have a false verdict, so that the 5.5 % here are luck.

{summary}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--boards", type=int, default=4000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    tables = {
        part.__name__: "\n".join(part(options.boards // share))
        for part, share in {errors: 1, extras: 1, found: 1, equals: 2, failing: 2, bars: 2, summary: 2}.items()
    }
    page = PAGE.format(boards=options.boards, **tables)
    if options.out:
        options.out.write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
