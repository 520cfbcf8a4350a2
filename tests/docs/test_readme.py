"""The top README: short, and its table and picture are those of the committed board."""

from __future__ import annotations

import re

from attnbench.bench.plan.suite import load_suite
from attnbench.docs.generator.boards import BoardTable, tables
from attnbench.docs.generator.repository import ROOT, markdown_files

README = (ROOT / "README.md").read_text(encoding="utf-8")
PICTURE = "docs/figures/over-lengths.svg"
PRESET = load_suite("synthetic").preset
TASKS = ("recall", "noisy-recall", "selective-copy", "max", "average")


def rows(table: BoardTable) -> list[dict[str, str]]:
    """The rows of a table by title of the column, without arrows and emphasis."""
    header, _, *lines = [
        [cell.strip("* ").replace("\\", "") for cell in line.strip("|").split("|")] for line in table.lines
    ]
    return [dict(zip([title.removesuffix(" ↑") for title in header], line, strict=True)) for line in lines]


def counts_where_some_failed() -> dict[tuple[str, str], str]:
    """By task and variant, such as ` (10 of 12)`."""
    found = {}
    for table in tables():
        if not table.part and table.task in TASKS:
            for row in rows(table):
                learned, of, seeds = row.get("learned", "").split(" (")[0].partition(" of ")
                if learned != seeds:
                    found[table.task, row["variant"]] = f" ({learned}{of}{seeds})"
    return found


def without_interval(cell: str) -> str:
    return re.split(r" [±(]", cell)[0]


def test_a_reader_is_through_in_a_minute() -> None:
    assert README.count("\n") <= 140


def test_no_page_installs_from_an_index_before_there_is_a_release() -> None:
    """An extra of what is installed already is found without an index; the README says so once."""
    pages = {page: (ROOT / page).read_text(encoding="utf-8") for page in markdown_files() if page != "CHANGELOG.md"}
    named = [page for page, text in pages.items() if re.search(r"pip install '?attnbench\[", text)]
    assert named == ["README.md"] and "There is no release" in README


def test_the_table_is_that_of_the_committed_board_without_intervals() -> None:
    (board,) = [table for table in tables() if table.title.endswith(f"tasks of synthetic ({PRESET})")]
    lines = [f"| rank | attention | {' | '.join(TASKS)} |", f"| --- | :--- |{' ---: |' * len(TASKS)}"]
    counts = counts_where_some_failed()
    for row in rows(board):
        shown_cells = [without_interval(row[task]) + counts.get((task, row["variant"]), "") for task in TASKS]
        name = row["variant"] if row["rank"] == "baseline" else f"**{row['variant']}**"
        lines.append(f"| {row['rank']} | {name} | {' | '.join(shown_cells)} |")
    shown = re.search(r"<!-- board:synthetic -->\n(.*?)<!-- /board -->", README, re.DOTALL)[1]
    assert "\n".join(lines) in shown, "expected\n" + "\n".join(lines)


def test_the_picture_shows_the_accuracies_of_the_committed_boards() -> None:
    assert f"]({PICTURE})" in README
    drawn = (ROOT / PICTURE).read_text(encoding="utf-8")
    points: dict[tuple[str, str], list[float]] = {}
    for text in re.findall(r'aria-label="(length, tokens[^"]*mean[^"]*)"', drawn):
        label = dict(each.split(": ", 1) for each in text.split("; "))
        at = label["variant"], label["length, tokens (log)"].replace(",", "")
        points.setdefault(at, []).append(float(label["test accuracy, %"]))
    names = {name for name, _ in points}
    assert len(names) == 6 and "softmax" in names
    parts = [
        table
        for table in tables()
        if table.task in ("max", "recall", "selective-copy") and table.part.startswith("Accuracy by len")
    ]
    assert len(parts) == 3
    shown = 0
    for row in (row for part in parts for row in rows(part) if row["variant"] in names):
        for title, cell in row.items():
            length = title.replace(",", "")
            if length.isdigit() and cell:
                value = float(without_interval(cell))
                assert any(abs(one - value) < 0.06 for one in points[row["variant"], length]), (row["variant"], length)
                shown += 1
    assert shown == sum(map(len, points.values()))
