"""`attnbench run`, `plan` and `status`."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core.cell import REFERENCE
from ..core.entry_points import load_point
from ..core.errors import AttnbenchError, SelectionError
from ..core.files import RESULTS
from ..stats.format import counted, listed
from .command import command
from .options import RUN, Json, Offline, Results, Seconds, folder, selected, sharing
from .output import line_of, print_rows, say, say_json, warn

if TYPE_CHECKING:
    from ..board.board import Board
    from ..core.cell import Cell
    from ..core.record import Record
    from ..core.spec import Spec
    from ..plan.planner import Plan, Step
    from ..run.events import RunListener
    from ..store.records import Records

LOGGERS = "attnbench.loggers"
"""The entry points of what also hears of a run: a function of a listener, and the results folder, to a listener."""

_UNDECIDED = 7
"""The exit code where other processes took the cores of what was to be compared."""

MOST_COMPARED = 3
"""Tasks whose comparison a run ends with; `attnbench compare` has them all."""

JOBS_SHOWN = 40
"""Jobs that are listed; the others are counted."""


@command("Measure", "attnbench run --variants rela,entmax15 --task lra-text")
@sharing(RUN)
def run(
    offline: Offline = False,
    retry: Annotated[bool, typer.Option("--retry", help="Run failed cells again.")] = False,
    timeout: Seconds = None,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", parser=folder, help="Hold the times against those of this older results folder."
        ),
    ] = None,
    fail_if: Annotated[
        str,
        typer.Option(
            "--fail-if", metavar="SHARE", help="Exit with 1 where --against shows more than this.", show_default="5%"
        ),
    ] = "",
    log: Annotated[
        str, typer.Option(metavar="NAMES", help="Also write curves and results to wandb, tensorboard or mlflow.")
    ] = "",
    **options: Any,
) -> None:
    """Train and measure variants on tasks, and print the leaderboard; skip what is measured already."""
    from ..api import boards as boards_api
    from ..api import run as run_api
    from ..board.regression import NOTHING_SHARED
    from ..board.select import read_store
    from ..store.store import Store
    from .leaderboard import show
    from .live import Live

    options, limit = selected(options), _share(fail_if or "5%")
    if against is not None:
        # a folder without Records is told now, and not after hours of measuring
        older, _ = read_store(Store(against, _no_notice), "--against")
        if against.resolve() == options["results"].resolve():
            raise SelectionError(f"expected an older folder after --against, got that of --results, {against}")
        made = run_api.plan(progress=Live(quiet=True), **options)
        timed = _timed(step.cell for step in made.steps)
        if not timed:
            raise SelectionError("expected a selection that times something beside --against; add `--task sweep`")
        if timed.isdisjoint(_timed(record.cell for record in older.records)):
            raise SelectionError(NOTHING_SHARED)
    elif fail_if:
        raise SelectionError("expected --against FOLDER beside --fail-if: there are no times to hold these against")
    with Live() as live:
        listener: RunListener = live
        for name in filter(None, map(str.strip, log.split(","))):
            listener = load_point(LOGGERS, name)(listener, options["results"])
        found = run_api.run(progress=listener, offline=offline, retry=retry, timeout=timeout, **options)
    if options["lanes"] and not (len(found) or found.missing or found.left_out):
        raise SelectionError(f"this selection has no cell of the kind {options['lanes']}; leave out --lanes")
    if not found.measured:
        say("Nothing to do: every cell of this selection is measured already.\n")
    boards = boards_api.boards(found, notice=warn)
    show(boards)
    trained = {record.cell.task for record in found if record.cell.lane == "train"}
    # a suite's board averages quality; sweeps have none
    if options["suite"] and not options["tasks"] and len(trained) > 1:
        try:
            show(boards_api.boards(found, suite=options["suite"], notice=warn))
        except SelectionError as error:
            # the folder also holds Records that must not be mixed with these; the tasks' own boards stand above
            warn(f"no board of the suite {options['suite']}: {error}")
    if found.measured:
        _say_next(found, boards)
    failed = [record for record in found.measured if record.outcome != "ok"]
    if failed:
        counts = Counter(str(record.outcome) for record in failed)
        listed = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
        again = "; `--retry` runs these cells again" if counts.keys() - {"unsupported"} else ""
        warn(f"Not all cells are ok: {listed}. The lines above give the reasons{again}.")
    if found.missing:
        warn(f"{len(found.missing)} cells have no Record, since the executor lost them; the same command tries again.")
    compared = 0 if against is None else _code_of(found, against, limit)
    if compared == 1 or found.left_out or found.missing or not all(map(_is_expected, failed)):
        raise typer.Exit(1)
    if compared:
        raise typer.Exit(compared)


def _timed(cells: Iterable[Cell]) -> set[tuple[Spec, Spec, Spec]]:
    """Task, preset and variant of what is timed beside the reference."""
    timed = (cell for cell in cells if cell.lane == "time" and cell.variant.name != REFERENCE)
    return {(cell.task, cell.preset, cell.variant) for cell in timed}


def _share(text: str) -> float:
    """`5%` as 0.05. Raises SelectionError for another form."""
    number = text.strip().removesuffix("%").strip()
    if not text.strip().endswith("%") or not number.replace(".", "", 1).isdecimal():
        raise SelectionError(f"expected a share such as --fail-if 5%, got {text!r}")
    return float(number) / 100


def _code_of(found: Records, against: Path, limit: float) -> int:
    """Print in one line whether all is as fast as in the older folder, to `limit`; 0, 1 for slower, 7 where untold."""
    from ..api import pages as api

    changes = api.changes(found, against, notice=warn)
    slower = [change for change in changes if change.is_slower(limit)]
    unknown = [change for change in changes if change.disturbed]
    words = "; ".join(change.words for change in slower or unknown)
    if slower:
        say(f"FAIL: slower than in {against} by more than {100 * limit:g} %: {words}")
    elif unknown:
        say(f"UNDECIDED: {counted(len(unknown), 'time')} cannot be compared with {against}: {words}")
    else:
        most = f"more than {100 * limit:g} % above {against}; most: {changes[0].words}"
        say(f"PASS: none of {counted(len(changes), 'time')} is shown to be {most}")
    return 1 if slower else _UNDECIDED if unknown else 0


def _say_next(found: Records, boards: Sequence[Board]) -> None:
    """The best variant against softmax in words, and a page of everything in this folder."""
    from ..api import pages as api
    from .compare import say_comparison
    from .pages import say_page

    ranked = [row.name for board in boards for row in board.ranked if row.name != REFERENCE]
    if ranked:
        for comparison in api.compare(ranked[0], REFERENCE, found, notice=_no_notice)[:MOST_COMPARED]:
            say_comparison(comparison)
        say()
    say_page(found.results)


def _no_notice(text: str) -> None:
    """Says nothing: the boards and the times name what the Records of a folder lack."""


def _is_expected(failed: Record) -> bool:
    """True if a failure is an answer: to a sweep, whose lengths may be beyond a variant, all but a crash is one."""
    from ..plan.facts import task_facts

    swept = task_facts(failed.cell.task).only_timed
    return failed.outcome in ({"unsupported", "out_of_memory", "timeout"} if swept else {"unsupported"})


@command("Measure", "attnbench plan --variants rela,entmax15 --task lra-text")
@sharing(RUN)
def plan(
    json: Json = False,
    every: Annotated[bool, typer.Option("--cells", help="List every cell with its key.")] = False,
    **options: Any,
) -> None:
    """Show what `run` would run, what is done, and the likely cost of the rest."""
    from ..api import run as api
    from ..core.registry import TASKS
    from ..process.ask import ask
    from ..run.estimate import PROCESSOR
    from ..run.questions import FindSources, tried
    from .live import YEAR, Live, duration

    options = selected(options)
    with Live(quiet=json) as live:
        made = api.plan(progress=live, **options)
    if json:
        cells = [
            step.cell.to_json() | {"key": step.cell.key, "state": step.state, "seconds": step.seconds}
            for step in made.steps
        ]
        say_json({"cells": cells, "seconds": made.seconds, "unknown": made.unknown})
        return
    for notice in made.notices:
        say(notice)
    print_rows([*(_listed(made) if every else _grouped(made))])
    without = []
    # of a sweep each point is a task
    ready: dict[str, dict[str, None]] = {}
    for task, data in made.data.items():
        if data:
            ready.setdefault(f"{data.fidelity}: {data.source}", {})[task.name] = None
    for source, names in ready.items():
        say(f"data of {listed(list(names))}: {source}", folds=True)
    for task, data in made.data.items():
        if data:
            continue
        said = ""
        # a plan stands without what a task would tell of its sources
        with suppress(AttnbenchError):
            ways = tried(ask(TASKS, task.name, FindSources(task=task, data_dir=options["data_dir"])))
            without += [] if ways else [str(task)]
            more = f"attnbench data list {shlex.quote(str(task))}"
            said = f"; `run` tries {ways or 'nothing'}; `{more}` says more"
        say(f"data of {task}: not prepared{said}", folds=True)
    guessed = {name: None for step in made.left for name in step.estimates}
    known = f"about {duration(made.seconds)}" if made.seconds >= 1 or not made.unknown else ""
    on_one = {name: made.seconds_on(name) for name in guessed if name != PROCESSOR}
    if on_one:
        known = "about " + ", ".join(f"{duration(seconds)} on one {name}" for name, seconds in on_one.items())
    unknown = f"{made.unknown} cells of unknown cost, until one like them has run here" if made.unknown else ""
    cost = ", and ".join(part for part in (known, unknown) if part)
    say(f"{len(made.steps)} cells, {len(made.left)} to run{f': {cost}' if cost else ''}")
    # trials of a learning rate have presets of their own
    counted = [step.cell for step in made.steps if step.cell.lane != "tune"]
    seeds = sorted({cell.seed for cell in counted if cell.lane == "train"})
    trained = f"; trained with the seeds {', '.join(map(str, seeds))}" if seeds else ""
    say(f"presets: {', '.join(dict.fromkeys(str(cell.preset) for cell in counted))}{trained}", folds=True)
    if not all(made.data.values()):
        left_out = f"; `run` leaves out {listed(without)}, whose data nothing gives" if without else ""
        say(f"All cells of a task whose data is not prepared count as to run{left_out}.", folds=True)
    if guessed:
        tested = "8 in 10 of the stored trainings within a factor of 2"
        if on_one:
            tested = "tried on an H100 alone, where lra-text took 0.8 times that at 1,024 bytes, twice that at 4,096"
        shared = "The variants of a timing share the seconds of its preset, and take longer where three rounds do."
        guess = f"Where nothing like a cell has run, its time is an estimate from counted FLOPs and bytes: {tested}."
        say(f"{shared} {guess}", folds=True)
    if max(on_one.values(), default=made.seconds) >= YEAR:
        say(
            "Take a smaller preset, fewer tasks, variants or seeds; `--device cuda` tells what a GPU takes.", folds=True
        )


def _listed(made: Plan) -> Iterator[tuple[str, ...]]:
    from .live import duration

    for step in made.steps:
        cost = "" if step.state == "done" else f"~{duration(step.seconds)}" if step.seconds else "cost unknown"
        yield step.state, step.cell.key, str(step.cell), cost


def _grouped(made: Plan) -> Iterator[tuple[str, ...]]:
    """A row for each task and lane, of whatever parameters: a suite has hundreds of cells."""
    from .live import duration

    groups: dict[tuple[str, str], list[Step]] = {}
    for step in made.steps:
        groups.setdefault((step.cell.task.name, step.cell.lane), []).append(step)
    for (task, lane), steps in groups.items():
        left = [step for step in steps if step.state != "done"]
        seconds = made.seconds_of(left)
        cost = f", about {duration(seconds)}" if seconds >= 1 else ""
        yield task, lane, f"{counted(len(steps), 'cell')}, {len(left)} to run{cost}"


@command("Measure", "attnbench status --results results/lra")
def status(results: Results = RESULTS, json: Json = False) -> None:
    """Show the jobs that the last run sent to slurm or ray: their state, start, node and time left."""
    from ..api import boards as boards_api
    from ..api import run as run_api
    from .live import duration

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
    for job in listed[:JOBS_SHOWN]:
        place = f"{job.executor} {job.handle}".strip() + (f" on {job.node}" if job.node else "")
        parts = [f"{job.state:<11}", job.what, place, f"since {job.since}" if job.since else ""]
        if job.steps:
            parts.append(f"step {job.done:,} of {job.steps:,}")
        if job.left is not None and job.state in ("running", "queued"):
            parts.append(f"about {duration(job.left)}" + (" left" if job.state == "running" else ""))
        if job.outcomes:
            parts.append(", ".join(f"{count} {outcome}" for outcome, count in sorted(job.outcomes.items())))
        say(line_of("  ".join(filter(None, parts))))
    if len(listed) > JOBS_SHOWN:
        say(f"and {len(listed) - JOBS_SHOWN:,} more; `--json` lists all")
