"""Typed values from JSON and TOML, and back: the one place where data from outside becomes dataclasses.

A field of another type than declared, a missing field and an unknown key are refused, with the place where they stand.
So are texts that are too long or no Unicode, numbers out of range, and nesting too deep. The types of fields are so
narrow that whatever reads them later need not ask again, and generous beside what any run writes.
"""

from __future__ import annotations

import json
import re
from dataclasses import fields, is_dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, defstruct

from .errors import AttnbenchError, SelectionError, StoreError
from .spec import Spec

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

Finite = Annotated[float, Meta(ge=-MOST_MAGNITUDE, le=MOST_MAGNITUDE)]
FiniteSamples = Annotated[tuple[Finite, ...], Meta(max_length=1_000_000)]

if TYPE_CHECKING:
    Number = float
    Samples = tuple[float, ...]
    Open = dict[str, Any]
else:
    # JSON has neither NaN nor infinity: Records keep them as text
    Number = Finite | Literal["nan", "inf", "-inf"]
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

T = TypeVar("T")

_NOT_FINITE = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}


def parse_json(text: bytes) -> Any:
    """The value of a JSON text; raises StoreError for anything else, and for one of more than MOST_LINE_BYTES.

    NaN and Infinity, which Python writes and JSON lacks, become the texts `nan`, `inf` and `-inf`.
    """
    if len(text) > MOST_LINE_BYTES:
        raise StoreError(f"it has {len(text):,} bytes; at most {MOST_LINE_BYTES:,} are read")
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        if b"NaN" not in text and b"Infinity" not in text:
            raise StoreError(f"it is not JSON: {brief(error)}") from None
    try:
        found = json.loads(text, parse_constant=_NOT_FINITE.__getitem__)
        # this reader lets lone surrogates pass, which no file and no terminal takes
        json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise StoreError(f"it is not JSON: {brief(error)}") from None
    return found


def read_json(kind: type[T], path: Path, what: str) -> T:
    """The content of a JSON file of our own as an instance of `kind`; keys that `kind` lacks are skipped.

    Raises OSError where there is no such file, StoreError where it is none: "not WHAT: Expected `int`, got `str`".
    """
    content = path.read_bytes()
    try:
        return msgspec.json.decode(content, type=kind, dec_hook=decode_hook)
    # besides errors of its own msgspec raises those of Unicode, and of texts nested too deep
    except (ValueError, RecursionError, OverflowError) as problem:
        raise StoreError(f"not {what}: {brief(problem)}") from None


def utf8(text: str, noun: str) -> bytes:
    """The bytes of a text from the command line. Raises SelectionError where those that came are no UTF-8."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise SelectionError(
            f"expected a {noun} in UTF-8, got {text[:40]!a}; convert it first, as iconv does"
        ) from None


def brief(value: object, longest: int = 200) -> str:
    """`value` as text for an error message, cut, however long a stranger made it.

    >>> brief("abc"), brief("x" * 300, 5)
    ('abc', 'xxxxx…')
    """
    text = str(value)
    return text if len(text) <= longest else text[:longest] + "…"


def convert(kind: type[T], values: Any, what: str, error: type[AttnbenchError] = StoreError) -> T:
    """`values`, as JSON or TOML hold them, as an instance of the dataclass `kind`.

    Raises `error` where they are none: "not WHAT: Expected `int`, got `str` - at `$.seeds`".
    """
    try:
        found = msgspec.convert(values, kind, dec_hook=decode_hook)
    except (msgspec.ValidationError, RecursionError, OverflowError) as problem:
        raise error(f"not {what}: {brief(problem)}") from None
    # msgspec refuses unknown keys of its own structures, and lets those of dataclasses pass
    of_any: Any = kind
    part = _dataclass_in(of_any)
    if part is not None and (place := _unknown_key(part, values)):
        raise error(f"not {what}: it has no key `${brief(place)}`")
    return found


def check(kind: Any, values: Any, what: str) -> None:
    """Raises StoreError as `convert` does, where known keys of `values` have other types than the structure `kind`."""
    try:
        msgspec.convert(values, kind)
    except (msgspec.ValidationError, RecursionError, OverflowError) as problem:
        raise StoreError(f"not {what}: {brief(problem)}") from None


def check_keys(kind: type[msgspec.Struct], values: dict[str, Any], name: str) -> None:
    """Raises ValueError where known keys of the open dictionary `name` have other types than the structure `kind`."""
    try:
        msgspec.convert(values, kind)
    except (msgspec.ValidationError, RecursionError, OverflowError) as problem:
        raise ValueError(f"{name}: {brief(problem)}") from None


def to_builtins(value: Any) -> Any:
    """Dataclasses as dictionaries in the order of their fields, Specs as text: what `convert` reads back."""
    return msgspec.to_builtins(value, enc_hook=encode_hook)


def without_surrogates(value: Any) -> Any:
    """JSON values with lone surrogates as `\\udcff`: names of files and messages of errors may hold them."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {without_surrogates(name): without_surrogates(each) for name, each in value.items()}
    return [without_surrogates(each) for each in value] if isinstance(value, list | tuple) else value


def decode_hook(kind: type[Any], value: Any) -> Any:
    """Read for msgspec the types that it does not know; raises ValueError where `value` is no text for one."""
    if not isinstance(value, str):
        raise ValueError(f"Expected `str`, got `{type(value).__name__}`")
    if kind is not Spec:
        return kind(value)
    if len(value) > MOST_SPEC_CHARACTERS:
        raise ValueError(f"Expected `str` of length <= {MOST_SPEC_CHARACTERS}")
    return _parse_spec(value)


def encode_hook(value: Any) -> Any:
    """Write for msgspec the types that it does not know; raises NotImplementedError for any but ours and NumPy's."""
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Spec | Path):
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} cannot be written as JSON")


@lru_cache(maxsize=4096)
def _parse_spec(text: str) -> Spec:
    name, bracket, inside = text.partition("[")
    # a call in round brackets has commas of its own
    inside = re.sub(r"\(.*\)(\[[^\]]*\])?", "", inside)
    # several values expand to their product, which a short text can make endless
    if "," in name or (bracket and (".." in inside or not all("=" in part for part in inside.split(",")))):
        raise ValueError(f"expected one name, got several in {text!r}")
    try:
        return Spec.parse(text)
    except SelectionError as error:
        raise ValueError(str(error)) from None


def _unknown_key(kind: Any, values: Any) -> str:
    """The place of a key that no field of `kind` answers to, such as `.machine.color`; empty where there is none."""
    if isinstance(values, dict):
        names, parts = _fields(kind)
        if not values.keys() <= names:
            return f".{min(values.keys() - names)}"
        for name, part in parts.items():
            if place := _unknown_key(part, values.get(name)):
                return f".{name}{place}"
    elif isinstance(values, list):
        for at, each in enumerate(values):
            if place := _unknown_key(kind, each):
                return f"[{at}]{place}"
    return ""


@cache
def _fields(kind: Any) -> tuple[frozenset[str], dict[str, Any]]:
    """The names of a dataclass's fields; and of those that hold a dataclass, alone, in a tuple or optionally, which."""
    parts = {name: part for name, hint in get_type_hints(kind).items() if (part := _dataclass_in(hint))}
    return frozenset(field.name for field in fields(kind)), parts


@cache
def _dataclass_in(kind: Any) -> Any:
    """The dataclass that a type is, alone, in a tuple or optionally; None where it is none."""
    return next((part for part in (kind, *get_args(kind)) if is_dataclass(part)), None)
