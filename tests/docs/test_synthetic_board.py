"""The committed Records of the synthetic suite: published facts that they agree with, and the figures of the README."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from statistics import fmean

import pytest

from attnbench.bench.core.record import Record
from attnbench.bench.plan.suite import load_suite
from attnbench.bench.store.store import Store
from attnbench.docs.generator.repository import ROOT

SUITE = load_suite("synthetic")
SEEDS = range(12)
AXES = ("length", "pairs", "noise")
WINDOW = "window[sink=learned,size=16]"
HYBRID = "delta//softmax"


@cache
def trained() -> dict[tuple[str, str, int], Record]:
    """By task, variant and seed: of the newest code the first, which is the one on the boards."""
    by_cell: dict[tuple[str, str, int], list[Record]] = {}
    for record in sorted(Store(ROOT / "results").records(), key=lambda record: record.started):
        if record.cell.lane == "train" and record.cell.preset == SUITE.preset:
            cell = (str(record.cell.task), str(record.cell.variant), record.cell.seed)
            by_cell.setdefault(cell, []).append(record)
    return {cell: next(r for r in found if r.digest == found[-1].digest) for cell, found in by_cell.items()}


def accuracies(task: str, variant: str, **where: float) -> Iterator[float]:
    """Of each seed, in the one setting with these values; over all settings together where none is named."""
    for seed in SEEDS:
        found = []
        for one in trained()[task, variant, seed].measurements:
            if one.name == "accuracy" and one.where.get("split") == "test":
                setting = {axis: one.where[axis] for axis in AXES if axis in one.where}
                if setting.items() >= where.items() and bool(setting) == bool(where):
                    found.append(one.value)
        assert len(found) == 1, (task, variant, seed, where)
        yield found[0]


def mean(task: str, variant: str, **where: float) -> float:
    return fmean(accuracies(task, variant, **where))


@pytest.mark.parametrize("task", [str(task) for task in SUITE.tasks])
def test_every_variant_has_twelve_seeds_on_every_task(task: str) -> None:
    """The hybrid has two layers, and three of the tasks models of one."""
    for variant in map(str, SUITE.variants):
        if variant == HYBRID and task != "selective-copy":
            assert {trained()[task, variant, seed].outcome for seed in SEEDS} == {"unsupported"}
        else:
            assert all(0 <= value <= 1 for value in accuracies(task, variant))


def test_softmax_recalls_every_number_of_pairs() -> None:
    """Arora et al. 2023: attention solves MQAR at every width and length."""
    for length, pairs in ((64, 4), (64, 16), (128, 32), (256, 64), (2048, 16)):
        assert mean("recall", "softmax", length=length, pairs=pairs) > 0.99


def test_the_recall_of_linear_attention_falls_with_the_number_of_pairs() -> None:
    """Arora et al. 2024 (Based): a state of fixed size holds so many pairs and no more."""
    found = [
        mean("recall", "linear", length=length, pairs=pairs)
        for length, pairs in ((64, 4), (64, 8), (64, 16), (128, 32), (256, 64))
    ]
    assert found == sorted(found, reverse=True) and found[0] > 0.95 and found[-1] < 0.7


def test_a_window_recalls_nothing_beyond_its_keys() -> None:
    """16 keys do not reach the pairs of a sequence of 512 tokens."""
    assert mean("recall", WINDOW, length=64, pairs=4) > 0.2
    assert max(mean("recall", WINDOW, length=length, pairs=16) for length in (512, 2048)) < 0.05


def test_maps_with_exact_zeros_hold_at_sixteen_times_the_training_length() -> None:
    """Vasylenko et al. 2025; at this budget and these rates softmax loses part of it, and linear attention most."""
    held = {name: mean("selective-copy", name, length=1024) for name in ("entmax15", "rela", "softmax", "linear")}
    assert min(held["entmax15"], held["rela"]) > 0.97 and 0.8 > held["softmax"] > held["linear"]


def test_a_temperature_by_the_length_keeps_softmax_sharp() -> None:
    """Nakanishi 2025; ten of twelve seeds learn, and find the maximum of 1,024 items, 64 times the length, always."""
    sharp = sorted(accuracies("max", "scalable-softmax", length=1024))
    assert sharp[1] < 0.2 and sharp[2] > 0.99 and mean("max", "softmax", length=1024) < 0.85


def test_one_softmax_layer_above_a_recurrence_copies_beyond_the_training_length() -> None:
    recurrent, hybrid, softmax = (
        mean("selective-copy", name, length=1024) for name in ("delta[decay=channel]", HYBRID, "softmax")
    )
    assert hybrid > 0.99 > recurrent > softmax


def test_no_variant_is_learned_without_attention() -> None:
    for task in map(str, SUITE.tasks):
        assert mean(task, "no-attention") < 0.2 < mean(task, "softmax")
