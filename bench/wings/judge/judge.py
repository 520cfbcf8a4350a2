"""`attnbench.judge`: the audit, the gate, a training on each task and the time over lengths, as one page."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...api.check import check
from ...api.run import plan, run
from ...core.cell import NO_ATTENTION, REFERENCE
from ...core.entry_points import loaded, read_group
from ...core.errors import LOG, PluginError, SelectionError, Unsupported
from ...core.files import RESULTS
from ...core.record import Outcome, Record
from ...core.registry import VARIANTS, nearest
from ...core.spec import Names, Spec, specs_of
from ...gate.report import CheckReport
from ...gate.result import Result
from ...measure.machine import choose_device
from ...plan.facts import recipe_facts, resolve
from ...process.ask import Reporter, Request, ask, asking
from ...run.events import RunListener
from ...store.learning_rates import apart_from_rates
from ...store.records import Records
from .page import JudgeReport, costs_of, judge_report
from .score import CAUSAL_TASKS, POOLED_TASKS, SWEPT_LENGTHS, Audited, Examined, JudgedTask, judged_task
from .verdicts import Verdicts

if TYPE_CHECKING:
    from ...plan.planner import Plan

TIMING_SECONDS = 20.0
"""The longest time spent on timing at each length."""

PRESETS = ("quick", "smoke")

SHORT_RECALL = {
    "batch": 64, "evaluate_every": 25, "length": 64, "longest": 256, "steps": 300, "test_examples": 320,
}  # fmt: skip
"""The recall of `make demo`, which softmax learns in half a minute."""

SHORT = {"recall": SHORT_RECALL, "max-pooled": {"steps": 300}}
"""The tasks of a short judgement, with what they change of the preset quick."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _JudgedPart:
    """A run of the judgement; `measure` is `run` or `plan`, as a function of variants, tasks and keywords."""

    name: str
    measure: Callable[[Callable[..., Any]], list[Any]]


class _Quiet(RunListener):
    def notice(self, message: str) -> None:
        pass


def judge(variant: Names, **options: Any) -> JudgeReport:
    """Judge a variant or a layer of anybody's: is it right, is it better than softmax, what does it cost?

    Audit a module as it is; run the gate; train it once on each of three synthetic tasks, by seed 0 at the preset's own
    learning rate, beside softmax; time it at three lengths, a layer with projections of its own beside softmax with the
    same projections, and with rotary positions where it sees the order of keys. Nothing is run twice. A failure of
    audit or gate marks what follows. A variant without a causal form is judged on `max-pooled` alone. options:

    preset: `quick` or `smoke`, with changes such as `quick[steps=200]`. quick: two minutes: one short task, one length.
    causal: whether a module claims to be; None asks it. progress: is told what happens. For the rest see
    `RunOptions`. Raises as `run`, and SelectionError for several variants, a pattern and another preset.

    >>> print(attnbench.judge("mine.py:MyAttention").headline)                                     # doctest: +SKIP
    """
    report = None
    for report in judging(variant, **options):  # noqa: B007
        pass
    assert report is not None
    return report


def judging(
    variant: Names,
    *,
    preset: str | Spec = "quick",
    quick: bool = False,
    causal: bool | None = None,
    results: str | Path = RESULTS,
    device: str | None = None,
    threads: int = 0,
    timeout: float | None = None,
    retry: bool = False,
    progress: RunListener | None = None,
) -> Iterator[JudgeReport]:
    """The page so far, after each of its parts; arguments as of `judge`."""
    notice = progress.notice if progress else LOG.warning
    options: dict[str, Any] = {"results": results, "device": device, "threads": threads}
    options |= {"timeout": timeout, "retry": retry, "seeds": 1}
    with asking():
        spec, preset = _asked(specs_of(variant), Spec.parse(str(preset)))
        place = choose_device(device)
        # the report of the check says why a plugin does not answer
        with suppress(PluginError):
            spec = resolve(VARIANTS, spec)
        # wrong words are told before the minute that the check takes
        presets = {task: _at_own_rate(Spec(task), preset) for task in CAUSAL_TASKS}
        kept = Verdicts.of(spec, causal, str(place), Path(results), again=retry)
        if kept.audit is None and (audit := read_group("attnbench.functions").points.get("audit")) and ":" in spec.name:
            notice(f"audit: testing {spec} as it is")
            kept = kept.with_more(audit=_audited(loaded(audit), spec, causal))
        page = partial(judge_report, str(spec), audited=kept.audit or Audited())
        if kept.audit is not None:
            yield page(None)
            if kept.audit.asks:
                return
        if kept.examined is None:
            notice(f"gate: testing {spec}")
            by_gate = examined_by(check(spec, device=str(place), causal=causal))
            if not by_gate.problem:
                traits = ask(VARIANTS, spec.name, AskTraits(spec, by_gate.causal))
                by_gate = replace(
                    by_gate, sees_order=traits.sees_order, projects=traits.projects, no_padding=traits.no_padding,
                    only_causal=by_gate.only_causal or traits.looks_back,
                )  # fmt: skip
            kept = kept.with_more(examined=by_gate)
        examined = kept.examined
        assert examined is not None
        yield page(examined)
        if examined.problem:
            return
        names = tuple(SHORT) if quick else (*CAUSAL_TASKS, *POOLED_TASKS)
        asked = [task for task in names if (task in POOLED_TASKS) is not examined.causal]
        if examined.looks_ahead:
            # an answer that it reads from the future tells nothing
            asked = []
        pairs: list[tuple[JudgedTask, JudgedTask | None]] = []
        if examined.no_padding:
            # its texts differ in length: the reference would be trained beside nothing
            refused = [task for task in asked if task in POOLED_TASKS]
            asked = [task for task in asked if task not in refused]
            ended = partial(JudgedTask, variant=str(spec), accuracies={}, outcome=Outcome.UNSUPPORTED)
            pairs += [(ended(task, reason=examined.no_padding), None) for task in refused]
            yield page(examined, tasks=tuple(pairs), short=quick)
        changes = SHORT if quick and preset.name == "quick" else {}
        presets = {
            task: _at_own_rate(Spec(task), Spec.of(preset.name, **changes.get(task, {}) | dict(preset.parameters)))
            for task in asked
        }
        lengths = SWEPT_LENGTHS[1:2] if quick else SWEPT_LENGTHS
        parts = _parts(spec, presets, lengths, examined, preset)
        later = [_seconds_of(part, options) for part in parts]
        without: list[JudgedTask] = []
        for at, part in enumerate(parts):
            notice(f"part {at + 1} of {len(parts)}: {part.name}")
            if progress:
                progress.later = sum(later[at + 1 :])
            found = part.measure(partial(_measured, progress=progress, **options))
            measured = [_with_numbers(record) for each in found for record in each]
            if at + 1 == len(parts):
                timed = costs_of(measured, str(spec))
                yield page(examined, tasks=pairs, without=without, costs=timed, complete=True, short=quick)
                break
            mine, reference = _beside(measured, spec)
            pairs += [(judged_task(one), judged_task(reference) if reference else None) for one in mine]
            # with and without positions it was trained twice
            bare = [record for record in measured if record.cell.variant.name == NO_ATTENTION != spec.name]
            without += map(judged_task, bare[:1])
            yield page(examined, tasks=tuple(pairs), without=without, short=quick)


def _asked(specs: tuple[Spec, ...], preset: Spec) -> tuple[Spec, Spec]:
    """The one variant and the preset. Raises SelectionError for others than can be judged."""
    if len(specs) != 1 or specs[0].layers:
        raise SelectionError(f"expected one variant to judge, alike in all layers, got {', '.join(map(str, specs))}")
    if preset.name not in PRESETS:
        near = nearest(preset.name, PRESETS)
        raise SelectionError(f"expected the preset quick or smoke, which take minutes, got {preset.name!r}{near}")
    return specs[0], preset


def _audited(audit: Callable[..., Any], spec: Spec, causal: bool | None) -> Audited:
    try:
        report = audit(spec, causal=causal)
    except SelectionError as refused:
        # such as a map of scores, which the gate alone examines
        return Audited(question=str(refused))
    return Audited(
        question=report.question,
        failures=tuple(f"{each.property}: {each.detail}" for each in report.failures),
        names=report.properties_broken,
        asks=next((f"{each.property}: {each.detail}" for each in report.findings if _must_be_told(each)), ""),
        flags=tuple(f"{each.property}: {each.detail}" for each in report.findings if _names_a_flag(each)),
        verdict="" if report.question else report.verdict,
        seconds=report.seconds,
    )


def _must_be_told(finding: Result) -> bool:
    """True if it looks nearly back alone: what is trained and timed depends on what it claims."""
    return finding.verdict == "asks" and finding.property == "future"


def _names_a_flag(finding: Result) -> bool:
    """True if it asks for a flag of the command; the verdict says so itself of what was not tried."""
    return finding.verdict not in ("fails", "not tried") and " --" in finding.detail


def _parts(
    spec: Spec, presets: Mapping[str, Spec], lengths: tuple[int, ...], examined: Examined, preset: Spec
) -> list[_JudgedPart]:
    """The trainings, a task each, and the timings."""
    pair = tuple(dict.fromkeys((Spec(REFERENCE), spec)))
    turned = examined.sees_order and spec.name != REFERENCE
    parts = []
    for task, given in presets.items():
        rotary = Spec.of(given.name, **dict(given.parameters) | {"positions": "rope"})
        wanted = [(pair, given)]
        if turned:
            # projected heads would be turned twice; a layer with projections of its own is beyond that
            wanted = [(pair, rotary)] if examined.projects else [(pair, given), ((Spec(REFERENCE),), rotary)]
        parts.append(_JudgedPart(name=task, measure=partial(_trainings, task, wanted)))
    settings: dict[str, Any] = (
        {"causal": True} if examined.only_causal or (examined.projects and examined.causal) else {}
    )
    if examined.projects:
        settings |= {"level": "layer"} | ({"positions": "rope"} if turned else {})
    points = [Spec.of("sweep", length=length, **settings) for length in lengths]
    timing = Spec.of("quick", timing_seconds=TIMING_SECONDS) if preset.name == "quick" else Spec(preset.name)
    name = f"time at {len(points)} length{'s' * (len(points) > 1)}"
    return [*parts, _JudgedPart(name=name, measure=lambda make: [make(pair, points, preset=timing)])]


def _trainings(task: str, wanted: list[tuple[tuple[Spec, ...], Spec]], make: Callable[..., Any]) -> list[Any]:
    # the variant and the reference side by side, a core each
    jobs = 2 if (os.cpu_count() or 1) > 1 else None
    return [make(variants, task, preset=preset, lanes="train", jobs=jobs) for variants, preset in wanted]


def _measured(variants: Names, tasks: Names, *, lanes: Any = None, jobs: int | None = None, **options: Any) -> Records:
    """The Records of a selection; what the gate finds wrong has its numbers and the outcome `incorrect`."""
    more: dict[str, Any] = {"lanes": lanes} if lanes else {}
    if options.get("device") in (None, "cpu"):
        more["jobs"] = jobs
    measure = partial(run, variants, tasks, even_if_wrong=True, **more)
    found = measure(**options)
    if any(record.outcome is Outcome.INCORRECT and not record.measurements for record in found):
        # an earlier run refused it
        found = measure(**options | {"retry": True})
    return found


def _seconds_of(part: _JudgedPart, options: Mapping[str, Any]) -> float:
    """About how long what is left of a part takes."""

    def planned(variants: Names, tasks: Names, *, preset: Spec, lanes: Any = None, jobs: int | None = None) -> Plan:
        more: dict[str, Any] = {"lanes": lanes, "jobs": jobs} if lanes else {}
        return plan(variants, tasks, preset=preset, progress=_Quiet(), **more, **options)

    return float(sum(made.seconds for made in part.measure(planned)))


def _with_numbers(record: Record) -> Record:
    """A Record of a wrong variant as one with numbers, which keeps the reason."""
    wrong = record.outcome is Outcome.INCORRECT and record.measurements
    return replace(record, outcome=Outcome.OK) if wrong else record


def _beside(measured: Sequence[Record], spec: Spec) -> tuple[list[Record], Record | None]:
    """The training of the variant, and that of the reference: of two the last, which has rotary positions."""
    mine = [record for record in measured if record.cell.variant == spec]
    found = [record for record in measured if record.cell.variant.name == REFERENCE != spec.name]
    return mine, found[-1] if found else None


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
class Traits:
    """`sees_order`: whether two neighbouring tokens of the past that change places change an output, as under rotary
    positions. `projects`: whether it is a layer with projections of its own. `looks_back`: whether it looks back alone.
    `no_padding`: why it takes no sequences of several lengths, of one without a causal form.
    """

    sees_order: bool
    projects: bool
    looks_back: bool
    no_padding: str = ""


@dataclass(frozen=True, slots=True)
class AskTraits(Request[Traits]):
    """The traits of a variant; without a causal form it sees no order."""

    variant: Spec
    causal: bool = True

    def answer(self, reporter: Reporter) -> Traits:
        import torch

        from ....variants.contract import AttentionShape, Mask

        shape = AttentionShape(heads=2, head_dim=32, max_length=8, causal=self.causal)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(0)
            variant = VARIANTS.build(self.variant, shape).eval()
            query, key, value = torch.randn(3, 1, shape.heads, shape.max_length, shape.head_dim)
            hidden = [torch.randn(1, shape.max_length, shape.hidden_width)] if variant.takes_hidden else []
            if not self.causal:
                refused = ""
                try:
                    variant(query, key, value, Mask(valid=torch.arange(shape.max_length)[None] < 6), *hidden)
                except Unsupported as error:
                    refused = str(error)
                return Traits(False, variant.owns_projections, False, refused)
            swapped = [0, 1, 2, 3, 5, 4, 6, 7]
            # a layer makes its keys and values from the hidden state
            before, after = (
                variant(
                    query, key[:, :, places], value[:, :, places], Mask(causal=True), *(x[:, places] for x in hidden)
                )[:, :, -1]
                for places in ([*range(8)], swapped)
            )
        sees_order, looks_back = not torch.allclose(before, after, atol=1e-4), getattr(variant, "looks_back", False)
        return Traits(sees_order, variant.owns_projections, looks_back)
