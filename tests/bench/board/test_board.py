"""A Board as a DataFrame, and columns that are one entry of a list."""

import math
from dataclasses import replace

import pandas as pd
import pytest

from attnbench.bench.board.board import Board, Column, Note, Row, TableCell
from attnbench.bench.board.cells import EMPTY, cells_of, finished, plain_columns

SMALL = TableCell(text="small", value=1.0)
SCORES = {"rela": 70.0, "softmax": 60.0, "topk": 0.0, "majority": 50.0}


def score(name: str) -> TableCell:
    value = SCORES[name]
    return TableCell(text=f"{value:.1f}", value=value, low=value - 1, high=value + 1) if value else EMPTY


COLUMNS = [
    (Column(name="score", title="accuracy", unit="%", better="higher"), score),
    (Column(name="size", title="size", note="sizes are rounded", mark="†"),
     lambda name: TableCell(text="big", value=SCORES[name], note="†") if SCORES[name] > 60 else SMALL),
    (Column(name="verdict", title="verdict"), lambda name: TableCell(text="better" if SCORES[name] > 60 else "")),
    (Column(name="empty", title="empty", note="never shown"), lambda name: EMPTY),
]  # fmt: skip


def board() -> Board:
    def row(name: str, **changes: object) -> Row:
        return Row(name=name, entries=cells_of(COLUMNS, name), **changes)

    made = Board(
        name="b", title="b", question="", columns=plain_columns(COLUMNS, ["score", "size"]),
        ranked=(row("rela", first=1, last=1, group=1), row("softmax", first=2, last=3, group=2)),
        unranked=(row("topk", reason="crashed at seed 0"),), baselines=(row("majority"),),
    )  # fmt: skip
    return finished(made)


def test_a_data_frame_has_one_row_per_variant_with_values_and_intervals() -> None:
    frame = board().to_pandas()
    assert list(frame.columns) == [
        "variant", "kind", "rank", "rank_first", "rank_last", "reason", "score", "score_low", "score_high", "size",
        "verdict",
    ]  # fmt: skip
    assert frame["variant"].tolist() == ["rela", "softmax", "topk", "majority"]
    assert frame["kind"].tolist() == ["ranked", "ranked", "unranked", "baseline"]
    assert frame["rank"].tolist() == ["1", "2–3", "", ""] and frame["reason"].tolist()[2] == "crashed at seed 0"
    assert frame["rank_last"].tolist()[:2] == [1, 3] and frame["rank_last"].isna().tolist() == [
        False,
        False,
        True,
        True,
    ]
    assert frame["score"].dtype == frame["score_low"].dtype == "float64"
    assert frame.loc[0, ["score", "score_low", "score_high"]].tolist() == [70.0, 69.0, 71.0]
    assert math.isnan(frame.loc[2, "score"])
    assert frame["verdict"].tolist() == ["better", "", "", ""]


def test_a_data_frame_of_texts_has_them_as_shown() -> None:
    frame = board().to_pandas(text=True)
    assert "score_low" not in frame.columns and frame["score"].tolist() == ["70.0", "60.0", "", "50.0"]
    assert frame["size"].tolist() == ["big †", "small", "small", "small"]


def test_a_board_without_rows_is_an_empty_data_frame() -> None:
    frame = Board(name="b", title="b", question="", columns=plain_columns(COLUMNS), ranked=()).to_pandas()
    assert isinstance(frame, pd.DataFrame) and len(frame) == 0 and "score" in frame.columns


def test_a_finished_board_has_no_empty_column_and_the_notes_that_its_marks_need() -> None:
    found = board()
    assert [(column.name, column.shown) for column in found.columns] == [
        ("score", True), ("size", True), ("verdict", False),
    ]  # fmt: skip
    assert found.cell(found.ranked[0], "verdict").text == "better" and found.cell(found.ranked[0], "empty") == EMPTY
    (note,) = found.notes
    assert (note.topic, note.text, note.kind, note.column) == ("size", "sizes are rounded", "method", "size")
    unmarked = finished(replace(found, ranked=found.ranked[1:], notes=()))
    assert unmarked.notes == () and [column.name for column in unmarked.columns] == ["score", "size"]


@pytest.mark.parametrize(
    ("form", "shown"), [("full", "1.00× faster (0.99–1.01) ≈"), ("brief", "1.00× faster ≈"), ("bare", "1× ≈")]
)
def test_a_cell_is_shown_with_its_mark(form: str, shown: str) -> None:
    cell = TableCell(text="1.00× faster (0.99–1.01)", brief="1.00× faster", bare="1×", note="≈")
    assert cell.shown(form) == shown


@pytest.mark.parametrize("form", ["full", "brief", "bare"])
def test_a_form_that_a_cell_lacks_is_the_next_longer_one(form: str) -> None:
    assert TableCell(text="88 %").shown(form) == "88 %"
    assert TableCell(text="crashed", note="out of disk").shown(form) == "crashed"
    assert TableCell(text="88.0 %", brief="88 %").shown(form) == ("88.0 %" if form == "full" else "88 %")


def test_notes_stand_in_order_of_priority_and_at_most_six_are_shown() -> None:
    made = [Note(topic=str(at), text="t", priority=at % 4, kind="method" if at == 4 else "fact") for at in range(12)]
    found = Board(name="b", title="b", question="", columns=(), ranked=(), notes=tuple(made))
    assert [int(note.topic) for note in found.notes] == [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]
    # how a number was made is told on request
    assert [int(note.topic) for note in found.shown_notes] == [0, 8, 1, 5, 9, 2]


def test_a_board_shows_eight_columns_at_most_and_none_that_is_empty() -> None:
    columns = [Column(name=str(at), title="c", importance=at % 5, shown=at != 5) for at in range(14)]
    entries = tuple(TableCell(text="" if at == 1 else "x") for at in range(14))
    found = Board(name="b", title="b", question="", columns=tuple(columns), ranked=(Row(name="r", entries=entries),))
    assert found.shown_columns == (0, 2, 3, 6, 7, 10, 11, 12)
    assert not {1, 5} & set(found.shown_columns)


def test_a_reason_that_several_rows_share_stands_once() -> None:
    rows = tuple(Row(name=n, entries=(), reason=r) for n, r in (("a", "not run"), ("b", "crashed"), ("c", "not run")))
    found = Board(name="b", title="b", question="", columns=(), ranked=(), unranked=rows)
    assert found.reasons == (("not run", ("a", "c")), ("crashed", ("b",)))
