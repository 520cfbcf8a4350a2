"""Options of a run: what is measured, where and how, in one value whose bounds are checked once."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from ...tasks.contract import PRESETS
from ..core.cell import NO_ATTENTION, REFERENCE, Lane, Selection
from ..core.errors import SelectionError
from ..core.files import RESULTS
from ..core.registry import TASKS
from ..core.spec import Names, Spec, bytes_of, specs_of
from .executor_settings import ExecutorSettings, executor_of
from .facts import task_facts
from .suite_file import read_suite
from .suites import built_in

MOST_SEEDS = 1_000
MOST_CELLS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of `run` and `plan`, parsed but not yet looked up on this machine; None leaves a choice to it.

    A command line, Python and the file of a suite fill it; `options_of` joins them. `suite`: its name, empty without
    one. `preset`: such as `quick[steps=100]`. `seeds`: how many. `selection`: split that chooses the checkpoint.
    `lanes`: only these kinds of job. `device`: `cpu`, `cuda` or `cuda:1`. `results`: folder of the Records. `data_dir`:
    folder of original data. `offline`: never download. `retry`: run failed cells again. `even_if_wrong`: measure what
    the gate finds wrong too. `timeout`: seconds that a cell may take. `threads`: of the processor for each job, 0 for
    its share of the cores. `executor`: where jobs run, how many at once, and its own options.
    """

    variants: tuple[Spec, ...]
    tasks: tuple[Spec, ...]
    suite: str = ""
    description: str = ""
    preset: Spec | None = None
    seeds: int | None = None
    selection: Selection = "validation"
    lanes: tuple[Lane, ...] = get_args(Lane)
    device: str | None = None
    results: Path = RESULTS
    data_dir: Path | None = None
    offline: bool = False
    retry: bool = False
    even_if_wrong: bool = False
    timeout: float | None = None
    threads: int = 0
    executor: ExecutorSettings = field(default_factory=ExecutorSettings)

    def __post_init__(self) -> None:
        """Raises SelectionError for a value that no machine, or not this one, can run with."""
        if self.seeds is not None and not 1 <= self.seeds <= MOST_SEEDS:
            raise SelectionError(f"expected a count of seeds from 1 to {MOST_SEEDS:,}, got {self.seeds:,}")
        cells = len(self.tasks) * len(self.variants) * (self.seeds or 1)
        if cells > MOST_CELLS:
            raise SelectionError(
                f"expected at most {MOST_CELLS:,} cells, got {cells:,}: {len(self.variants):,} variants, "
                f"{len(self.tasks):,} tasks, {self.seeds or 1:,} seeds; choose fewer"
            )
        if self.selection not in get_args(Selection):
            words = " or ".join(get_args(Selection))
            raise SelectionError(f"expected selection to be {words}, got {self.selection!r}")
        unknown = set(self.lanes) - set(get_args(Lane))
        if unknown or not self.lanes:
            got = ", ".join(map(repr, sorted(unknown))) or "none"
            raise SelectionError(f"expected lanes among {', '.join(get_args(Lane))}, got {got}")
        if self.timeout is not None and not 1 <= self.timeout < math.inf:
            raise SelectionError(f"expected a time limit of 1 second or more, got {self.timeout}")
        # a node of a cluster may have more than this machine
        cores = os.cpu_count() or 1 if self.executor.name == "local" else 1024
        if not 0 <= self.threads <= max(cores, 2):
            raise SelectionError(f"expected 0 to {cores:,} threads, as this machine has cores, got {self.threads:,}")


def load_suite(name_or_file: str) -> Options:
    """The options of the built-in suite of that name, or of that file, which ends in `.toml`.

    Raises SelectionError where there is none, or where a key or value of it is wrong.
    """
    if name_or_file.partition("[")[0] in PRESETS and name_or_file not in built_in():
        raise SelectionError(
            f"no suite named {name_or_file!r}: that is a preset; `--preset {name_or_file}` takes it; built in: "
            f"{', '.join(built_in())}; or name a FILE.toml"
        )
    file = read_suite(name_or_file)
    return Options(
        suite=file.name,
        tasks=file.tasks,
        variants=file.variants,
        description=file.description,
        preset=file.preset,
        seeds=file.seeds,
        selection=file.selection,
        executor=executor_of(file.executor, file.where),
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
    too little, and for a value that is none; baselines alone need no variant.
    """
    given = {name: value for name, value in others.items() if value is not None}
    given |= {name: value for name, value in (("variants", variants), ("tasks", tasks)) if value is not None}
    given |= {name: parse(given[name]) for name, parse in _PARSERS.items() if name in given}
    # simple rules are no variants
    if suite is None and (tasks is None or (variants is None and given.get("lanes") != ("baseline",))):
        raise SelectionError(
            "expected variants and a task, or a suite; for example: "
            "attnbench run --variants rela,entmax15 --task lra-text"
        )
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
