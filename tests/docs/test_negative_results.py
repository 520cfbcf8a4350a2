"""What the page of negative results says of the committed boards is what they say."""

import pytest

from attnbench.docs.generator.board_excerpts import boards
from attnbench.docs.generator.repository import ROOT

BOARDS = {board.title: board.values for board in boards()}
PAGE = (ROOT / "docs" / "negative-results.md").read_text(encoding="utf-8")


def accuracies(rows):
    return {row["name"]: row["entries"]["accuracy"]["value"] for row in rows}


@pytest.mark.parametrize("task", ["lra-image", "lra-listops", "lra-pathfinder", "lra-retrieval"])
def test_no_variant_could_be_told_from_softmax(task):
    headline = BOARDS[f"{task}, preset quick"]["headline"]
    assert "can be told from softmax" in headline and "no variant could be told from\n  softmax" in PAGE


def test_on_text_one_variant_is_worse_by_however_little():
    headline = BOARDS["lra-text, preset quick"]["headline"]
    assert headline.startswith("Worse than softmax, perhaps by less than 1 point: fastformer. Undecided: ")
    assert "on text only `fastformer`, which is worse" in PAGE


@pytest.mark.parametrize("task", ["lra-image", "lra-text"])
def test_no_gain_of_attention_is_shown(task):
    notes = BOARDS[f"{task}, preset quick"]["footnotes"]
    assert any("no gain of attention is shown" in str(note) for note in notes)


@pytest.mark.parametrize("task", ["lra-listops", "lra-retrieval"])
def test_a_rule_beats_every_variant(task):
    board = BOARDS[f"{task}, preset quick"]
    assert max(accuracies(board["baselines"]).values()) > max(accuracies(board["ranked"]).values())


def test_softmax_learned_neither_pathfinder_nor_retrieval():
    assert BOARDS["suite lra, preset quick"]["headline"].startswith(
        "softmax did not learn lra-pathfinder and lra-retrieval"
    )
