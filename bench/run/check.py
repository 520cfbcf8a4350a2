"""Check a variant in a child, and several at once, each part in a process of its own.

On a GPU most of a gate is compiling, which takes one core: the settings of one variant, or many variants, then take as
long as the slowest of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

from ..core.errors import PluginError, SelectionError
from ..core.registry import VARIANTS
from ..core.spec import Spec
from ..gate.report import SETTINGS, CheckReport, check_variant, once_each
from ..gate.variant import VariantFactory, VariantSource
from ..process.ask import SERVICE, Reporter, Request, ask, ask_child
from ..process.child import Child, end_servers
from ..process.side_by_side import side_by_side
from .link import linked
from .remote import factory_of
from .remote_child import OpenVariant

CHECK_PATIENCE = 10.0
"""The time that the gate may take, in limits of an ordinary answer: it builds kernels, and tries hundreds of shapes."""

MOST_ON_A_GPU = 16
"""Processes: each holds a context of half a GiB."""


@dataclass(frozen=True, slots=True)
class CheckVariant(Request[CheckReport]):
    """The gate in full, on a device and in a precision; `part` of `parts`: every so many of its settings."""

    variant: Spec
    device: str
    dtype: str
    causal: bool | None = None
    by_design: tuple[str, ...] = ()
    part: int = 0
    parts: int = 1

    def answer(self, reporter: Reporter) -> CheckReport:
        return self.judged(self.variant)

    def judged(self, source: VariantSource | VariantFactory, **more: Any) -> CheckReport:
        """The report of `source`, which is the variant or makes it; `more` are arguments of `check_variant`."""
        given: dict[str, Any] = {"device": self.device, "dtype": self.dtype, "causal": self.causal}
        given |= {"by_design": self.by_design, "part": self.part, "parts": self.parts}
        return check_variant(source, str(self.variant), **given, **more)


def checked(question: CheckVariant) -> CheckReport:
    """The report of a variant; code of others runs in a child, and is judged here, where it was never imported.

    Raises SelectionError for a name, and PluginError for code that dies, hangs or replaces what examines it.
    """
    spec = question.variant
    if not VARIANTS.is_foreign(spec.name):
        return ask(VARIANTS, spec.name, question, patience=CHECK_PATIENCE)
    # all that goes to the child and back takes as long again
    with linked(VARIANTS, spec.name, OpenVariant(variant=spec), 2 * CHECK_PATIENCE) as link:
        return question.judged(factory_of(link), sizes=link.facts.sizes)


def processes_for(device: str) -> int:
    """The default count of processes that check at once: one on a CPU, whose cores a check would contend for."""
    return min(len(os.sched_getaffinity(0)), MOST_ON_A_GPU) if device.startswith("cuda") else 1


def check_together(
    specs: Sequence[Spec],
    *,
    device: str,
    dtype: str,
    jobs: int,
    causal: bool | None = None,
    by_design: tuple[str, ...] = (),
) -> Iterator[CheckReport]:
    """A report for each of `specs`, resolved before, in the order in which they end; `jobs` processes at once."""
    parts = max(1, min(jobs // max(len(specs), 1), len(SETTINGS)))
    # all parts of one variant follow each other, so that its report comes early
    questions = [
        CheckVariant(spec, device, dtype, causal, by_design, part, parts) for spec in specs for part in range(parts)
    ]
    found: dict[Spec, list[tuple[int, CheckReport]]] = {spec: [] for spec in specs}
    own = [each for each in questions if not VARIANTS.is_foreign(each.variant.name)]
    # code of others in turn, since all of it is judged in this process
    others = ((each, _or_problem(checked, each)) for each in questions if each not in own)
    for question, report in chain(others, side_by_side(own, jobs, SERVICE, _answered)):
        ended = found[question.variant]
        ended.append((question.part, report))
        if len(ended) == parts:
            yield joined([report for _, report in sorted(ended, key=lambda each: each[0])])
    end_servers()


def _answered(child: Child, question: CheckVariant) -> CheckReport:
    asked = partial(ask_child, child, VARIANTS, question.variant.name, patience=CHECK_PATIENCE)
    return _or_problem(asked, question)


def _or_problem(answer: Callable[[CheckVariant], CheckReport], question: CheckVariant) -> CheckReport:
    """The answer, or a report of the problem where there is none."""
    try:
        return answer(question)
    except PluginError as error:
        return CheckReport(name=str(question.variant), results=(), seconds=0.0, problem=error.reason)
    except SelectionError as error:
        return CheckReport(name=str(question.variant), results=(), seconds=0.0, problem=str(error))


def joined(parts: Sequence[CheckReport]) -> CheckReport:
    """The report of all settings from the reports of every so many of them; its seconds are the longest of any."""
    order = {setting: at for at, setting in enumerate(SETTINGS)}
    results = [result for part in parts for result in part.results]
    return replace(
        parts[0],
        results=tuple(sorted(results, key=lambda each: order[each[0]])),
        seconds=max(part.seconds for part in parts),
        problem=next(filter(None, (part.problem for part in parts)), ""),
        paths=once_each([path for part in parts for path in part.paths]),
    )
