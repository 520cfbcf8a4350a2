"""The names of an entry-point group, read from metadata; a malformed or doubled one disables that name alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import Distribution, EntryPoint, distributions, entry_points
from typing import Any

from .errors import PluginError, SelectionError, crash_text
from .spec import Spec
from .targets import Target

OWN_PACKAGE = "attnbench"

_TARGET = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*\s*:\s*[^\W\d]\w*(\.[^\W\d]\w*)*\s*(\[.*\])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryEntry:
    """One name as its package declares it. `origin`: the distribution that brings it; `problem`: why it is disabled."""

    name: str
    target: str
    origin: str
    problem: str = ""


@dataclass(slots=True)
class EntryPointGroup:
    """`points`: the usable entry points by name; `disabled`: those that cannot be used, each with its problem."""

    points: dict[str, EntryPoint] = field(default_factory=dict)
    disabled: list[RegistryEntry] = field(default_factory=list)

    def problem(self, name: str) -> str:
        """The reason why `name` cannot be used; empty where it can."""
        return "; ".join(entry.problem for entry in self.disabled if entry.name == name)


def read_group(group: str, declared: str = "") -> EntryPointGroup:
    """The names of `group`, and those of `declared`: `name=module:attribute`, several joined by semicolons."""
    found = EntryPointGroup()
    claims: dict[str, list[EntryPoint]] = {}
    lines = [line.partition("=") for line in map(str.strip, declared.split(";")) if line]
    of_script = [EntryPoint(name.strip(), target.strip(), group) for name, _, target in lines]
    for point in (*_installed(group, found), *of_script):
        problem = _problem_of(point)
        if problem:
            found.disabled.append(_entry(point, problem))
            continue
        same = claims.setdefault(point.name, [])
        # a distribution that is found in two places of the path is one
        if all((origin_of(twin), twin.value) != (origin_of(point), point.value) for twin in same):
            same.append(point)
    for name, points in claims.items():
        own = next((point for point in points if is_own(point)), None)
        if own is not None or len(points) == 1:
            found.points[name] = own or points[0]
        listed = " and ".join(f"{origin_of(point)} ({point.value})" for point in points)
        for point in points if len(points) > 1 else ():
            if own is None:
                problem = f"two packages bring the name {name!r}: {listed}; uninstall or rename one"
            else:
                problem = f"the name {name!r} is taken by attnbench itself ({own.value}); rename it"
            if point is not own:
                found.disabled.append(_entry(point, problem))
    return found


def load_point(group: str, name: str) -> Any:
    """The object that `name` of `group` stands for: a command, an executor, whatever extends attnbench itself.

    Raises SelectionError for a name that no installed package brings, PluginError for one that does not load.
    """
    found = read_group(group)
    if name not in found.points:
        problem = (
            found.problem(name) or f"no installed package brings it; known: {', '.join(found.points) or 'nothing'}"
        )
        raise SelectionError(f"{group} has no {name!r}: {problem}")
    return loaded(found.points[name])


def loaded(point: EntryPoint) -> Any:
    """The object that an entry point names, imported now; raises PluginError where it does not load."""
    try:
        return point.load()
    except (Exception, SystemExit) as error:
        raise PluginError(f"{point.name!r} of {origin_of(point)}", f"it does not load: {crash_text(error)}") from error


@cache
def load_own(group: str) -> tuple[Any, ...]:
    """The objects that attnbench itself brings under `group`, by name: readers of Records import no code of others."""
    points = read_group(group).points
    return tuple(point.load() for _, point in sorted(points.items()) if is_own(point))


def origin_of(point: EntryPoint | Target) -> str:
    """The distribution that brings an entry point, with its version; of a target its file or module."""
    if isinstance(point, Target):
        return point.name.rpartition(":")[0]
    if not point.dist:
        return "this script"
    try:
        return f"{point.dist.name} {point.dist.version}"
    except Exception:
        # metadata without a name or version
        return "a package without metadata"


def is_own(point: EntryPoint | Target) -> bool:
    """True if an entry point names code of attnbench itself.

    A target never does: whoever sends a Record may name any function that a module of ours can reach, such as
    `attnbench.bench.core.files:os.abort`.
    """
    # not "is an EntryPoint": where a package imports `importlib_metadata`, as MLflow does, all are of its class
    return not isinstance(point, Target) and point.value.partition(":")[0].strip().split(".")[0] == OWN_PACKAGE


def _installed(group: str, found: EntryPointGroup) -> Iterable[EntryPoint]:
    try:
        return list(entry_points(group=group))
    except Exception:
        # one malformed line of any package makes the reader of the standard library give up
        return [point for dist in distributions() for point in _points_of(dist, group, found)]


def _points_of(dist: Distribution, group: str, found: EntryPointGroup) -> Iterator[EntryPoint]:
    """The entry points of one distribution, line by line."""
    try:
        text = dist.read_text("entry_points.txt") or ""
    except Exception:
        return
    section = ""
    for line in map(str.strip, text.split("\n")):
        if line.startswith("[") and line.endswith("]"):
            section = line.strip("[]").strip()
        elif section == group and line and not line.startswith("#"):
            name, _, target = (part.strip() for part in line.partition("="))
            point = EntryPoint(name, target, group)
            yield point._for(dist)  # type: ignore[attr-defined]


def _problem_of(point: EntryPoint) -> str:
    try:
        spec = Spec.parse(point.name)
        # a target such as FILE.py:NAME, a wrapped variant and a pattern are names too, but of something else
        named = spec == Spec(point.name) and not (":" in point.name or spec.inner or spec.layers)
    except (SelectionError, RecursionError):
        named = False
    if not named:
        return f"expected a name of letters, digits and . - _, got {point.name[:80]!r}; rename it"
    if not _TARGET.fullmatch(point.value):
        return f"expected a target `module:attribute`, got {point.value[:80]!r}; correct the entry point"
    return ""


def _entry(point: EntryPoint, problem: str) -> RegistryEntry:
    return RegistryEntry(name=point.name, target=point.value, origin=origin_of(point), problem=problem)
