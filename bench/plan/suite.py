"""Suites: options with a name, from `bench/plan/suites/NAME.toml` or a person's own FILE.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec

from ..core.cell import NO_ATTENTION, REFERENCE, Selection
from ..core.errors import SelectionError
from ..core.files import read_regular
from ..core.registry import TASKS, VARIANTS, Registry, nearest
from ..core.spec import Names, Spec, bytes_of, parse_selection, specs_of
from .executor_settings import executor_of
from .facts import task_facts
from .options import Options
from .suites import FOLDER, built_in

LONGEST_PATH = 250
LARGEST_FILE = 1_000_000
"""Bytes of a suite's file."""

Listed = Literal["all"] | Annotated[list[str], msgspec.Meta(min_length=1)]


class _SuiteFile(msgspec.Struct, forbid_unknown_fields=True):
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


def load_suite(name_or_file: str) -> Options:
    """The options of the built-in suite of that name, or of that file, which ends in `.toml`.

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
    return Options(
        suite=path.stem,
        tasks=_specs(found.tasks, where, TASKS),
        variants=_specs(found.variants, where, VARIANTS),
        description=found.description,
        preset=Spec.parse(found.preset) if found.preset is not None else None,
        seeds=found.seeds,
        selection=found.selection,
        executor=executor_of(found.executor or {}, where),
    )


def options_of(
    variants: Names | None = None,
    tasks: Names | None = None,
    *,
    suite: str | None = None,
    match_parameters: bool = False,
    memory_budget: str | int | None = None,
    executor: str | None = None,
    jobs: int | None = None,
    executor_options: Mapping[str, Any] | None = None,
    **others: Any,
) -> Options:
    """The options that a command line or a call names, in the place of those of the suite; None names nothing.

    match_parameters: give every model the size of the reference's. memory_budget: also find the longest sequence that
    a sweep's variants run in so many bytes. others: fields of Options, as text or as values. Raises SelectionError for
    too little, and for a value that is none.
    """
    if suite is None and (variants is None or tasks is None):
        raise SelectionError(
            "expected variants and a task, or a suite; for example: "
            "attnbench run --variants rela,entmax15 --task lra-text"
        )
    given = {name: value for name, value in others.items() if value is not None}
    given |= {name: value for name, value in (("variants", variants), ("tasks", tasks)) if value is not None}
    given |= {name: parse(given[name]) for name, parse in _PARSERS.items() if name in given}
    known = {entry.name for entry in TASKS.entries()}
    for spec in given.get("tasks", ()):
        if spec.name not in known and spec.name in built_in():
            raise SelectionError(f"{spec.name!r} is a suite; `--suite {spec.name}` runs its tasks")
    options = load_suite(suite) if suite is not None else Options(variants=(), tasks=())
    if executor is not None or jobs is not None or executor_options:
        given["executor"] = options.executor.changed(executor, jobs, executor_options)
    options = replace(options, **given)
    if match_parameters:
        options = replace(options, variants=with_matched_parameters(options.variants))
    if memory_budget is not None:
        options = replace(options, tasks=with_longest(options.tasks, int(bytes_of(str(memory_budget)))))
    return options


def _lanes(listed: str | Iterable[str]) -> tuple[str, ...]:
    return tuple(lane.strip() for lane in (listed.split(",") if isinstance(listed, str) else listed))


_PARSERS: Mapping[str, Callable[[Any], object]] = {
    "variants": specs_of,
    "tasks": specs_of,
    "preset": lambda preset: Spec.parse(str(preset)),
    "lanes": _lanes,
    "results": Path,
    "data_dir": Path,
}
"""Parsers of options that may be text."""


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
