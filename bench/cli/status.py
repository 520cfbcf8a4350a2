"""`attnbench status`: what a run has queued, what runs and where, and what has ended."""

from __future__ import annotations

from ..core.errors import SelectionError
from ..stats.format import counted
from .command import command
from .live import duration
from .options import RESULTS, Json, Results
from .output import line_of, say, say_json, warn

SHOWN = 40
"""Jobs that are listed; the others are counted."""


@command("Measure", "attnbench status --results results/lra")
def status(results: Results = RESULTS, json: Json = False) -> None:
    """Show the jobs that the last run sent to slurm or ray: their state, start, node and time left."""
    from ..api import boards as boards_api
    from ..api import run as run_api

    if not results.is_dir():
        raise SelectionError(f"no folder {results}; name the one of a run with --results")
    found = run_api.status(results)
    if json:
        say_json({"jobs": [job.to_json() for job in found.jobs], "submitting": found.submitting})
        return
    if not found.jobs:
        # a run on this machine has no queue that outlives it
        records = boards_api.records(results, notice=warn)
        last = f", the last of `{records[-1].cell}` at {records[-1].started}" if len(records) else ""
        say(f"No job of slurm or ray is known in {results}. It has {counted(len(records), 'Record')}{last}.")
        say("`attnbench plan` with the options of a run shows what it has left to do.")
        return
    say(", ".join(f"{count} {state}" for state, count in found.counts.items()))
    if not found.submitting and found.counts.keys() - {"done", "failed"}:
        say("No command follows them: `attnbench run` with the same options collects what ended, and goes on.")
    order = {"running": 0, "failed": 1, "interrupted": 2, "queued": 3, "done": 4}
    listed = sorted(found.jobs, key=lambda job: order[job.state])
    for job in listed[:SHOWN]:
        place = f"{job.executor} {job.handle}".strip() + (f" on {job.node}" if job.node else "")
        parts = [f"{job.state:<11}", job.what, place, f"since {job.since}" if job.since else ""]
        if job.steps:
            parts.append(f"step {job.done:,} of {job.steps:,}")
        if job.left is not None and job.state in ("running", "queued"):
            parts.append(f"about {duration(job.left)}" + (" left" if job.state == "running" else ""))
        if job.outcomes:
            parts.append(", ".join(f"{count} {outcome}" for outcome, count in sorted(job.outcomes.items())))
        say(line_of("  ".join(filter(None, parts))))
    if len(listed) > SHOWN:
        say(f"and {len(listed) - SHOWN:,} more; `--json` lists all")
