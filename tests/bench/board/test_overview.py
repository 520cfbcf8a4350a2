"""The overview: who leads each board, which suites are whole, what the pictures show, and what is stale."""

from dataclasses import replace

import pytest

from attnbench.bench.api import overview, reports
from attnbench.bench.board.board import Board, Column, Note, Row, TableCell
from attnbench.bench.board.overview import suites_with_boards
from attnbench.bench.board.report import Report, SettingCurves
from attnbench.bench.score.key import BoardKey
from attnbench.bench.store.store import Store


def board(task: str, levels: dict[str, float], **changes: object) -> Board:
    column = Column(name="accuracy", title="accuracy", unit="%", better="higher")
    rows = tuple(
        Row(name=name, entries=(TableCell(text=f"{v} ± 1", bare=f"{v}", value=v),), first=1, last=2 + at, group=1)
        for at, (name, v) in enumerate(levels.items())
    )
    values = {"title": f"{task}, preset quick", "question": "", "columns": (column,), "ranked": rows}
    return Board(name=task, **values | changes)


def report(task: str, levels: dict[str, float], day: str = "2026-01-01", **changes: object) -> Report:
    source = {
        "key": task, "variant": "softmax", "lane": "train", "seed": 0, "outcome": "ok", "reason": "",
        "machine": "box-1", "started": day, "seconds": 1.0, "digest": "a-b-c", "numbers": (), "implementation": "",
    }  # fmt: skip
    values = {"board": board(task, levels), "records": (source,), "newest": f"{day}T00:00:00+00:00"}
    return Report(name=task, commands={}, machines={}, **values | changes)


def key(task: str, **changes: object) -> BoardKey:
    values = {"preset": "quick", "selection": "validation", "fidelity": "official", "protocol": 1, "machine": "box-1"}
    return BoardKey(task=task, **values | changes)


def only_summary(one: Report) -> object:
    (group,) = overview([one]).groups
    (found,) = group.boards
    return found


def test_all_that_share_the_first_place_are_named_with_their_range() -> None:
    found = only_summary(report("recall", {"softmax": 88.0, "rela": 97.5, "entmax15": 99.0}))
    assert (found.leaders, found.place) == ("softmax, rela, entmax15", "rank 1–4")
    assert (found.result, found.reference, found.title) == ("88.0 to 99.0 %", "88.0 ± 1 %", "recall, preset quick")


@pytest.mark.parametrize(
    ("ranked_by", "text", "words"),
    [
        ("", "surrogate: other data", "data: surrogate"),
        ("average", "official: lra-text; surrogate: lra-retrieval", "data: surrogate in part"),
    ],
)
def test_data_that_stand_in_for_others_are_named(ranked_by: str, text: str, words: str) -> None:
    said = Note(topic="data", text=text, kind="warning")
    levels = {"softmax": 88.0}
    warned = board("lra-retrieval", levels, notes=(said,), ranked_by=ranked_by)
    assert only_summary(report("lra-retrieval", levels, board=warned)).data == words
    sound = replace(warned, notes=(replace(said, kind="fact"),))
    assert only_summary(report("lra-retrieval", levels, board=sound)).data == ""


def test_one_leader_has_its_interval_and_a_board_without_ranks_says_so() -> None:
    alone = board("recall", {"rela": 97.5})
    alone = replace(alone, ranked=(replace(alone.ranked[0], last=1),))
    found = only_summary(replace(report("recall", {}), board=alone))
    assert (found.leaders, found.place, found.result) == ("rela", "rank 1", "97.5 ± 1 %")
    none = only_summary(report("recall", {}))
    assert (none.leaders, none.place, none.result, none.headline) == ("", "", "", "No variant has been measured yet.")


def test_costs_are_named_as_ratios_from_slow_to_fast() -> None:
    cells = [
        TableCell(text=f"{t} faster (1–2)", bare=f"{t} faster", value=v) for t, v in (("4.16×", 0.24), ("4.02×", 0.25))
    ]
    times = Column(name="at_256", title="256", unit="× reference", better="lower")
    rows = tuple(Row(name=f"v{at}", entries=(cell,), first=1, last=2, group=1) for at, cell in enumerate(cells))
    sweep = replace(board("sweep", {}), columns=(times,), ranked=rows)
    assert only_summary(replace(report("sweep", {}), board=sweep)).result == "4.02× to 4.16× faster"


def test_suites_come_first_and_the_newest_of_each_kind_before_the_others() -> None:
    old, new = "2026-01-01", "2026-03-01"
    found = overview(
        [
            report("lone", {"rela": 1.0}, new),
            report("text", {"rela": 1.0}, old, group="Suite lra, preset quick", stale="older version"),
            report("recall", {"rela": 1.0}, new, group="Suite synthetic, preset quick"),
        ]
    )
    assert [group.title for group in found.groups] == [
        "Suite synthetic, preset quick", "Suite lra, preset quick", "Single tasks",
    ]  # fmt: skip
    # within a suite the preset stands in its heading
    assert [each.title for group in found.groups for each in group.boards] == ["recall", "text", "lone, preset quick"]
    assert [each.state for group in found.groups for each in group.boards] == ["new", "stale: older version", "new"]
    assert found.lead == (
        "3 boards from 3 Records, the newest of 2026-03-01. 1 of them is from older versions of the harness, and "
        "marked as stale."
    )


def test_a_suite_is_whole_where_each_task_has_one_board() -> None:
    lra, part = ("lra", ("a", "b", "c"), ()), ("lra-part", ("a", "b"), ())
    alone, twin = ("alone", ("a",), ()), ("twin", ("b", "a"), ())
    declared = [lra, part, alone, twin]

    def names(*keys: BoardKey) -> list[tuple[str, list[str]]]:
        return [(each[0], [key.task for key in own]) for each, own in suites_with_boards(declared, keys)]

    assert names(key("a")) == []
    assert names(key("a"), key("b")) == [("lra-part", ["a", "b"])]
    # a task timed on two machines has one board of quality; one with two kinds of data has none
    assert names(key("a"), key("a", machine="box-2"), key("b"), key("c")) == [("lra", ["a", "b", "c"])]
    assert names(key("a"), key("a", fidelity="surrogate"), key("b")) == []
    # presets are never mixed
    assert names(key("a"), key("b", preset="base")) == []


def test_lengths_of_all_tasks_leave_out_other_rates_and_baselines() -> None:
    points = tuple(
        {"variant": name, "at": at, "value": 50.0, "low": 40.0, "high": 60.0, "chosen": chosen}
        for name, chosen in (("majority", True), ("rela", True), ("softmax", True), ("rela", False))
        for at in (64.0, 128.0)
    )
    curves = SettingCurves(axis="length", title="Accuracy by length", quantity="quality", points=points)
    weights = replace(curves, quantity="weight")
    one = report("recall", {"softmax": 1.0, "rela": 2.0}, settings=(curves, weights), trained=({"length": 64.0},))
    other = replace(one, name="bleu", quality="BLEU")
    found = overview([one, other])
    assert found.quality == "accuracy, %" and {point["task"] for point in found.by_length} == {"recall"}
    # in the order of the board, so that a variant has one colour on all panels
    assert [(point["variant"], point["at"]) for point in found.by_length] == [
        (name, at) for name in ("softmax", "rela") for at in (64.0, 128.0)
    ]
    assert {point["trained"] for point in found.by_length} == {64.0}


def test_frontiers_leave_out_what_the_reference_did_not_learn() -> None:
    points = tuple(
        {
            "variant": name, "quality": quality, "quality_low": quality - 1, "quality_high": quality + 1, "cost": cost,
            "cost_low": 0.9 * cost, "cost_high": 1.1 * cost, "on_frontier": first,
        }
        for name, quality, cost, first in (
            ("softmax", 60, 1.0, True), ("rela", 59.9, 0.99, True), ("linear", 50, 0.5, True),
            ("local", 40, 1.0, False),
        )
    )  # fmt: skip
    text = report("lra-text", {"softmax": 60.0}, pareto=points)
    unlearned = replace(report("lra-image", {"softmax": 10.0}, pareto=points))
    unlearned = replace(unlearned, board=replace(unlearned.board, learned=False))
    found = overview([text, unlearned])
    assert {point["task"] for point in found.pareto} == {"lra-text: accuracy, %"}
    # of two names that would overlap the better one stands
    assert {point["variant"]: point["name"] for point in found.pareto} == {
        "softmax": "softmax", "rela": "", "linear": "linear", "local": "",
    }  # fmt: skip
    assert found.left_out == ("Quality against cost leaves out lra-image, which softmax did not learn.",)


@pytest.fixture
def two_tasks(bench, tmp_path):
    records = []
    for task in ("recall", "selective-copy"):
        b = bench(task=task, fidelity="regenerated")
        for name, level in (("softmax", 0.8), ("rela", 0.7), ("linear", 0.3)):
            b.train(name, [level, level + 0.01, level - 0.01])
        records += b.records
    store = Store(tmp_path, print)
    for record in records:
        store.append(record)
    return tmp_path


def test_a_folder_with_a_whole_suite_has_its_average_before_its_tasks(two_tasks) -> None:
    found = reports(two_tasks)
    assert [(each.name, each.group) for each in found] == [
        (name, "Suite synthetic-short, preset quick")
        for name in (
            "suite synthetic-short/quick/validation",
            "recall/quick/regenerated/validation/protocol 1",
            "selective-copy/quick/regenerated/validation/protocol 1",
        )
    ]
    average, recall, _ = overview(found).groups[0].boards
    assert average.is_average and not recall.is_average
    assert (average.leaders, average.result) == ("softmax", "80.0 %") and recall.result.startswith("80.0 ± ")
    # the Records of the bench name no version of the harness
    assert average.state == "stale: older version"
    assert [each.name for each in reports(two_tasks, task="recall")] == [found[1].name]
