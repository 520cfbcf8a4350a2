"""Facts of tasks and variants that a plan needs, asked where the plugin may be imported."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..core.cell import Lane
from ..core.registry import TASKS, VARIANTS, Registry, parameters
from ..core.spec import Spec
from ..process.ask import Question, Told, ask

_REGISTRIES = {registry.noun: registry for registry in (VARIANTS, TASKS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFacts:
    """Of one task: the names of its lanes, baselines, presets and parameters, and the parts of its digest.

    `objective`: the name of its problem's kind, as in `bench/core/protocol.py`.
    """

    lanes: tuple[Lane, ...]
    baselines: tuple[str, ...]
    presets: tuple[str, ...]
    parameters: tuple[str, ...]
    objective: str
    version: int
    suites: tuple[str, ...] = ()

    @property
    def only_timed(self) -> bool:
        """Whether it is a sweep: its lengths belong side by side, and nothing is trained."""
        return self.lanes == ("time",)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeFacts:
    """A task's recipe under a preset. `preset`: without the parameters that equal the recipe; `setting`: all values."""

    preset: Spec
    length: int
    setting: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Resolve(Question[Spec]):
    """The Spec with its values in the types of the plugin's constructor; `noun`: variant or task."""

    noun: str
    spec: Spec

    def answer(self, told: Told) -> Spec:
        return _REGISTRIES[self.noun].resolve(self.spec)


@dataclass(frozen=True, slots=True)
class DescribeTask(Question[TaskFacts]):
    task: Spec

    def answer(self, told: Told) -> TaskFacts:
        task = TASKS.build(self.task)
        return TaskFacts(
            lanes=tuple(task.lanes),
            baselines=tuple(task.baselines),
            presets=tuple(task.presets()),
            parameters=tuple(parameters(type(task))),
            objective=task.problem().objective,
            version=task.version,
            suites=tuple(task.suites),
        )


@dataclass(frozen=True, slots=True)
class DescribeRecipe(Question[RecipeFacts]):
    task: Spec
    preset: Spec

    def answer(self, told: Told) -> RecipeFacts:
        task = TASKS.build(self.task)
        plain, wanted = task.recipe(Spec(self.preset.name)), task.recipe(self.preset)
        changed = {name: getattr(wanted, name) for name, _ in self.preset.parameters}
        kept = {name: value for name, value in changed.items() if value != getattr(plain, name)}
        return RecipeFacts(preset=Spec.of(self.preset.name, **kept), length=wanted.length, setting=asdict(wanted))


def resolve(registry: Registry, spec: Spec) -> Spec:
    """As `Registry.resolve`; raises PluginError where a plugin does not answer."""
    return ask(registry, spec.name, Resolve(registry.noun, spec))


def task_facts(task: Spec) -> TaskFacts:
    """Raises SelectionError for an unknown name or parameter, PluginError where a plugin does not answer."""
    return ask(TASKS, task.name, DescribeTask(task))


def recipe_facts(task: Spec, preset: Spec) -> RecipeFacts:
    """As `task_facts`; raises SelectionError for a preset that the task lacks, too."""
    return ask(TASKS, task.name, DescribeRecipe(task, preset))
