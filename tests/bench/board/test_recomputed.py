"""Figures of three committed boards, computed anew from the Records with numpy and scipy alone.

Of attnbench it takes what reads its files, Records and predictions, and nothing that scores them.
"""

from __future__ import annotations

import io
import math
import re
from collections import defaultdict
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import optimize, special, stats

import attnbench
from attnbench.bench.store.store import Store

RESULTS = Path(attnbench.__file__).parent / "results"
TASKS = ("max", "noisy-recall", "recall", "selective-copy")
SEEDS = 12
LRA_SIX = {"softmax", "entmax15", "fastformer", "linear", "local", "rela"}
Fields = dict[str, Any]


@cache
def trainings() -> dict[str, dict[str, list[tuple[float, np.ndarray]]]]:
    """By task and variant, the score and what is right of each example, at seeds 0 to 11.

    Of a variant the code counts that was measured last, and of its cells the first result.
    """
    store = Store(RESULTS)
    first: dict[tuple[str, str, int], Any] = {}
    finished = [
        record
        for record in store.records()
        if record.cell.lane == "train" and record.cell.task.name in TASKS and record.outcome == "ok"
    ]
    newest = {(record.cell.task.name, str(record.cell.variant)): record.digest for record in finished}
    for record in finished:
        name = record.cell.task.name, str(record.cell.variant)
        if record.digest == newest[name]:
            first.setdefault((*name, record.cell.seed), record)
    found: dict[str, dict[str, list[tuple[float, np.ndarray]]]] = {task: defaultdict(list) for task in TASKS}
    for (task, variant, _), record in sorted(first.items()):
        score = next(
            m.value for m in record.measurements
            if m.name == "accuracy" and set(m.where) == {"split", "examples"} and m.where["split"] == "test"
        )  # fmt: skip
        with np.load(io.BytesIO(store.artifact(record.artifacts["predictions"]))) as kept:
            found[task][variant].append((score, kept["correct"].astype(float)))
    return found


@cache
def trivial(task: str) -> tuple[float, float]:
    """The best constant prediction, blind guessing included, and the best trivial predictor."""
    scores: dict[str, float] = {}
    for record in Store(RESULTS).records():
        if record.cell.task.name == task and record.metric is not None and record.metric.chance is not None:
            scores["chance"] = record.metric.chance
        if record.cell.task.name == task and record.cell.lane == "baseline":
            scores[record.cell.variant.name] = next(
                m.value for m in record.measurements if m.name == "accuracy" and m.where.get("split") == "test"
                and set(m.where) <= {"split", "examples"}
            )  # fmt: skip
    return max(scores[name] for name in ("majority", "chance") if name in scores), max(scores.values())


def wilson(share: float, count: int, level: float = 0.95) -> tuple[float, float]:
    z = stats.norm.ppf(1 - (1 - level) / 2)
    roots = np.roots([1 + z * z / count, -(2 * share + z * z / count), share * share])
    return float(min(roots.real)), float(max(roots.real))


def learned(task: str, variant: str) -> list[bool]:
    scores = [score for score, _ in trainings()[task][variant]]
    examples = len(trainings()[task][variant][0][1])
    constant, best_rule = trivial(task)
    if wilson(max(scores), examples, 1 - 0.05 / len(scores))[0] <= best_rule:
        return [False] * len(scores)
    # halfway to a perfect score, which is what these tasks have where they are solved
    return [score > best_rule and score >= (constant + 1) / 2 for score in scores]


def compared(task: str, variant: str) -> list[int]:
    found = [seed for seed, is_learned in enumerate(learned(task, variant)) if is_learned]
    return found or list(range(SEEDS))


def score_of(task: str, variant: str, seeds: list[int]) -> np.ndarray:
    return np.array([trainings()[task][variant][seed][0] for seed in seeds])


def shared(by_seed: np.ndarray) -> float:
    """The part of the variance over examples that all seeds share, of values (seeds, examples)."""
    count = len(by_seed)
    if count == 1:
        return float(by_seed.mean(axis=0).var())
    return max((count * by_seed.mean(axis=0).var() - by_seed.var(axis=1).mean()) / (count - 1), 0.0)


@cache
def moderated(task: str, pool: frozenset[str], seeds: tuple[int, ...]) -> dict[str, tuple[float, float, float]]:
    """By variant, the variance of one seed's score, its degrees of freedom, and those of the pool (Smyth 2004)."""
    there = [name for name in trainings()[task] if set(seeds) <= set(compared(task, name))]
    constant = trivial(task)[0]

    def is_usual(name: str) -> bool:
        above = [wilson(s, len(right))[0] > constant for s, right in trainings()[task][name]]
        return name in pool and 2 * sum(above) > SEEDS and sum(learned(task, name)) in (0, SEEDS)

    inside = [name for name in there if is_usual(name)]
    scores = {name: score_of(task, name, list(seeds)) for name in there}
    free, far = len(seeds) - 1, set()
    own = dict.fromkeys(there, 0.0)
    effect = sum(scores[name] - scores[name].mean() for name in inside) / len(inside) if len(inside) > 2 else 0.0
    for name in there:
        residuals = scores[name] - scores[name].mean() - effect
        share = 1 + (-1 if name in inside else 1) / len(inside) if len(inside) > 2 else 1
        own[name] = float((residuals**2).sum() / free / share)
    if len(inside) < 3:
        return {name: (own[name], free, math.inf) for name in there}
    ordered = sorted(inside, key=lambda name: own[name])
    chance = 1 - 0.001 / len(there)
    bound = math.inf
    for at in range(len(ordered) - 1, 0, -1):
        rest = np.mean([own[name] for name in ordered[:at]])
        if 3 * at >= 2 * len(ordered) and own[ordered[at]] > stats.f.ppf(chance, free, at * free) * rest:
            bound = own[ordered[at]]
    usual = [name for name in inside if own[name] < bound]
    limit = stats.f.ppf(chance, free, len(usual) * free) * np.mean([own[name] for name in usual])
    far = {name for name in there if (own[name] >= bound if name in inside else own[name] > limit)}
    values = [own[name] for name in inside if name not in far]
    mean = float(np.mean(values))
    logs = np.log(np.maximum(values, 1e-5 * mean))
    excess = logs.var(ddof=1) - special.polygamma(1, free / 2)
    weight = float(len(seeds))
    if excess > 0:
        half = optimize.brentq(lambda y: special.polygamma(1, y) - excess, 1e-6, 1e9, xtol=1e-12)
        weight = min(weight, 2 * half)
    return {
        name: (own[name], free, (len(values) - 1) * free)
        if name in far
        else ((weight * mean + free * own[name]) / (weight + free), weight + free, (len(values) - 1) * free)
        for name in there
    }


def level(task: str, variant: str, pool: frozenset[str]) -> tuple[float, float, float]:
    """The mean of the trainings that learned, and the ends of its interval."""
    seeds = compared(task, variant)
    return level_over(task, variant, tuple(seeds), pool if sum(learned(task, variant)) in (0, SEEDS) else frozenset())


def level_over(task: str, variant: str, seeds: tuple[int, ...], pool: frozenset[str]) -> tuple[float, float, float]:
    right = np.array([trainings()[task][variant][seed][1] for seed in seeds])
    mean = float(score_of(task, variant, list(seeds)).mean())
    variance, free, _ = moderated(task, pool, seeds)[variant]
    of_seeds = stats.t.ppf(0.975, free) * math.sqrt(variance / len(seeds))
    spread = math.sqrt(mean * (1 - mean))
    width = min(1.0, math.sqrt(shared(right)) / spread) if spread and len(seeds) > 1 else 1.0
    low, high = (abs(end - mean) * width for end in wilson(mean, right.shape[1]))
    return mean, max(mean - math.hypot(of_seeds, low), 0.0), min(mean + math.hypot(of_seeds, high), 1.0)


@cache
def contrast(task: str, one: str, other: str, pool: frozenset[str]) -> Fields:
    """Of one over the other on a task: value, error and freedom of the seeds, error of the test, and the rest."""
    count = [sum(learned(task, name)) for name in (one, other)]
    by_shares, certain = (count[0] == 0) != (count[1] == 0), 0 not in count
    if by_shares:
        value = [score_of(task, name, list(range(SEEDS))).mean() for name in (one, other)]
        return {
            "value": value[0] - value[1], "error": 0.0, "freedom": math.inf, "test": 0.0, "of_all": value[0] - value[1],
            "count": count, "failed": any(0 < each < SEEDS for each in count), "seeds": SEEDS, "possible": (-1, 1),
            "trained": SEEDS, "by_shares": True, "certain": False,
        }  # fmt: skip
    seeds = tuple(sorted(set(compared(task, one)) & set(compared(task, other))))
    failed = any(0 < each < SEEDS for each in count)
    use = pool if certain and not failed else frozenset()
    (v, f, most), (w, g, _) = (moderated(task, use, seeds)[name] for name in (one, other))
    both = v + w
    freedom = min(both**2 / (v * v / f + w * w / g), most) if both else min(f + g, most)
    ours, theirs = (np.array([trainings()[task][name][seed][1] for seed in seeds]) for name in (one, other))
    test = math.sqrt(shared(ours - theirs) / (ours.shape[1] - 1))
    value = score_of(task, one, list(seeds)).mean() - score_of(task, other, list(seeds)).mean()
    everywhere = [score_of(task, name, list(range(SEEDS))).mean() for name in (one, other)]
    beside = level_over(task, other, seeds, use)
    return {
        "value": value, "error": math.sqrt(both / len(seeds)), "freedom": freedom, "test": max(test, 1 / ours.shape[1]),
        "of_all": everywhere[0] - everywhere[1], "count": count, "failed": failed, "seeds": len(seeds),
        "possible": (-beside[2], 1 - beside[1]), "trained": SEEDS, "by_shares": False, "certain": certain,
    }  # fmt: skip


def mean_contrast(one: str, other: str, pool: frozenset[str]) -> Fields:
    found = [contrast(task, one, other, pool) for task in TASKS]
    error = math.hypot(*(each["error"] for each in found)) / 4
    inverse = sum((each["error"] / 4) ** 4 / each["freedom"] for each in found)
    return {
        "value": np.mean([each["value"] for each in found]), "error": error,
        "freedom": error**4 / inverse if inverse else math.inf,
        "test": math.hypot(*(each["test"] for each in found)) / 4,
        "of_all": np.mean([each["of_all"] for each in found]), "trained": 4 * SEEDS,
        "count": [sum(each["count"][at] for each in found) for at in (0, 1)],
        "failed": any(each["failed"] for each in found), "seeds": min(each["seeds"] for each in found),
        "possible": [np.mean([each["possible"][at] for each in found]) for at in (0, 1)],
        "by_shares": any(each["by_shares"] for each in found), "certain": all(each["certain"] for each in found),
    }  # fmt: skip


def half_width(found: Fields, pairs: int) -> float:
    tail = 0.025 / pairs / (2 if found["failed"] else 1)
    return math.hypot(found["error"] * stats.t.isf(tail, found["freedom"]), found["test"] * stats.norm.isf(tail))


@cache
def rarest(trained: int, pairs: int) -> float:
    """The largest p-value of Fisher's test that at most 2.5 % of boards of equal variants reach, whatever their share.

    By the chances of the fewest and the most of their trainings that learned.
    """
    variants = next(n for n in range(2, 100) if n * (n - 1) // 2 >= pairs)
    ends = [(low, high) for low in range(trained + 1) for high in range(low, trained + 1)]
    p_values = [stats.fisher_exact([[a, trained - a], [b, trained - b]]).pvalue for a, b in ends]
    worst: dict[float, float] = {}
    for share in np.linspace(0.02, 0.5, 49):
        below = [0.0, *stats.binom.cdf(range(trained + 1), trained, share)]

        def inside(low: int, high: int, below: list[float] = below) -> float:
            return max(below[high + 1] - below[low], 0.0) ** variants if low <= high else 0.0

        chances = [inside(a, b) - inside(a + 1, b) - inside(a, b - 1) + inside(a + 1, b - 1) for a, b in ends]
        total, order = 0.0, sorted(range(len(ends)), key=lambda at: p_values[at])
        for place, at in enumerate(order):
            total += chances[at]
            if place + 1 == len(order) or p_values[order[place + 1]] > p_values[at] * (1 + 1e-7):
                worst[p_values[at]] = max(worst.get(p_values[at], 0.0), total)
    return max((value for value, error in worst.items() if error <= 0.025), default=0.0)


def direction(found: Fields, pairs: int) -> int:
    shown = set()
    least = 3 if found["certain"] else 6
    if not found["by_shares"] and found["seeds"] >= least and half_width(found, pairs) < abs(found["value"]):
        shown.add(np.sign(found["value"]))
    (a, b), n = found["count"], found["trained"]
    if stats.fisher_exact([[a, n - a], [b, n - b]]).pvalue <= rarest(n, pairs) * (1 + 1e-7):
        shown.add(np.sign(a - b))
    return int(np.sign(found["of_all"])) if shown == {np.sign(found["of_all"])} else 0


def table(name: str) -> dict[str, dict[str, str]]:
    """The rows of the first table of a committed board, by variant and heading."""
    (path,) = (RESULTS / "boards").glob(f"{name}*.md")
    lines = [line for line in path.read_text(encoding="utf-8").split("\n\n")[2].split("\n") if line.startswith("|")]
    rows = [[cell.strip().replace("\\", "").strip("*") for cell in line.strip("|").split("|")] for line in lines]
    heads = [re.sub(r" [↑↓]$", "", head) for head in rows[0]]
    return {row[1]: dict(zip(heads, row, strict=True)) for row in rows[2:]}


def gap_text(found: Fields, pairs: int) -> str:
    half, (least, most) = half_width(found, pairs), found["possible"]
    ends = (found["value"], max(found["value"] - half, min(least, found["value"])), min(found["value"] + half, most))

    def signed(value: float) -> str:
        text = f"{abs(100 * value):.1f}"
        return text if float(text) == 0 else ("−" if value < 0 else "+") + text

    return signed(ends[0]) if found["by_shares"] else f"{signed(ends[0])} ({signed(ends[1])} to {signed(ends[2])})"


def ranks(names: list[str], ahead: dict[tuple[str, str], int]) -> dict[str, str]:
    before = {name: {other for other in names if other != name and beats(other, name, ahead)} for name in names}
    for middle in names:
        for name in names:
            if middle in before[name]:
                before[name] |= before[middle]
    return {
        name: f"{1 + len(before[name])}–{len(names) - sum(name in others for others in before.values())}"
        for name in names
    }


def beats(one: str, other: str, ahead: dict[tuple[str, str], int]) -> bool:
    return ahead[one, other] > 0 if (one, other) in ahead else ahead[other, one] < 0


def place(text: str) -> str:
    return text if "–" in text else f"{text}–{text}"


def share_text(learned_count: int, trained: int) -> str:
    ends = stats.binomtest(learned_count, trained).proportion_ci(method="exact")
    return f"{learned_count} of {trained} ({100 * ends.low:.0f}–{100 * ends.high:.0f} %)"


@pytest.mark.parametrize("task", ["noisy-recall", "max"])
def test_the_board_of_a_task(task: str) -> None:
    shown, pool = table(f"{task}-quick"), frozenset(LRA_SIX)
    names = [name for name, row in shown.items() if row["rank"] not in ("baseline", "–")]

    def corrected(one: str, other: str) -> tuple[int, int]:
        size = 6 if {one, other} <= LRA_SIX else 12
        return size - 1, size * (size - 1) // 2

    assert len(names) == 10
    for name in names:
        mean, low, high = level(task, name, pool)
        assert shown[name]["accuracy"] == f"{100 * mean:.1f} ± {50 * (high - low):.1f}", name
        assert shown[name]["learned"] == share_text(sum(learned(task, name)), SEEDS)
        if name != "softmax":
            found = contrast(task, name, "softmax", pool)
            assert shown[name]["vs softmax"] == gap_text(found, corrected(name, "softmax")[0]), name
    ahead = {(a, b): direction(contrast(task, a, b, pool), corrected(a, b)[1]) for a, b in combinations(names, 2)}
    assert {name: place(shown[name]["rank"]) for name in names} == ranks(names, ahead)


def test_the_board_of_the_suite() -> None:
    shown = table("suite-synthetic")
    pool = frozenset(name for name, row in shown.items() if row["rank"] != "baseline")
    names = [name for name in shown if name in pool and shown[name]["rank"] != "–"]
    assert len(names) == 11 and len(pool) == 12
    for name in names:
        levels = {task: level(task, name, pool) for task in TASKS}
        for task, (mean, low, high) in levels.items():
            assert shown[name][task] == f"{100 * mean:.1f} ± {50 * (high - low):.1f}", (name, task)
        assert shown[name]["average"] == f"{100 * np.mean([mean for mean, _, _ in levels.values()]):.1f}"
        assert shown[name]["learned"] == share_text(sum(sum(learned(task, name)) for task in TASKS), 4 * SEEDS)
        if name != "softmax":
            assert shown[name]["vs softmax"] == gap_text(mean_contrast(name, "softmax", pool), 11), name
    ahead = {(a, b): direction(mean_contrast(a, b, pool), 66) for a, b in combinations(names, 2)}
    assert {name: place(shown[name]["rank"]) for name in names} == ranks(names, ahead)
