"""Follow Blocks that run elsewhere by the events that they write into the results folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ..events import CellFinished, Event, Failed
from ..job import Job
from ..job_files import JobFiles
from .block import WorkerError


@dataclass(slots=True)
class Followed:
    """A Block and how far its events were read; `left`: keys of Cells without a Record."""

    job: Job
    files: JobFiles
    read: int = 0
    left: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self.left = {cell.key for cell in self.job.cells}

    @property
    def block(self) -> str:
        return self.job.block

    def news(self) -> Iterator[Event]:
        """The events since the last call. Raises WorkerError where the person must act.

        Records of other Cells than those of the Block are passed over: whoever may write in the folder wrote them.
        """
        events, self.read = self.files.events(self.block, self.read)
        cells = {cell.key: cell for cell in self.job.cells}
        for event in events:
            if isinstance(event, Failed):
                # the next start of the Block must not meet it again
                self.files.forget(self.block)
                raise WorkerError(event.message, event.exit_code)
            if isinstance(event, CellFinished):
                if event.record.cell != cells.get(event.record.key):
                    continue
                self.left.discard(event.record.key)
            yield event
