"""Boards as text: golden files, widths, and text from Records that must stay text."""

import csv
import io
import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from rich.cells import cell_len

from attnbench.bench.board.board import Board, Column, Note, Row, TableCell
from attnbench.dashboards import csv_json, escape, latex, markdown, terminal
from attnbench.dashboards.escape import visible
from attnbench.dashboards.view import View

DETAILS = View(all_notes=True, columns="all")
GOLDEN = Path(__file__).parent.parent / "golden"

RENDERERS = {
    "board-80.txt": lambda board: terminal.render([board], 80),
    "board-200.txt": lambda board: terminal.render([board], 200, DETAILS),
    "board.md": lambda board: markdown.render([board]),
    "board.csv": lambda board: csv_json.to_csv([board]),
    "board.json": lambda board: csv_json.to_json([board]),
    "board.tex": lambda board: latex.to_latex([board]),
}


@pytest.mark.parametrize("name", RENDERERS)
def test_golden(name: str, board: Board) -> None:
    """Run with ATTNBENCH_GOLDEN=write to accept a change, and look at the difference."""
    shown = RENDERERS[name](board)
    if os.environ.get("ATTNBENCH_GOLDEN") == "write":
        (GOLDEN / name).write_text(shown, encoding="utf-8")
    assert shown == (GOLDEN / name).read_text(encoding="utf-8")


def widest(shown: str) -> int:
    return max(map(cell_len, shown.split("\n")))


def test_a_narrow_terminal_keeps_quality_and_cost_and_counts_what_it_left_out(board: Board) -> None:
    narrow, asked = terminal.render([board], 80), terminal.render([board], 80, DETAILS)
    assert "+8.0 ± 1.1" in narrow and "3.10× slower" in narrow and "2.98" not in narrow
    assert "3 columns (--columns all), 1 note (--notes)" in narrow and "120k †" not in narrow
    # columns that are asked for stand in a second table where they do not fit
    assert "120k †" in asked and "more with" not in asked and "5_000 rounds" in asked and widest(asked) <= 80
    wide = terminal.render([board], 200)
    assert "(2.98–3.22)" in wide and "120k †" in wide


def test_columns_can_be_chosen_by_name_on_every_route_for_people(board: Board) -> None:
    view = View(columns="gap, parameters")
    for shown in (terminal.render([board], 100, view), markdown.render([board], view), latex.to_latex([board], view)):
        assert "vs softmax" in shown and "parameters" in shown and "step time" not in shown
    assert view.unknown([board]) == [] and View(columns="gap,speed").unknown([board]) == ["speed"]


def test_details_of_a_column_are_shown_on_request(board: Board) -> None:
    columns = tuple(replace(column, shown=column.name != "sparsity") for column in board.columns)
    whole = replace(board, columns=columns)
    for render in (markdown.render, latex.to_latex, terminal.render):
        assert "zeros" not in render([whole]) and "zeros" in render([whole], view=DETAILS)
    assert "1 column (--columns all)" in markdown.render([whole]) and "zeros" not in csv_json.to_csv([whole])
    assert "sparsity" in csv_json.to_csv([whole]) and "sparsity" in csv_json.to_json([whole])


def test_columns_without_entries_are_not_shown(board: Board) -> None:
    assert "never filled" not in terminal.render([board], 200) + markdown.render([board]) + latex.to_latex([board])


@pytest.mark.parametrize("name", ["board-80.txt", "board.md", "board.csv", "board.tex"])
def test_nothing_from_a_record_takes_effect(name: str, board: Board) -> None:
    shown = RENDERERS[name](board)
    assert "\x1b" not in shown and "\u202e" not in shown and "\\x1b" in shown.replace("\\textbackslash{}", "\\")
    if name.startswith("board-"):
        assert "<script>" in shown and "[bold]loud[/bold]" in shown


def test_markdown_lets_no_markup_of_a_record_through(board: Board) -> None:
    shown = markdown.render([board])
    assert "<script>" not in shown and "&lt;script&gt;" in shown
    assert "@octocat" not in shown and "\\`code\\`" in shown
    table = [line for line in shown.split("\n") if line.startswith("|")]
    assert len(table) == 2 + 5 and {line.replace("\\|", "").count("|") for line in table} == {9}


def test_long_reasons_are_cut_for_people_and_whole_for_machines(board: Board) -> None:
    assert "more characters)" in terminal.render([board], 80) and len(terminal.render([board], 80)) < 4000
    assert len(json.loads(csv_json.to_json([board]))["boards"][0]["unranked"][0]["reason"]) > 10_000


def test_csv_reads_back_as_the_frame_of_the_board(board: Board) -> None:
    text = csv_json.to_csv([board])
    read, whole = pd.read_csv(io.StringIO(text)), board.to_pandas()
    for name in ("variant", "kind", "rank", "rank_first", "gap_low", "verdict", "step_time"):
        assert [v for v in read[name] if pd.notna(v)] == [v for v in whole[name] if pd.notna(v) and v != ""], name
    # text alone is in quotes
    cells = re.findall(r'(?:^|,)("(?:[^"]|"")*"|[^,\n]*)', text, re.MULTILINE)
    assert all(cell.startswith('"') or float(cell) is not None for cell in cells if cell)


@pytest.mark.parametrize("name", ["rela[a=;=1+1;@SUM(A1)]", "=1+1", "a;=HYPERLINK(1)", 'a",=1+1', 'a;"=1+1', "b; -2"])
def test_no_spreadsheet_finds_a_formula_behind_its_own_separator(board: Board, name: str) -> None:
    text = csv_json.to_csv([replace(board, ranked=(replace(board.ranked[0], name=name),))])
    assert next(csv.DictReader(io.StringIO(text)))["variant"].replace("'", "") == name
    for separator in ",;\t":
        cells = [cell for row in csv.reader(io.StringIO(text), delimiter=separator) for cell in row]
        formulas = [cell for cell in cells if re.match(r"\s*[=+@-]", cell) and not re.match(r"-[\d.]+(,|$)", cell)]
        assert not formulas, (separator, formulas)


def test_csv_of_boards_with_other_columns_shares_one_header(board: Board) -> None:
    other = replace(board, columns=(replace(board.columns[0], name="loss"), *board.columns[1:]))
    rows = list(csv.DictReader(io.StringIO(csv_json.to_csv([board, other]))))
    assert len(rows) == 10 and rows[0]["loss"] == "" and rows[5]["accuracy"] == "" and rows[5]["loss"] == "70.0"
    assert csv_json.to_csv([]) == ""


def test_json_keys_entries_by_column(board: Board) -> None:
    first = json.loads(csv_json.to_json([board]))["boards"][0]["ranked"][0]
    assert (first["entries"]["step_time"]["value"], first["first"], first["records"]) == (3.1, 1, ["k1", "k2"])


def test_a_board_without_rows_still_says_why(board: Board) -> None:
    bare = replace(board, ranked=(), unranked=(), baselines=())
    for render in RENDERERS.values():
        assert "surrogate" in render(bare) or render in (RENDERERS["board.csv"],)


def test_lone_surrogates_and_null_bytes_are_shown_as_codes() -> None:
    assert visible("a\x00\ud800\u2028b") == "a\\x00\\ud800\\u2028b"
    visible("a\ud800").encode("utf-8")


@pytest.mark.parametrize("letter", "\ufe0f\u034f\u3164\uffa0\u115f\u2800\u17b4\u180b\U000e0100\u200b\u202e")
def test_letters_that_nobody_sees_are_shown_as_codes(letter: str) -> None:
    code = f"\\u{ord(letter):04x}" if ord(letter) < 0x10000 else f"\\U{ord(letter):08x}"
    assert visible(f"rela[a=x{letter}]") == f"rela[a=x{code}]"


def test_marks_without_end_stay_on_their_line() -> None:
    assert visible("a\u0301b\u0301\u0302") == "a\u0301b\u0301\u0302"
    assert visible("a" + "\u0301" * 40).count("\u0301") == escape.MOST_MARKS


def test_parts_stand_below_their_board_without_places(board: Board, part: Board) -> None:
    whole = replace(board, parts=(part,))
    shown = markdown.render([whole])
    below = shown.partition("### pictures &lt;b&gt;")[2]
    assert shown.index("majority") < shown.index("### pictures") < shown.index("surrogate")
    assert "| variant | BLEU ↑ | vs copying ↑ | verdict |" in below and "rank" not in below
    assert "+3.10 (+2.80 to +3.40)" in below and "undecided against softmax" in below
    wide, narrow = (terminal.render([whole], width) for width in (200, 60))
    assert "pictures <b>" in wide and "+3.10 (+2.80 to +3.40)" in wide
    # sentences take several lines
    assert "+3.10 ± 0.30" in narrow and "undecided" in narrow and widest(narrow) <= 60


def test_machines_and_papers_get_the_parts_too(board: Board, part: Board) -> None:
    whole = replace(board, parts=(part,))
    rows = list(csv.DictReader(io.StringIO(csv_json.to_csv([whole]))))
    assert [(row["board"], row["kind"], row["bleu"], row["vs_copy_low"]) for row in rows[5:]] == [
        ("lra-text, preset quick: pictures <b>", "unranked", "5.1", "2.8"),
        ("lra-text, preset quick: pictures <b>", "baseline", "2.0", ""),
    ]
    (kept,) = json.loads(csv_json.to_json([whole]))["boards"][0]["parts"]
    assert kept["unranked"][0]["entries"]["vs_copy"]["value"] == 3.1
    assert latex.to_latex([whole]).count(r"\begin{table}") == 2


@pytest.mark.parametrize("count", [1, 6, 30])
def test_six_notes_are_shown_on_every_route_for_people(board: Board, count: int) -> None:
    notes = tuple(Note(topic=f"n{at}", text="a word") for at in range(count))
    noted = replace(board, notes=notes)
    for render in (terminal.render, markdown.render, latex.to_latex):
        assert render([noted]).count("a word") == min(count, 6)
        assert render([noted], view=DETAILS).count("a word") == count
    for render in (terminal.render, markdown.render):
        assert (f"{count - 6} notes (--notes)" in " ".join(render([noted]).split())) == (count > 6)
    assert len(json.loads(csv_json.to_json([noted]))["boards"][0]["notes"]) == count


def of_tasks(*tasks: str, rows: int = 2, ranked: bool = True) -> Board:
    """A board of a suite: a cell for each task, their mean, and the difference from the reference."""
    columns = (
        *(Column(name=f"lra-{task}", title=f"lra-{task}", short=task, better="higher") for task in tasks),
        Column(name="average", title="average", short="mean", better="higher", importance=0),
        Column(name="gap", title="vs softmax", short="gap", better="higher", importance=0),
        Column(name="coverage", title="tasks", importance=2),
    )
    level = TableCell(text="49.9 ± 2.1", brief="49.9", bare="49.9", value=49.9)
    gap = TableCell(text="−10.2 (−13.2 to −7.3)", brief="−10.2 ± 3.0", bare="−10.2", value=-10.2)
    entries = (*[level] * (len(tasks) + 1), gap, TableCell(text=f"{len(tasks)} of {len(tasks)}"))
    named = tuple(Row(name=f"variant{at}[impl=eager]", entries=entries, reason="a: not run") for at in range(rows))
    board = Board(name="lra", title="lra", question="Which?", columns=columns, ranked=(), unranked=named)
    if not ranked:
        return board
    return replace(
        board, ranked=tuple(replace(row, first=1, last=rows, group=1, reason="") for row in named), unranked=()
    )


FIVE = ("image", "listops", "pathfinder", "retrieval", "text")


@pytest.mark.parametrize("width", [80, 90, 100, 120, 200])
def test_every_task_of_a_suite_keeps_its_column_and_intervals_go_first(width: int) -> None:
    shown = terminal.render([of_tasks(*FIVE)], width)
    heads = next(line for line in shown.split("\n") if "variant" in line)
    assert all(task in heads for task in FIVE) and ("lra-image" in heads) == (width == 200)
    assert ("−10.2 ± 3.0" in shown) == (width == 120) and ("−13.2" in shown) == (width == 200)
    assert widest(shown) <= width


def test_tasks_that_do_not_fit_stand_in_a_second_table() -> None:
    tasks = [f"the-task-number-{at}" for at in range(12)]
    shown = terminal.render([of_tasks(*tasks)], 80, View(columns="all"))
    assert all(task in shown for task in tasks) and len(re.findall("rank +variant", shown)) > 1
    assert widest(shown) <= 80


def test_without_ranks_there_is_no_column_of_them(board: Board) -> None:
    assert "rank" in terminal.render([board], 120)
    bare = terminal.render([replace(board, ranked=(), unranked=board.ranked)], 120)
    assert "variant" in bare and "rank" not in bare and widest(bare) <= 120


def test_a_reason_that_rows_share_is_said_once_and_not_again_below_the_headline() -> None:
    unsaid = of_tasks(*FIVE, rows=5, ranked=False)
    for shown in (terminal.render([unsaid], 120), markdown.render([unsaid]), latex.to_latex([unsaid])):
        assert " ".join(shown.split()).count("a: not run") == 1
    assert "variant3[impl=eager] and 1 more: a: not run" in terminal.render([unsaid], 200)
    assert "variant4[impl=eager]: a: not run" in terminal.render([unsaid], 200, DETAILS)
    said = replace(unsaid, headline="Nothing is ranked: a: not run.")
    assert terminal.render([said], 120).count("a: not run") == 1


def test_the_question_heads_the_board_and_the_headline_follows(board: Board) -> None:
    first = [terminal.render([board], 120), markdown.render([board]).replace("\\", "")]
    for shown in first:
        heading, headline = [line.strip("#*_ ") for line in shown.split("\n") if line][:2]
        assert heading == board.question and headline == board.headline
    assert board.headline in json.loads(csv_json.to_json([board]))["boards"][0]["headline"]
