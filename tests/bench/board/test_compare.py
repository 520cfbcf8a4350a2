"""Two variants, in words that the intervals bear out."""

from dataclasses import replace

import numpy as np
import pytest

from attnbench.bench.board.compare import Comparison, compare
from attnbench.bench.board.task_board import board_for_task
from attnbench.bench.core.errors import SelectionError
from attnbench.bench.core.record import Measurement, Outcome
from attnbench.bench.score.key import board_keys
from attnbench.bench.store.table import table_of

TIMES = [1.0, 1.1, 0.9, 1.05, 0.95]


def right(share: float) -> np.ndarray:
    return (np.arange(2000) < 2000 * share).astype(np.uint8)


def of(b: object, one: str = "rela", other: str = "softmax", margin: float = 1.0) -> Comparison:
    table = table_of(b.records)
    return compare(table, board_keys(table)[0], one, other, b.predictions, margin)


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0.70, "Better."),
        (0.60, "At most 1 point worse."),
        (0.50, "Worse by more than 1 point."),
        (0.593, "Worse; whether by more than 1 point is undecided."),
    ],
)
def test_the_first_sentence_is_the_difference_and_the_verdict_of_its_interval(bench, share: float, words: str) -> None:
    b = bench()
    b.train("softmax", [], correct=[right(0.6)] * 3)
    b.train("rela", [], correct=[right(share)] * 3)
    found = of(b)
    assert found.sentences[0].startswith("rela − softmax on lra-text (quick): ")
    assert found.sentences[0].endswith(f"corrected for 5 pairs. {words}")
    assert found.points.value == pytest.approx(100 * (share - 0.6), abs=1e-9)


def test_noise_leaves_it_undecided_and_says_how_many_seeds_would_not(bench) -> None:
    b = bench()
    b.train("softmax", [0.60, 0.62, 0.58])
    b.train("rela", [0.62, 0.60, 0.61])
    found = of(b)
    assert found.verdict == "undecided" and found.sentences[0].endswith("examples not paired. Undecided.")
    assert found.detectable > abs(found.points.value) and found.seeds_needed is None
    assert found.sentences[1] == (
        f"With 3 seeds a difference of {found.detectable:.1f} points or more would have been seen in at least 80 % of "
        "such comparisons; a difference of 1 point and one of the size found each need more than 100 seeds, or more "
        "test examples."
    )
    steady = replace(found.board_key, task="other")
    b.task = steady.task
    for name, share in (("softmax", 0.6), ("rela", 0.61)):
        b.train(name, [], correct=[right(share + at / 500) for at in (-1, 0, 1)])
    table = table_of(b.records)
    (key,) = [key for key in board_keys(table) if key.task == "other"]
    again = compare(table, key, "rela", "softmax", b.predictions, 1.0)
    assert 3 < again.seeds_needed < 100
    assert f"a difference of 1 point needs about {again.seeds_needed} seeds" in again.sentences[1]


def test_the_answer_is_that_of_the_board(bench) -> None:
    b = bench()
    b.train("softmax", [], correct=[right(share) for share in (0.60, 0.61, 0.59)])
    b.train("rela", [], correct=[right(share) for share in (0.63, 0.66, 0.64)])
    b.train("topk", [], correct=[right(share) for share in (0.50, 0.54, 0.51)])
    table = table_of(b.records)
    (key,) = board_keys(table)
    board = board_for_task(table, key, predictions=b.predictions)
    names = [column.name for column in board.columns]
    for row in (*board.ranked, *board.unranked):
        if row.name != "softmax":
            found, gap = of(b, row.name), row.entries[names.index("gap")]
            assert (gap.value, gap.low, gap.high) == pytest.approx(
                (found.points.value, found.points.low, found.points.high)
            )
            assert row.entries[names.index("verdict")].text.startswith(found.verdict)


def test_a_variant_is_not_compared_with_itself(bench) -> None:
    b = bench()
    b.train("softmax", [0.6] * 3)
    b.train("rela", [0.6] * 3)
    with pytest.raises(SelectionError, match=r"expected two variants, got +rela twice"):
        of(b, "rela", " rela")


def test_two_variants_need_no_reference_between_them(bench) -> None:
    b = bench()
    b.train("softmax", [], correct=[right(0.6)] * 3)
    b.train("rela", [], correct=[right(0.7)] * 3)
    b.train("topk", [], correct=[right(0.65)] * 3)
    assert of(b, "topk", "rela").points.value == pytest.approx(-5.0)


def test_a_ratio_of_times_says_which_code_ran(bench) -> None:
    b = bench()
    half = [Measurement.of("declared_density", 0.34)]
    b.time("softmax", TIMES, TIMES, implementation="sdpa")
    b.time("window", [3 * t for t in TIMES], TIMES, more=half, implementation="eager")
    said = of(b, "window", "softmax").sentences[0]
    assert said.endswith(
        "in the same rounds. Code that was timed: window (eager; computes 34 % of the scores), softmax (sdpa)."
    )


def test_costs_are_paired_by_round(bench) -> None:
    b = bench()
    b.train("softmax", [0.6] * 3)
    noisy = [t * f for t, f in zip(TIMES, (1, 5, 2, 1, 3), strict=True)]
    b.time("softmax", TIMES, TIMES)
    b.time("rela", [2 * t for t in noisy], TIMES)
    b.time("topk", noisy, TIMES, peak=4e6)
    found = of(b, "topk", "rela")
    # both shared what made the rounds slow
    assert (found.step_time.low, found.step_time.high) == pytest.approx((0.5, 0.5))
    assert found.sentences[-2] == "A training step of topk is 2.00× faster than that of rela, in the same rounds."
    assert found.sentences[-1] == "A training step of topk needs 4.00× more peak memory than that of rela."


def test_a_time_beyond_the_cap_is_a_bound(bench) -> None:
    b = bench(task="sweep")
    for name, factor in (
        ("softmax", 1.0),
        ("twice", 2.0),
        ("half", 0.5),
        ("late", 60.0),
        ("slow", 90.0),
        ("slower", 100.0),
    ):
        b.time(name, [factor * t for t in TIMES], TIMES)
    assert "A training step of slow is ≥ 64× slower than that of softmax" in of(b, "slow").sentences[0]
    assert "A training step of slow is ≥ 32.0× slower than that of twice" in of(b, "slow", "twice").sentences[0]
    assert "A training step of late is ≥ 64× slower than that of half" in of(b, "late", "half").sentences[0]
    assert "both take 64 times as long as the reference, or longer" in of(b, "slow", "slower").sentences[0]


def test_within_the_noise_floor_is_the_same(bench) -> None:
    b = bench()
    b.train("softmax", [0.6] * 3)
    null = [1.05 * t for t in TIMES]
    b.time("softmax", TIMES, TIMES, null)
    b.time("rela", [1.02 * t for t in TIMES], TIMES, null)
    assert "same time within the noise floor" in of(b).sentences[-2]


def test_what_cannot_be_compared_says_why(bench) -> None:
    b = bench()
    b.train("softmax", [0.6] * 2)
    b.train("rela", [0.7] * 2)
    b.time("softmax", TIMES, TIMES)
    b.add(b.cell("rela", lane="time"), outcome=Outcome.OUT_OF_MEMORY)
    found = of(b)
    assert found.points is None and found.sentences[0] == (
        "rela − softmax on lra-text (quick): +10.0 points over 2 seeds; fewer than 3 prove nothing."
    )
    assert found.step_time is None and "rela: out of memory" in found.sentences[1]
    with pytest.raises(SelectionError, match=r"no Records of 'topk' .* there are: rela, softmax"):
        of(b, "topk")


def test_speeds_that_nobody_measured_are_said(bench) -> None:
    b = bench()
    b.train("softmax", [0.6] * 3)
    b.train("rela", [0.7] * 3)
    assert of(b).sentences[2] == "Speed cannot be compared: no timings of rela and softmax."


@pytest.mark.parametrize(
    ("mode", "words"),
    [("decode", ("decoding step", "decoding steps")), ("forward", ("forward pass", "forward passes"))],
)
def test_a_sweep_is_compared_by_the_work_that_it_times_and_has_no_quality(bench, mode: str, words: tuple) -> None:
    b = bench()
    b.task = f"sweep[mode={mode}]"
    for name, factor in (("softmax", 1.0), ("linear", 0.5), ("rela", 1.0)):
        times = {f"{mode}_seconds": [factor * t for t in TIMES], f"reference_{mode}_seconds": TIMES}
        times[f"null_{mode}_seconds"] = TIMES
        numbers = [Measurement.of(metric, 1.0, tuple(samples)) for metric, samples in times.items()]
        b.add(b.cell(name, lane="time"), [*numbers, Measurement.of("peak_bytes", 1e6)])
    found = of(b, "linear")
    assert found.sentences == (
        f"linear beside softmax on {b.task} (quick): A {words[0]} of linear is 2.00× faster than that of softmax, "
        "in the same rounds.",
        f"A {words[0]} of linear needs as much peak memory as that of softmax.",
    )
    assert found.step_time.value == pytest.approx(0.5) and found.points is None
    assert f"Their {words[1]} take the same time" in of(b).sentences[0]
