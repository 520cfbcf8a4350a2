"""The top README: short, and its table and picture are those of the committed board."""

from __future__ import annotations

import json
import re

from attnbench.docs.generator.repository import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
BOARDS = ROOT / "results" / "boards"
PICTURE = "docs/figures/selective-copy-lengths.svg"
TASKS = ("recall", "noisy-recall", "selective-copy", "max", "average")


def suite_board() -> dict:
    (board,) = json.loads((BOARDS / "suite-synthetic-quick-validation.json").read_text(encoding="utf-8"))["boards"]
    return board


def table(board: dict) -> str:
    """The board without intervals, which the linked page has."""
    rows = [(row, f"{row['first']}" if row["first"] == row["last"] else f"{row['first']}–{row['last']}",
             f"**{row['name'].split('[')[0]}**") for row in board["ranked"]]  # fmt: skip
    rows += [(row, "baseline", row["name"]) for row in board["baselines"]]
    lines = [f"| rank | attention | {' | '.join(TASKS)} |", f"| --- | :--- |{' ---: |' * len(TASKS)}"]
    lines += [
        f"| {rank} | {name} | {' | '.join(row['entries'][t]['brief'] or row['entries'][t]['text'] for t in TASKS)} |"
        for row, rank, name in rows
    ]
    return "\n".join(lines)


def test_a_reader_is_through_in_a_minute() -> None:
    assert README.count("\n") <= 150


def test_the_table_is_that_of_the_committed_board() -> None:
    shown = re.search(r"<!-- board:synthetic -->\n(.*?)<!-- /board -->", README, re.DOTALL)[1]
    assert table(suite_board()) in shown, f"expected\n{table(suite_board())}"


def test_the_picture_shows_the_accuracies_of_the_committed_board() -> None:
    assert f"]({PICTURE})" in README
    (file,) = BOARDS.glob("selective-copy-quick-*.json")
    (board,) = json.loads(file.read_text(encoding="utf-8"))["boards"]
    (part,) = [part for part in board["parts"] if part["title"].startswith("Accuracy by length")]
    drawn = (ROOT / PICTURE).read_text(encoding="utf-8")
    points: dict[tuple[str, str], list[float]] = {}
    for text in re.findall(r'aria-label="(length, tokens[^"]*)"', drawn):
        label = dict(each.split(": ", 1) for each in text.split("; "))
        at = label["variant"], label["length, tokens (log)"].replace(",", "")
        points.setdefault(at, []).append(float(label["test accuracy, %"]))
    for row in part["ranked"]:
        for length in ("64", "256", "1024"):
            # the rates that were not chosen are drawn too
            value = row["entries"][f"length_{length}"]["value"]
            assert any(abs(one - value) < 0.05 for one in points[row["name"], length]), (row["name"], length)
