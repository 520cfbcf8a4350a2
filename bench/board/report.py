"""Report: a Board, the data of its figures and the Records behind it: all that a page shows of one board.

Each class of data is a row of a figure's table; `dashboards/figures.py` and `dashboards/simplex.py` draw them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from .board import Board


@dataclass(frozen=True, slots=True, kw_only=True)
class ParetoPoint:
    """A variant between quality (in points, with its interval) and cost (× reference with its interval)."""

    variant: str
    quality: float
    quality_low: float
    quality_high: float
    cost: float
    cost_low: float
    cost_high: float
    on_frontier: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadValue:
    """Mean over seeds of one quantity in one head; `layer` names the kind of attention too, where there are several."""

    variant: str
    quantity: str
    layer: str
    head: int
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Alpha:
    """The learned alpha of one head at one seed; `layer` as in `HeadValue`."""

    variant: str
    layer: str
    head: int
    seed: int
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """Mean over seeds at one training step, with the lowest and the highest seed, of `quantity`: quality or loss."""

    variant: str
    quantity: Literal["quality", "loss"]
    step: int
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NullControl:
    """The reference against itself, in one block."""

    block: str
    ratio: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthPoint:
    """Time and ratio of one variant at one length; `pays`: whether it beats the reference from here on."""

    variant: str
    length: int
    seconds: float
    ratio: float
    low: float
    high: float
    pays: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingPoint:
    """Test result of one variant at one value of an axis of settings: mean over seeds, lowest and highest.

    `rate`: its learning rate, empty where the preset has one for all. `chosen`: whether it is the variant's own; at
    other rates of the grid there are trials alone, at seeds that no board uses.
    """

    variant: str
    at: float
    value: float
    low: float
    high: float
    rate: str = ""
    chosen: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedLength:
    """The longest sequences of training."""

    length: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingCurves:
    """Results along one axis of settings. `title`: of the axis, with what is fixed. `quantity`: quality or weight."""

    axis: str
    title: str
    quantity: Literal["quality", "weight"]
    points: tuple[SettingPoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteScore:
    """Mean test result of one variant on one task of a suite, in points; `text`: as the board shows it."""

    variant: str
    task: str
    value: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionMap:
    """Attention maps of one trained model on one example, queries down and keys across.

    `shades`: base64 of one byte a cell, by layer, head, query, key; 255 is that map's own maximum, which `tops` gives.
    """

    variant: str
    layers: int
    heads: int
    rows: int
    keys: int
    tops: tuple[float, ...]
    shades: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSummary:
    """One Record as a reader checks it. `numbers`: the values over the whole model, with their units."""

    key: str
    variant: str
    lane: str
    seed: int
    outcome: str
    reason: str
    machine: str
    started: str
    seconds: float
    digest: str
    numbers: tuple[str, ...]
    implementation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """`commands`: the command that measures each variant again. `machines`: in words, by id.

    `quality`: the metric of the Pareto points and curves, with its unit; `better`: its good direction.
    `maps_left_out`: how many attention maps the page has no room for. `group`: what an overview lists it under, such
    as its suite. `newest`: when its newest Record was begun, in ISO form. `stale`: how many Records are of another
    version than the present one, in words, empty for none.
    """

    name: str
    board: Board
    quality: str = "accuracy, %"
    better: Literal["higher", "lower"] = "higher"
    pareto: tuple[ParetoPoint, ...] = ()
    heads: tuple[HeadValue, ...] = ()
    alphas: tuple[Alpha, ...] = ()
    curves: tuple[CurvePoint, ...] = ()
    nulls: tuple[NullControl, ...] = ()
    lengths: tuple[LengthPoint, ...] = ()
    settings: tuple[SettingCurves, ...] = ()
    trained: tuple[TrainedLength, ...] = ()
    suite_scores: tuple[SuiteScore, ...] = ()
    maps: tuple[AttentionMap, ...] = ()
    maps_left_out: int = 0
    records: tuple[RecordSummary, ...] = ()
    commands: Mapping[str, str]
    machines: Mapping[str, str]
    group: str = ""
    newest: str = ""
    stale: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardSummary:
    """One board of an overview. `report`: name of its Report. `leaders`: to whom the data leave a first place.

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
    """Boards under one heading of an overview, such as a suite with its tasks."""

    title: str
    boards: tuple[BoardSummary, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLengthPoint:
    """Mean test result of one variant at one length of one task, with the lowest and the highest seed.

    `trained`: the longest sequences of training, None where that is not known.
    """

    task: str
    variant: str
    at: float
    value: float
    low: float
    high: float
    trained: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskParetoPoint(ParetoPoint):
    """A variant between quality and cost on one board; `task`: with its metric, `name`: empty off the frontier."""

    task: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """What a page opens with: all boards with who leads each, and two pictures of all tasks.

    `lead`: what there is, in one or two sentences. `quality`: the metric of `by_length`, with its unit.
    `left_out`: what the pictures leave out, in words; empty for nothing.
    """

    lead: str
    groups: tuple[SummaryGroup, ...]
    quality: str = ""
    by_length: tuple[TaskLengthPoint, ...] = ()
    pareto: tuple[TaskParetoPoint, ...] = ()
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SimplexPoint:
    """Weights of three choices on the simplex: choice 1 is the left corner, 2 the right, 3 the top.

    `total`: what the weights sum to; where it is not one they are drawn as shares of it. `start`: number of the scores.
    """

    variant: str
    start: int
    temperature: float
    x: float
    y: float
    first: float
    second: float
    third: float
    total: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoChoiceWeight:
    """Weight of the first of two choices whose score is ahead by `lead`."""

    variant: str
    lead: float
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ContourSegment:
    """A segment of a contour line of Tsallis' entropy, on the simplex."""

    alpha: float
    level: float
    x: float
    y: float
    x2: float
    y2: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SurfacePoint:
    """A point of one line of the entropy surface, in projection: `line` numbers the lines, `at` their points."""

    alpha: float
    line: int
    at: int
    x: float
    y: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SimplexFigure:
    """The data of `attnbench explain simplex`. `null_rows`: by variant, how many random scores got no weight at all."""

    trajectories: tuple[SimplexPoint, ...]
    random: tuple[SimplexPoint, ...]
    choices: tuple[TwoChoiceWeight, ...]
    contours: tuple[ContourSegment, ...]
    surface: tuple[SurfacePoint, ...]
    null_rows: dict[str, int]
