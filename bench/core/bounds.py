"""Bounds: the types that fields from outside may have, so narrow that whatever reads them later need not ask again.

They are generous beside what any run writes. A line that breaks one is named and left out; see `core/decode.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

MOST_LINE_BYTES = 16 * 2**20
"""Of one Record, event or curve: longer text is not even parsed."""

MOST_SPEC_CHARACTERS = 1000

MOST_MAGNITUDE = 1e100
"""Of a measured number that is finite: sums of squares must not overflow."""

_EXACT = 2**53  # beyond it a float no longer tells two whole numbers apart

Name = Annotated[str, Meta(max_length=500)]
Text = Annotated[str, Meta(max_length=100_000)]
Whole = Annotated[int, Meta(ge=-_EXACT, le=_EXACT)]
Count = Annotated[int, Meta(ge=0, le=_EXACT)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Index = Annotated[int, Meta(ge=0, le=9_999)]
"""Of a layer or a head: tables and pictures are made with a place for each."""

Rate = Annotated[float, Meta(gt=0, le=MOST_MAGNITUDE)]
"""Operations or bytes a second."""

Seconds = Annotated[float, Meta(ge=0, le=2**40)]

Points = Annotated[float, Meta(ge=0, le=1e6)]
"""What a board multiplies a score by, and the margin that it allows."""

MachineId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,120}\Z")]
"""Part of a file's name."""

Names = Annotated[tuple[Name, ...], Meta(max_length=1000)]
Texts = Annotated[tuple[Text, ...], Meta(max_length=1000)]
NameByName = Annotated[dict[Name, Name], Meta(max_length=100_000)]
TextByName = Annotated[dict[Name, Text], Meta(max_length=1000)]
CountByName = Annotated[dict[Name, Count], Meta(max_length=100_000)]
Samples = Annotated[tuple[float, ...], Meta(max_length=1_000_000)]

if TYPE_CHECKING:
    Open = dict[str, Any]
else:
    _Scalar = Text | Whole | float | bool | None
    Open = Annotated[dict[Name, _Scalar | Annotated[list[_Scalar], Meta(max_length=10_000)]], Meta(max_length=1000)]
"""Keys that tasks and lanes choose, with scalars or lists of them; those that readers know are typed below."""


Rates = Annotated[list[float], Meta(max_length=1000)]


class WhereKeys(Struct, frozen=True):
    """The keys of a measurement's `where` that boards and pages read."""

    split: Name | UnsetType = UNSET
    set: Name | UnsetType = UNSET
    attention: Name | UnsetType = UNSET
    how: Name | UnsetType = UNSET
    stopped: Name | UnsetType = UNSET
    signature: Text | UnsetType = UNSET
    note: Text | UnsetType = UNSET
    token: Name | UnsetType = UNSET
    examples: Count | UnsetType = UNSET
    layer: Index | UnsetType = UNSET
    head: Index | UnsetType = UNSET
    of_layer: Index | UnsetType = UNSET
    of_head: Index | UnsetType = UNSET
    block: Count | UnsetType = UNSET
    length: Count | UnsetType = UNSET
    beam: Count | UnsetType = UNSET
    drift: float | UnsetType = UNSET
    shift: bool | UnsetType = UNSET


class SettingKeys(Struct, frozen=True):
    """The fields of a preset that boards put into words or compute with."""

    layers: Count | UnsetType = UNSET
    width: Count | UnsetType = UNSET
    heads: Count | UnsetType = UNSET
    feed_forward: Count | UnsetType = UNSET
    length: Count | UnsetType = UNSET
    batch: Count | UnsetType = UNSET
    steps: Count | UnsetType = UNSET
    warmup: Count | UnsetType = UNSET
    accumulate: Count | UnsetType = UNSET
    averaged: Count | UnsetType = UNSET
    vocabulary: Count | UnsetType = UNSET
    tokens: Count | UnsetType = UNSET
    beam: Count | UnsetType = UNSET
    stride: Count | UnsetType = UNSET
    learning_rate: float | UnsetType = UNSET
    learning_rates: Rates | UnsetType = UNSET
    tuning_seeds: Count | UnsetType = UNSET
    label_smoothing: float | UnsetType = UNSET
    length_penalty: float | UnsetType = UNSET
    schedule: Name | UnsetType = UNSET
    positions: Name | UnsetType = UNSET
    pooling: Name | UnsetType = UNSET
    norm: Name | UnsetType = UNSET
    precision: Name | UnsetType = UNSET
    ranked: bool | UnsetType = UNSET


_Number = Annotated[float, Meta(ge=-MOST_MAGNITUDE, le=MOST_MAGNITUDE)] | Literal["nan", "inf", "-inf"]


class _MeasurementKeys(Struct, frozen=True):
    value: _Number = 0.0
    samples: list[_Number] = []
    where: WhereKeys = WhereKeys()


class RecordKeys(Struct, frozen=True):
    """A Record again as JSON, for its numbers and its open dictionaries alone: all else of it is skipped."""

    measurements: Annotated[list[_MeasurementKeys], Meta(max_length=100_000)] = []
    setting: SettingKeys = SettingKeys()
