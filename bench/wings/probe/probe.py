"""`attnbench.probe`: the gate, a training on each task and the time of attention over lengths, as one page."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...api.boards import records
from ...api.check import check
from ...api.run import run
from ...core.cell import REFERENCE
from ...core.errors import LOG, Notice, PluginError, SelectionError
from ...core.files import RESULTS
from ...core.record import Record
from ...core.registry import VARIANTS, nearest
from ...core.spec import Names, Spec, specs_of
from ...gate.report import CheckReport
from ...gate.result import Result
from ...measure.machine import choose_device
from ...plan.facts import recipe_facts, resolve
from ...process.ask import Reporter, Request, ask, asking
from ...store.learning_rates import apart_from_rates
from ...store.records import Records
from ...store.table import table_of
from .page import ProbeReport, costs_of, probe_report
from .score import CAUSAL_TASKS, POOLED_TASKS, SWEPT_LENGTHS, Examined, neighbours, probed_task

if TYPE_CHECKING:
    from ...run.events import RunListener

TIMING_SECONDS = 20.0
"""The longest time spent on timing at each length."""

PRESETS = ("quick", "smoke")


def probe(
    variant: Names,
    *,
    preset: str | Spec = "quick",
    results: str | Path = RESULTS,
    device: str | None = None,
    threads: int = 0,
    timeout: float | None = None,
    retry: bool = False,
    progress: RunListener | None = None,
) -> ProbeReport:
    """Profile a new variant in minutes: the gate, three synthetic tasks, the cost at three lengths.

    Each task is trained once, by seed 0 at the preset's own learning rate, beside softmax; nothing is run twice, and
    nothing where the gate fails. A variant without a causal form is probed on `max-pooled` alone. preset: `quick` or
    `smoke`, with changes such as `quick[steps=200]`. Variants of like behaviour are looked for in `results` and in the
    folder `results` here. For the rest see `RunOptions`. Raises as `run`, and SelectionError for several variants, a
    pattern and another preset.

    >>> print(attnbench.probe("entmax15").headline)                                                # doctest: +SKIP
    """
    notice = progress.notice if progress else LOG.warning
    options: dict[str, Any] = {"results": results, "device": device, "threads": threads}
    options |= {"timeout": timeout, "retry": retry}
    measure = partial(run, progress=progress, seeds=1, **options)
    trained, timed = list[Record](), list[Record]()
    with asking():
        spec, preset = _asked(specs_of(variant), Spec.parse(str(preset)))
        place = choose_device(device)
        # the report of the check says why a plugin does not answer
        with suppress(PluginError):
            spec = resolve(VARIANTS, spec)
        # wrong words are told before the minute that the check takes
        presets = {task: _at_own_rate(Spec(task), preset) for task in CAUSAL_TASKS}
        notice(f"gate: testing {spec}")
        examined = examined_by(check(spec, device=str(place)))
        if examined.passed and not examined.causal:
            presets = {task: _at_own_rate(Spec(task), preset) for task in POOLED_TASKS}
        elif examined.passed and spec.name != REFERENCE:
            examined = replace(examined, sees_order=ask(VARIANTS, spec.name, SeesOrder(spec)))
        if examined.passed:
            # the variant and the reference side by side, a core each
            jobs = 2 if place.type == "cpu" and (os.cpu_count() or 1) > 1 else None
            trained = _trained(spec, presets, examined, partial(measure, lanes="train", jobs=jobs), notice)
            notice(f"part {len(presets) + 1} of {len(presets) + 1}: time at {len(SWEPT_LENGTHS)} lengths")
            timed = _timed(spec, preset, examined, measure)
    own = [record for record in trained if record.cell.variant == spec]
    others = [record for record in trained if record.cell.variant.name == REFERENCE != spec.name]
    reference = {str(record.cell.task): probed_task(record) for record in others}
    tasks = [(found, reference.get(found.task)) for found in map(probed_task, own)]
    tables = [table_of(records(each, notice=notice)) for each in dict.fromkeys([Path(results), Path("results")])]
    return probe_report(str(spec), examined, tasks, costs_of(timed, str(spec)), neighbours(tables, own))


def _asked(specs: tuple[Spec, ...], preset: Spec) -> tuple[Spec, Spec]:
    """The one variant and the preset. Raises SelectionError for others than a probe takes."""
    if len(specs) != 1 or specs[0].layers:
        raise SelectionError(f"expected one variant to probe, alike in all layers, got {', '.join(map(str, specs))}")
    if preset.name not in PRESETS:
        near = nearest(preset.name, PRESETS)
        raise SelectionError(f"expected the preset quick or smoke, which take minutes, got {preset.name!r}{near}")
    return specs[0], preset


def _trained(
    spec: Spec, presets: Mapping[str, Spec], examined: Examined, train: Callable[..., Records], notice: Notice
) -> list[Record]:
    """A training of the variant and of the reference on each task, under its preset."""
    pair, trained = tuple(dict.fromkeys((Spec(REFERENCE), spec))), list[Record]()
    for number, (task, preset) in enumerate(presets.items(), 1):
        notice(f"part {number} of {len(presets) + 1}: {task}")
        trained += train(pair, task, preset=preset)
        if examined.sees_order:
            notice(f"{spec} knows positions by itself: softmax is trained with rotary ones too")
            rotary = Spec.of(preset.name, **dict(preset.parameters) | {"positions": "rope"})
            trained = [r for r in trained if r.cell.variant == spec or r.cell.preset.get("positions")]
            trained += train(REFERENCE, task, preset=rotary)
    return trained


def _timed(spec: Spec, preset: Spec, examined: Examined, measure: Callable[..., Records]) -> list[Record]:
    """Timings of the variant and of the reference over the lengths."""
    causal = {"causal": True} if examined.only_causal else {}
    points = [Spec.of("sweep", length=length, **causal) for length in SWEPT_LENGTHS]
    timing = Spec.of("quick", timing_seconds=TIMING_SECONDS) if preset.name == "quick" else Spec(preset.name)
    return list(measure(tuple(dict.fromkeys((Spec(REFERENCE), spec))), points, preset=timing))


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


@dataclass(frozen=True, slots=True)
class SeesOrder(Request[bool]):
    """True if two neighbouring tokens of the past that change places change an output, as under rotary positions."""

    variant: Spec

    def answer(self, reporter: Reporter) -> bool:
        import torch

        from ....variants.contract import AttentionShape, Mask

        shape = AttentionShape(heads=2, head_dim=32, max_length=8, causal=True)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(0)
            variant = VARIANTS.build(self.variant, shape).eval()
            query, key, value = torch.randn(3, 1, shape.heads, shape.max_length, shape.head_dim)
            hidden = [torch.randn(1, shape.max_length, shape.hidden_width)] if variant.takes_hidden else []
            swapped = [0, 1, 2, 3, 5, 4, 6, 7]
            # a layer makes its keys and values from the hidden state
            before, after = (
                variant(
                    query, key[:, :, places], value[:, :, places], Mask(causal=True), *(x[:, places] for x in hidden)
                )[:, :, -1]
                for places in ([*range(8)], swapped)
            )
        return not torch.allclose(before, after, atol=1e-4)
