"""The file of a suite, checked: its tasks and variants as Specs, without a task or variant being imported."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec

from ..core.cell import REFERENCE, Selection
from ..core.errors import SelectionError
from ..core.files import read_regular
from ..core.registry import TASKS, VARIANTS, Registry, nearest
from ..core.spec import Spec, parse_selection
from .suites import FOLDER, built_in

LONGEST_PATH = 250
LARGEST_FILE = 1_000_000
"""Bytes of a suite's file."""

Listed = Literal["all"] | Annotated[list[str], msgspec.Meta(min_length=1)]


class _Keys(msgspec.Struct, forbid_unknown_fields=True):
    """The keys of a suite's file."""

    tasks: Listed
    variants: Listed
    description: str = ""
    preset: str | None = None
    seeds: Annotated[int, msgspec.Meta(ge=1)] | None = None
    selection: Selection = "validation"
    executor: dict[str, Any] | None = None


EXPECTED = {
    "tasks": "a list of names such as ['name[parameter=1]'], or 'all'",
    "variants": "a list of names such as ['name[parameter=1]'], or 'all'",
    "description": "text",
    "preset": "a preset's name",
    "seeds": "a count of 1 or more",
    "selection": " or ".join(get_args(Selection)),
    "executor": "a table with name, jobs and options",
}
"""The keys of a suite's file, with the values that they take in words."""


Declaration = tuple[str, tuple[str, ...], tuple[str, ...], str]
"""The suite's name, its tasks, its variants with the reference, all pairs of which are corrected for, and its preset.

They are fixed before anything is measured, so that no variant can change a verdict on two others.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteFile:
    """The content of a suite's file. `where`: its place, for messages; `executor`: the table, as it stands there."""

    name: str
    where: str
    tasks: tuple[Spec, ...]
    variants: tuple[Spec, ...]
    description: str
    preset: Spec | None
    seeds: int | None
    selection: Selection
    executor: dict[str, Any]

    @property
    def declaration(self) -> Declaration:
        """The pairs that a board of this suite corrects for."""
        variants = dict.fromkeys((REFERENCE, *map(str, self.variants)))
        return self.name, tuple(map(str, self.tasks)), tuple(variants), str(self.preset or "")


def read_suite(name_or_file: str) -> SuiteFile:
    """Read the built-in suite of that name, or that file, which ends in `.toml`.

    Raises SelectionError where there is none, or where a key or value of it is wrong.
    """
    path = Path(name_or_file)
    if path.suffix != ".toml":
        path = FOLDER / f"{name_or_file}.toml"
        if name_or_file not in built_in():
            if Path(name_or_file[:LONGEST_PATH]).is_file():
                raise SelectionError(f"expected a suite as TOML in a FILE.toml, got {name_or_file!r}; rename it")
            near = nearest(name_or_file, built_in())
            raise SelectionError(
                f"no suite named {name_or_file!r}{near}; built in: {', '.join(built_in())}; or name a FILE.toml"
            )
    try:
        values = tomllib.loads(read_regular(path, LARGEST_FILE).decode("utf-8-sig"))
    except OSError as error:
        raise SelectionError(f"cannot read the suite {path}: {error.strerror or error}") from None
    except RecursionError:
        raise SelectionError(f"the suite {path} is not TOML: it is nested too deep") from None
    except ValueError as error:
        raise SelectionError(f"the suite {path} is not TOML: {error}") from None
    where = f"suite {path}"
    found = _decoded(values, where)
    return SuiteFile(
        name=path.stem,
        where=where,
        tasks=_specs(found.tasks, where, TASKS),
        variants=_specs(found.variants, where, VARIANTS),
        description=found.description,
        preset=Spec.parse(found.preset) if found.preset is not None else None,
        seeds=found.seeds,
        selection=found.selection,
        executor=found.executor or {},
    )


def _decoded(values: dict[str, Any], where: str) -> _Keys:
    for name in values.keys() - EXPECTED.keys():
        raise SelectionError(
            f"{where} has an unknown key {name!r}{nearest(name, list(EXPECTED))}; known: {', '.join(EXPECTED)}"
        )
    try:
        return msgspec.convert(values, _Keys)
    except msgspec.ValidationError as error:
        # msgspec names the place as `$.key` or `key`, in backquotes; a person gets the key and the value in words
        key = next(name for name in EXPECTED if f"$.{name}" in str(error) or f"`{name}`" in str(error))
        got = repr(values[key])[:200] if key in values else "nothing"
        raise SelectionError(f"{where}: expected {key} to be {EXPECTED[key]}, got {got}") from None


def _specs(listed: str | list[str], where: str, registry: Registry) -> tuple[Spec, ...]:
    if isinstance(listed, str):
        return tuple(Spec(entry.name) for entry in registry.entries())
    specs = tuple(dict.fromkeys(spec for item in listed for spec in parse_selection(item)))
    for spec in specs:
        # a suite may come from others, and so may a file beside it; `os:system` with a call needs not even a file
        if named := [part for _, part in registry.parts(spec.name) if ":" in part]:
            raise SelectionError(
                f"{where} names code by its place, {named[0]}, and installed {registry.noun}s alone may stand there; "
                f"name it as `--{registry.noun}s {named[0]},…` beside --suite, if you want it to run"
            )
        try:
            registry.package(spec.name)
        except SelectionError as error:
            raise SelectionError(f"{where}: {error}") from None
    return specs
