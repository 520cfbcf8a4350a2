"""Registry: variants and tasks by name, found through entry points and imported on first use only.

Built-ins enter through the same groups as a stranger's package. A script declares its own with `Registry.declare`,
by an environment variable that the processes it starts inherit. Nothing here imports a plugin until it is loaded; the
one-line descriptions come from the source, read as text. `load` imports in this process: the harness loads a foreign
plugin in child processes only, and asks it there through `bench/process/ask.py`.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import math
import os
import re
import sys
import types
import typing
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from .entry_points import EntryPointGroup, RegistryEntry, is_own, loaded, origin_of, read_group
from .errors import PluginError, SelectionError, Unsupported, crash_text
from .spec import Range, Spec, Value, value_text
from .targets import Target, module_source, parsed, said_in, target_of

ADAPTERS = "attnbench.adapters"
"""The entry points, by noun, of functions from what others wrote, and its name, to a class of the contract; and
`audit`, which examines a module that was made a variant, and lies in a child, as it is called by itself."""


class Registry:
    """The names of one entry-point group, and targets: `mine.py:Mine` names what is in a file."""

    def __init__(self, group: str, noun: str, wrappers: Registry | None = None):
        """`wrappers`: where the wrappers of names such as `gate+softmax` are found."""
        self.group = group
        self.noun = noun
        self.wrappers = wrappers
        # `ATTNBENCH_VARIANTS` or `ATTNBENCH_TASKS`: `name=module:attribute`, several joined by semicolons
        self._variable = group.upper().replace(".", "_")
        self._own: set[str] = set()
        self._loaded: dict[EntryPoint | Target, type[Any]] = {}

    @cached_property
    def _found(self) -> EntryPointGroup:
        return read_group(self.group, os.environ.get(self._variable, ""))

    def declare(self, name: str, target: str) -> None:
        """Adds `name` for this process and those it starts; `target`: `module:attribute`, importable in all of them.

        Raises SelectionError where the name is taken by another target.
        """
        taken = self._found.points.get(name)
        if taken is not None and taken.value != target:
            raise SelectionError(f"a {self.noun} named {name!r} is there already ({taken.value}); choose another name")
        if taken is None:
            known = [os.environ[self._variable]] if os.environ.get(self._variable) else []
            os.environ[self._variable] = ";".join([*known, f"{name}={target}"])
            del self._found
        # the script that declares it has imported it already
        self._own.add(name)

    def entries(self) -> list[RegistryEntry]:
        """The names that can be used."""
        points = sorted(self._found.points.items())
        return [RegistryEntry(name=name, target=p.value, origin=origin_of(p)) for name, p in points]

    def disabled(self) -> list[RegistryEntry]:
        """Entry points that are malformed or whose name is taken, each with its problem."""
        return sorted(self._found.disabled, key=lambda entry: (entry.name, entry.origin))

    def is_foreign(self, name: str) -> bool:
        """True if `name` is third-party code that this process must not import: neither attnbench's nor declared here.

        Raises SelectionError for an unknown name; not for FILE.py:NAME, which is looked for when it is used.
        """
        parts = self.parts(name)
        # what a Record names by its place is foreign, and its file is not looked at: others have chosen which that is
        own = (":" not in part and (is_own(registry._point(part)) or part in registry._own) for registry, part in parts)
        return not (_IMPORTS.foreign or all(own))

    def parts(self, name: str) -> list[tuple[Registry, str]]:
        """The parts of a name: itself, or the variants and the wrappers of `gate+softmax` and `delta:3//softmax`."""
        if self.wrappers is None or not any(joint in name for joint in ("+", "//")):
            return [(self, name)]
        spec = Spec.parse(name)
        variants = [(self, each.name) for each in spec.variants]
        return list(dict.fromkeys(variants + [(self.wrappers, each.name) for each in spec.all_wrappers]))

    def is_own(self, name: str) -> bool:
        """True if `name` is code of attnbench itself. Raises SelectionError for an unknown name."""
        return all(is_own(registry._point(part)) for registry, part in self.parts(name))

    def _foreign_part(self, name: str) -> tuple[Registry, EntryPoint | Target]:
        """The first part of `name` that is not our own, or the first."""
        points = [(registry, registry._point(part)) for registry, part in self.parts(name)]
        return next((found for found in points if not is_own(found[1])), points[0])

    def package(self, name: str) -> str:
        """The distribution that brings `name`, its file, or the top-level module of a name that a script declares."""
        _, point = self._foreign_part(name)
        if isinstance(point, Target) and point.file:
            return str(point.file)
        return origin_of(point) if point.dist else point.module.split(".")[0]

    def source(self, name: str) -> Path | None:
        """The file that defines `name`, found without importing it; None where it is not a plain source file."""
        point = self._point(name)
        return point.source if isinstance(point, Target) else module_source(point.module)

    def sources(self, name: str) -> list[Path | None]:
        """The `source` of all that `name` is made of."""
        return [registry.source(part) for registry, part in self.parts(name)]

    def named_files(self, name: str) -> list[Path]:
        """The sources of what `name` names by its place, which no version of a package stands for."""
        return [source for registry, part in self.parts(name) if ":" in part and (source := registry.source(part))]

    def describe(self, name: str) -> str:
        """First line of the docstring, read from the source; empty where it cannot be read so."""
        path = self.source(name)
        return _first_line(path, self._point(name).attr) if path else ""

    def load(self, name: str) -> type[Any]:
        """The class behind `name`, imported now. Raises SelectionError for an unknown name, PluginError for others."""
        point = self._point(name)
        if point in self._loaded:
            return self._loaded[point]
        environment, depth = dict(os.environ), sys.getrecursionlimit()
        try:
            with importing():
                self._loaded[point] = point.load()
        except (Exception, SystemExit) as error:
            raise PluginError(self.plugin(name), f"it does not load: {crash_text(error)}") from error
        finally:
            # an import may set what others read later: a limit of recursion first, since what follows calls functions
            if not is_own(point):
                sys.setrecursionlimit(depth)
                _restore(environment)
        if not is_own(point):
            self._loaded[point] = self.adapted(self._loaded[point], name)
        return self._loaded[point]

    def parameters(self, name: str) -> dict[str, Parameter]:
        """The parameters of the plugin `name`. Raises PluginError where its constructor has one that cannot be used."""
        try:
            return parameters(self.load(name))
        except SelectionError:
            raise
        except Exception as error:
            reason = f"its constructor cannot be used: {type(error).__name__}: {error}"
            raise PluginError(self.plugin(name), reason) from error

    def adapted(self, found: Any, name: str) -> Any:
        """Make a class of the contract of what others wrote, by the entry point of `ADAPTERS` that this noun has.

        Raises SelectionError where it cannot be one.
        """
        if adapter := read_group(ADAPTERS).points.get(self.noun):
            return loaded(adapter)(found, name)
        if not isinstance(found, type):
            raise SelectionError(f"{name} is no class of a {self.noun}, and no installed package adapts it")
        return found

    def plugin(self, name: str) -> str:
        """`name` with its kind and origin, for messages."""
        registry, point = self._foreign_part(name)
        return f"the {registry.noun} {point.name!r} of {origin_of(point)}"

    def resolve(self, spec: Spec) -> Spec:
        """`spec` with its values in the types of the constructor, and without those that equal their default.

        Raises SelectionError, naming the right ones, for a parameter that the constructor lacks or of the wrong type.
        """
        if spec.layers:
            return Spec.pattern([self.resolve(each) for each in spec.layers])
        if spec.inner and self.wrappers:
            return Spec.wrapped([self.wrappers.resolve(each) for each in spec.wrappers], self.resolve(spec.inner))
        known = self.parameters(spec.name)
        values: dict[str, Value] = {}
        for name, value in spec.parameters:
            if name not in known:
                near = nearest(name, known)
                listed = ", ".join(f"{p.name}={value_text(p.default)}" for p in known.values()) or "none"
                raise SelectionError(f"{self.noun} {spec.name!r} has no parameter {name!r}{near}; it has: {listed}")
            typed = known[name].accept(value, f"{self.noun} {spec.name!r}")
            if typed != known[name].default or type(typed) is not type(known[name].default):
                values[name] = typed
        return Spec.of(spec.name, **values)

    def build(self, spec: Spec, *arguments: Any) -> Any:
        """An instance of what `spec` names: its constructor called with `arguments` and the spec's parameters.

        Of a pattern, what it names for the layer of the shape, which is the first argument of every variant. Raises
        Unsupported where the model has fewer layers than the pattern, and so would lack some of its kinds.
        """
        if spec.layers:
            if len(spec.layers) > arguments[0].layers:
                raise Unsupported(f"the pattern has {len(spec.layers)} layers, the model only {arguments[0].layers}")
            return self.build(spec.at(arguments[0].layer), *arguments)
        if spec.inner and self.wrappers:
            built = self.build(spec.inner, *arguments)
            for wrapper in reversed(spec.wrappers):
                built = self.wrappers.build(wrapper, *arguments, built)
            return built
        return self.load(spec.name)(*arguments, **dict(self.resolve(spec).parameters))

    def _point(self, name: str) -> EntryPoint | Target:
        if name not in self._found.points:
            target = target_of(name)
            if target is not None:
                return target
            problem = self._found.problem(name)
            if problem:
                raise SelectionError(f"the {self.noun} {name!r} is disabled: {problem}")
            raise SelectionError(f"no {self.noun} named {name!r}{self._near(name)}")
        return self._found.points[name]

    def _near(self, name: str) -> str:
        """The words after an unknown name: its other meaning, the nearest names, or how a new one gets known."""
        if name in WRAPPERS._found.points:
            return f": that is a wrapper, which stands before a variant: `{name}+softmax`"
        if words := said_in(name):
            return words
        for other in (VARIANTS, TASKS):
            if other is not self and name in other._found.points:
                return f": that is a {other.noun}; `attnbench list {self.noun}s` lists the {self.noun}s"
        near, new = nearest(name, self._found.points), "`pip install -e FOLDER` adds those of a plugin"
        return f"{near}; `attnbench list {self.noun}s` lists all, FILE.py:NAME is one, and {new}"


ANY_NUMBER = Range(-(2**63), 2**63 - 1)
"""The range of a parameter that declares none."""

WRAPPERS = Registry("attnbench.wrappers", "wrapper")
VARIANTS = Registry("attnbench.variants", "variant", WRAPPERS)
TASKS = Registry("attnbench.tasks", "task")


@dataclass(slots=True)
class _Imports:
    """`foreign`: True if this process is a child that may import foreign plugins; `around`: what each import is in."""

    foreign: bool = False
    around: Callable[[], AbstractContextManager[None]] = nullcontext


_IMPORTS = _Imports()


def import_foreign_plugins_here(around: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
    """Makes this process one whose end costs nothing: from now on no plugin is foreign to it.

    `around`: makes a context in which each plugin is imported, and which may tell of it.
    """
    _IMPORTS.foreign, _IMPORTS.around = True, around


def importing() -> AbstractContextManager[None]:
    """The context in which code of others is imported."""
    return _IMPORTS.around()


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One keyword of a plugin's constructor."""

    name: str
    kind: Any
    default: Value

    def accept(self, value: Value, owner: str) -> Value:
        """`value` in the parameter's type; raises SelectionError where it has another."""
        options = _options(self.kind)
        for option in options:
            if option is Any:
                return value
            if typing.get_origin(option) is typing.Literal:
                # the grammar reads the word none as no value
                word = "none" if value is None else value
                if word in typing.get_args(option):
                    return word
            elif option is type(None):
                if value is None:
                    return None
            elif isinstance(value, tuple):
                if option is str:
                    return value_text(value)
            elif option is float and isinstance(value, int | float) and not isinstance(value, bool):
                return self._inside(_as_float(value), owner)
            elif isinstance(option, type) and type(value) is option:
                return value if isinstance(value, bool | str | None) else self._inside(value, owner)
            elif option is str and not isinstance(value, str):
                return value_text(value)
        raise SelectionError(f"{owner}: expected {self.name} to be {self.kind_text()}, got {value_text(value)!r}")

    @property
    def range(self) -> Range:
        """The values that a number may have; without a declared range those that PyTorch takes."""
        declared = (extra for kind in _alternatives(self.kind) for extra in getattr(kind, "__metadata__", ()))
        return next((extra for extra in declared if isinstance(extra, Range)), ANY_NUMBER)

    def _inside(self, value: float, owner: str) -> float:
        limits = self.range
        # PyTorch takes any finite float, and no whole number beyond 64 bits
        fits = math.isfinite(value) if limits is ANY_NUMBER and isinstance(value, float) else value in limits
        if not fits:
            raise SelectionError(f"{owner}: expected {self.name} to be {self.kind_text()}, got {value_text(value)}")
        return value

    def kind_text(self) -> str:
        """The types and the range of its values in words."""
        texts = []
        for option in _options(self.kind):
            if typing.get_origin(option) is typing.Literal:
                texts += [value_text(v) for v in typing.get_args(option)]
            else:
                texts.append("none" if option is type(None) else getattr(option, "__name__", str(option)))
                if option in (int, float) and self.range is not ANY_NUMBER:
                    texts[-1] += f" {self.range}"
        return " | ".join(texts)


def parameters(plugin: type[Any]) -> dict[str, Parameter]:
    """The keyword-only parameters of a plugin's constructor, or of the function `parameters_from` that it names.

    Without an annotation the type is that of the default. Raises ValueError where a default is missing or out of range.
    """
    function = getattr(plugin, "parameters_from", None) or plugin.__init__
    hints = typing.get_type_hints(function, include_extras=True)
    found = {}
    for p in inspect.signature(function).parameters.values():
        if p.kind is not inspect.Parameter.KEYWORD_ONLY:
            continue
        if p.default is p.empty:
            raise ValueError(f"parameter {p.name!r} has no default, and each parameter needs one")
        kind = hints.get(p.name, Any if p.default is None else type(p.default))
        found[p.name] = made = Parameter(name=p.name, kind=kind, default=p.default)
        if isinstance(p.default, int | float) and made.range is not ANY_NUMBER and p.default not in made.range:
            raise ValueError(f"the default of parameter {p.name!r}, {p.default}, is outside its range {made.range}")
    return found


NAMES_ELSEWHERE = {
    "deltanet": "delta", "gateddeltanet": "delta[decay=scalar]", "kda": "delta[decay=channel]",
    "kimideltaattention": "delta[decay=channel]", "mamba": "ssd", "mamba2": "ssd", "gla": "gated-linear",
    "flash": "softmax", "flashattention": "softmax", "sdpa": "softmax", "vanilla": "softmax", "swa": "window",
    "slidingwindow": "window", "retnet": "retention", "lightningattention": "retention[decays=lightning]",
    "gdn2": "gated-delta-2", "gateddeltaproduct": "delta-product[decay=scalar]", "multiheadlatentattention": "mla",
    "tttlinear": "ttt", "ssmax": "scalable-softmax", "forgettingtransformer": "fox", "bahdanau": "additive",
}  # fmt: skip
"""The names of variants in papers and libraries, in small letters and digits alone, and its selection here."""


def nearest(name: str, known: Any) -> str:
    """` (did you mean 'x'?)`, or nothing where no known name is near; capitals are no difference."""
    spelt = {each.lower(): each for each in known}
    found = difflib.get_close_matches(name.lower(), list(spelt), n=2, cutoff=0.5)
    matches = [spelt[each] for each in ([name.lower()] if name.lower() in spelt else found)]
    meant = NAMES_ELSEWHERE.get(re.sub(r"[^a-z0-9]", "", name.lower()), "")
    if meant.partition("[")[0] in spelt:
        matches = [meant]
    return f" (did you mean {' or '.join(repr(m) for m in matches)}?)" if matches else ""


def _restore(environment: dict[str, str]) -> None:
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    for name, value in environment.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def _options(kind: Any) -> tuple[Any, ...]:
    """The types that a value may have, without what is annotated beside them."""
    alternatives = _alternatives(kind)
    return tuple(typing.get_args(k)[0] if typing.get_origin(k) is typing.Annotated else k for k in alternatives)


def _alternatives(kind: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    return typing.get_args(kind) if is_union else (kind,)


def _as_float(value: float) -> float:
    """`value` as a float, infinite where it is too large for one."""
    try:
        return float(value)
    except OverflowError:
        return float("inf")


def _first_line(path: Path, attribute: str) -> str:
    tree = parsed(path)
    for node in tree.body if tree else ():
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == attribute:
            return (ast.get_docstring(node) or "").partition("\n")[0]
    return ""
