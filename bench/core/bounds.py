"""Bounds: the types that fields from outside may have, so narrow that whatever reads them later need not ask again.

They are generous beside what any run writes. A line that breaks one is named and left out; see `core/decode.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, defstruct

MOST_LINE_BYTES = 16 * 2**20
"""The longest line of one Record, event or curve: longer text is not even parsed."""

MOST_SPEC_CHARACTERS = 1000

MOST_MAGNITUDE = 1e100
"""The largest finite number of a measurement: sums of squares must not overflow."""

_EXACT = 2**53  # beyond it a float no longer tells two whole numbers apart

Name = Annotated[str, Meta(max_length=500)]
Text = Annotated[str, Meta(max_length=100_000)]
Whole = Annotated[int, Meta(ge=-_EXACT, le=_EXACT)]
Count = Annotated[int, Meta(ge=0, le=_EXACT)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Index = Annotated[int, Meta(ge=0, le=9_999)]
"""The index of a layer or a head: tables and pictures are made with a place for each."""

Rate = Annotated[float, Meta(gt=0, le=MOST_MAGNITUDE)]
"""Operations or bytes a second."""

Seconds = Annotated[float, Meta(ge=0, le=2**40)]

Points = Annotated[float, Meta(ge=0, le=1e6)]
"""The number that a board multiplies a score by, and the margin that it allows."""

MachineId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,120}\Z")]
"""Part of a file's name."""

Names = Annotated[tuple[Name, ...], Meta(max_length=1000)]
Texts = Annotated[tuple[Text, ...], Meta(max_length=1000)]
NameByName = Annotated[dict[Name, Name], Meta(max_length=100_000)]
TextByName = Annotated[dict[Name, Text], Meta(max_length=1000)]
CountByName = Annotated[dict[Name, Count], Meta(max_length=100_000)]

if TYPE_CHECKING:
    Number = float
    Samples = tuple[float, ...]
    Open = dict[str, Any]
else:
    # JSON has neither NaN nor infinity: Records keep them as text
    Number = Annotated[float, Meta(ge=-MOST_MAGNITUDE, le=MOST_MAGNITUDE)] | Literal["nan", "inf", "-inf"]
    Samples = Annotated[tuple[Number, ...], Meta(max_length=1_000_000)]
    _Scalar = Text | Whole | float | bool | None
    Open = Annotated[dict[Name, _Scalar | Annotated[list[_Scalar], Meta(max_length=10_000)]], Meta(max_length=1000)]
"""Keys that tasks and lanes choose, with scalars or lists of them; the keys that readers know are typed below."""


def _open_keys(name: str, **names_of: tuple[Any, str]) -> type[Struct]:
    """A structure of optional fields, each group of names with one type; it passes over all other keys."""
    fields = [(key, kind | UnsetType, UNSET) for kind, keys in names_of.values() for key in keys.split()]
    return defstruct(name, fields, frozen=True)


WhereKeys = _open_keys(
    "WhereKeys",
    names=(Name, "split set attention how stopped token"),
    texts=(Text, "signature note"),
    counts=(Count, "examples block length beam"),
    indices=(Index, "layer head of_layer of_head"),
    floats=(float, "drift"),
    booleans=(bool, "shift"),
)
"""The keys of a measurement's `where` that boards and pages read."""

SettingKeys = _open_keys(
    "SettingKeys",
    counts=(
        Count,
        "layers width heads feed_forward length batch steps warmup accumulate averaged vocabulary tokens beam stride "
        "tuning_seeds",
    ),
    floats=(float, "learning_rate label_smoothing length_penalty"),
    rates=(Annotated[list[float], Meta(max_length=1000)], "learning_rates"),
    extensions=(Annotated[int, Meta(ge=0, le=10)], "rate_extensions"),
    names=(Name, "schedule positions pooling norm precision"),
    booleans=(bool, "ranked"),
)
"""The fields of a preset that boards put into words or compute with."""
