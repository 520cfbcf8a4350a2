"""Exhibit: a Board with what its figures draw and the Records behind it; all that a page shows of one question."""

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
class CurveSpot:
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
class LengthSpot:
    """Time and ratio of one variant at one length; `pays`: whether it beats the reference from here on."""

    variant: str
    length: int
    seconds: float
    ratio: float
    low: float
    high: float
    pays: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
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
    """`commands`: how to make each row. `machines`: in words, by id. `panels_left_out`: for want of room.

    `quality`: what spots and curves are judged by, with its unit; `better`: which way that is good.
    """

    name: str
    board: Board
    quality: str = "accuracy, %"
    better: Literal["higher", "lower"] = "higher"
    spots: tuple[ParetoPoint, ...] = ()
    heads: tuple[HeadValue, ...] = ()
    alphas: tuple[Alpha, ...] = ()
    curves: tuple[CurveSpot, ...] = ()
    nulls: tuple[NullControl, ...] = ()
    lengths: tuple[LengthSpot, ...] = ()
    panels: tuple[Panel, ...] = ()
    panels_left_out: int = 0
    sources: tuple[RecordSummary, ...] = ()
    commands: Mapping[str, str]
    machines: Mapping[str, str]
