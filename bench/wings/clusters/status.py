"""Status of the jobs that a run has submitted, as their job files tell it; nothing is written and no engine asked."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from ...core.record import Outcome
from ...run.events import Began, CellFinished, TrainingProgress
from ...run.executors.executor import JobState, JobStatus
from ...store.store import Store
from .job_files import JobFiles, Submission


def status_of(results: Path, executor: str) -> tuple[list[JobStatus], bool]:
    """The jobs that `executor` was given, in the order of being submitted, and whether a process still submits."""
    files = JobFiles(results)
    submitting = files.is_submitting
    submissions = [each for each in files.submissions() if each.executor == executor]
    stored: set[tuple[str, str]] = set()
    if any(not each.ended for each in submissions):
        stored = {(record.block, record.key) for record in Store(results, lambda text: None).records()}
    return [_status(each, files, submitting, stored) for each in submissions], submitting


def _status(submission: Submission, files: JobFiles, submitting: bool, stored: set[tuple[str, str]]) -> JobStatus:
    events, _ = files.events(submission.block)
    began = [event for event in events if isinstance(event, Began)]
    progress = [event for event in events if isinstance(event, TrainingProgress) and event.metric]
    outcomes = submission.outcomes or Counter(
        str(event.record.outcome) for event in events if isinstance(event, CellFinished)
    )
    is_running = not submission.ended and files.is_running(submission.block)
    state: JobState = "queued"
    # a command that was killed between the two has stored all Records, and not noted that the job has ended
    is_stored = not is_running and all((submission.block, key) in stored for key in submission.cells)
    if submission.ended or is_stored:
        state = "done" if set(outcomes) <= {str(Outcome.OK)} else "failed"
    elif is_running:
        state = "running"
    elif began or not (submitting or submission.executor == "slurm"):
        # Slurm keeps its queue without us; all else waits in the process that submits
        state = "interrupted"
    since, left = submission.ended or submission.submitted, submission.seconds
    if is_running and began:
        started = datetime.fromtimestamp(began[-1].time, UTC)
        since = started.isoformat(timespec="seconds")
        # the clock may have been set back since, or be another machine's
        spent = max((datetime.now(UTC) - started).total_seconds(), 0.0)
        if progress and progress[-1].done:
            last = progress[-1]
            # what was made before this start is no measure of its speed
            first = next((event.done for event in progress if event.key == last.key), 0)
            pace = spent / max(last.done - min(first, last.done - 1), 1)
            left = pace * (last.of - last.done)
        elif left is not None:
            left = max(left - spent, 0.0)
    cells = list(submission.cells.values()) or [submission.lane]
    return JobStatus(
        block=submission.block,
        state=state,
        what=cells[0] + (f" and {len(cells) - 1} more" if len(cells) > 1 else ""),
        executor=submission.executor,
        handle=submission.handle,
        node=began[-1].node if began else submission.node,
        device=began[-1].device if began else "",
        since=since,
        done=progress[-1].done if progress and is_running else 0,
        steps=progress[-1].of if progress and is_running else 0,
        left=None if submission.ended else left,
        outcomes=outcomes,
    )
