"""Facts of tasks and variants that a plan needs, asked where the plugin may be imported."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..core.cell import Lane
from ..core.errors import PluginError, SelectionError
from ..core.registry import TASKS, VARIANTS, Registry, parameters
from ..core.spec import Spec
from ..process.ask import Reporter, Request, ask
from ..store.learning_rates import RateGrid, apart_from_rates, extended

_REGISTRIES = {registry.noun: registry for registry in (VARIANTS, TASKS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFacts:
    """The facts of one task: the names of its lanes, baselines, presets and parameters, and the parts of its digest.

    `task`: its Spec with values in the types of the constructor. `objective_version`: None where nothing is trained.
    `only_timed`: it is a sweep, whose lengths belong side by side, and nothing is trained.
    """

    task: Spec
    lanes: tuple[Lane, ...]
    baselines: tuple[str, ...]
    presets: tuple[str, ...]
    parameters: tuple[str, ...]
    objective_version: int | None
    works_without_attention: bool
    version: int
    only_timed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeFacts:
    """A task's recipe under a preset. `preset`: without the parameters that equal the recipe; `setting`: all values.

    `rates`: the grid of learning rates, of a preset that has one.
    """

    preset: Spec
    length: int
    ranked: bool
    setting: dict[str, Any]
    rates: RateGrid | None = None


@dataclass(frozen=True, slots=True)
class Resolve(Request[Spec]):
    """The Spec with its values in the types of the plugin's constructor; `noun`: variant or task."""

    noun: str
    spec: Spec

    def answer(self, reporter: Reporter) -> Spec:
        return _REGISTRIES[self.noun].resolve(self.spec)


@dataclass(frozen=True, slots=True)
class DescribeTask(Request[TaskFacts]):
    task: Spec

    def answer(self, reporter: Reporter) -> TaskFacts:
        canonical = TASKS.resolve(self.task)
        task = TASKS.build(canonical)
        problem = task.problem()
        return TaskFacts(
            task=canonical,
            lanes=tuple(task.lanes),
            baselines=tuple(task.baselines),
            presets=tuple(task.presets()),
            parameters=tuple(parameters(type(task))),
            objective_version=problem.objective_version if problem.objective else None,
            works_without_attention=problem.works_without_attention,
            version=task.version,
            only_timed=tuple(task.lanes) == ("time",),
        )


@dataclass(frozen=True, slots=True)
class DescribeRecipe(Request[RecipeFacts]):
    task: Spec
    preset: Spec

    def answer(self, reporter: Reporter) -> RecipeFacts:
        task = TASKS.build(self.task)
        plain, wanted = task.recipe(Spec(self.preset.name)), task.recipe(self.preset)
        rest = apart_from_rates(dict(self.preset.parameters))
        rates = extended(wanted.learning_rates, wanted.rate_extensions) if wanted.learning_rates else ()
        # of token prediction alone
        scales = [each for each in getattr(wanted, "query_key_scales", ()) if each != wanted.query_key_scale]
        alone = [
            Spec.of(self.preset.name, **rest | {"learning_rate": rate} | scale)
            for scale in ({}, *({"query_key_scale": each} for each in scales))
            for rate in rates
        ]
        presets = []
        # the preset itself, and with each learning rate in the place of its grid, at each factor on queries and keys
        for preset in (self.preset, *alone):
            recipe = task.recipe(preset)
            changed = {name: getattr(recipe, name) for name, _ in preset.parameters}
            kept = {name: value for name, value in changed.items() if value != getattr(plain, name)}
            # one rate in the place of a grid is a change, also where the recipe names the same one
            if "learning_rate" in changed and plain.learning_rates:
                kept["learning_rate"] = recipe.learning_rate
            presets.append(Spec.of(preset.name, **kept))
        grid = RateGrid(
            grid=wanted.learning_rates,
            extensions=wanted.rate_extensions,
            seeds=wanted.tuning_seeds,
            presets=tuple(zip(rates, presets[1 : 1 + len(rates)], strict=True)),
            scale=wanted.query_key_scale,
            scaled=tuple(
                (scale, tuple(zip(rates, presets[1 + at * len(rates) :], strict=False)))
                for at, scale in enumerate(scales, start=1)
            ),
        )
        return RecipeFacts(
            preset=presets[0],
            length=wanted.length,
            ranked=wanted.ranked,
            setting=asdict(wanted),
            rates=grid if rates else None,
        )


def resolve(registry: Registry, spec: Spec) -> Spec:
    """Resolve a Spec as its registry does, where the plugin may be imported.

    Raises PluginError where a plugin does not answer, SelectionError for a file or module.
    """
    try:
        return ask(registry, spec.name, Resolve(registry.noun, spec))
    except PluginError as error:
        # whoever names a file can mend it; the others of a selection need not wait for a package
        raise SelectionError(str(error)) if registry.named_files(spec.name) else error from None


def task_facts(task: Spec) -> TaskFacts:
    """Raises SelectionError for an unknown name or parameter, PluginError where a plugin does not answer."""
    return ask(TASKS, task.name, DescribeTask(task))


def recipe_facts(task: Spec, preset: Spec) -> RecipeFacts:
    """Raises as `task_facts` does, and SelectionError for a preset that the task lacks."""
    return ask(TASKS, task.name, DescribeRecipe(task, preset))
