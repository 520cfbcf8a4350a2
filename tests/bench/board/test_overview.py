"""The overview: who leads each board, which suites are whole, what the pictures show, and what is stale."""

from dataclasses import replace
from itertools import pairwise

import pytest

from attnbench.bench.api.pages import overview, reports
from attnbench.bench.board.board import Board, Column, Note, Row, TableCell
from attnbench.bench.board.notes import note
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
    assert (found.leaders, found.place) == ("softmax, rela and entmax15", "rank 1–4")
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


def ranked(*places: tuple[int, int]) -> Board:
    """A board whose variants v0, v1, … have these rank intervals."""
    found = board("", {f"v{at}": 50.0 for at in range(len(places))})
    rows = (replace(row, first=first, last=last) for row, (first, last) in zip(found.ranked, places, strict=True))
    return replace(found, ranked=tuple(rows))


def test_what_tells_most_comes_first_and_nothing_stale_or_unlearned_is_open() -> None:
    nothing, half, all_of_it = ranked((1, 2), (1, 2)), ranked((1, 1), (2, 3), (2, 3)), ranked((1, 1), (2, 2))
    late = "2026-03-01"
    once = {"length": 64, "variant": "v0", "ratio": 1, "low": 1, "high": 1}
    found = overview(
        [
            report("lone", {}, late, board=half),
            report("text", {}, group="Suite lra, preset quick", board=replace(nothing, title="text, preset quick")),
            report("sweep", {}, board=all_of_it, lengths=(once,)),
            report("copy", {}, group="Suite synthetic, preset quick", board=half),
            report("max", {}, group="Suite synthetic, preset quick", board=all_of_it),
            report("old", {}, stale="older version", board=all_of_it),
            report("chance", {}, board=replace(all_of_it, learned=False), stale="older version"),
        ]
    )  # fmt: skip
    assert [(group.title, [one.report for one in group.boards], group.folded) for group in found.groups] == [
        ("Suite synthetic, preset quick", ["max", "copy"], False),
        ("Suite lra, preset quick", ["text"], False),
        ("Single tasks", ["lone"], False),
        ("Cost alone, without training", ["sweep"], True),
        ("Made by older versions", ["old"], True),
        ("Not learned here", ["chance"], True),
    ]
    # within a suite the preset stands in its heading
    assert found.groups[1].boards[0].title == "text"
    assert [one.state for group in found.groups for one in group.boards] == [
        "", "", "", "new", "", "stale: older version", "stale: older version",
    ]  # fmt: skip
    assert found.lead == (
        "7 boards from 7 Records, the newest of 2026-03-01. 2 of them, of older versions or not learned, are folded "
        "below."
    )


def with_gaps(task: str, gaps: dict[str, tuple[float, float]], better: str = "higher") -> Board:
    """A board whose differences from softmax have these intervals; in order of rank, all told apart.

    Above 5 points nothing is decided, as where too few trainings learned.
    """
    columns = (
        Column(name="accuracy", title="accuracy", unit="%", better=better),
        Column(name="gap", title="vs softmax", unit="points", better=better),
        Column(name="verdict", title="verdict"),
    )

    def verdict(low: float, high: float) -> str:
        if low <= 0 <= high or low > 5:
            return "undecided"
        return "better" if (low > 0) == (better == "higher") else "worse by > 1 point"

    rows = tuple(
        Row(
            name=name, first=at, last=at,
            entries=(TableCell(text=f"{at}.0 ± 1", bare=f"{at}.0", value=at),
                     TableCell(text=f"{low:g} to {high:g}", value=low, low=low, high=high),
                     TableCell(text=verdict(low, high))),
        )
        for at, (name, (low, high)) in enumerate(gaps.items(), start=1)
    )  # fmt: skip
    return Board(name=task, title=f"{task}, preset quick", question="", columns=columns, ranked=rows)


def test_the_first_table_says_who_is_better_at_what_and_at_which_cost() -> None:
    gaps = {"rela": (1, 3), "local[window=8]": (-3, -1), "linear": (6, 9), "local[window=2]": (-9, -5)}
    bits = {"rela": (0.1, 0.3), "linear": (-0.3, -0.1), "fox": (-1, 1), "local": (-1, 1)}
    ratios = {"softmax": 1.0, "linear": 0.25, "rela": 1.05, "linear[feature_map=relu]": 9.0, "local": 0.5}
    timed = [
        {"variant": name, "length": length, "ratio": ratio, "low": 0.9 * ratio, "high": 1.1 * ratio, "pays": False}
        for name, ratio in (ratios | {"local[window=8]": 0.2}).items()
        for length in (64, 1024)
    ]
    text = replace(with_gaps("text", bits, "lower"), title="text, preset quick[positions=rope,rate_extensions=2]")
    text = replace(text, notes=(note("reduced", what="texts of 256 bytes"),))
    found = overview(
        [
            report("copy", {}, board=replace(with_gaps("copy", gaps), title="copy, preset quick[tuning_seeds=2]")),
            report("text", {}, board=text),
            report("old", {}, board=with_gaps("old", gaps), stale="older version"),
            report("sweep/box/step", {}, lengths=tuple(timed), timed="attention alone on Abacus 9, 2 cores"),
        ]
    ).answer
    assert [(column.title, column.report) for column in found.columns] == [
        ("copy", "copy"), ("text (reduced,positions=rope)", "text"), ("training step, 1,024 tokens", "sweep/box/step"),
    ]  # fmt: skip
    assert found.columns[2].unit == "attention alone on Abacus 9, 2 cores, against softmax"
    shown = {name: [cell and (cell.text, cell.verdict) for cell in cells] for name, cells in found.rows}
    # fox and local[window=2] are on one board alone; other parameters are another variant
    assert shown == {
        "rela": [("1.0", "better"), ("1.0", "worse"), ("1.05× slower", "")],
        "linear": [("3.0", ""), ("2.0", "better"), ("4.00× faster", "better")],
        "local": [None, ("4.0", ""), ("2.00× faster", "better")],
        "local[window=8]": [("2.0", "worse"), None, ("5.00× faster", "better")],
    }
    assert found.rows[0][1][0].hint == "rela: 1.0 ± 1; against softmax: 1 to 3"
    assert overview([report("text", {}, board=ranked((1, 2), (1, 2)))]).answer is None


def test_who_is_shown_worse_does_not_lead_and_a_mean_over_some_seeds_has_their_number() -> None:
    told = with_gaps("copy", {"softmax": (0, 0), "rela": (-1, 1), "delta": (-9, -1)})
    shares = {"softmax": "12 of 12", "rela": "8 of 12", "delta": "0 of 12"}
    rows = (
        replace(row, first=1, last=8, entries=(*row.entries, TableCell(text=f"{bare} (a–b %)", bare=bare)))
        for row, bare in zip(told.ranked, shares.values(), strict=True)
    )
    told = replace(told, columns=(*told.columns, Column(name="learned", title="learned")), ranked=tuple(rows))
    even = with_gaps("text", {"softmax": (0, 0), "rela": (-1, 1), "delta": (-1, 1)})
    *first, last = even.ranked
    even = replace(even, ranked=tuple(first), unranked=(replace(last, reason="1 of 3 seeds"),))
    none = replace(
        told, ranked=tuple(replace(row, entries=(*row.entries[:-1], told.ranked[2].entries[-1])) for row in told.ranked)
    )
    found = overview([report(name, {}, board=each) for name, each in (("copy", told), ("text", even), ("lists", none))])
    assert only_summary(report("copy", {}, board=told)).leaders == "softmax and rela"
    # a task that tells nobody apart is a column, too
    assert {name: [cell.text for cell in cells] for name, cells in found.answer.rows} == {
        "softmax": ["1.0", "1.0"], "rela": ["2.0", "2.0 (8 of 12)"], "delta": ["3.0", "3.0 (0 of 12)"],
    }  # fmt: skip


def test_a_suite_is_whole_where_each_task_has_one_board() -> None:
    lra, part = ("lra", ("a", "b", "c"), (), "quick"), ("lra-part", ("a", "b"), (), "quick")
    alone, twin = ("alone", ("a",), (), "quick"), ("twin", ("b", "a"), (), "quick[layers=2]")
    declared = [twin, lra, part, alone]

    def names(*keys: BoardKey) -> list[tuple[str, list[str]]]:
        return [(each[0], [key.task for key in own]) for each, own in suites_with_boards(declared, keys)]

    assert names(key("a")) == []
    assert names(key("a"), key("b")) == [("lra-part", ["a", "b"])]
    # a task timed on two machines has one board of quality; one with two kinds of data has none
    assert names(key("a"), key("a", machine="box-2"), key("b"), key("c")) == [("lra", ["a", "b", "c"])]
    assert names(key("a"), key("a", fidelity="surrogate"), key("b")) == []
    # of two suites with the same tasks that of the preset
    assert names(*(key(task, preset="quick[layers=2,seeds=3]") for task in "ab")) == [("twin", ["a", "b"])]
    assert names(key("a", preset="smoke"), key("b", preset="smoke")) == [("lra-part", ["a", "b"])]
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
    assert [(point["variant"], point["at"]) for point in found.by_length] == [
        (name, at) for name in ("softmax", "rela") for at in (64.0, 128.0)
    ]
    assert {point["trained"] for point in found.by_length} == {64.0}


def test_six_lines_have_their_names_beside_their_ends_none_over_another() -> None:
    levels = {f"v{at}": 100.0 for at in range(5)} | {"delta[decay=channel]": 1.0, "softmax": 100.0, "linear": 0.0}
    levels["linear[feature_map=relu]"] = 2.0
    points = tuple(
        {"variant": name, "at": at, "value": level, "low": level, "high": level, "chosen": True}
        for name, level in levels.items()
        for at in (64.0, 128.0)
    )
    curves = SettingCurves(axis="length", title="Accuracy by length", quantity="quality", points=points)
    found = overview([report("recall", levels, settings=(curves,))])
    ends = {point["name"]: point["name_at"] for point in found.by_length if point["at"] == 128.0}
    # those that the field knows first, then the others in order of the board
    assert list(ends) == ["softmax", "linear", "linear[feature_map=relu]", "delta[decay=channel]", "v0", "v1"]
    assert all(not point["name"] for point in found.by_length if point["at"] == 64.0)
    heights = sorted(ends.values())
    assert all(after - before >= 6.99 for before, after in pairwise(heights))
    assert heights[0] >= 0 and heights[-1] <= 100
    assert found.left_out[0] == "6 of 9 variants; the boards have all."


def test_frontiers_leave_out_what_the_reference_did_not_learn() -> None:
    points = tuple(
        {
            "variant": name, "quality": quality, "quality_low": quality - 1, "quality_high": quality + 1, "cost": cost,
            "cost_low": 0.9 * cost, "cost_high": 1.1 * cost, "on_frontier": first, "name": name if first else "",
        }
        for name, quality, cost, first in (
            ("softmax", 60, 1.0, True), ("rela", 59.9, 0.99, True), ("linear", 50, 0.5, True),
            ("local", 40, 1.0, False),
        )
    )  # fmt: skip
    text = report("lra-text", {"softmax": 60.0}, pareto=points)
    unlearned = report("lra-image", {"softmax": 10.0}, pareto=points)
    unlearned = replace(unlearned, board=replace(unlearned.board, learned=False))
    found = overview([text, unlearned])
    assert {point["task"] for point in found.pareto} == {"lra-text: accuracy, %"}
    assert {point["name"] for point in found.pareto} == {"softmax", "rela", "linear", ""}


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
    # the Records of the bench name no version of the harness, and there are no others
    (old,) = overview(found).groups
    assert old.title == "Made by older versions" and not old.folded
    average, recall, _ = old.boards
    assert average.is_average and not recall.is_average
    assert (average.leaders, average.result) == ("softmax", "80.0 %") and recall.result.startswith("80.0 ± ")
    assert average.state == "stale: older version"
    assert [each.name for each in reports(two_tasks, task="recall")] == [found[1].name]
