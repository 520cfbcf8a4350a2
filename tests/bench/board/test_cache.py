"""Boards that were scored before are shown again only while nothing that they hang on has changed."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from attnbench.bench.board import cache as shelf
from attnbench.bench.board.board import Board, Column, Footnote, Row, TableCell
from attnbench.bench.board.cache import boards_of
from attnbench.bench.store.store import Store

BOARD = Board(
    name="a/b", title="a", question="?",
    columns=(Column(name="x", title="X", better="lower"), Column(name="y", title="Y")),
    ranked=(Row(name="one", first=1, last=2, group=1, records=("k1", "k2"), entries=(
        TableCell(text="1.5", brief="1", value=0.1 + 0.2, low=0.1, high=float("inf"), note="†"), TableCell())),),
    unranked=(Row(name="<two>", reason="timeout", entries=(TableCell(), TableCell(text="–"))),),
    footnotes=(Footnote(topic="t", text="é", warning=True, column="y"),),
    parts=(Board(name="a/b/c", title="c", question="", columns=(Column(name="z", title="Z"),), ranked=(),
                 unranked=(Row(name="one", entries=(TableCell(text="0.1", value=0.1),)),)),),
)  # fmt: skip


class Desk:
    """A folder with one Record's line, and how often its boards were made."""

    def __init__(self, root: Path):
        self.store, self.made, self.told = Store(root, notice=lambda text: self.told.append(text)), 0, []
        self.file = root / "records" / "box.jsonl"
        self.file.parent.mkdir(parents=True)
        self.file.write_text("{}\n")
        os.utime(self.file, (1e9, 1e9))

    def ask(self, asked: object = "all") -> list[Board]:
        def make() -> list[Board]:
            self.made += 1
            self.store.tell("a line was skipped")
            return [BOARD]

        return boards_of(self.store, asked, make)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setattr(shelf, "WORTH", 1)
    return Desk(tmp_path)


def test_the_same_question_is_scored_once_and_answered_alike(desk: Desk) -> None:
    assert desk.ask() == desk.ask() == [BOARD] and desk.made == 1


def test_what_readers_were_told_is_told_again(desk: Desk) -> None:
    desk.ask()
    again: list[str] = []
    boards_of(Store(desk.store.root, notice=again.append), "all", lambda: pytest.fail("made anew"))
    assert again == ["a line was skipped"]


@pytest.mark.parametrize(
    "change",
    [
        lambda desk, _: desk.file.write_text("{} \n"),
        lambda desk, _: (desk.file.parent / "other.jsonl").write_text("{}\n"),
        lambda desk, _: ((desk.store.root / "artifacts").mkdir(), (desk.store.root / "artifacts" / "a").touch()),
        lambda desk, monkeypatch: monkeypatch.setattr(shelf, "_code", lambda: "newer"),
        lambda desk, _: next((desk.store.root / "cache").iterdir()).write_text("{"),
        lambda desk, _: next((desk.store.root / "cache").iterdir()).write_text(json.dumps([])),
    ],
    ids=["records", "another machine", "artifacts", "code", "torn", "foreign"],
)
def test_any_change_makes_them_anew(
    desk: Desk, change: Callable[[Desk, pytest.MonkeyPatch], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.ask()
    change(desk, monkeypatch)
    assert desk.ask() == [BOARD] and desk.made == 2


def test_another_question_is_another_answer(desk: Desk) -> None:
    desk.ask("all")
    desk.ask("some")
    desk.ask("all")
    assert desk.made == 2


def test_what_changes_while_it_is_scored_is_not_kept(desk: Desk) -> None:
    def make() -> list[Board]:
        desk.file.write_text("{}\n{}\n")
        return [BOARD]

    boards_of(desk.store, "all", make)
    assert not (desk.store.root / "cache").exists()


def test_what_changed_a_moment_ago_is_not_kept(desk: Desk) -> None:
    os.utime(desk.file)
    desk.ask()
    assert not (desk.store.root / "cache").exists()


def test_few_records_are_scored_every_time(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.ask()
    desk.ask()
    assert desk.made == 2 and not (tmp_path / "cache").exists()
