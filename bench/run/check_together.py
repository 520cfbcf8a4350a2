"""The gate of several variants at once, each part in a process of its own.

On a GPU most of a gate is compiling, which takes one core: the settings of one variant, or many variants, then take as
long as the slowest of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import replace

from ..core.errors import PluginError
from ..core.registry import VARIANTS
from ..core.spec import Spec
from ..gate.report import SETTINGS, CheckReport
from ..process.ask import ask_apart
from ..process.child import end_servers
from .questions import CHECK_PATIENCE, CheckVariant

MOST_ON_A_GPU = 16
"""Processes: each holds a context of half a GiB."""


def processes_for(device: str) -> int:
    """How many processes check at once where nobody says it: one on a CPU, whose cores a check would contend for."""
    return min(len(os.sched_getaffinity(0)), MOST_ON_A_GPU) if device.startswith("cuda") else 1


def check_together(specs: Sequence[Spec], *, device: str, dtype: str, jobs: int) -> Iterator[CheckReport]:
    """A report for each of `specs`, resolved before, in the order in which they end; `jobs` processes at once."""
    parts = max(1, min(jobs // max(len(specs), 1), len(SETTINGS)))

    def one(spec: Spec, part: int) -> CheckReport:
        question = CheckVariant(spec, device, dtype, part, parts)
        try:
            return ask_apart(VARIANTS, spec.name, question, patience=CHECK_PATIENCE)
        except PluginError as error:
            return CheckReport(name=str(spec), results=(), seconds=0.0, problem=error.reason)

    with ThreadPoolExecutor(jobs) as pool:
        waiting: dict[Future[CheckReport], int] = {}
        found: list[list[CheckReport | None]] = [[None] * parts for _ in specs]
        # all parts of one variant follow each other, so that its report comes early
        for at, spec in enumerate(specs):
            waiting |= {pool.submit(one, spec, part): at * parts + part for part in range(parts)}
        try:
            for done in as_completed(waiting):
                at, part = divmod(waiting[done], parts)
                found[at][part] = done.result()
                ended = [report for report in found[at] if report is not None]
                if len(ended) == parts:
                    yield joined(ended)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            end_servers()


def joined(parts: Sequence[CheckReport]) -> CheckReport:
    """The report of all settings from the reports of every so many of them; its seconds are the longest of any."""
    order = {setting: at for at, setting in enumerate(SETTINGS)}
    results = [result for part in parts for result in part.results]
    paths = [path for part in parts for path in part.paths]
    # a path that runs in some setting has been checked
    by_name = {path.name: path for path in sorted(paths, key=lambda path: not path.refusal)}
    return replace(
        parts[0],
        results=tuple(sorted(results, key=lambda each: order[each[0]])),
        seconds=max(part.seconds for part in parts),
        problem=next(filter(None, (part.problem for part in parts)), ""),
        paths=tuple(by_name[name] for name in dict.fromkeys(path.name for path in paths)),
    )
