"""Follow jobs that run elsewhere by the events that they write into the results folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from ...core.cell import Job
from ...run.events import CellFinished, Event, Failed
from ...run.executors.run_job import WorkerError
from .job_files import JobFiles


@dataclass(slots=True)
class Followed:
    """A job and how far its events were read; `left`: keys of Cells without a Record."""

    job: Job
    files: JobFiles
    read: int = 0
    left: set[str] = field(init=False)
    outcomes: Counter[str] = field(init=False, default_factory=Counter)

    def __post_init__(self) -> None:
        self.left = {cell.key for cell in self.job.cells}

    @property
    def block(self) -> str:
        return self.job.id

    def news(self) -> Iterator[Event]:
        """Yields the events since the last call; see `taken`."""
        events, self.read = self.files.events(self.block, self.read)
        yield from self.taken(events)

    def taken(self, events: list[Event]) -> Iterator[Event]:
        """Yields events of this job. Raises WorkerError where the person must act.

        Records of other Cells than those of the job are passed over: whoever may write in the folder wrote them.
        """
        cells = {cell.key: cell for cell in self.job.cells}
        for event in events:
            if isinstance(event, Failed):
                # the next start of the job must not meet it again
                self.files.forget(self.block)
                raise WorkerError(event.message, event.exit_code)
            if isinstance(event, CellFinished):
                if event.record.cell != cells.get(event.record.key):
                    continue
                if event.record.key in self.left:
                    self.left.remove(event.record.key)
                    self.outcomes[str(event.record.outcome)] += 1
            yield event

    def end(self) -> None:
        """Marks the job as done, once its Records are stored."""
        self.files.end(self.block, self.outcomes)
