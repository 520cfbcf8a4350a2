"""Two complete runs of the suite synthetic, of six seeds each on two machines, tell their readers nothing contrary."""

import shutil
from itertools import combinations
from pathlib import Path

import pytest

import attnbench
from attnbench.bench.core.metrics import ACCURACY

COMMITTED = Path(__file__).parents[3] / "results"
RUNS = ("5a8dbbc3b8a0", "eb2a68423486")
TASKS = ("recall", "noisy-recall", "selective-copy", "max")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """By board, the rows of each run alone: rank interval, and the ends of the gap to softmax in points."""
    found = {}
    for machine in RUNS:
        folder = tmp_path_factory.mktemp(machine)
        shutil.copytree(COMMITTED / "artifacts", folder / "artifacts")
        (folder / "records").mkdir()
        shutil.copy(COMMITTED / "records" / f"{machine}.jsonl", folder / "records")
        boards = attnbench.boards(folder, suite="synthetic", preset="quick")
        boards += [board for task in TASKS for board in attnbench.boards(folder, task=task, preset="quick")]
        assert len(boards) == 1 + len(TASKS)
        for name, board in zip(("suite", *TASKS), boards, strict=True):
            gap = [column.name for column in board.columns].index("gap")
            found.setdefault(name, []).append(
                {row.name: (row.first, row.last, row.entries[gap].low, row.entries[gap].high)
                 for _, row in board.rows if row.first is not None}
            )  # fmt: skip
    return found


def order(rows, one, other):
    """1 where the data of a run put one before the other, -1 the other way round, 0 where they leave it open."""
    return (rows[one][1] < rows[other][0]) - (rows[other][1] < rows[one][0])


def counted(first, second, names):
    both = [(order(first, one, other), order(second, one, other)) for one, other in combinations(names, 2)]
    agreed = sum(a == b != 0 for a, b in both)
    return agreed, sum(a != b and 0 in (a, b) for a, b in both), sum(a * b == -1 for a, b in both)


# pairs that both runs order alike, that one of them leaves open, and that they order contrarily
ORDERS = {
    "suite": (30, 3, 0), "recall": (34, 0, 0), "noisy-recall": (6, 5, 0), "selective-copy": (19, 15, 0),
    "max": (30, 0, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", ["suite", *TASKS])
def test_no_pair_is_ordered_one_way_by_one_run_and_the_other_way_by_the_other(runs, name):
    first, second = runs[name]
    assert counted(first, second, sorted(first.keys() & second.keys())) == ORDERS[name]


@pytest.mark.parametrize("name", ["suite", *TASKS])
def test_no_difference_from_softmax_is_proven_by_one_run_and_denied_by_the_other(runs, name):
    first, second = runs[name]
    compared = sorted((first.keys() & second.keys()) - {"softmax"})
    assert len(compared) >= 9
    for variant in compared:
        (*_, low, high), (*_, its_low, its_high) = first[variant], second[variant]
        if low is None or its_low is None:
            continue
        assert low <= its_high and its_low <= high, variant
        for proven, (lowest, highest) in ((low > 0 or high < 0, (its_low, its_high)),
                                          (its_low > 0 or its_high < 0, (low, high))):  # fmt: skip
            # equal: surely within the margin, and on neither side of softmax
            equal = -ACCURACY.margin < lowest <= 0 <= highest < ACCURACY.margin
            assert not (proven and equal), variant
