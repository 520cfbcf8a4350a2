"""Check a variant in a child, and several at once, each part in a process of its own.

Nearly all of a gate takes one core: on a processor small tensors, on a GPU compiling. The settings of one variant, or
many variants, then take as long as the slowest of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import torch

from ..core.errors import AttnbenchError, PluginError
from ..core.registry import VARIANTS
from ..core.spec import Spec
from ..gate.report import SETTINGS, CheckReport, check_variant, once_each
from ..gate.variant import VariantFactory, VariantSource
from ..process.ask import SERVICE, Reporter, Request, Silent, ask, ask_child, asking
from ..process.child import Child
from ..process.servers import start_server
from ..process.side_by_side import side_by_side
from .link import linked
from .remote import factory_of
from .remote_child import OpenVariant, ProcessSettings

CHECK_PATIENCE = 10.0
"""The time that the gate may take, in limits of an ordinary answer: it builds kernels, and tries hundreds of shapes."""

MOST_ON_A_GPU = 16
"""Processes: each holds a context of half a GiB."""


@dataclass(frozen=True, slots=True)
class CheckVariant(Request[CheckReport]):
    """The gate in full, on a device and in a precision.

    foreign: whether its code runs in a child of the process that answers, and is judged there, where it was never
    imported. `part` of `parts`: every so many of its settings. threads: of torch, as many as it has for 0.
    """

    variant: Spec
    device: str
    dtype: str
    causal: bool | None = None
    by_design: tuple[str, ...] = ()
    foreign: bool = False
    part: int = 0
    parts: int = 1
    threads: int = 0

    @property
    def patience(self) -> float:
        # all that goes to the child and back takes as long again
        return 2 * CHECK_PATIENCE if self.foreign else CHECK_PATIENCE

    def answer(self, reporter: Reporter) -> CheckReport:
        """Raises SelectionError for a name, and PluginError for code that dies, hangs or replaces what examines it."""
        if self.foreign:
            # before anything else starts a thread
            start_server()
        before = ProcessSettings.now()
        if self.threads:
            torch.set_num_threads(self.threads)
        try:
            if not self.foreign:
                return self._judged(self.variant)
            with linked(VARIANTS, self.variant.name, OpenVariant(variant=self.variant), self.patience) as link:
                return self._judged(factory_of(link), sizes=link.facts.sizes)
        finally:
            # the code may have changed them, there or here, and this process checks others next
            before.apply()

    def _judged(self, source: VariantSource | VariantFactory, **more: Any) -> CheckReport:
        """The report of `source`, which is the variant or makes it; `more` are arguments of `check_variant`."""
        given: dict[str, Any] = {"device": self.device, "dtype": self.dtype, "causal": self.causal}
        given |= {"by_design": self.by_design, "part": self.part, "parts": self.parts}
        return check_variant(source, str(self.variant), **given, **more)


def checked(question: CheckVariant) -> CheckReport:
    """The report of a variant, from this process. Raises as `answer` does."""
    if question.foreign:
        return question.answer(Silent())
    return ask(VARIANTS, question.variant.name, question, patience=question.patience)


def processes_for(device: str) -> int:
    """The default count of processes that check at once: one for each core, on a CPU at most one for each setting."""
    cores = len(os.sched_getaffinity(0))
    return min(cores, MOST_ON_A_GPU if device.startswith("cuda") else len(SETTINGS))


def check_together(
    specs: Sequence[Spec],
    *,
    device: str,
    dtype: str,
    jobs: int,
    causal: bool | None = None,
    by_design: tuple[str, ...] = (),
) -> Iterator[tuple[Spec, CheckReport | AttnbenchError]]:
    """A report for each of `specs`, resolved before, in the order in which they end; `jobs` processes at once.

    Instead of it an error where the caller has asked wrongly.
    """
    began = perf_counter()
    # no more parts than processes: each imports and builds what the first pass needs
    parts = max(1, min(jobs // max(len(specs), 1), len(SETTINGS)))
    threads = max(1, len(os.sched_getaffinity(0)) // jobs) if jobs > 1 else 0
    asked = CheckVariant(Spec(""), device, dtype, causal, by_design, parts=parts, threads=threads)
    # all parts of one variant follow each other, so that its report comes early
    questions = [
        replace(asked, variant=spec, foreign=VARIANTS.is_foreign(spec.name), part=part)
        for spec in specs
        for part in range(parts)
    ]
    found: dict[Spec, list[tuple[int, CheckReport | AttnbenchError]]] = {spec: [] for spec in specs}
    in_turn = ((each, _or_problem(checked, each)) for each in questions)
    with asking():
        together = side_by_side(questions, jobs, SERVICE, _answered, keep=True)
        for question, answer in in_turn if jobs == 1 else together:
            ended = found[question.variant]
            ended.append((question.part, answer))
            if len(ended) < parts:
                continue
            answers = [each for _, each in sorted(ended, key=lambda each: each[0])]
            reports = [each for each in answers if isinstance(each, CheckReport)]
            if len(reports) < parts:
                yield question.variant, next(each for each in answers if isinstance(each, AttnbenchError))
            else:
                seconds = reports[0].seconds if parts == 1 else perf_counter() - began
                yield question.variant, joined(reports, seconds)


def _answered(child: Child, question: CheckVariant) -> CheckReport | AttnbenchError:
    def asked(question: CheckVariant) -> CheckReport:
        try:
            # a child that judges a child hears of its silence first
            patience = 1 + question.patience
            return ask_child(child, VARIANTS, question.variant.name, question, patience=patience)
        except PluginError:
            # it may still be busy with this question
            child.end()
            raise

    return _or_problem(asked, question)


def _or_problem(answer: Callable[[CheckVariant], CheckReport], question: CheckVariant) -> CheckReport | AttnbenchError:
    """The answer, which for code that gives none is a report of the problem; or why the question is wrong."""
    try:
        return answer(question)
    except PluginError as error:
        return CheckReport(name=str(question.variant), results=(), seconds=0.0, problem=error.reason)
    except AttnbenchError as error:
        return error


def joined(parts: Sequence[CheckReport], seconds: float) -> CheckReport:
    """The report of all settings from the reports of every so many of them."""
    order = {setting: at for at, setting in enumerate(SETTINGS)}
    results = [result for part in parts for result in part.results]
    return replace(
        parts[0],
        results=tuple(sorted(results, key=lambda each: order[each[0]])),
        seconds=seconds,
        problem=next(filter(None, (part.problem for part in parts)), ""),
        paths=once_each([path for part in parts for path in part.paths]),
    )
