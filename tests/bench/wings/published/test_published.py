from dataclasses import replace

import pytest
from typer.testing import CliRunner

from attnbench.bench.board.board import Board, Column, Row, TableCell
from attnbench.bench.board.report import Report
from attnbench.bench.board.select_reports import reports_with_published
from attnbench.bench.core.metrics import METRICS
from attnbench.bench.core.registry import TASKS, VARIANTS
from attnbench.bench.wings.published.boards import (
    FAILED,
    FIVE,
    SIX,
    Table,
    average,
    boards_for_suite,
    boards_for_tasks,
    published,
    published_board,
    with_published,
)

ACCURACIES = [table for table in published()[0] if table.quantity == "accuracy"]


def table_of(title: str) -> Table:
    return next(table for table in published()[0] if table.title == title)


@pytest.mark.parametrize(
    ("title", "model", "five", "six"),
    [
        ("Long Range Arena, table 1", "Transformer", 54.39, 53.66),
        ("Long Range Arena, table 1", "Local Attention", 46.06, 46.71),
        ("Long Range Arena, table 1", "BigBird", 55.01, 54.18),
        # printed as 51.39 and as 51.29
        ("Long Range Arena, table 1", "Sinkhorn", 51.48, 51.23),
        ("Nyströmformer, LRA", "Nyströmformer", 58.95, None),
        ("Skyformer, table 1", "Skyformer", 59.39, None),
        ("Skyformer, table 1", "Self-Attention", 57.37, None),
        ("FlashAttention, table 3", "FlashAttention", 59.82, None),
        ("S4, table 10", "Random", 34.0, 36.67),
        ("S4, table 10", "FNet", 55.30, 54.42),
        ("S4, table 10", "S4 (original)", 78.96, 80.48),
        ("S4, table 10", "S4 (updated)", 84.03, 86.09),
    ],
)
def test_averages_are_those_of_the_cells(title: str, model: str, five: float, six: float | None) -> None:
    table = table_of(title)
    found = average(table, model, SIX)
    assert average(table, model, FIVE) == pytest.approx(five, abs=0.006)
    assert found == (None if six is None else pytest.approx(six, abs=0.006))


def test_every_table_says_where_it_was_read_and_how_it_was_made() -> None:
    for table in published()[0]:
        assert table.source and table.read and table.protocol and table.unit and table.rows
        assert set(table.ours.values()) <= {entry.name for entry in VARIANTS.entries()}
        assert bool(table.suite) != bool(table.tasks), "shown with a suite, or with tasks that have none"
        tasks = {column for column in table.columns if column.startswith(("lra-", "wmt"))}
        if table.quantity in METRICS:
            tasks |= set(table.columns)
            assert table.better == METRICS[table.quantity].better
        assert tasks | set(table.tasks) <= {entry.name for entry in TASKS.entries()}


def test_accuracies_are_percentages_and_failures_are_words() -> None:
    cells = [cell for table in ACCURACIES for row in table.rows.values() for cell in row]
    assert all(cell == FAILED if isinstance(cell, str) else 10 <= cell <= 100 for cell in cells)
    assert len(ACCURACIES) == 5 and sum(len(table.rows) for table in ACCURACIES) == 40


def test_what_is_known_at_second_hand_alone_has_no_numbers() -> None:
    tables, left_out = published()
    assert {absent.paper for absent in left_out} == {
        "Never Train from Scratch", "Adaptively Sparse Transformers", "Sparse Sequence-to-Sequence Models",
    }  # fmt: skip
    for absent in left_out:
        shown = boards_for_suite(absent.suite) if absent.suite else boards_for_tasks(absent.tasks)
        assert absent.paper not in {table.paper for table in tables}
        assert any(note.topic == absent.paper for board in shown for note in board.notes)


def ours(task: str, quantity: str = "accuracy", unit: str = "%") -> Board:
    better = "lower" if METRICS[quantity].better == "lower" else "higher"
    columns = (Column(name=quantity, title=quantity, unit=unit, better=better), Column(name="seeds", title="seeds"))
    names = ("rela", "softmax", "local[window=32]", "<b>evil</b>")
    rows = [
        Row(name=name, entries=(TableCell(text=f"{at}0.0", value=10.0 * at), TableCell()), first=at, last=at, group=at)
        for at, name in enumerate(names, start=1)
    ]
    return Board(name=f"{task}/quick", title=f"{task}, preset quick", question="", columns=columns, ranked=tuple(rows))


def test_published_numbers_stand_beside_ours_and_are_never_ranked() -> None:
    board, other = with_published([ours("lra-text[length=1000]")], None)
    assert board == ours("lra-text[length=1000]"), "our board is as it was"
    assert not other.ranked and all(row.first is None for row in other.unranked)
    rows = {row.name: row.entries for row in other.unranked}
    titles = [column.title for column in other.columns]
    assert titles == ["ours", "LRA", "Nyströmformer", "Skyformer", "FlashAttention", "S4"]
    assert [entry.text for entry in rows["softmax"]] == ["20.0", "64.27", "65.02", "61.95", "63.6", ""]
    assert [entry.text for entry in rows["local[window=32]"]][:2] == ["30.0", "52.98"]
    assert rows["nystrom"][0].text == "" and rows["nystrom"][2].value == 65.52
    assert "rela" not in rows and "<b>evil</b>" not in rows, "what no paper reports stays on our board alone"
    assert other.notes[0].warning and "preset quick" in other.notes[0].text


def test_bleu_stands_beside_ours_and_what_else_the_paper_measured_comes_after() -> None:
    mine = ours("wmt16-ro-en[pairs=200000]", "bleu", "BLEU")
    board, other, *rest = with_published([mine], None)
    assert board is mine and not any(each.ranked for each in (other, *rest))
    assert [(column.title, column.unit, column.better) for column in other.columns] == [
        ("ours", "BLEU", "higher"), ("ReLA", "BLEU", "higher"),
    ]  # fmt: skip
    rows = {row.name: [entry.text for entry in row.entries] for row in other.unranked}
    assert rows == {
        "softmax": ["20.0", "32.7"],
        "sparsemax": ["", "33.5"],
        "entmax15": ["", "33.2"],
        "rela": ["10.0", "32.9"],
    }
    titles = [each.title.removeprefix("published: ReLA, ") for each in rest]
    assert titles == [
        "BLEU", "speed", "AER, best head", "AER, best head, shifted", "AER, average", "AER, average, shifted",
    ]  # fmt: skip
    assert {note.topic for note in rest[-1].notes} >= {"Adaptively Sparse Transformers"}
    assert "± 0.01" in rest[2].notes[0].text, "what was read by eye says so"


def test_where_a_paper_gives_no_bleu_its_other_tables_are_shown_all_the_same() -> None:
    shown = with_published([ours("wmt14-en-de", "bleu", "BLEU")], None)
    assert [board.name for board in shown[1:]] == [board.name for board in boards_for_tasks(["wmt14-en-de"])]
    assert len(shown) == 7 and any("were found in no file" in note.text for note in shown[1].notes)


@pytest.mark.parametrize(
    ("task", "model", "text"),
    [
        ("wikitext103", "Routing Transformer", "15.8"), ("wikitext103", "Transformer-XL", "18.3"),
        ("wikitext2-char", "additive attention, windowed", "50.0"), ("wikitext2", "GPT-2", "59.7"),
    ],
)  # fmt: skip
def test_perplexities_are_shown_in_full_and_never_beside_our_bits(task: str, model: str, text: str) -> None:
    mine = ours(task, "bits_per_character", "bits")
    assert published_board(mine, task) is None
    shown = with_published([mine], None)[1]
    assert shown.headline == "Perplexity, as printed; never ranked with ours."
    assert {row.name: row.entries[0].text for row in shown.unranked}[model] == text


def test_tables_of_several_boards_are_shown_once() -> None:
    shown = with_published([ours("wmt16-ro-en", "bleu", "BLEU"), ours("wmt14-en-fr", "bleu", "BLEU")], None)
    names = [board.name for board in shown]
    assert len(names) == len(set(names)) == 2 + 2 + 6


def test_a_task_that_no_paper_reports_gets_no_second_board() -> None:
    assert published_board(ours("sweep"), "sweep") is None and len(with_published([ours("sweep")], None)) == 1


def test_a_suite_gets_every_table_in_full() -> None:
    boards = boards_for_suite("lra")
    assert len(boards) == 12 and boards_for_suite("synthetic") == []
    assert boards == boards_for_suite("lra-quick"), "a suite of some of its tasks"
    assert not any(board.ranked for board in boards)
    [lra] = [board for board in boards if board.title == "published: Long Range Arena, table 1"]
    assert [column.title for column in lra.columns][-3:] == ["pathx", "average of 5", "average of 6"]
    assert lra.headline == (
        "Accuracy, %, as printed; averages are of these cells with FAIL as 50, not as printed; never ranked with ours."
    )
    assert [entry.text for entry in lra.unranked[0].entries] == [
        "36.37", "64.27", "57.46", "42.44", "71.40", "FAIL", "54.39", "53.66",
    ]  # fmt: skip


def test_the_option_is_on_the_command() -> None:
    from attnbench.bench.cli.app import app

    assert "--published" in CliRunner().invoke(app, ["leaderboard", "--help"], env={"COLUMNS": "200"}).output


def test_on_a_page_they_follow_our_report() -> None:
    mine = Report(name="lra-text/quick", board=ours("lra-text"), commands={"softmax": "run"}, machines={})
    first, second = reports_with_published([mine])
    assert len(reports_with_published([replace(mine, board=ours("wmt18-en-fi", "bleu", "BLEU"))])) == 8
    assert first is mine and second.board == published_board(ours("lra-text"), "lra-text")
    assert not second.records and not second.pareto, "no Record of ours and no figure stands behind them"
