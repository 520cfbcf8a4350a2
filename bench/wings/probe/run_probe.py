"""Run what a probe asks of one variant: the gate, a training on each task, the time of attention over lengths."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from ...core.cell import REFERENCE
from ...core.errors import PluginError, SelectionError
from ...core.record import Record
from ...core.registry import VARIANTS, nearest
from ...core.spec import Spec
from ...gate.report import CheckReport
from ...gate.result import Result
from ...measure.machine import choose_device
from ...plan.facts import recipe_facts, resolve
from ...process.ask import ask
from ...store.learning_rates import apart_from_rates
from ...store.records import Records
from .order import SeesOrder
from .tasks import CAUSAL_TASKS, POOLED_TASKS, SWEPT_LENGTHS, Examined

TIMING_SECONDS = 20.0
"""The longest time spent on timing at each length."""

Notice = Callable[[str], None]
Run = Callable[..., Records]
Check = Callable[..., CheckReport]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRun:
    """The results: a Record a task of the variant (`trained`) and of the reference (`beside`); `timed`: a sweep."""

    variant: Spec
    examined: Examined
    trained: tuple[Record, ...] = ()
    beside: tuple[Record, ...] = ()
    timed: tuple[Record, ...] = ()


def run_probe(
    specs: tuple[Spec, ...], preset: str | Spec, device: str | None, *, check: Check, run: Run, notice: Notice
) -> ProbeRun:
    """Examines the one variant of `specs`; where the gate is green, trains and times it.

    check, run: those of the Python interface. Raises SelectionError for several variants, a pattern and another preset.
    """
    preset = Spec.parse(str(preset))
    if len(specs) != 1 or specs[0].layers:
        raise SelectionError(f"expected one variant to probe, alike in all layers, got {', '.join(map(str, specs))}")
    if preset.name not in (usual := ("quick", "smoke")):
        near = nearest(preset.name, usual)
        raise SelectionError(f"expected the preset quick or smoke, which take minutes, got {preset.name!r}{near}")
    (spec,), place = specs, choose_device(device)
    # the report of the check says why a plugin does not answer
    with suppress(PluginError):
        spec = resolve(VARIANTS, spec)
    # wrong words are told before the minute that the check takes
    presets = {task: _at_own_rate(Spec(task), preset) for task in CAUSAL_TASKS}
    notice(f"gate: testing {spec}")
    examined = examined_by(check(spec, device=str(place)))
    if not examined.passed:
        return ProbeRun(variant=spec, examined=examined)
    if examined.causal and spec.name != REFERENCE:
        examined = replace(examined, sees_order=ask(VARIANTS, spec.name, SeesOrder(spec)))
    if not examined.causal:
        presets = {task: _at_own_rate(Spec(task), preset) for task in POOLED_TASKS}
    # the variant and the reference side by side, a core each
    jobs = 2 if place.type == "cpu" and (os.cpu_count() or 1) > 1 else None
    found: list[Record] = []
    pair = tuple(dict.fromkeys((Spec(REFERENCE), spec)))
    for at, (task, at_rate) in enumerate(presets.items(), 1):
        notice(f"part {at} of {len(presets) + 1}: {task}")
        found += run(pair, task, preset=at_rate, lanes="train", jobs=jobs)
        if examined.sees_order:
            notice(f"{spec} knows positions by itself: softmax is trained with rotary ones too")
            rotary = Spec.of(at_rate.name, **dict(at_rate.parameters) | {"positions": "rope"})
            found = [record for record in found if record.cell.variant == spec or record.cell.preset.get("positions")]
            found += run(REFERENCE, task, preset=rotary, lanes="train", jobs=jobs)
    notice(f"part {len(presets) + 1} of {len(presets) + 1}: time at {len(SWEPT_LENGTHS)} lengths")
    causal = {"causal": True} if examined.only_causal else {}
    points = [Spec.of("sweep", length=length, **causal) for length in SWEPT_LENGTHS]
    timing = Spec.of("quick", timing_seconds=TIMING_SECONDS) if preset.name == "quick" else Spec(preset.name)
    return ProbeRun(
        variant=spec,
        examined=examined,
        trained=tuple(record for record in found if record.cell.variant == spec),
        beside=tuple(record for record in found if record.cell.variant.name == REFERENCE != spec.name),
        timed=tuple(run(pair, points, preset=timing)),
    )


def _at_own_rate(task: Spec, preset: Spec) -> Spec:
    """The preset with the task's own learning rate in the place of a grid."""
    facts = recipe_facts(task, preset)
    if not facts.rates:
        return preset
    rest = apart_from_rates(dict(preset.parameters))
    return Spec.of(preset.name, **rest | {"learning_rate": float(facts.setting["learning_rate"])})


def examined_by(report: CheckReport) -> Examined:
    worst = [result for _, result in report.worst()]
    applies = dict.fromkeys((True, False), False)
    for setting, result in report.results:
        applies[setting.causal] |= result.held is not None
    return Examined(
        holding=tuple(result.property for result in worst if result.held),
        failures=tuple(_failure(each) for each in report.failures),
        not_applicable=sum(result.held is None for result in worst),
        seconds=report.seconds,
        problem=report.problem or report.unsupported or report.first_error,
        unsupported=bool(report.unsupported),
        causal=applies[True],
        only_causal=not applies[False],
    )


def _failure(result: Result) -> str:
    """A red property: what was measured, what is allowed, where, and the usual cause."""
    numbers = f"error {result.measured:.2g}, allowed {result.allowed:.2g}" if result.allowed == result.allowed else ""
    return f"{result.property}: {'; '.join(filter(None, [numbers, result.detail]))}".removesuffix(": ")
