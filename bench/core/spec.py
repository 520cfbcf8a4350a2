"""Spec: a name with parameters, `local[window=64]`, as text, as a value, and as canonical text.

One grammar for all that is named on the command line, in a suite and in a Record:

    selection  spec, spec, …                  a comma outside of brackets separates
    spec       layers // layers // …          a pattern: the layers of a model in turn, again from the first at the end
    layers     variant or variant:3           so many layers of one kind, one after the other
    variant    wrapper+wrapper+name           the first wrapper is the outermost
    name       softmax, mine.py:Mine, package.module:Mine, each with [parameter=value,…]
    value      text in which a comma separates outside of brackets: `[call=m(x, mask=valid)[0],dim=64]`

All of it is printable ASCII: letters that look like others, or show nothing, name nothing here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby, product
from typing import Final

from .errors import SelectionError

Scalar = bool | int | float | str | None
Value = Scalar | tuple[Scalar, ...]
"""A parameter's value. A tuple is a list that stays together, `1e-3|4e-3`; commas expand to several Specs instead."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_TARGET = re.compile(r"(?:[^\s\[\],:+]+\.py|[A-Za-z_][\w.]*):[A-Za-z_][\w.]*")
"""A class or function in a file or in a module."""

_COUNT = re.compile(r"(.+):([0-9]+)", re.DOTALL)
_NUMBER = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)([kKM]?)")
_SUFFIX = {"": 1, "k": 1024, "K": 1024, "M": 1024**2}

LONGEST_TEXT = 100_000
"""Characters of a selection; a Spec of a Record is one too."""

LONGEST_NAME = 120
LONGEST_NUMBER = 40
MOST_LAYERS = 1_000
MOST_SPECS = 1_000
"""Specs that a selection expands to: more are a slip, and would take days."""

_SQUARE = str.maketrans("(){};|", "[][],,", "\"'")
_WORDS: dict[str, Scalar] = {"true": True, "false": False, "none": None}


class Spec:
    """A name with parameters, ordered by name. Specs are never changed, and those of equal parts are equal.

    `wrappers` and `inner`: of `gate+local[window=64]`, the wrappers from the outermost on and the variant inside;
    `layers`: of a pattern such as `delta:3//softmax`, one Spec for each layer until it begins again. Such a Spec has
    its canonical text as its name, and no parameters of its own.

    No dataclass: msgspec would then read and write an object of two fields, and not its canonical text.

    >>> str(Spec.of("local", window=64, causal=True))
    'local[causal=true,window=64]'
    """

    __slots__ = ("_text", "inner", "layers", "name", "parameters", "wrappers")

    def __init__(self, name: str, parameters: tuple[tuple[str, Value], ...] = ()):
        self.name: Final = name
        self.parameters: Final = parameters
        self.wrappers: tuple[Spec, ...] = ()
        self.inner: Spec | None = None
        self.layers: tuple[Spec, ...] = ()
        self._text = ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spec) and (self.name, self.parameters) == (other.name, other.parameters)

    def __hash__(self) -> int:
        return hash((self.name, self.parameters))

    def __repr__(self) -> str:
        return f"Spec(name={self.name!r}, parameters={self.parameters!r})"

    @classmethod
    def of(cls, name: str, **parameters: Value) -> Spec:
        return cls(name, tuple(sorted(parameters.items())))

    @classmethod
    def wrapped(cls, wrappers: Sequence[Spec], inner: Spec) -> Spec:
        """`inner` in `wrappers`, the first of which is the outermost."""
        if not wrappers:
            return inner
        spec = cls("+".join(map(str, (*wrappers, inner))))
        spec.wrappers, spec.inner = tuple(wrappers), inner
        return spec

    @classmethod
    def pattern(cls, layers: Sequence[Spec]) -> Spec:
        """A model whose layers are `layers` in turn; the shortest pattern that says the same.

        >>> str(Spec.pattern([Spec("delta"), Spec("delta"), Spec("softmax")]))
        'delta:2//softmax'
        """
        period = next(n for n in range(1, len(layers) + 1) if list(layers) == [*layers[:n]] * (len(layers) // n))
        if period == 1:
            return layers[0]
        runs = [(spec, len(list(same))) for spec, same in groupby(layers[:period])]
        spec = cls("//".join(f"{each}:{count}" if count > 1 else str(each) for each, count in runs))
        spec.layers = tuple(layers[:period])
        return spec

    def at(self, layer: int) -> Spec:
        """The Spec of one layer of a model, counted from 0."""
        return self.layers[layer % len(self.layers)] if self.layers else self

    @property
    def variants(self) -> list[Spec]:
        """The plain Specs that it is made of, each once, without wrappers."""
        return list(dict.fromkeys(each.inner or each for each in self.layers or (self,)))

    @property
    def all_wrappers(self) -> list[Spec]:
        """The wrappers that it is made of, each once."""
        return list(dict.fromkeys(wrapper for each in self.layers or (self,) for wrapper in each.wrappers))

    @classmethod
    def parse(cls, text: str) -> Spec:
        """The one Spec that `text` names; raises SelectionError where it names none or several.

        >>> Spec.parse("local[window=1k]")
        Spec(name='local', parameters=(('window', 1024),))
        """
        specs = parse_selection(text)
        if len(specs) != 1:
            raise SelectionError(f"expected one name, got {len(specs)} in {text!r}")
        return specs[0]

    def __str__(self) -> str:
        # made once: all Records of a folder name the same few
        if not self._text:
            inside = ",".join(f"{name}={value_text(value)}" for name, value in self.parameters)
            self._text = f"{self.name}[{inside}]" if self.parameters else self.name
        return self._text

    def get(self, parameter: str, default: Value = None) -> Value:
        return dict(self.parameters).get(parameter, default)


def parse_selection(text: str) -> list[Spec]:
    """The Specs that a comma-separated selection names, in order, without repeats.

    Several values of a parameter expand to several Specs; `a..b` doubles from a to b; `1k` is 1,024.

    >>> [str(s) for s in parse_selection("rela,local[window=64..256,flange=0,8]")]  # doctest: +NORMALIZE_WHITESPACE
    ['rela', 'local[flange=0,window=64]', 'local[flange=8,window=64]', 'local[flange=0,window=128]',
     'local[flange=8,window=128]', 'local[flange=0,window=256]', 'local[flange=8,window=256]']
    """
    if len(text) > LONGEST_TEXT:
        raise SelectionError(f"expected a selection of at most {LONGEST_TEXT:,} characters, got {len(text):,}")
    if not (text.isascii() and text.isprintable()):
        odd = next(letter for letter in text if not (letter.isascii() and letter.isprintable()))
        raise SelectionError(f"expected names and values in printable ASCII, got {odd!a} in {text[:80]!a}")
    found: dict[Spec, None] = {}
    for item in _split_outside_brackets(text):
        # every Record that is read has two or three plain names
        for spec in _expand(item) if any(joint in item for joint in "+:/") else _expand_plain(item):
            found[spec] = None
        if len(found) > MOST_SPECS:
            raise SelectionError(f"expected a selection of at most {MOST_SPECS:,} names, got {len(found):,} or more")
    if not found:
        raise SelectionError(f"expected a name such as `softmax` or `local[flange=64]`, got {text!r}")
    return list(found)


def with_call(names: Sequence[str], call: str) -> list[Spec]:
    """The Specs of `names`, with `[call=…]` at each FILE.py:NAME; raises SelectionError where no name is of a file.

    >>> [str(spec) for spec in with_call(["rela,gate+mine.py:Mine"], "m(x, None)[0]")]
    ['rela', 'gate+mine.py:Mine[call=m(x, None)[0]]']
    """
    specs = [spec for name in names for spec in parse_selection(name)]
    if not call:
        return specs
    found = [_calling(spec, call) for spec in specs]
    if found == specs:
        raise SelectionError(f"expected FILE.py:NAME beside --call, got {', '.join(names)}")
    if [spec for each in found for spec in parse_selection(str(each))] != found:
        raise SelectionError(
            f"expected a call without `|` and `..`, got {call!r}; put these into a function of the file"
        )
    return found


def _calling(spec: Spec, call: str) -> Spec:
    if spec.layers:
        return Spec.pattern([_calling(each, call) for each in spec.layers])
    if spec.inner:
        return Spec.wrapped(spec.wrappers, _calling(spec.inner, call))
    return Spec.of(spec.name, **dict(spec.parameters) | {"call": call}) if ":" in spec.name else spec


def value_text(value: Value) -> str:
    """Canonical text of one value; `parse_value` reads it back."""
    if isinstance(value, tuple):
        return "|".join(map(value_text, value))
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return f"{value:.1f}"
    return repr(value) if isinstance(value, float) else str(value)


def parse_value(text: str) -> Value:
    """A Boolean, none, an integer, a finite float or, failing all, the text itself; of `a|b` the tuple of both.

    Raises SelectionError for a long number, and for a list with an empty place.

    >>> parse_value("1k"), parse_value("1.5"), parse_value("true"), parse_value("learned"), parse_value("1e-3|4e-3")
    (1024, 1.5, True, 'learned', (0.001, 0.004))
    """
    if "|" not in text:
        return _parse_scalar(text)
    parts = [part.strip() for part in text.split("|")]
    if not all(parts):
        raise SelectionError(f"expected a value on each side of `|`, got {text!r}")
    return tuple(map(_parse_scalar, parts))


def _parse_scalar(text: str) -> Scalar:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    match = _NUMBER.fullmatch(text)
    if not match:
        return text
    if len(text) > LONGEST_NUMBER:
        raise SelectionError(f"expected a number of at most {LONGEST_NUMBER} digits, got {len(text):,} of them")
    digits, suffix = match.groups()
    is_whole = re.fullmatch(r"[+-]?\d+", digits) is not None
    if not math.isfinite(float(digits) * _SUFFIX[suffix]):
        return text
    number = int(digits) if is_whole else float(digits)
    scaled = number * _SUFFIX[suffix]
    if suffix and not is_whole and float(scaled).is_integer():
        return int(scaled)
    return scaled


@dataclass(frozen=True, slots=True)
class Range:
    """The least and the greatest value of a parameter: `k: Annotated[int, Range(1, 1024)] = 32` in a constructor."""

    least: float
    most: float

    def __contains__(self, value: float) -> bool:
        return self.least <= value <= self.most

    def __str__(self) -> str:
        return f"from {_plain(self.least)} to {_plain(self.most)}"


def _plain(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"


def _expand(item: str) -> Iterator[Spec]:
    """The Specs of one item of a selection: every combination of what its parts expand to."""
    parts = [_counted(part) for part in _split_outside_brackets(item, "//")]
    if sum(count for _, count in parts) > MOST_LAYERS:
        raise SelectionError(f"expected a pattern of at most {MOST_LAYERS:,} layers, got {item[:80]!r}")
    for chosen in _combinations([_expand_wrapped(part) for part, _ in parts], item):
        yield Spec.pattern([spec for spec, (_, count) in zip(chosen, parts, strict=True) for _ in range(count)])


def _counted(part: str) -> tuple[str, int]:
    """`delta:3` as the text of the layer and how often it comes."""
    found = _COUNT.fullmatch(part)
    if not found:
        return part, 1
    text, digits = found.groups()
    if len(digits) > 4 or not int(digits):
        raise SelectionError(f"expected 1 to {MOST_LAYERS:,} layers after `:`, got {part!r}")
    return text.strip(), int(digits)


def _expand_wrapped(text: str) -> list[Spec]:
    axes = [list(_expand_plain(part)) for part in _split_outside_brackets(text, "+")]
    return [Spec.wrapped(wrappers, inner) for *wrappers, inner in _combinations(axes, text)]


def _combinations(axes: list[list[Spec]], item: str) -> Iterator[tuple[Spec, ...]]:
    count = math.prod(map(len, axes))
    if count > MOST_SPECS:
        raise SelectionError(f"expected at most {MOST_SPECS:,} combinations of values, got {count:,} in {item!r}")
    yield from product(*axes)


def _expand_plain(item: str) -> Iterator[Spec]:
    name, bracket, rest = item.partition("[")
    name = name.strip()
    if not (_NAME.fullmatch(name) or _TARGET.fullmatch(name)):
        raise SelectionError(
            f"expected a name of letters, digits, '-', '_', or FILE.py:NAME, got {name!r}"
            f"{f' in {item!r}' if item != name else ''}{_meant(item)}"
        )
    if len(name) > LONGEST_NAME:
        raise SelectionError(f"expected a name of at most {LONGEST_NAME} characters, got {len(name):,}")
    if not bracket:
        yield Spec(name)
        return
    if not rest.endswith("]"):
        raise SelectionError(f"expected `{name}[parameter=value]`, got {item!r}: the bracket is not closed at the end")
    axes = _axes(rest[:-1], item)
    count = math.prod(map(len, axes.values()))
    if count > MOST_SPECS:
        raise SelectionError(f"expected at most {MOST_SPECS:,} combinations of values, got {count:,} in {item!r}")
    for values in product(*axes.values()):
        yield Spec(name, tuple(sorted(zip(axes, values, strict=True))))


def _meant(item: str) -> str:
    """The words after an item without a name: what it names with other brackets, with commas, or without brackets."""
    if re.search(r"\s.*\.py\b|\.py\b.*\s", item.partition("[")[0]):
        return "; a FILE.py has no blank in its path: rename it, or link to it; names have commas between them"
    for guess in (item.translate(_SQUARE), ",".join(item.split()), item.strip("[]:").replace("::", ":")):
        with suppress(SelectionError):
            if guess != item and (found := parse_selection(guess)):
                return f"; did you mean '{','.join(map(str, found[:20]))}'?"
    return ""


def _axes(inside: str, item: str) -> dict[str, list[Value]]:
    axes: dict[str, list[Value]] = {}
    parameter = None
    for part in _split_outside_brackets(inside, keeps=True):
        left, equals, right = part.partition("=")
        if equals:
            parameter = left.strip()
            if not _NAME.fullmatch(parameter):
                raise SelectionError(f"expected a parameter name, got {parameter!r} in {item!r}")
            if parameter in axes:
                raise SelectionError(f"{parameter!r} is given twice in {item!r}")
            axes[parameter] = []
        else:
            right = left
        if parameter is None or not right.strip():
            raise SelectionError(f"expected `parameter=value` pairs inside the brackets, got {item!r}")
        axes[parameter].extend(_range(right.strip(), item))
    return axes


def _range(text: str, item: str) -> list[Value]:
    low_text, dots, high_text = text.partition("..")
    if not dots:
        return [parse_value(text)]
    low, high = parse_value(low_text), parse_value(high_text)
    if not (isinstance(low, int) and isinstance(high, int) and 0 < low <= high):
        raise SelectionError(f"expected a range such as 256..4096 of positive whole numbers, got {text!r} in {item!r}")
    values: list[Value] = []
    while low <= high:
        values.append(low)
        low *= 2
    return values


def _split_outside_brackets(text: str, separator: str = ",", keeps: bool = False) -> list[str]:
    """The parts of a text; only between commas may there be nothing. keeps: that too, and all brackets count."""
    opens, closes = ("[({", "])}") if keeps else ("[", "]")
    parts, depth, start, at = [], 0, 0, 0
    while at < len(text):
        depth += (text[at] in opens) - (text[at] in closes)
        if depth < 0:
            raise SelectionError(f"{text[at]!r} closes nothing in {text!r}")
        if depth == 0 and text.startswith(separator, at):
            parts.append(text[start:at])
            at = start = at + len(separator)
        else:
            at += 1
    if depth:
        raise SelectionError(f"a bracket is not closed in {text!r}")
    parts = [part.strip() for part in (*parts, text[start:])]
    if separator != "," and not all(parts):
        raise SelectionError(f"expected a name on each side of `{separator}`, got {text!r}")
    return [part for part in parts if part or keeps]


_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,18})?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
LEAST_BYTES, MOST_BYTES = 1e3, 1e15

_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def bytes_of(text: str) -> float:
    """
    >>> bytes_of("40GB"), bytes_of("512 MiB")
    (40000000000.0, 536870912.0)
    """
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise SelectionError(f"expected a size such as 40GB or 512MiB, got {text!r}")
    number, prefix, binary = match.groups()
    size = float(number) * (1024.0 if binary else 1000.0) ** _POWER[prefix.lower()]
    if not LEAST_BYTES <= size <= MOST_BYTES:
        raise SelectionError(
            f"expected a size from 1 kB to {MOST_BYTES / 1e12:,.0f} TB with its unit, such as 40GB, got {text!r}"
        )
    return size


Names = str | Spec | Iterable[str | Spec]


def specs_of(names: Names) -> tuple[Spec, ...]:
    """The Specs that text, a Spec or a list of both names, in order; raises SelectionError for text that is no name.

    >>> [str(spec) for spec in specs_of(["rela", "local[flange=64,128]"])]
    ['rela', 'local[flange=64]', 'local[flange=128]']
    """
    listed = [names] if isinstance(names, str | Spec) else names
    return tuple(spec for name in listed for spec in ([name] if isinstance(name, Spec) else parse_selection(name)))
