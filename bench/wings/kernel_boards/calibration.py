"""Calibration table: what known kernels reached beside timed ones, and what others published of them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from statistics import median
from typing import NamedTuple

from ...board.board import Board, Column, Row, TableCell
from ...board.cells import EMPTY, number_cell
from ...core.files import PACKAGE
from ...score.key import BoardKey
from ...stats.format import percent
from ...store.table import ResultTable
from .shapes import rates

PUBLISHED = PACKAGE / "tasks" / "published" / "kernels.toml"
AXES = ("dtype", "kernel", "head_dim", "length", "causal")
Point = tuple[str, ...]

LEAST_SHARE = 0.85
JUDGED = ("flash", "cudnn")
"""A card that reaches less than this share of what was published of one of these is slow, or not alone."""

HEADS = (
    ("cooled", "TFLOP/s", "samples after pauses: median, lowest and highest process"),
    ("sustained", "TFLOP/s", "back to back, after a sixth of a second of the same"),
    ("of product", "fraction", "over the product of that precision"),
    ("published", "TFLOP/s", "by others on such a card; S: read there, C: in transcriptions of it, 1: in one"),
    ("of published", "fraction", "of the slowest process"),
)


class Figure(NamedTuple):
    """A published rate in TFLOP/s, with its grade of evidence and where it stands."""

    rate: float
    grade: str
    source: str


@lru_cache(maxsize=1)
def figures() -> tuple[tuple[str, ...], Mapping[Point, Figure]]:
    """The cards that published rates hold for, and each rate."""
    read = tomllib.loads(PUBLISHED.read_text(encoding="utf-8"))
    return tuple(read["cards"]), {
        tuple(str((one | {"kernel": kernel})[axis]) for axis in AXES): Figure(rate, one["grade"], one["source"])
        for one in read["figures"]
        for kernel, rate in one["kernels"].items()
    }


def calibrated(table: ResultTable, machine: str, keys: Sequence[BoardKey]) -> tuple[Board, str, str]:
    """The table, its answer in a sentence, and why the machine is slow by its slowest process: else empty."""
    cooled, sustained = _by_point(table, keys, "cooled"), _by_point(table, keys, "sustained")
    cards, published = figures()
    card = next(iter(table.machines[machine].accelerators), "")
    shares = {at: min(found) / published[at].rate for at, found in cooled.items() if at in published and card in cards}

    def cells(at: Point) -> tuple[TableCell, ...]:
        low, middle, high = min(cooled[at]), median(cooled[at]), max(cooled[at])
        product = next((median(found) for point, found in cooled.items() if point[:2] == (at[0], "product")), None)
        figure, middles = published.get(at), f"{middle:.0f}"
        return (
            TableCell(text=f"{middles} ({low:.0f}–{high:.0f})", bare=middles, value=middle, low=low, high=high),
            number_cell(median(sustained[at]) if at in sustained else None, "{:.0f}".format),
            number_cell(middle / product if product else None, percent),
            EMPTY if figure is None else number_cell(figure.rate, f"{{:.0f}} [{figure.grade}]".format, figure.source),
            number_cell(shares.get(at), percent),
        )

    columns = [
        Column(name=title.replace(" ", "_"), title=title, unit=unit, better="higher", description=text)
        for title, unit, text in HEADS
    ]
    rows = [Row(name=_name(at), entries=cells(at)) for at in sorted(cooled)]
    title = "calibration: nominal rates of known kernels in the same processes"
    board = Board(name="calibration", title=title, question="", columns=tuple(columns), ranked=(), unranked=tuple(rows))
    judged = {f"{at[1]} of width {at[2]} at {at[3]}": share for at, share in shares.items() if at[1] in JUDGED}
    if not judged:
        return board, f"No published rate was timed on {card or 'this machine'}: nothing vouches for its speed.", ""
    slowest = min(judged, key=judged.__getitem__)
    slow = f"this machine is slow: {slowest} tokens reached {percent(judged[slowest])} of the published rate"
    told = ", ".join(f"{percent(share)} for {name}" for name, share in judged.items())
    return board, f"Of published rates: {told} tokens.", slow if judged[slowest] < LEAST_SHARE else ""


def _by_point(table: ResultTable, keys: Sequence[BoardKey], pace: str) -> dict[Point, list[float]]:
    """TFLOP/s of each kernel and shape, one a process."""
    found: dict[Point, list[float]] = {}
    for measured in rates(table, keys, pace):
        found.setdefault(tuple(str(measured.where.get(axis))[:40] for axis in AXES), []).append(measured.value / 1e12)
    return found


def _name(at: Point) -> str:
    dtype, kernel, width, length, causal = at
    if kernel == "product":
        return f"product, {dtype}"
    return f"{kernel}, width {width}, {length} tokens, {'causal' if causal == 'True' else 'full'}, {dtype}"
