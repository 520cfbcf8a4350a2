"""Questions to all installed engines about a results folder: which Records their jobs left, and how jobs stand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ...core.entry_points import loaded, read_group
from ...plan.executor_settings import GROUP
from ..events import CellFinished
from .executor import JOBS, Engine, JobState, JobStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """The jobs of the last run; `submitting`: whether a command that submits and collects is at work."""

    jobs: tuple[JobStatus, ...]
    submitting: bool

    @property
    def counts(self) -> dict[str, int]:
        """The count of jobs in each state, those that run first."""
        found = Counter(job.state for job in self.jobs)
        order: Iterable[JobState] = ("running", "queued", "interrupted", "failed", "done")
        return {state: found[state] for state in order if found[state]}


def status_of(results: Path) -> RunStatus:
    """The jobs of the last run in a results folder; nothing is written and no engine is asked."""
    answers = [engine.status(results) for engine in _engines()] if (results / JOBS).exists() else []
    jobs = tuple(job for jobs, _ in answers for job in jobs)
    return RunStatus(jobs=jobs, submitting=any(submitting for _, submitting in answers))


def left_by_engines(results: Path, on_warning: Callable[[str], None]) -> Iterator[CellFinished]:
    """The Records that jobs of an earlier command left in `results`, each to be stored at once."""
    warned = set[str]()

    def warn_once(text: str) -> None:
        # two engines may keep their files in one place
        if text not in warned:
            warned.add(text)
            on_warning(text)

    for engine in _engines():
        yield from engine.collected(results, warn_once)


def _engines() -> list[Engine]:
    return [loaded(point) for point in read_group(GROUP).points.values()]
