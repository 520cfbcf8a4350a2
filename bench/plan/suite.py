"""Suite: a selection worth a name, from `bench/plan/suites/NAME.toml` or a person's own FILE.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from ..core.cell import Selection
from ..core.errors import SelectionError
from ..core.registry import TASKS, VARIANTS, Registry, nearest, parameters
from ..core.spec import Spec, parse_selection

FOLDER = Path(__file__).with_name("suites")
ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """What a run is made of. None leaves a choice to the command line and the machine."""

    name: str
    tasks: tuple[Spec, ...]
    variants: tuple[Spec, ...]
    description: str = ""
    preset: Spec | None = None
    seeds: int | None = None
    selection: Selection = "validation"


def load_suite(name_or_file: str) -> Suite:
    """The built-in suite of that name, or the one in that file (which ends in `.toml`).

    Raises SelectionError where there is none, or where a key or value of it is wrong.
    """
    path = Path(name_or_file)
    if path.suffix != ".toml":
        path = FOLDER / f"{name_or_file}.toml"
        if name_or_file not in built_in():
            near = nearest(name_or_file, built_in())
            raise SelectionError(
                f"no suite named {name_or_file!r}{near}; built in: {', '.join(built_in())}; or name a FILE.toml"
            )
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SelectionError(f"cannot read the suite {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise SelectionError(f"the suite {path} is not TOML: {error}") from None
    return _suite(path, values)


def built_in() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def _suite(path: Path, values: dict[str, Any]) -> Suite:
    where = f"suite {path}"
    known = [name for name in Suite.__dataclass_fields__ if name != "name"]
    for name in values:
        if name not in known:
            raise SelectionError(
                f"{where} has an unknown key {name!r}{nearest(name, known)}; known: {', '.join(known)}"
            )
    _expect("description" not in values or isinstance(values["description"], str), where, "description", "text", values)
    _expect("preset" not in values or isinstance(values["preset"], str), where, "preset", "a preset's name", values)
    seeds = values.get("seeds")
    _expect(seeds is None or (type(seeds) is int and seeds > 0), where, "seeds", "a count of 1 or more", values)
    choices = get_args(Selection)
    _expect(values.get("selection", choices[0]) in choices, where, "selection", " or ".join(choices), values)
    return Suite(
        name=path.stem,
        tasks=_specs(values, "tasks", where, TASKS),
        variants=_specs(values, "variants", where, VARIANTS),
        description=values.get("description", ""),
        preset=Spec.parse(values["preset"]) if "preset" in values else None,
        seeds=seeds,
        selection=values.get("selection", choices[0]),
    )


def _specs(values: dict[str, Any], key: str, where: str, registry: Registry) -> tuple[Spec, ...]:
    listed = values.get(key)
    if listed == ALL:
        return tuple(Spec(entry.name) for entry in registry.entries())
    is_list = isinstance(listed, list) and listed and all(isinstance(item, str) for item in listed)
    _expect(is_list, where, key, f"a list of names such as ['name[parameter=1]'], or {ALL!r}", values)
    specs = tuple(dict.fromkeys(spec for item in values[key] for spec in parse_selection(item)))
    names = [entry.name for entry in registry.entries()]
    for spec in specs:
        if spec.name not in names:
            near = nearest(spec.name, names)
            raise SelectionError(f"{where}: no {registry.noun} named {spec.name!r}{near}")
    return specs


def _expect(holds: object, where: str, key: str, wanted: str, values: dict[str, Any]) -> None:
    if not holds:
        got = repr(values[key]) if key in values else "nothing"
        raise SelectionError(f"{where}: expected {key} to be {wanted}, got {got}")


def with_longest(tasks: Sequence[Spec], memory_bytes: int) -> tuple[Spec, ...]:
    """`tasks`, and for each sweep among them the question how long a sequence runs in so many bytes.

    Raises SelectionError where none of them is a sweep.
    """
    asked: dict[Spec, None] = {}
    for task in tasks:
        if "memory_bytes" in parameters(TASKS.load(task.name)):
            rest = {name: value for name, value in task.parameters if name != "length"}
            asked[Spec.of(task.name, **rest | {"memory_bytes": memory_bytes})] = None
    if not asked:
        raise SelectionError(
            f"a memory budget is for sweeps, and none is among {', '.join(map(str, tasks))}; add --task sweep"
        )
    return (*tasks, *asked)
