"""Attentions: what each kind of attention in a translation model does, and how well it aligns words, as tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ...tasks.problems.translation import KINDS
from ..core.cell import REFERENCE
from ..core.record import Outcome
from ..score.key import BoardKey
from ..stats import format as wording
from ..store.rows import ResultRow, newest
from ..store.table import ResultTable
from .board import Board, Column, Footnote, Row, TableCell

_FIGURES: tuple[tuple[str, str, str, Callable[[float], str], dict[str, Any]], ...] = (
    ("sparsity", "zeros", "share of allowed weights that are exactly zero", wording.percent, {}),
    ("block_sparsity", "zero 16 × 16", "share of 16 × 16 blocks without any positive weight", wording.percent,
     {"block": 16}),
    ("null_rate", "null", "share of queries that attend to nothing", wording.percent, {}),
    ("entropy", "entropy", "entropy of the weights; 1 is uniform", "{:.2f}".format, {}),
    ("head_diversity", "head diversity", "how far the heads of a layer look apart, in nats; 0 is alike",
     "{:.3f}".format, {}),
)  # fmt: skip

_HOWS = ("best head", "averaged weights")

AER = "alignment_error_rate"


def boards_of_attentions(table: ResultTable, board_key: BoardKey) -> list[Board]:
    """By kind of attention, and by alignment; each is left out where no Record has such figures."""
    runs = [run for run in newest(board_key.runs(table, "train"), "key") if run.outcome == Outcome.OK]
    fixed = [run for run in newest(board_key.runs(table, "baseline"), "variant") if run.outcome == Outcome.OK]
    grouped: dict[str, list[ResultRow]] = {}
    for run in [*sorted(runs, key=lambda run: run.variant), *fixed]:
        grouped.setdefault(run.variant, []).append(run)
    return [
        board for board in (_by_kind(table, board_key, grouped), _aligning(table, board_key, grouped)) if board.unranked
    ]


def footnotes_of_attentions(boards: Sequence[Board]) -> Iterator[Footnote]:
    """What a reader of these boards must know."""
    if any(column.name == "attention" for board in boards for column in board.columns):
        yield Footnote(
            topic="attention",
            text="means over layers and heads on test pairs with the target given; diversity is the generalised "
            "Jensen-Shannon divergence between the heads of a layer, over queries that two heads or more answer; where "
            f"the task names only some kinds (`where`), the others are {REFERENCE}'s",
        )
    if any(column.name == "best_head" for board in boards for column in board.columns):
        yield Footnote(
            topic="AER",
            text="alignment error rate of cross attention with the target given; the best head is chosen on the "
            "sentences that it is shown for; shifted: by the step whose input, not output, is the word; diagonal: "
            "links at the same share of both sentences, what an aligner must beat; layers and heads are counted from "
            "0, in published tables from 1",
        )


def _by_kind(table: ResultTable, board_key: BoardKey, grouped: dict[str, list[ResultRow]]) -> Board:
    columns = (
        Column(name="attention", title="attention", importance=0, description="where in the model"),
        *(
            Column(name=name, title=title, importance=at + 1, description=description)
            for at, (name, title, description, _, _) in enumerate(_FIGURES)
        ),
    )
    rows = []
    for variant, runs in grouped.items():
        for kind in KINDS:
            entries = [
                _mean(table, runs, name, words, attention=kind, **where) for name, _, _, words, where in _FIGURES
            ]
            if any(entry.text for entry in entries):
                rows.append(Row(name=variant, entries=(TableCell(text=kind), *entries)))
    return _board(board_key, "attention", "What attention does, by kind", columns, rows)


def _aligning(table: ResultTable, board_key: BoardKey, grouped: dict[str, list[ResultRow]]) -> Board:
    columns = tuple(
        Column(name=f"{'shifted_' if shift else ''}{how.replace(' ', '_')}", better="lower", importance=2 * shift + at,
               title=f"{how}{', shifted' if shift else ''}",
               description=f"lowest AER of {'any head' if how == 'best head' else 'the averaged heads of any layer'}")
        for shift in (False, True) for at, how in enumerate(_HOWS)
    )  # fmt: skip
    rows = []
    for variant, runs in grouped.items():
        entries = [_error(table, runs, how, shift) for shift in (False, True) for how in _HOWS]
        if any(entry.text for entry in entries):
            rows.append(Row(name=variant, entries=tuple(entries)))
    scale = table.values(AER, [run.at for runs in grouped.values() for run in runs], how="diagonal")
    if rows and scale:
        rows.append(
            Row(name="diagonal", entries=(TableCell(text=f"{scale[-1]:.3f}", value=scale[-1]), *(TableCell(),) * 3))
        )
    return _board(board_key, "alignment", "Alignment error rate of cross attention", columns, rows)


def lowest_error(table: ResultTable, rows: Sequence[int]) -> float | None:
    """The lowest AER of any head, normal or shifted, as the mean over Records; None where none was measured."""
    found = []
    for at in rows:
        both = [table.number(AER, at, how="best head", shift=shift) for shift in (False, True)]
        values = [m.value for m in both if m is not None and math.isfinite(m.value)]
        if values:
            found.append(min(values))
    return math.fsum(found) / len(found) if found else None


def _mean(
    table: ResultTable, runs: Sequence[ResultRow], name: str, words: Callable[[float], str], **where: Any
) -> TableCell:
    found = table.values(name, [run.at for run in runs], **where)
    if not found:
        return TableCell()
    mean = math.fsum(found) / len(found)
    return TableCell(text=words(mean), value=mean, low=min(found), high=max(found))


def _error(table: ResultTable, runs: Sequence[ResultRow], how: str, shift: bool) -> TableCell:
    entry = _mean(table, runs, AER, "{:.3f}".format, how=how, shift=shift)
    if not entry.text or len(runs) > 1:
        return entry
    measured = table.number(AER, runs[0].at, how=how, shift=shift)
    place = measured.where if measured else {}
    of = f"layer {place.get('of_layer')}" + (f", head {place['of_head']}" if "of_head" in place else "")
    return TableCell(text=f"{entry.text} ({of})", brief=entry.text, value=entry.value, low=entry.low, high=entry.high)


def _board(board_key: BoardKey, name: str, title: str, columns: tuple[Column, ...], rows: list[Row]) -> Board:
    return Board(
        name=f"{board_key.name}/{name}", title=title, question="", columns=columns, ranked=(), unranked=tuple(rows)
    )
