"""The script that holds the suite against published tables: correlations, orders, pooling, and what lacks Records."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from attnbench.bench.core.cell import Cell
from attnbench.bench.core.errors import StoreError
from attnbench.bench.core.record import Measurement, Record
from attnbench.bench.core.registry import VARIANTS
from attnbench.bench.core.spec import Spec
from attnbench.bench.plan.facts import resolve
from attnbench.bench.plan.suite_file import read_suite
from attnbench.bench.store.store import Store
from attnbench.bench.wings.published import validity

ROOT = Path(__file__).parents[4]


def table_of(values, paper="A", kind="perplexity"):
    return validity.RankedTable(paper, f"{paper}: {kind}", kind, dict(zip("abcdefgh", values, strict=False)))


def ours_of(values):
    return {name: np.array([value]) for name, value in zip("abcdefgh", values, strict=False)}


def scores_of(values, seeds=5, tasks=2):
    return {name: np.full((tasks, seeds), value) for name, value in zip("abcdefgh", values, strict=False)}


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ([1.0, 2.0, 3.0, 4.0, 5.0], [0.1, 0.5, 0.3, 0.9, 0.7]),
        # ties on both sides
        ([1.0, 2.0, 2.0, 4.0, 5.0, 5.0], [0.4, 0.4, 0.1, 0.9, 0.9, 0.2]),
        ([4.0, 3.0, 2.0, 1.0], [0.1, 0.2, 0.3, 0.4]),
    ],
)
def test_rho_and_its_p_are_those_of_scipy_and_of_all_orders(theirs, ours):
    table = table_of(theirs)
    expected = stats.spearmanr(theirs, ours).statistic
    assert table.rho(ours_of(ours))[0] == pytest.approx(expected, abs=1e-12)
    orders = [stats.spearmanr(theirs, order).statistic for order in itertools.permutations(ours)]
    share = np.mean(np.array(orders) >= expected - 1e-9)
    assert table.p_value(ours_of(ours)) == pytest.approx(share, abs=1e-12)


def test_a_perfect_order_has_a_finite_z_between_1_and_one_swap():
    table = table_of([1.0, 2.0, 3.0, 4.0, 5.0])
    z = table.z(ours_of([1.0, 2.0, 3.0, 4.0, 5.0]))[0]
    swapped = stats.spearmanr([1, 2, 3, 4, 5], [2, 1, 3, 4, 5]).statistic
    assert np.tanh(z) == pytest.approx((1 + swapped) / 2)


def test_papers_are_pooled_by_their_mean_z_and_their_rows():
    few, many = table_of([1.0, 2.0, 3.0, 4.0]), table_of([2.0, 1.0, 3.0, 5.0, 4.0, 6.0], paper="B")
    turned = table_of([4.0, 3.0, 2.0, 1.0], kind="retrieval")
    ours = ours_of([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    # the two tables of paper A cancel out, and B weighs three times as much
    z = validity.pooled([few, many, turned], ours)
    assert z[0] == pytest.approx(0.75 * math.atanh(stats.spearmanr([2, 1, 3, 5, 4, 6], range(6)).statistic))


def test_chance_moves_the_tables_that_share_variants_together():
    one, other = table_of(range(6)), table_of(range(6), paper="B")
    chance = validity.shuffled(ours_of(range(6)), np.random.default_rng(0))
    # a second paper with the same rows adds no evidence
    assert validity.pooled([one, other], chance).std() == pytest.approx(validity.pooled([one], chance).std())
    # the spread of rho by chance is 1 over the root of n - 1
    assert one.rho(chance).std() == pytest.approx(1 / math.sqrt(5), abs=0.03)


def test_the_verdict_is_a_success_a_null_or_not_run():
    good = [table_of(range(8), paper=paper) for paper in "AB"]
    report = "\n".join(validity.report(good, scores_of(np.linspace(0.1, 0.9, 8))))
    assert "Verdict: **success**" in report and "| A: perplexity | 8 | 1.00 |" in report
    # four rows in perfect order have a lower bound below 0.3
    assert "**null**" in validity.report([table_of(range(4))], scores_of([0.1, 0.2, 0.3, 0.4]))[-1]
    assert "**null**" in validity.report(good, scores_of(np.linspace(0.9, 0.1, 8)))[-1]
    lines = validity.report([*good, table_of(range(8), paper="C")], scores_of(np.linspace(0.1, 0.9, 7)))
    assert lines[2] == "| A: perplexity | 8 | not run: h | | | |" and "**not run**" in lines[-1]


def test_three_rows_and_equal_scores_give_no_rho():
    lines = validity.report([table_of(range(3)), table_of(range(5), paper="B")], scores_of([0.5] * 5))
    assert lines[2:4] == [
        "| A: perplexity | 3 | too few rows | | | |",
        "| B: perplexity | 5 | all of ours are equal | | | |",
    ]


def test_seeds_that_disagree_widen_the_interval_of_seeds():
    random = np.random.default_rng(1)
    means = np.linspace(0.4, 0.6, 6)
    noisy = {name: mean + random.normal(0, 0.2, (2, 5)) for name, mean in zip("abcdef", means, strict=True)}
    drawn = validity.resampled(noisy, random)
    assert drawn["a"].shape == (validity.DRAWS,)
    assert drawn["a"].mean() == pytest.approx(noisy["a"].mean(), abs=0.01)
    # two tasks of five seeds: the spread of a mean of ten, each task by itself
    assert drawn["a"].std() == pytest.approx(np.sqrt((noisy["a"].var(axis=1) / 5).sum()) / 2, rel=0.1)


def test_every_published_row_is_a_variant_of_the_suite_and_says_where_it_was_read():
    suite = read_suite("external-validity")
    variants = {str(spec) for spec in suite.variants}
    tables = validity.read_tables()
    assert {name for table in tables for name in table.values} == variants
    assert all(str(resolve(VARIANTS, Spec.parse(name))) == name for name in variants)
    assert all(len(table.values) >= validity.FEWEST for table in tables)
    assert all(("perplexity" in table.name) == (max(table.values.values()) < 0) for table in tables)
    assert len({table.name for table in tables}) == len(tables)


def test_whole_sets_of_the_suites_seeds_count(tmp_path):
    suite = read_suite("external-validity")
    with pytest.raises(StoreError, match="no Records"):
        validity.read_scores(tmp_path, suite)
    store, tasks = Store(tmp_path), [str(task) for task in suite.tasks]
    paths = (ROOT / "results" / "records").glob("*.jsonl")
    lines = (line for path in paths for line in path.read_bytes().splitlines(keepends=True))
    templates = {}
    for line in lines:
        if len(templates) < len(tasks) and b'"lane":"train"' in line and b'"outcome":"ok"' in line:
            record = Record.from_line(line)
            if str(record.cell.task) in tasks:
                templates.setdefault(str(record.cell.task), record)
    for at, task in enumerate(tasks):
        for seed in range(6):
            for variant in ("softmax", "ssd"):
                # ssd lacks a seed of the last task, and one of another preset is none
                preset = "quick" if (variant, at, seed) == ("ssd", 3, 4) else str(suite.preset)
                cell = Cell(variant=Spec(variant), task=Spec(task), preset=Spec.parse(preset), seed=seed)
                score = Measurement.of("accuracy", (at + seed) / 10, split="test", examples=10)
                store.append(replace(templates[task], cell=cell, measurements=(score,), artifacts={}))
    found = validity.read_scores(tmp_path, suite)
    assert list(found) == ["softmax"]
    assert found["softmax"].tolist() == [[(at + seed) / 10 for seed in range(5)] for at in range(4)]
