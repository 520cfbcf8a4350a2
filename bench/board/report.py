"""Report: a Board, the rows of its figures and the Records behind it: all that a page shows of one board.

`COLUMNS` lists the columns of each table of rows; `dashboards/figures.py` and `dashboards/simplex.py` draw the rows as
they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .board import Board

COST_MAP = "Cost over lengths and settings"
"""The group of maps of costs, which stand for the boards of cost alone."""

FigureRow = dict[str, Any]
"""A row of a table: a value by column."""

FigureRows = tuple[FigureRow, ...]

COLUMNS: Mapping[str, tuple[str, ...]] = {
    # a variant between quality (in points) and cost (× reference), each with its interval; `name`: empty off the
    # frontier, and where it would lie over another name or a point
    "pareto": (
        "variant", "quality", "quality_low", "quality_high", "cost", "cost_low", "cost_high", "on_frontier", "name",
    ),
    # mean over seeds of one quantity in one head; `layer` names the kind of attention too, where there are several
    "heads": ("variant", "quantity", "layer", "head", "value"),
    # the learned alpha of one head at one seed
    "alphas": ("variant", "layer", "head", "seed", "value"),
    # mean at one training step over the seeds that learned (all where none did), with the lowest and the highest of
    # them, of `quantity`: quality or loss
    "curves": ("variant", "quantity", "step", "value", "low", "high"),
    # the reference against itself, in one block
    "nulls": ("block", "ratio", "low", "high"),
    # time and ratio at one length; `pays`: whether the variant beats the reference from here on
    "lengths": ("variant", "length", "seconds", "ratio", "low", "high", "pays"),
    # test result at one value of an axis of settings: mean over seeds, lowest and highest. `rate`: learning rate, empty
    # where the preset has one for all; `chosen`: whether it is the variant's own, and not that of trials alone
    "settings": ("variant", "at", "value", "low", "high", "rate", "chosen"),
    # the longest sequences of training
    "trained": ("length",),
    # mean test result on one task of a suite, in points; `text`: as the board shows it
    "suite_scores": ("variant", "task", "value", "text"),
    # maps of one trained model on one example, queries down and keys across. `shades`: base64 of one byte a cell, by
    # layer, head, query, key; 255 is that map's own maximum, which `tops` gives
    "maps": ("variant", "layers", "heads", "rows", "keys", "tops", "shades"),
    # one Record as a reader checks it; `numbers`: the values over the whole model, with their units
    "records": (
        "key", "variant", "lane", "seed", "outcome", "reason", "machine", "started", "seconds", "digest", "numbers",
        "implementation",
    ),
    # of an overview: mean test result at one length of one task; `trained`: the longest sequences of training, or None;
    # `name`, at `name_at`: the name at the end of a line
    "by_length": ("task", "variant", "at", "value", "low", "high", "trained", "name", "name_at"),
    # of an overview: `pareto` with the task and its metric
    "task_pareto": (
        "task", "variant", "quality", "quality_low", "quality_high", "cost", "cost_low", "cost_high", "on_frontier",
        "name",
    ),
    # weights of three choices: 1 is the left corner, 2 the right, 3 the top. `total`: their sum; where it is not one
    # they are drawn as shares of it. `start`: number of the scores
    "simplex": ("variant", "start", "temperature", "x", "y", "first", "second", "third", "total"),
    # weight of the first of two choices whose score is ahead by `lead`
    "choices": ("variant", "lead", "weight"),
    # a segment of a line of equal Tsallis entropy on the simplex
    "contours": ("alpha", "level", "x", "y", "x2", "y2"),
    # a point of one line of the entropy surface, in projection
    "surface": ("alpha", "line", "at", "x", "y"),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingCurves:
    """Results along one axis of settings. `title`: of the axis, with what is fixed. `quantity`: quality or weight."""

    axis: str
    title: str
    quantity: Literal["quality", "weight"]
    points: FigureRows


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """`commands`: the command that measures each variant again. `machines`: in words, by id.

    `quality`: the metric of the Pareto points and curves, with its unit; `better`: its good direction.
    `maps_left_out`: how many attention maps the page has no room for. `group`: what an overview lists it under, such
    as its suite. `newest`: when its newest Record was begun, in ISO form. `stale`: how many Records are of another
    version than the present one, in words, empty for none. `timed`: part of a model, and machine, of a sweep.
    """

    name: str
    board: Board
    quality: str = "accuracy, %"
    better: Literal["higher", "lower"] = "higher"
    pareto: FigureRows = ()
    heads: FigureRows = ()
    alphas: FigureRows = ()
    curves: FigureRows = ()
    nulls: FigureRows = ()
    lengths: FigureRows = ()
    settings: tuple[SettingCurves, ...] = ()
    trained: FigureRows = ()
    suite_scores: FigureRows = ()
    maps: FigureRows = ()
    maps_left_out: int = 0
    records: FigureRows = ()
    commands: Mapping[str, str]
    machines: Mapping[str, str]
    group: str = ""
    newest: str = ""
    stale: str = ""
    timed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardSummary:
    """One board of an overview. `report`: name of its Report. `leaders`: to whom the data leave a first place, without
    those shown worse than softmax.

    `place`: their ranks, such as `rank 1–3`. `result`: the score of the leaders with its unit, or from the lowest to
    the highest of them; `reference`: that of softmax. `newest`: day of its newest Record. `state`: `new` where that is
    the newest day of all, `stale` and why where Records are of another version; else empty. `data`: words for data
    that a board warns of, such as `data: surrogate`; else empty. `is_average`: whether it is the average over
    the tasks of a suite.
    """

    report: str
    title: str
    leaders: str
    place: str
    result: str
    reference: str
    headline: str
    newest: str
    state: str
    data: str
    is_average: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryGroup:
    """Boards under one heading of an overview, such as a suite with its tasks; `folded`: shown once it is opened."""

    title: str
    boards: tuple[BoardSummary, ...]
    folded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ability:
    """A column of the first table: a task, or a cost. `report`: name of its Report. `unit`: what its numbers are."""

    title: str
    report: str
    unit: str
    is_cost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AbilityCell:
    """`verdict`: against softmax, `better` or `worse` where the interval shows it, else empty. `hint`: all of it."""

    text: str
    verdict: Literal["better", "worse", ""] = ""
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AbilityTable:
    """The first answer of a page: variant × ability. `rows`: a variant with a cell for each of `columns`, or None."""

    columns: tuple[Ability, ...]
    rows: tuple[tuple[str, tuple[AbilityCell | None, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The opening of a page: who is good at what, all boards with who leads each, and two pictures of all tasks.

    `lead`: what there is, in one or two sentences. `answer`: None where no board tells anything. `quality`: the metric
    of `by_length`, with its unit. `left_out`: what either picture leaves out, in words; empty for nothing.
    """

    lead: str
    answer: AbilityTable | None = None
    groups: tuple[SummaryGroup, ...]
    quality: str = ""
    by_length: FigureRows = ()
    pareto: FigureRows = ()
    left_out: tuple[str, str] = ("", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimplexFigure:
    """The data of `attnbench explain simplex`. `null_rows`: by variant, how many random scores got no weight at all."""

    trajectories: FigureRows
    random: FigureRows
    choices: FigureRows
    contours: FigureRows
    surface: FigureRows
    null_rows: dict[str, int]
