"""Releases: the code and the parameters of each built-in variant in each released version.

A Record under the name of a built-in variant has to be of code that others can get: of a release, or of a Record that
this repository has published. Code of somebody's own goes under a name of its own; otherwise it would speak for the
variant on every board. `make releases` adds the code of a checkout to `releases.toml`. Nothing is ever removed there,
since Records of older code stay sound.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from .... import __version__
from ...core.cell import REFERENCE, Cell
from ...core.decode import brief
from ...core.files import PACKAGE, replacing
from ...core.hashing import content_hash
from ...core.record import Record
from ...core.registry import VARIANTS, WRAPPERS, parameters
from ...core.spec import Value
from ...plan.fingerprint import BASELINE_WITH_A_MODEL, DIGITS, INTERPRETER, source_hash
from ...stats.format import counted
from ...store.record_files import ArrivedRecord
from ...store.store import LOCAL, Store

FILE = Path(__file__).with_name("releases.toml")

DEVICES = ("cpu", "cuda", INTERPRETER)
"""The kinds of device that tell hashes apart; all others have that of the last."""

MOST_NAMED = 8
"""Variants named in one finding; the others are counted."""


class Part(NamedTuple):
    """A built-in variant or wrapper: its file, its hash for each of `DEVICES`, its parameters with their values."""

    file: str
    hashes: tuple[str, ...]
    parameters: Mapping[str, str]


class Releases(NamedTuple):
    """`changes`: the parts that are new or changed in each release, the first release first; a wrapper ends with a +.

    `published`: by the names of the parts, the hashes in Records that this repository has published.
    """

    changes: tuple[Mapping[str, Part], ...]
    published: Mapping[str, frozenset[str]]

    def states(self) -> Iterator[Mapping[str, Part]]:
        """All parts as each release has them."""
        parts: dict[str, Part] = {}
        for changed in self.changes:
            parts = {**parts, **changed}
            yield parts

    def names(self) -> set[str]:
        """The built-in variants and wrappers of all releases."""
        return {name for changed in self.changes for name in changed}

    def kinds(self, name: str, parameter: str) -> list[str]:
        """The values that a parameter of a part has had, in words; none where no release has the parameter."""
        found = (changed[name].parameters.get(parameter) for changed in self.changes if name in changed)
        return [kind for kind in found if kind is not None]


@cache
def releases() -> Releases:
    """The list of `releases.toml`."""
    found: dict[str, Any] = tomllib.loads(FILE.read_text(encoding="utf-8"))
    changes = tuple(
        {name: Part(file, tuple(hashes), kinds) for name, (file, hashes, kinds) in each["parts"].items()}
        for each in found["releases"]
    )
    return Releases(changes, {name: frozenset(hashes) for name, hashes in found["published"].items()})


class Unreleased:
    """Records under names of built-in variants that no release could have made.

    They are gathered into one finding for code and one for parameters: whoever edits a built-in variant has many.
    """

    def __init__(self) -> None:
        self._found: dict[str, list[tuple[ArrivedRecord, str]]] = {}

    def add(self, arrived: ArrivedRecord) -> bool:
        """True if the Record is one of them."""
        problem = _problem(arrived.record)
        if problem is not None:
            kind, named = problem
            self._found.setdefault(kind, []).append((arrived, named))
        return problem is not None

    def errors(self) -> Iterator[tuple[str, int, str]]:
        """A finding for each kind, at the first Record that has it: file, line and text."""
        for kind, found in self._found.items():
            first, _ = found[0]
            named = list(dict.fromkeys(named for _, named in found))
            more = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
            yield (
                first.file,
                first.number,
                (
                    f"expected {kind} of a release under the name of a built-in variant, got "
                    f"{', '.join(named[:MOST_NAMED])}{more} in {counted(len(found), 'Record')}; give code of your own "
                    "a name of its own, such as FILE.py:NAME; in a checkout of attnbench run `make releases`"
                ),
            )


def _problem(record: Record) -> tuple[str, str] | None:
    """For a Record that no release could have made: whether code or parameters tell so, and what was found."""
    cell, known = record.cell, releases()
    parts = named_parts(cell)
    if not parts.keys() <= known.names():
        # with a part that is no built-in one, it is a name of its own
        return None
    for name, given in parts.items():
        if not all(any(_fits(value, kind) for kind in known.kinds(name, key)) for key, value in given):
            return "parameters", brief(str(cell.variant))
    code = _code(record)
    if code not in known_codes(tuple(parts)):
        return "code", f"{brief(str(cell.variant))} ({brief(code)})"
    return None


def _code(record: Record) -> str:
    return record.digest.rpartition("-")[2]


def named_parts(cell: Cell) -> dict[str, list[tuple[str, Value]]]:
    """The parts whose code counts for a cell, in the order in which it is hashed, with the parameters of each."""
    found: dict[str, list[tuple[str, Value]]] = {}
    if cell.lane != "baseline":
        for spec in cell.variant.variants:
            found.setdefault(spec.name, []).extend(spec.parameters)
        for spec in cell.variant.all_wrappers:
            found.setdefault(f"{spec.name}+", []).extend(spec.parameters)
    if cell.lane == "time" or cell.variant.name == BASELINE_WITH_A_MODEL:
        found.setdefault(REFERENCE, [])
    return found


@cache
def known_codes(names: Sequence[str]) -> frozenset[str]:
    """The hashes of a variant of these parts: published ones, and of each release as `variant_hash` makes them."""
    found = set(releases().published.get(", ".join(names), ()))
    for parts in releases().states():
        if parts.keys() >= set(names):
            for device in range(len(DEVICES)):
                # a file counts once, however many of its variants are named
                by_file = {parts[name].file: parts[name].hashes[device] for name in names}
                found.add(content_hash(list(by_file.values()), DIGITS))
    return frozenset(found)


def _fits(value: Value, kind: str) -> bool:
    """True if a value is one of those that `Parameter.kind_text` names; ranges of numbers are not looked at.

    >>> _fits("eager", "auto | eager"), _fits("lazy", "auto | eager"), _fits(3, "int from 1 to 8 | none")
    (True, False, True)
    """
    words = kind.split(" | ")
    if value is None or isinstance(value, str):
        return (value or "none") in words or "str" in words
    if isinstance(value, bool):
        return "bool" in words
    return any(word.startswith(("int", "float")) for word in words)


def _present() -> dict[str, Part]:
    """The parts of the installed version."""
    found = {}
    for registry, mark in ((VARIANTS, ""), (WRAPPERS, "+")):
        for name in sorted(entry.name for entry in registry.entries() if registry.is_own(entry.name)):
            source = registry.source(name)
            assert source is not None, name
            hashes = tuple(source_hash(source, device) for device in DEVICES)
            kinds = {each.name: each.kind_text() for each in parameters(registry.load(name)).values()}
            found[name + mark] = Part(source.relative_to(PACKAGE).as_posix(), hashes, dict(sorted(kinds.items())))
    return found


def list_releases() -> None:
    """Add the code of this checkout, and of the Records in its folder of results, to `releases.toml`."""
    known = releases()
    written = tomllib.loads(FILE.read_text(encoding="utf-8"))["releases"]
    (*_, last) = ({}, *known.states())
    changed = {name: part for name, part in _present().items() if part != last.get(name)}
    changes = [(each["version"], parts) for each, parts in zip(written, known.changes, strict=True)]
    changes += [(__version__, changed)] if changed else []
    lines = [
        "# Made by `make releases`: of each built-in variant the file, the hash by device and the parameters, where a",
        "# release has changed them; a wrapper ends with a +. Then the hashes of all published Records.",
    ]
    for version, by_name in changes:
        lines += ["", "[[releases]]", f"version = '{version}'", "", "[releases.parts]"]
        lines += [f"'{name}' = ['{p.file}', {list(p.hashes)}, {_table(p.parameters)}]" for name, p in by_name.items()]
    names = known.names() | changed.keys()
    published = {together: set(hashes) for together, hashes in known.published.items()}
    for folder in sorted({file.parent.parent for file in (PACKAGE / "results").rglob("records/*.jsonl")}):
        for record in Store(folder).records() if not folder.is_relative_to(PACKAGE / LOCAL) else ():
            parts = named_parts(record.cell)
            # trivial predictors have no code of a variant
            if parts and parts.keys() <= names:
                published.setdefault(", ".join(parts), set()).add(_code(record))
    lines += ["", "[published]", *(f"'{each}' = {sorted(hashes)}" for each, hashes in sorted(published.items()))]
    with replacing(FILE) as file:
        file.write(("\n".join(lines) + "\n").encode())


def _table(kinds: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{name} = '{kind}'" for name, kind in kinds.items()) + "}"


if __name__ == "__main__":
    list_releases()
