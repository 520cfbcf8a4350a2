"""A suite: cells first, then an average that only full coverage earns."""

from dataclasses import replace

import numpy as np
import pytest
from boards import entry, notes

from attnbench.bench.board.suite_board import board_for_suite
from attnbench.bench.board.task_board import board_for_task
from attnbench.bench.core.errors import SelectionError
from attnbench.bench.core.metrics import METRICS
from attnbench.bench.core.record import Measurement
from attnbench.bench.score.key import board_keys
from attnbench.bench.store.table import table_of


def right(share: float) -> np.ndarray:
    return (np.arange(2000) < 2000 * share).astype(np.uint8)


def filled(bench: object, scores: dict[str, dict[str, float]]) -> object:
    b = bench()
    for task, by_variant in scores.items():
        b.task = task
        for variant, share in by_variant.items():
            b.train(variant, [], correct=[right(share)] * 3)
    return b


def board(b: object, **options: object) -> object:
    table = table_of(b.records)
    return board_for_suite(table, "lra", board_keys(table), predictions=b.predictions, **options)


def test_the_average_is_that_of_the_cells_beside_it(bench) -> None:
    found = board(filled(bench, {"a": {"softmax": 0.6, "rela": 0.7}, "b": {"softmax": 0.4, "rela": 0.36}}))
    assert [entry(found, "rela", c).value for c in ("a", "b", "average")] == pytest.approx([70, 36, 53])
    gap = entry(found, "rela", "gap")
    # +10 and -4: mean +3; half of the errors of both are added in quadrature; five comparisons with softmax
    half = 257.6 * (0.1 * 0.9 / 1999 + 0.04 * 0.96 / 1999) ** 0.5 / 2
    assert (gap.value, gap.high) == pytest.approx((3.0, 3.0 + half), rel=1e-3)
    assert [r.name for r in found.ranked] == ["rela", "softmax"]


def test_tasks_whose_guesses_reach_different_shares_have_an_average(bench) -> None:
    b = filled(bench, {"a": {"softmax": 0.6, "rela": 0.7}, "b": {"softmax": 0.4, "rela": 0.36}})
    b.records[:] = [
        replace(record, metric=METRICS["accuracy"].with_chance({"a": 0.5, "b": 0.1}[record.cell.task.name]))
        for record in b.records
    ]
    assert entry(board(b), "rela", "average").value == pytest.approx(53)


def test_leaving_out_the_worst_task_costs_the_rank(bench) -> None:
    scores = {"a": {"softmax": 0.6, "rela": 0.7, "lazy": 0.9}, "b": {"softmax": 0.4, "rela": 0.36}}
    found = board(filled(bench, scores))
    (lazy,) = found.unranked
    assert (lazy.name, lazy.reason) == ("lazy", "b: not run")
    assert entry(found, "lazy", "average").value is None and entry(found, "lazy", "coverage").text == "1 of 2"
    assert entry(found, "lazy", "a").value == pytest.approx(90)


def test_a_task_of_the_suite_that_nobody_ran_leaves_nobody_ranked(bench) -> None:
    found = board(filled(bench, {"a": {"softmax": 0.6, "rela": 0.7}}), wanted=("a", "c"))
    assert found.ranked == () and {r.reason for r in found.unranked} == {"c: not run"}
    assert "Nothing is ranked: c: not run. A rank takes all 2 tasks: `attnbench run" in found.headline


def test_presets_are_not_averaged(bench) -> None:
    b = filled(bench, {"a": {"softmax": 0.6}})
    b.preset = "base"
    b.task = "b"
    b.train("softmax", [0.5] * 3)
    with pytest.raises(SelectionError, match="differ in preset; choose one"):
        board(b)
    table = table_of(b.records)
    assert board_for_suite(table, "lra", board_keys(table, preset="base")).columns[0].name == "b"


def test_the_best_trivial_predictor_of_each_task_stands_below(bench) -> None:
    b = filled(bench, {"a": {"softmax": 0.6, "rela": 0.7}, "c": {"softmax": 0.4, "rela": 0.36}})
    for task, name, share in (("a", "majority", 0.5), ("a", "bag-of-bytes", 0.65), ("c", "majority", 0.1)):
        b.task = task
        tested = Measurement.of("accuracy", share, split="test", examples=2000)
        b.add(b.cell(name, lane="baseline"), [tested])
    found = board(b)
    (row,) = found.baselines
    assert [e.value for e in row.entries[:3]] == pytest.approx([65, 10, 37.5])
    assert row.entries[-1].text == "2 of 2"
    assert any("a bag-of-bytes, c majority" in note.text for note in found.notes)
    assert [r.name for r in found.ranked] == ["rela", "softmax"]


def test_a_task_that_the_reference_did_not_learn_leaves_the_average_for_all(bench) -> None:
    scores = {
        "a": {"softmax": 0.6, "rela": 0.7},
        "b": {"softmax": 0.5, "rela": 0.9},
        "c": {"softmax": 0.4, "rela": 0.3},
    }
    b = filled(bench, scores)
    b.task = "b"
    b.add(b.cell("majority", lane="baseline"), [Measurement.of("accuracy", 0.5, split="test", examples=2000)])
    found = board(b)
    assert found.headline.startswith("softmax did not learn b: the average is over the other 2 tasks.")
    # the values measured stay on the board
    assert [entry(found, "rela", c).value for c in ("b", "average", "gap")] == pytest.approx([90, 50, 0])
    assert [row.name for row in found.ranked] == ["rela", "softmax"]


V0, V1 = "lane1.objective0.task1-d1-v1", "lane1.objective1.task1-d1-v1"


def versioned(bench: object, digests: dict[str, dict[str, str]]) -> object:
    b = bench()
    for task, by_variant in digests.items():
        b.task = task
        for variant, digest in by_variant.items():
            name, _, at = variant.partition("@")
            share = 0.6 + 0.1 * (name == "rela") + 0.2 * bool(at)
            b.train(name, [], correct=[right(share)] * 3, digest=digest)
    return b


def test_a_suite_is_of_one_version_of_lane_and_objective(bench) -> None:
    """Task a was measured anew, task b was not: the average is over what all of them have."""
    old = dict.fromkeys(("softmax", "rela", "linear"), V0)
    new = {f"{name}@new": V1 for name in ("softmax", "rela", "linear")}
    found = board(versioned(bench, {"a": old | new, "b": old}))
    assert [entry(found, "rela", c).value for c in ("a", "b", "average")] == pytest.approx([70, 70, 70])
    complete = board(versioned(bench, {"a": old | new, "b": old | new}))
    assert [entry(complete, "rela", c).value for c in ("a", "b", "average")] == pytest.approx([90, 90, 90])


def test_a_suite_averages_one_code_of_a_variant(bench) -> None:
    """The code of rela changed between the tasks: its newest on both counts, or it has no average."""
    base = {"softmax": V0, "linear": V0}
    changed = V0.replace("-v1", "-v2")
    found = board(versioned(bench, {"a": base | {"rela": V0, "rela@new": changed}, "b": base | {"rela": V0}}))
    assert [entry(found, "rela", c).value for c in ("a", "b", "average")] == pytest.approx([70, 70, 70])
    apart = board(versioned(bench, {"a": base | {"rela": changed}, "b": base | {"rela": V0}}))
    (row,) = apart.unranked
    assert row.name == "rela" and "its code differs between the tasks, or the kernels do" in row.reason
    assert [r.name for r in apart.ranked] == ["linear", "softmax"]


def test_the_verdict_on_one_task_is_that_of_its_own_board(bench) -> None:
    """More declared variants lend a suite a narrower interval than the board of the task has."""
    b = bench()
    others = [f"other{at}" for at in range(8)]
    for at, name in enumerate(("softmax", *others)):
        spread = ((0, 1, -1), (1, -1, 0), (-1, 0, 1))[at % 3]
        b.train(name, [], correct=[right(0.6 + (0.008 + 0.0005 * at) * sign) for sign in spread])
    b.train("rela", [], correct=[right(0.634 + 0.01 * sign) for sign in (1, 0, -1)])
    table = table_of(b.records)
    (key,) = board_keys(table)
    alone = board_for_task(table, key, predictions=b.predictions)
    assert entry(alone, "rela", "verdict").text == "within 1 point"
    found = board(b, declared=("softmax", "rela", *others))
    assert entry(found, "rela", "gap").low > 0 and "Better than softmax on" not in found.headline


def test_the_smallest_difference_of_averages_that_would_be_found_is_said(bench) -> None:
    found = board(filled(bench, {"a": {"softmax": 0.6, "rela": 0.7}, "b": {"softmax": 0.4, "rela": 0.36}}))
    assert notes(found, "power")[0] in found.shown_notes
    assert found.headline == (
        "Better than softmax on a: rela. On b no variant is better. "
        "Better than the average of softmax: rela (by a alone)."
    )


def test_the_model_without_attention_competes_only_where_the_suite_names_it(bench) -> None:
    shares = {"softmax": 0.6, "rela": 0.7, "no-attention": 0.5}
    b = filled(bench, {"a": shares, "b": shares})
    found = board(b, declared=["softmax", "rela"])
    assert [r.name for r in found.ranked] == ["rela", "softmax"] and found.unranked == ()
    (row,) = found.baselines
    cells = dict(zip([c.name for c in found.columns], row.entries, strict=True))
    assert row.name == "no-attention" and cells["average"].value == pytest.approx(50)
    assert cells["gap"].value == pytest.approx(-10) and cells["coverage"].text == "2 of 2"
    named = board(b, declared=["softmax", "rela", "no-attention"])
    assert [r.name for r in named.ranked] == ["rela", "softmax", "no-attention"] and named.baselines == ()


def test_the_headline_names_the_task_that_decides_an_average(bench) -> None:
    """Ahead by 30 points on one task, and by none on two others: the average is of that task alone."""
    b = bench()
    shares = {"softmax": (0.6, 0.6, 0.6), "rela": (0.6, 0.6, 0.9), "topk": (0.7, 0.7, 0.7), "local": (0.5, 0.6, 0.5)}
    for at, task in enumerate("abc"):
        b.task = task
        for name, by_task in shares.items():
            b.train(name, [], correct=[right(by_task[at] + shift) for shift in (0.0, 0.002, -0.002)])
    found = board(b).headline
    assert "Better than the average of softmax: rela (by c alone), topk." in found
    assert "by more than 1 point: local." in found


def test_the_headline_names_parameters_and_what_is_left_at_equal_ones(bench) -> None:
    b = bench()
    for b.task in "ab":
        for name, share in (("softmax", 0.6), ("gate+softmax", 0.7), ("matched+gate+softmax", 0.6)):
            before = len(b.records)
            b.train(name, [], correct=[right(share + shift) for shift in (0.0, 0.002, -0.002)])
            for at in range(before, len(b.records)):
                more = 129_000 if name == "gate+softmax" else 100_000
                kept = [m for m in b.records[at].measurements if m.name != "parameters"]
                b.records[at] = replace(b.records[at], measurements=(*kept, Measurement.of("parameters", more)))
    words = "gate+softmax (with 29 % more parameters; within margin at equal parameters)"
    assert words in board(b).headline
    table = table_of(b.records)
    assert words in board_for_task(table, board_keys(table)[0], predictions=b.predictions).headline
