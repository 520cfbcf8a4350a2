"""Boards like the committed ones, where trainings fail: how often the rule of boards errs.

`tools/simulate_scoring.py` runs this and writes the page. Each variant of the committed suite `synthetic` has its own
level, scatter and share of failures on each task, from its twelve committed seeds, and its failed trainings score as
those that failed. The noise of the test examples is left out of the scores; of the intervals too, but for the error of
one example that every board adds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import combinations
from pathlib import Path

import numpy as np
from scipy.special import ndtri, stdtrit

import attnbench
from attnbench.bench.plan.options import load_suite
from attnbench.bench.score import learning
from attnbench.bench.score.contrasts import SEEDS_IN_DOUBT
from attnbench.bench.score.key import board_keys
from attnbench.bench.score.quality import scores_by_variant
from attnbench.bench.stats.moderation import moderated_variances, noise_of_difference
from attnbench.bench.stats.shares import fisher_table, proven_below
from attnbench.bench.store.store import Store
from attnbench.bench.store.table import table_of

TASKS = ("recall", "selective-copy", "noisy-recall", "max")
ALPHA = 0.05
SAME_MODE = 0.6
"""Of a variant's best score: a committed training above it is of the upper mode. The rule does not use it."""

CORRELATION = 0.1
"""Of the scores of two variants at one seed; between the committed seeds it is -0.01 to 0.19, by the task."""

FAILING_TOGETHER = 0.5
"""Correlation of what makes trainings of two variants fail at one seed. Six of the seven failed trainings of `max`, of
three variants, are at two of twelve seeds."""


@dataclass(frozen=True, kw_only=True)
class TaskModel:
    """The simulated scores of one task: by variant, with the reference first.

    `levels`, `scatter`: of trainings that learn; `shares`: how many do, 0 for a variant that never does and has one
    mode all the same. `failed`: scores of failed trainings. `constant`, `trivial`: the bars; `examples`: in the test.
    """

    names: Sequence[str]
    levels: np.ndarray
    scatter: np.ndarray
    shares: np.ndarray
    failed: Sequence[np.ndarray]
    constant: float
    trivial: float
    examples: int

    def bar(self, halfway: float) -> float:
        """The score from which on a seed learned: these tasks are solved by a perfect score."""
        return self.constant + halfway * (1 - self.constant)


@lru_cache
def models() -> dict[str, TaskModel]:
    """By task, from the committed Records."""
    table = table_of(Store(Path(attnbench.__file__).parent / "results").records())
    suite = load_suite("synthetic")
    by_task = {}
    for task in TASKS:
        key = board_keys(table, task=task, preset=str(suite.preset))[0]
        by_task[task] = key, scores_by_variant(table, key, lambda name: None)
    # without the hybrid, which has more layers than the models of three tasks
    trained = [{name for name, each in on_task.items() if each.scores} for _, on_task in by_task.values()]
    names = sorted(set.intersection(*trained), key=lambda name: (name != "softmax", name))
    found = {}
    for task, (key, on_task) in by_task.items():
        bars = learning.bars_of(table, key.runs(table, "baseline"), on_task["softmax"].metric)
        scores = np.array([on_task[name].scores for name in names])
        never = scores.max(axis=1) < bars.trivial.score + 0.03
        upper = (scores >= SAME_MODE * scores.max(axis=1, keepdims=True)) | never[:, None]
        count = upper.sum(axis=1)
        levels = (scores * upper).sum(axis=1) / count
        squares = ((scores - levels[:, None]) ** 2 * upper).sum(axis=1)
        found[task] = TaskModel(
            names=names,
            levels=levels,
            scatter=np.maximum(np.sqrt(squares / np.maximum(count - 1, 1)), 1e-4),
            shares=np.where(never, 0.0, count / scores.shape[1]),
            failed=[own[~kept] for own, kept in zip(scores, upper, strict=True)],
            constant=bars.constant.score,
            trivial=bars.trivial.score,
            examples=on_task["softmax"].examples,
        )
    return found


@dataclass(frozen=True, kw_only=True)
class Boards:
    """`scores`: (tasks, boards, variants, seeds). The truth by task and variant: `levels` of trainings that learn,
    `shares` that do, and `failed`, the level of those that fail."""

    tasks: Sequence[TaskModel]
    scores: np.ndarray
    levels: np.ndarray
    shares: np.ndarray
    failed: np.ndarray

    def learns(self, halfway: float) -> np.ndarray:
        """The true share of trainings that pass the bar, by task and variant: none where the better ones do not."""
        passed = [own >= task.bar(halfway) for task, own in zip(self.tasks, self.levels, strict=True)]
        found: np.ndarray = np.where(passed, np.where(self.shares > 0, self.shares, 1.0), 0.0)
        return found

    @property
    def of_all(self) -> np.ndarray:
        """The true mean over all seeds, by task and variant."""
        both = self.shares * self.levels + (1 - self.shares) * self.failed
        found: np.ndarray = np.where(self.shares > 0, both, self.levels)
        return found


def drawn(
    names: Sequence[str],
    variants: int,
    seeds: int,
    boards: int,
    rng: np.random.Generator,
    donor: int | None = None,
    together: float = FAILING_TOGETHER,
) -> Boards:
    """Boards of these tasks. The first six or all eleven variants; of 33, the copies differ by as much as seeds do.

    `donor`: all variants are equal to this one. `together`: the correlation of what makes trainings fail at one seed.
    """
    count = len(models()[names[0]].levels)
    at = np.arange(variants) % count if donor is None else np.full(variants, donor)
    scores, truth = [], []
    for name in names:
        task = models()[name]
        is_copy = (np.arange(variants) >= count) & (donor is None)
        moved = rng.normal(0, 1, variants) * is_copy * (task.shares[at] > 0)
        levels, scatter = task.levels[at] + moved * task.scatter[at], task.scatter[at]
        of_seed, own = rng.normal(0, 1, (boards, 1, seeds)), rng.normal(0, 1, (boards, variants, seeds))
        luck = math.sqrt(CORRELATION) * of_seed + math.sqrt(1 - CORRELATION) * own
        found = np.clip(levels[:, None] + scatter[:, None] * luck, 0, 1)
        failing = np.where(task.shares[at] > 0, 1 - task.shares[at], 0.0)
        of_seed, own = rng.normal(0, 1, (boards, 1, seeds)), rng.normal(0, 1, (boards, variants, seeds))
        hard = math.sqrt(together) * of_seed + math.sqrt(1 - together) * own
        failed = hard < ndtri(failing)[:, None]
        # a variant's own failures; nothing is drawn of a variant that never failed
        own_failures = [task.failed[each] if len(task.failed[each]) else np.zeros(1) for each in at]
        low = np.stack([rng.choice(own, (boards, seeds)) for own in own_failures], axis=1)
        found = np.where(failed, np.clip(low + rng.normal(0, 0.005, found.shape), 0, 1), found)
        scores.append(found)
        # of scores that end at 0 and 1
        exact = np.clip(levels[:, None] + scatter[:, None] * ndtri((np.arange(4000) + 0.5) / 4000), 0, 1).mean(axis=1)
        truth.append((exact, task.shares[at], np.array([own.mean() for own in own_failures])))
    levels, shares, failed = (np.array(each) for each in zip(*truth, strict=True))
    tasks = [models()[name] for name in names]
    return Boards(tasks=tasks, scores=np.array(scores), levels=levels, shares=shares, failed=failed)


def low_end(scores: np.ndarray, examples: int, level: float) -> np.ndarray:
    """The lower end of Wilson's interval, as `stats.intervals.wilson` has it for one score."""
    z = -ndtri((1 - level) / 2)
    half = z * np.sqrt(scores * (1 - scores) / examples + z * z / (4 * examples**2))
    return (scores + z * z / (2 * examples) - half) / (1 + z * z / examples)


def learned(scores: np.ndarray, task: TaskModel, halfway: float) -> np.ndarray:
    """The same as `score.learning.learned_seeds`, for many variants at once: (…, variants, seeds)."""
    best = scores.max(axis=-1, keepdims=True)
    shown = low_end(best, task.examples, 1 - ALPHA / scores.shape[-1]) > task.trivial
    return shown & (scores > task.trivial) & (scores >= task.bar(halfway))


@dataclass(frozen=True, kw_only=True)
class Found:
    """For pairs (boards, pairs): the difference and its half-width, in the ranks and beside the reference.

    `truth`: of the difference. `order`: 1 where the ranks put the first before the second, -1 where after it.
    `false_order`, `false_verdict`: where that rests on a part that is the other way round, or the winner is better in
    neither part nor in the mean over all seeds. `against_all`: where the true means over all seeds deny the order.
    """

    differences: np.ndarray
    half: np.ndarray
    half_shown: np.ndarray
    truth: np.ndarray
    order: np.ndarray
    false_order: np.ndarray
    false_verdict: np.ndarray
    against_all: np.ndarray


def compared(boards: Boards, one: np.ndarray, other: np.ndarray, halfway: float = learning.HALFWAY) -> Found:
    """The two parts, as `Contrast.direction` has them for one pair."""
    count, seeds = len(boards.tasks), boards.scores.shape[-1]
    shape = boards.scores.shape[1], len(one)
    differences, of_all, squares, inverse = np.zeros(shape), np.zeros(shape), np.zeros(shape), np.zeros(shape)
    usable, failures = np.ones(shape, dtype=bool), np.zeros(shape, dtype=bool)
    by_shares, in_doubt = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
    learns = boards.learns(halfway)
    truth, trained = np.zeros(shape), np.zeros(boards.scores.shape[1:3], dtype=int)
    for at, (task, scores) in enumerate(zip(boards.tasks, boards.scores, strict=True)):
        is_learned = learned(scores, task, halfway)
        number = is_learned.sum(axis=-1)
        trained += number
        in_part = (number > 0) & (number < seeds)
        ranked = ~in_part | (number >= 3)
        nowhere = number == 0
        of_shares, of_none = nowhere[:, one] != nowhere[:, other], nowhere[:, one] & nowhere[:, other]
        by_shares |= of_shares
        in_doubt |= of_none
        both = (is_learned[:, one] & is_learned[:, other]) | (of_shares | of_none)[..., None]
        many = both.sum(axis=-1)
        usable &= (many >= 3) & ranked[:, one] & ranked[:, other]
        any_failed = in_part[:, one] | in_part[:, other]
        failures |= any_failed
        means, variances = [], []
        for side in (one, other):
            means.append((scores[:, side] * both).sum(axis=-1) / np.maximum(many, 1))
            deviations = (scores[:, side] - means[-1][..., None]) ** 2 * both
            variances.append(np.maximum(deviations.sum(axis=-1) / np.maximum(many - 1, 1), 1e-12))
        own = np.maximum(many - 1.0, 1.0)
        errors, freedom = noise_of_difference(*variances, own, own, np.array(np.inf), np.maximum(many, 1))
        above = low_end(scores, task.examples, 1 - ALPHA) > task.constant
        found = moderated_variances(scores, (2 * above.sum(axis=-1) > seeds) & ~in_part)
        pooled, of_pool = noise_of_difference(
            found.variances[:, one], found.variances[:, other], found.freedom[:, one], found.freedom[:, other],
            found.pooled_freedom[:, None], seeds,
        )  # fmt: skip
        alone = any_failed | of_none
        variance = np.where(alone, errors, pooled) ** 2 / count**2
        squares += variance
        inverse += variance**2 / np.where(alone, freedom, of_pool)
        differences += (means[0] - means[1]) / count
        over_all = scores.mean(axis=-1)
        of_all += (over_all[:, one] - over_all[:, other]) / count
        # where none of its seeds learned, the level of a variant is said to be of those that failed, or of all where
        # its better trainings do not pass the bar either
        unseen = np.where(learns[at] > 0, boards.failed[at], boards.of_all[at])
        level = np.where(nowhere, unseen, boards.levels[at])
        truth += (level[:, one] - level[:, other]) / count
    tests = np.where(failures, 2, 1)
    compares_means = usable & ~by_shares & (~in_doubt | (seeds >= SEEDS_IN_DOUBT))
    p_values = fisher_table(seeds * count)[trained[:, one], trained[:, other]]
    mean_truth = np.sign((boards.levels[:, one] - boards.levels[:, other]).mean(axis=0))
    share_truth = np.sign((learns[:, one] - learns[:, other]).mean(axis=0))
    of_all_truth = boards.of_all.mean(axis=0)
    all_truth = np.sign(of_all_truth[one] - of_all_truth[other])
    halves, orders, falses = [], [], []
    for pairs in (len(one), boards.scores.shape[2] - 1):
        tail = ALPHA / 2 / pairs / tests
        half = np.hypot(
            np.sqrt(squares) * stdtrit(squares**2 / np.maximum(inverse, 1e-300), tail), one_example(boards, tail)
        )
        by_mean = np.where(compares_means & (np.abs(differences) > half), np.sign(differences), 0)
        is_proven = p_values <= proven_below(seeds * count, pairs) * (1 + 1e-9)
        by_share = np.where(usable & is_proven, np.sign(trained[:, one] - trained[:, other]), 0)
        direction = np.sign(of_all)
        order = np.where((by_mean * direction >= 0) & (by_share * direction >= 0), np.sign(by_mean + by_share), 0)
        wrong = (by_mean * np.sign(truth) < 0) | (by_share * share_truth < 0)
        better_in_neither = (order * mean_truth <= 0) & (order * share_truth <= 0) & (order * all_truth <= 0)
        halves.append(np.where(usable & ~by_shares, half, np.inf))
        orders.append(order)
        falses.append((order != 0) & (wrong | better_in_neither))
    shown = one == 0
    return Found(
        differences=differences, half=halves[0], half_shown=np.where(shown, halves[1], np.inf), truth=truth,
        order=orders[0], false_order=falses[0], false_verdict=falses[1] & shown,
        against_all=(orders[0] != 0) & (orders[0] != all_truth),
    )  # fmt: skip


def one_example(boards: Boards, tail: np.ndarray | float) -> np.ndarray:
    """The half-width of the error of one test example a task, which no two variants are closer than."""
    found: np.ndarray = -ndtri(tail) * math.hypot(*(1 / task.examples for task in boards.tasks)) / len(boards.tasks)
    return found


@dataclass(frozen=True, kw_only=True)
class Rates:
    """In % of boards: `orders`, with a false order in the ranks; `verdicts`, with a false verdict beside the reference;
    `intervals`, with an interval off the truth, among all pairs or among those with the reference, whichever is more;
    `against_all`, with an order that the means over all seeds deny. `far`: of pairs whose means differ by over 15
    points, those that are ranked apart."""

    orders: float
    verdicts: float
    intervals: float
    against_all: float
    far: float


def rates(boards: Boards, found: Found) -> Rates:
    one, other = pairs_of(boards)
    errors = np.abs(found.differences - found.truth) - 1e-9
    means = boards.levels.mean(axis=0)
    far = np.abs(means[one] - means[other]) > 0.15
    return Rates(
        orders=percent(found.false_order.any(axis=1)),
        verdicts=percent(found.false_verdict.any(axis=1)),
        intervals=max(percent((errors > half).any(axis=1)) for half in (found.half, found.half_shown)),
        against_all=percent(found.against_all.any(axis=1)),
        far=percent(found.order[:, far] != 0) if far.any() else 0.0,
    )


def percent(flags: np.ndarray) -> float:
    return round(100 * float(flags.mean()), 1)


def pairs_of(boards: Boards) -> tuple[np.ndarray, np.ndarray]:
    one, other = np.array(list(combinations(range(boards.scores.shape[2]), 2))).T
    return one, other


KINDS: dict[str, Sequence[Sequence[str]]] = {
    "task": (("selective-copy",),),
    "failing": (("recall",), ("noisy-recall",), ("max",)),
    "suite": (TASKS,),
}
"""Boards of one task on which no training failed, or some did, and of the suite."""

NAMES = {"task": "one task, no failures", "failing": "one task, failures", "suite": "suite of four tasks"}

SEEDS = (3, 6, 12)
ALL = 11
"""Variants of the committed suite that are simulated."""

WORST = {
    "task": (("selective-copy", "linear"), ("max", "indexer[k=16]")),
    "failing": (("recall", "delta[decay=channel]"), ("noisy-recall", "delta[decay=channel]")),
    "suite": (("suite", "softmax"), ("suite", "linear")),
}
"""Donors of 6 and 33 equal variants: among the worst of eleven."""

TOGETHER = (0.0, 0.5)
"""Correlations of what makes trainings of equal variants fail at one seed."""


def simulated(kind: str, variants: int, seeds: int, boards: int) -> Rates:
    """The worst of the tasks of that kind."""
    found = []
    for names in KINDS[kind]:
        made = drawn(names, variants, seeds, boards, np.random.default_rng([seeds, variants]))
        found.append(rates(made, compared(made, *pairs_of(made))))
    worst = {
        name: max(getattr(one, name) for one in found) for name in ("orders", "verdicts", "intervals", "against_all")
    }
    return Rates(**worst, far=min(one.far for one in found))


@cache
def equal(names: Sequence[str], donor: int, together: float, variants: int, seeds: int, boards: int) -> Rates:
    """Boards of variants that are all equal to one committed variant: every order and every verdict is false."""
    rng = np.random.default_rng([seeds, variants, donor, int(100 * together), len(names), TASKS.index(names[0])])
    made = drawn(names, variants, seeds, boards, rng, donor, together)
    return rates(made, compared(made, *pairs_of(made)))


def places(kind: str) -> list[tuple[Sequence[str], int]]:
    """The tasks and the donors of equal variants: those of which some trainings failed, those of which none did, all in
    the suite."""
    if kind == "suite":
        return [(TASKS, donor) for donor in range(len(models()[TASKS[0]].names))]
    return [
        ((task,), donor)
        for task in TASKS
        for donor, share in enumerate(models()[task].shares)
        if (0 < share < 1) == (kind == "failing")
    ]


def worst_of_equals(kind: str, variants: int, seeds: int, boards: int) -> tuple[float, float]:
    """The largest rates of false orders and false verdicts of any donor; of other than 11 variants, of two donors."""
    chosen = places(kind)
    if variants != ALL:
        chosen = [(names, donor) for names, donor in chosen if place_of(kind, names, donor) in WORST[kind]]
    found = [equal(names, donor, c, variants, seeds, boards) for names, donor in chosen for c in TOGETHER]
    return max(one.orders for one in found), max(one.verdicts for one in found)


def place_of(kind: str, names: Sequence[str], donor: int) -> tuple[str, str]:
    """The task, or that it is the suite, and the name of the donor."""
    return "suite" if kind == "suite" else names[0], models()[names[0]].names[donor]


def equals(boards: int) -> list[str]:
    """One row a donor: false orders in the ranks / false verdicts, by seeds and correlation."""
    columns = [(seeds, together) for seeds in SEEDS for together in TOGETHER]
    lines = [
        "| eleven equal variants, each like | " + " | ".join(f"{s} seeds, {c:g}" for s, c in columns) + " |",
        "|---|" + "--:|" * len(columns),
    ]
    for kind in KINDS:
        for names, donor in places(kind):
            found = [equal(names, donor, together, ALL, seeds, boards) for seeds, together in columns]
            share = models()[names[0]].shares[donor]
            failed = f", {share:.0%} in the upper mode" if kind == "failing" else ""
            cells = [f"{one.orders:.1f} / {one.verdicts:.1f}" for one in found]
            lines.append(f"| {': '.join(place_of(kind, names, donor))}{failed} | {' | '.join(cells)} |")
    return lines


def failing(boards: int) -> list[str]:
    lines = [
        "| board of 11 variants | seeds | false order | false verdict | interval off | found | against all seeds |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for kind in KINDS:
        for seeds in SEEDS:
            found = simulated(kind, 11, seeds, boards)
            values = found.orders, found.verdicts, found.intervals, found.far, found.against_all
            lines.append(f"| {NAMES[kind]} | {seeds} | {' | '.join(f'{value:.1f}' for value in values)} |")
    return lines


def bars(boards: int) -> list[str]:
    lines = ["| bar at | seeds | false order | interval off | found |", "|--:|--:|--:|--:|--:|"]
    for halfway in (0.25, 0.5, 0.75, 0.9):
        for seeds in SEEDS[1:]:
            made = drawn(TASKS, 11, seeds, boards, np.random.default_rng(1))
            found = rates(made, compared(made, *pairs_of(made), halfway))
            lines.append(f"| {halfway} | {seeds} | {found.orders:.1f} | {found.intervals:.1f} | {found.far:.1f} |")
    return lines


def summary(boards: int) -> list[str]:
    """The rates that boards quote: the worse of mixed boards and of equal variants with the worst donor."""
    lines = [
        "| board | seeds | 6 variants: false order | false verdict | interval off | 11: false order | false verdict |"
        " interval off | 33: false order | false verdict | interval off |",
        "|---|" + "--:|" * 10,
    ]
    for kind in KINDS:
        for seeds in SEEDS:
            cells = []
            for many in (6, ALL, 33):
                number = boards if many <= ALL else boards // 4
                mixed = simulated(kind, many, seeds, number)
                orders, verdicts = worst_of_equals(kind, many, seeds, number)
                cells += [max(mixed.orders, orders), max(mixed.verdicts, verdicts), mixed.intervals]
            lines.append(f"| {NAMES[kind]} | {seeds} | {' | '.join(f'{value:.1f}' for value in cells)} |")
    return lines
