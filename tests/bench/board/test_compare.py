"""Two variants, in words that the intervals bear out."""

import numpy as np
import pytest

from attnbench.bench.board.compare import Comparison, compare
from attnbench.bench.core.errors import SelectionError
from attnbench.bench.core.record import Outcome
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
        (0.70, "rela is right more often than softmax"),
        (0.60, "rela is at most 1 point worse than softmax"),
        (0.50, "rela is more than 1 point worse than softmax"),
        (0.593, "rela is right less often than softmax; whether by more than 1 point is open"),
    ],
)
def test_the_sentence_follows_the_interval(bench, share: float, words: str) -> None:
    b = bench()
    b.train("softmax", [], correct=[right(0.6)] * 3)
    b.train("rela", [], correct=[right(share)] * 3)
    found = of(b)
    assert words in found.sentences[0] and "3 seeds, paired by example" in found.sentences[0]
    assert found.points.value == pytest.approx(100 * (share - 0.6), abs=1e-9)


def test_noise_leaves_it_open(bench) -> None:
    b = bench()
    b.train("softmax", [0.60, 0.62, 0.58])
    b.train("rela", [0.61, 0.60, 0.60])
    assert "It is open whether rela is more than 1 point worse than softmax" in of(b).sentences[0]


def test_two_variants_need_no_reference_between_them(bench) -> None:
    b = bench()
    b.train("softmax", [], correct=[right(0.6)] * 3)
    b.train("rela", [], correct=[right(0.7)] * 3)
    b.train("topk", [], correct=[right(0.65)] * 3)
    assert of(b, "topk", "rela").points.value == pytest.approx(-5.0)


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
    assert found.sentences[1] == "A training step of topk is 2.00× faster than that of rela, in the same rounds."
    assert found.sentences[2] == "A training step of topk needs 4.00× more peak memory than that of rela."


def test_within_the_noise_floor_is_the_same(bench) -> None:
    b = bench()
    b.train("softmax", [0.6] * 3)
    null = [1.05 * t for t in TIMES]
    b.time("softmax", TIMES, TIMES, null)
    b.time("rela", [1.02 * t for t in TIMES], TIMES, null)
    assert "same time within the noise floor" in of(b).sentences[1]


def test_what_cannot_be_compared_says_why(bench) -> None:
    b = bench()
    b.train("softmax", [0.6] * 2)
    b.train("rela", [0.7] * 2)
    b.time("softmax", TIMES, TIMES)
    b.add(b.cell("rela", lane="time"), outcome=Outcome.OUT_OF_MEMORY)
    found = of(b)
    assert found.points is None and "+10.0 points against softmax over 2 seeds" in found.sentences[0]
    assert found.step_time is None and "rela: out of memory" in found.sentences[1]
    with pytest.raises(SelectionError, match=r"no Records of 'topk' .* there are: rela, softmax"):
        of(b, "topk")


def test_speeds_that_nobody_measured_are_said(bench) -> None:
    b = bench()
    b.train("softmax", [0.6] * 3)
    b.train("rela", [0.7] * 3)
    assert of(b).sentences[1] == "Speed cannot be compared: no timings of rela and softmax."
