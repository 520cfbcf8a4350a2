"""Attentions: what each kind of attention in a translation model does, and how well it aligns words, as tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ...tasks.problems.translation import KINDS
from ..core.cell import REFERENCE
from ..core.record import Outcome
from ..score.key import Question
from ..stats import format as wording
from ..store.rows import Run, newest
from ..store.table import Frame
from .board import Board, Column, Entry, Footnote, Row

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


def boards_of_attentions(frame: Frame, question: Question) -> list[Board]:
    """By kind of attention, and by alignment; each is left out where no Record has such figures."""
    runs = [run for run in newest(question.runs(frame, "train"), "key") if run.outcome == Outcome.OK]
    fixed = [run for run in newest(question.runs(frame, "baseline"), "variant") if run.outcome == Outcome.OK]
    grouped: dict[str, list[Run]] = {}
    for run in [*sorted(runs, key=lambda run: run.variant), *fixed]:
        grouped.setdefault(run.variant, []).append(run)
    return [
        board for board in (_by_kind(frame, question, grouped), _aligning(frame, question, grouped)) if board.unranked
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


def _by_kind(frame: Frame, question: Question, grouped: dict[str, list[Run]]) -> Board:
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
                _mean(frame, runs, name, words, attention=kind, **where) for name, _, _, words, where in _FIGURES
            ]
            if any(entry.text for entry in entries):
                rows.append(Row(name=variant, entries=(Entry(text=kind), *entries)))
    return _board(question, "attention", "What attention does, by kind", columns, rows)


def _aligning(frame: Frame, question: Question, grouped: dict[str, list[Run]]) -> Board:
    columns = tuple(
        Column(name=f"{'shifted_' if shift else ''}{how.replace(' ', '_')}", better="lower", importance=2 * shift + at,
               title=f"{how}{', shifted' if shift else ''}",
               description=f"lowest AER of {'any head' if how == 'best head' else 'the averaged heads of any layer'}")
        for shift in (False, True) for at, how in enumerate(_HOWS)
    )  # fmt: skip
    rows = []
    for variant, runs in grouped.items():
        entries = [_error(frame, runs, how, shift) for shift in (False, True) for how in _HOWS]
        if any(entry.text for entry in entries):
            rows.append(Row(name=variant, entries=tuple(entries)))
    scale = frame.values(AER, [run.at for runs in grouped.values() for run in runs], how="diagonal")
    if rows and scale:
        rows.append(Row(name="diagonal", entries=(Entry(text=f"{scale[-1]:.3f}", value=scale[-1]), *(Entry(),) * 3)))
    return _board(question, "alignment", "Alignment error rate of cross attention", columns, rows)


def lowest_error(frame: Frame, rows: Sequence[int]) -> float | None:
    """The lowest AER of any head, normal or shifted, as the mean over Records; None where none was measured."""
    found = []
    for at in rows:
        both = [frame.number(AER, at, how="best head", shift=shift) for shift in (False, True)]
        values = [m.value for m in both if m is not None and math.isfinite(m.value)]
        if values:
            found.append(min(values))
    return math.fsum(found) / len(found) if found else None


def _mean(frame: Frame, runs: Sequence[Run], name: str, words: Callable[[float], str], **where: Any) -> Entry:
    found = frame.values(name, [run.at for run in runs], **where)
    if not found:
        return Entry()
    mean = math.fsum(found) / len(found)
    return Entry(text=words(mean), value=mean, low=min(found), high=max(found))


def _error(frame: Frame, runs: Sequence[Run], how: str, shift: bool) -> Entry:
    entry = _mean(frame, runs, AER, "{:.3f}".format, how=how, shift=shift)
    if not entry.text or len(runs) > 1:
        return entry
    measured = frame.number(AER, runs[0].at, how=how, shift=shift)
    place = measured.where if measured else {}
    of = f"layer {place.get('of_layer')}" + (f", head {place['of_head']}" if "of_head" in place else "")
    return Entry(text=f"{entry.text} ({of})", brief=entry.text, value=entry.value, low=entry.low, high=entry.high)


def _board(question: Question, name: str, title: str, columns: tuple[Column, ...], rows: list[Row]) -> Board:
    return Board(
        name=f"{question.name}/{name}", title=title, question="", columns=columns, ranked=(), unranked=tuple(rows)
    )
