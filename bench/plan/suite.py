"""Suites: selections with a name, from `bench/plan/suites/NAME.toml` or a person's own FILE.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec

from ..core.cell import NO_ATTENTION, REFERENCE, Selection
from ..core.errors import SelectionError
from ..core.files import read_regular
from ..core.registry import TASKS, VARIANTS, Registry, nearest
from ..core.spec import Spec, parse_selection
from .executor_settings import ExecutorSettings, executor_of
from .facts import task_facts
from .suites import FOLDER, built_in

LONGEST_PATH = 250
MOST_SEEDS = 1_000
MOST_CELLS = 100_000
LARGEST_FILE = 1_000_000
"""Bytes of a suite's file."""

Names = Literal["all"] | Annotated[list[str], msgspec.Meta(min_length=1)]


class _SuiteFile(msgspec.Struct, forbid_unknown_fields=True):
    """The keys of a suite's file."""

    tasks: Names
    variants: Names
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Tasks and variants with a name. None leaves a choice to the command line and the machine."""

    name: str
    tasks: tuple[Spec, ...]
    variants: tuple[Spec, ...]
    description: str = ""
    preset: Spec | None = None
    seeds: int | None = None
    selection: Selection = "validation"
    executor: ExecutorSettings = field(default_factory=ExecutorSettings)

    def __post_init__(self) -> None:
        """Raises SelectionError for a count of seeds or of cells that is none, or that would take months."""
        if self.seeds is not None and not 1 <= self.seeds <= MOST_SEEDS:
            raise SelectionError(f"expected a count of seeds from 1 to {MOST_SEEDS:,}, got {self.seeds:,}")
        cells = len(self.tasks) * len(self.variants) * (self.seeds or 1)
        if cells > MOST_CELLS:
            raise SelectionError(
                f"expected at most {MOST_CELLS:,} cells, got {cells:,}: {len(self.variants):,} variants, "
                f"{len(self.tasks):,} tasks, {self.seeds or 1:,} seeds; choose fewer"
            )

    @property
    def declaration(self) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        """Its name, its tasks, and its variants with the reference: for all pairs of these, comparisons are corrected.

        They are fixed before anything is measured, so that no variant can change a verdict on two others.
        """
        variants = dict.fromkeys((REFERENCE, *map(str, self.variants)))
        return self.name, tuple(map(str, self.tasks)), tuple(variants)


def load_suite(name_or_file: str) -> Suite:
    """The built-in suite of that name, or the one in that file (which ends in `.toml`).

    Raises SelectionError where there is none, or where a key or value of it is wrong.
    """
    path = Path(name_or_file)
    if path.suffix != ".toml":
        path = FOLDER / f"{name_or_file}.toml"
        if name_or_file not in built_in():
            from ...tasks.contract import PRESETS

            is_preset = name_or_file.partition("[")[0] in PRESETS
            other = f": that is a preset; `--preset {name_or_file}` takes it" if is_preset else ""
            if Path(name_or_file[:LONGEST_PATH]).is_file():
                raise SelectionError(f"expected a suite as TOML in a FILE.toml, got {name_or_file!r}; rename it")
            near = other or nearest(name_or_file, built_in())
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
    return Suite(
        name=path.stem,
        tasks=_specs(found.tasks, where, TASKS),
        variants=_specs(found.variants, where, VARIANTS),
        description=found.description,
        preset=Spec.parse(found.preset) if found.preset is not None else None,
        seeds=found.seeds,
        selection=found.selection,
        executor=executor_of(found.executor or {}, where),
    )


def suite_with(
    suite: str | None,
    variants: tuple[Spec, ...] | None,
    tasks: tuple[Spec, ...] | None,
    *,
    preset: str | Spec | None,
    seeds: int | None,
    selection: str | None,
    matched: bool = False,
) -> Suite:
    """The named suite with what else is given in its place, or the rest alone; raises SelectionError for too little.

    matched: give every variant a model of the size of the reference's.
    """
    if suite is None and (variants is None or tasks is None):
        raise SelectionError(
            "expected variants and a task, or a suite; for example: "
            "attnbench run --variants rela,entmax15 --task lra-text"
        )
    suites = {*built_in()} - {entry.name for entry in TASKS.entries()}
    for spec in tasks or ():
        if spec.name in suites:
            raise SelectionError(f"{spec.name!r} is a suite; `--suite {spec.name}` runs its tasks")
    given = {
        "variants": variants,
        "tasks": tasks,
        "preset": None if preset is None else Spec.parse(str(preset)),
        "seeds": seeds,
        "selection": selection,
    }
    base = load_suite(suite) if suite is not None else Suite(name="", tasks=(), variants=())
    asked = replace(base, **{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
    return replace(asked, variants=with_matched_parameters(asked.variants)) if matched else asked


def _decoded(values: dict[str, Any], where: str) -> _SuiteFile:
    for name in values.keys() - EXPECTED.keys():
        raise SelectionError(
            f"{where} has an unknown key {name!r}{nearest(name, list(EXPECTED))}; known: {', '.join(EXPECTED)}"
        )
    try:
        return msgspec.convert(values, _SuiteFile)
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


def with_matched_parameters(variants: Sequence[Spec]) -> tuple[Spec, ...]:
    """`variants`, each in a model of as many parameters as that of the reference, as `matched+NAME` says.

    >>> list(map(str, with_matched_parameters([Spec("softmax"), Spec.parse("gate+rela//softmax")])))
    ['softmax', 'matched+gate+rela//matched+softmax']
    """
    matched = Spec("matched")

    def match(spec: Spec) -> Spec:
        return spec if matched in spec.wrappers else Spec.wrapped((matched, *spec.wrappers), spec.inner or spec)

    plain = (REFERENCE, NO_ATTENTION)
    return tuple(
        spec if spec.name in plain else Spec.pattern([match(layer) for layer in spec.layers or (spec,)])
        for spec in variants
    )


def with_longest(tasks: Sequence[Spec], memory_bytes: int) -> tuple[Spec, ...]:
    """`tasks`, and for each sweep among them a search for the longest sequence that runs in so many bytes.

    Raises SelectionError where none of them is a sweep.
    """
    searches: dict[Spec, None] = {}
    for task in tasks:
        if "memory_bytes" in task_facts(Spec(task.name)).parameters:
            rest = {name: value for name, value in task.parameters if name != "length"}
            searches[Spec.of(task.name, **rest | {"memory_bytes": memory_bytes})] = None
    if not searches:
        raise SelectionError(
            f"a memory budget is for sweeps, and none is among {', '.join(map(str, tasks))}; add --task sweep"
        )
    return (*tasks, *searches)
