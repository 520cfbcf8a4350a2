"""`attnbench list` and `show`: installed names, as lists that import no plugin and as full entries that do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core.errors import AttnbenchError, PluginError, SelectionError
from ..core.registry import TASKS, VARIANTS, WRAPPERS, Registry, nearest
from ..core.spec import Spec, value_text
from ..plan.facts import recipe_facts
from ..process.ask import Reporter, Request, ask
from ..stats.format import counted
from .command import command
from .options import DataDir, Json, complete_named, presets_of_own_tasks
from .output import print_rows, say, say_json

if TYPE_CHECKING:
    from ...tasks.contract import Problem, Recipe, Task
    from ...variants.contract import AttentionShape, Variant


class What(StrEnum):
    VARIANTS = "variants"
    WRAPPERS = "wrappers"
    TASKS = "tasks"
    SUITES = "suites"
    PRESETS = "presets"


REGISTRIES: dict[What, Registry] = {What.VARIANTS: VARIANTS, What.WRAPPERS: WRAPPERS, What.TASKS: TASKS}
BY_NOUN = {registry.noun: registry for registry in REGISTRIES.values()}

HEADS, HEAD_DIM, LENGTH = 4, 32, 1024
"""The example shape of the densities and sizes that `show` prints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One line of a list. `problem`: why it does not load; None where it does, or was not tried."""

    name: str
    origin: str
    description: str
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Fact:
    """One line of a full entry."""

    label: str
    value: str


@command("Read", "attnbench list variants")
def list_(
    what: Annotated[What | None, typer.Argument(help="Kind of names (default: all).", show_default=False)] = None,
    load: Annotated[bool, typer.Option("--load", help="Import each, and report those that fail.")] = False,
    json: Json = False,
) -> None:
    """List variants, wrappers, tasks, suites and presets with a one-line description."""
    kinds = list(What) if what is None else [what]
    listed = {kind: list(_items(kind, load)) for kind in kinds}
    if json:
        shown = ("name", "origin", "description", *(("problem",) if load else ()))
        values = {k.value: [{name: getattr(item, name) for name in shown} for item in listed[k]] for k in kinds}
        say_json(values if what is None else values[what.value])
        return
    for at, kind in enumerate(kinds):
        if what is None:
            say(("\n" if at else "") + kind.value)
        second = "tasks" if kind is What.PRESETS else "origin"
        # the origin of all that comes with attnbench would repeat one word on each line
        origins = ["" if item.origin.partition(" ")[0] == "attnbench" else item.origin for item in listed[kind]]
        columns = {
            "name": [item.name for item in listed[kind]],
            **({second: origins} if any(origins) else {}),
            "description": [item.problem or item.description for item in listed[kind]],
        }
        rows = list(zip(*columns.values(), strict=True))
        print_rows(rows, tuple(columns), ["red" if item.problem else "" for item in listed[kind]])


@command("Read", "attnbench show rela")
def show(
    name: Annotated[
        str,
        typer.Argument(autocompletion=complete_named, help="A variant, task or preset, such as `local\\[flange=64]`."),
    ],
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Show a variant, task or preset: parameters, equation, paper, support, cost and data."""
    spec = Spec.parse(name)
    context = list(_facts(spec, data_dir))
    if json:
        say_json({"name": str(spec)} | {fact.label: fact.value for fact in context})
        return
    print_rows([(fact.label, fact.value) for fact in context])


def _items(what: What, load: bool) -> Iterator[Item]:
    if what is What.PRESETS:
        for name, by_recipe in presets_of_own_tasks().items():
            for recipe, tasks in by_recipe.items():
                yield Item(name=name, origin=", ".join(tasks), description=_recipe_line(recipe))
        return
    if what is What.SUITES:
        from ..plan.suite_file import read_suite
        from ..plan.suites import built_in

        for name in built_in():
            yield Item(name=name, origin="attnbench", description=read_suite(name).description)
        return
    registry = REGISTRIES[what]
    for entry in registry.entries():
        problem = _problem(registry, entry.name) if load else None
        yield Item(name=entry.name, origin=entry.origin, description=registry.describe(entry.name), problem=problem)
    for entry in registry.disabled():
        problem = f"disabled: {entry.problem}"
        yield Item(name=entry.name, origin=entry.origin, description=problem, problem=problem)


def _foreign_recipes(preset: Spec) -> Iterator[Fact]:
    """The recipes under a preset of the tasks that a child must import."""
    for entry in TASKS.entries():
        if TASKS.is_foreign(entry.name):
            with suppress(AttnbenchError):
                setting = recipe_facts(Spec(entry.name), preset).setting
                text = ", ".join(f"{name} {value_text(value)}" for name, value in setting.items())
                yield Fact(entry.name, text)


def _problem(registry: Registry, name: str) -> str | None:
    try:
        ask(registry, name, TryParameters(registry.noun, name))
    except AttnbenchError as error:
        return str(error)
    return None


def _facts(spec: Spec, data_dir: Path | None) -> Iterator[Fact]:
    if spec.inner or spec.layers:
        parts = [spec.name for spec in (*spec.all_wrappers, *spec.variants)]
        raise SelectionError(f"{spec} is made of several; show each by itself: {', '.join(parts)}")
    known: dict[str, Registry] = {entry.name: r for r in (WRAPPERS, TASKS, VARIANTS) for entry in r.entries()}
    if ":" in spec.name:
        known[spec.name] = TASKS if ask(VARIANTS, spec.name, NamesTask(spec.name)) else VARIANTS
    if spec.name not in known:
        presets = presets_of_own_tasks()
        if spec.name in presets:
            yield Fact("preset", f"{spec}; its values depend on the task")
            for recipe, tasks in presets[spec.name].items():
                values = asdict(recipe.with_overrides(spec))
                text = ", ".join(f"{name} {value_text(value)}" for name, value in values.items())
                yield Fact(", ".join(tasks), text)
            yield from _foreign_recipes(spec)
            return
        from ..plan.suites import built_in

        if spec.name in built_in():
            raise SelectionError(f"{spec.name!r} is a suite; `attnbench plan --suite {spec.name}` shows its cells")
        near = nearest(spec.name, [*known, *presets, *built_in()])
        raise SelectionError(f"no variant, task or preset named {spec.name!r}{near}; see `attnbench list variants`")
    registry = known[spec.name]
    yield from ask(registry, spec.name, DescribePlugin(registry.noun, spec, data_dir))


@dataclass(frozen=True, slots=True)
class DescribePlugin(Request[list[Fact]]):
    """The full entry of a variant or task."""

    noun: str
    spec: Spec
    data_dir: Path | None

    def answer(self, reporter: Reporter) -> list[Fact]:
        registry = BY_NOUN[self.noun]
        return list(_plugin_facts(registry, registry.resolve(self.spec), self.data_dir))


@dataclass(frozen=True, slots=True)
class NamesTask(Request[bool]):
    """True if FILE.py:NAME is a task."""

    name: str

    def answer(self, reporter: Reporter) -> bool:
        try:
            return bool(TASKS.load(self.name))
        except PluginError:
            raise
        except SelectionError:
            return False


@dataclass(frozen=True, slots=True)
class TryParameters(Request[None]):
    """Imports a plugin and reads the parameters of its constructor."""

    noun: str
    name: str

    def answer(self, reporter: Reporter) -> None:
        BY_NOUN[self.noun].parameters(self.name)


def _plugin_facts(registry: Registry, spec: Spec, data_dir: Path | None) -> Iterator[Fact]:
    plugin = registry.load(spec.name)
    yield Fact(registry.noun, str(spec))
    yield Fact("origin", registry.package(spec.name))
    yield Fact("description", _paragraphs(plugin))
    yield Fact("paper", plugin.paper or "not stated")
    for parameter in registry.parameters(spec.name).values():
        text = f"{parameter.kind_text()}, default {value_text(parameter.default)}"
        yield Fact(f"parameter {parameter.name}", text)
    if registry is WRAPPERS:
        yield Fact("equation", plugin.equation or "not stated")
        return
    yield from _variant_facts(spec) if registry is VARIANTS else _task_facts(spec, data_dir)


def _variant_facts(spec: Spec) -> Iterator[Fact]:
    from ...variants.contract import AttentionShape

    shape = AttentionShape(heads=HEADS, head_dim=HEAD_DIM, max_length=LENGTH)
    causal = AttentionShape(heads=HEADS, head_dim=HEAD_DIM, max_length=LENGTH, causal=True)
    variant = _variant(spec, shape)
    if isinstance(variant, str):
        variant = _variant(spec, causal)
    yield from _class_facts(VARIANTS.load(spec.name))
    yield from _control_facts(spec)
    yield Fact("full attention", _support(spec, shape))
    yield Fact("causal mask", _support(spec, causal))
    cross = AttentionShape(heads=HEADS, head_dim=HEAD_DIM, max_length=LENGTH, cross=True)
    yield Fact("queries of another sequence", _support(spec, cross))
    # in a form that the variant has, so that the answer is about the dtype
    half = replace(causal if _support(spec, shape).startswith("no") else shape, dtype="bfloat16")
    yield Fact("bfloat16", _support(spec, half))
    if isinstance(variant, str):
        return
    at = f"{HEADS} heads of {HEAD_DIM} at length {LENGTH}"
    yield Fact("density", f"computes {variant.density(variant.shape):.4g} of the score entries, {at}")
    state = variant.state_bytes(causal)
    yield Fact("decode state", "none" if state is None else f"{state:,} bytes per sequence, {at}")
    if found := getattr(variant, "found", ""):
        yield Fact("called", found)
    own = sum(p.numel() for p in variant.parameters())
    yield Fact("own parameters", f"{own:,} per layer, {at}")


def _control_facts(spec: Spec) -> Iterator[Fact]:
    from ..store.controls import control_records, controls_of, judged

    for control in controls_of(spec):
        found = judged(control, control_records())
        result = f"{found.state}{f' ({found.shown})' if found.shown else ''}"
        yield Fact("control", f"{control.claim}: {control.asks} on {control.task}, {control.preset}: {result}")
        yield Fact("control's source", control.source)


def _class_facts(plugin: type[Variant]) -> Iterator[Fact]:
    yield Fact("equation", plugin.equation or "not stated")
    kinds = {
        "exact": f"exact: the same function as {plugin.twin}" if plugin.twin else "exact",
        "approximate": "approximates softmax",
        "different": "a function of its own",
    }
    yield Fact("kind", kinds[plugin.kind])
    causalities = {
        "strict": "strict",
        "selection": "values never come from the future; which past keys are seen may depend on it",
        None: "none",
    }
    yield Fact("causality", causalities[plugin.causality])
    dropped = "yes" if plugin.uses_dropout else "no: it drops nothing, whatever a preset asks for"
    yield Fact("attention dropout", dropped)
    yield Fact("time", plugin.time)
    yield Fact("memory", plugin.memory)


def _variant(spec: Spec, shape: AttentionShape) -> Variant | str:
    """The variant, or the reason why it cannot be made."""
    try:
        variant: Variant = VARIANTS.build(spec, shape)
        return variant.supports(shape) or variant
    except Exception as error:
        return str(error) or type(error).__name__


def _support(spec: Spec, shape: AttentionShape) -> str:
    variant = _variant(spec, shape)
    return f"no: {variant}" if isinstance(variant, str) else "yes"


def _task_facts(spec: Spec, data_dir: Path | None) -> Iterator[Fact]:
    from ...tasks.data.data import place

    task: Task = TASKS.build(spec)
    problem, metric = task.problem(), task.metric
    yield Fact("problem", _problem_line(problem))
    margin = metric.margin_words(metric.margin)
    chance = "" if metric.chance is None else f"; blind guessing gives {metric.chance:.4g}"
    yield Fact("metric", f"{metric.name}; non-inferiority margin {margin}{chance}")
    yield Fact("baselines", ", ".join(task.baselines) or "none")
    for name in task.presets():
        with suppress(SelectionError):
            yield Fact(f"preset {name}", _recipe_line(task.recipe(Spec(name))))
    try:
        sources = task.availability(place(data_dir))
    except SelectionError as error:
        # a task that reads a folder of one's own has no data before the folder is named
        yield Fact("data", f"depends on parameters: {error}")
        return
    for found in sources:
        ready = "ready" if found.ready else "not here"
        advice = f"; {found.advice}" if found.advice and not found.ready else ""
        yield Fact(f"data {found.source}", f"{ready} ({found.fidelity}): {found.detail}{advice}")


def _problem_line(problem: Problem) -> str:
    from ...tasks.contract import Classification

    if not isinstance(problem, Classification):
        return f"{problem.objective.replace('_', ' ')}, {problem.vocabulary} token ids"
    towers = "one sequence" if problem.towers == 1 else f"{problem.towers} sequences"
    return f"{problem.classes} classes, {problem.vocabulary} token ids, {towers} an example"


def _recipe_line(recipe: Recipe) -> str:
    """A recipe in one line.

    >>> from attnbench.tasks.contract import PRESETS
    >>> _recipe_line(PRESETS["smoke"])
    '2 layers of width 64 with 2 heads, length 128, 6 steps of 8, learning rate 0.001; never ranked'
    """
    tokens = getattr(recipe, "tokens", None)
    batch = f"{tokens:,} tokens" if tokens else f"{recipe.batch}"
    rates = recipe.learning_rates or (recipe.learning_rate,)
    line = (
        f"{counted(recipe.layers, 'layer')} of width {recipe.width} with {counted(recipe.heads, 'head')}, "
        f"length {recipe.length}, "
        f"{recipe.steps:,} steps of {batch}, learning rate {' or '.join(f'{rate:g}' for rate in rates)}"
    )
    return line if recipe.ranked else f"{line}; never ranked"


def _paragraphs(plugin: type[Any]) -> str:
    return " ".join((plugin.__doc__ or "").split())
