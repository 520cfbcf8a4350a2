"""`attnbench run` and `attnbench plan`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from ..core.errors import SelectionError

if TYPE_CHECKING:
    from ..core.cell import Lane
    from ..core.spec import Spec
    from ..plan.suite import Suite
    from ..run.runner import Runner

Variants = Annotated[str | None, typer.Option(help="Variants, such as `rela,local\\[flange=64,128]`.")]
Tasks = Annotated[str | None, typer.Option("--task", "--tasks", help="Tasks, such as `lra-text\\[length=1k]`.")]
SuiteName = Annotated[str | None, typer.Option("--suite", help="A built-in suite, or a FILE.toml.")]
Preset = Annotated[str | None, typer.Option(help="smoke, quick, pt-2x64, …; `quick\\[steps=100]` changes it.")]
Seeds = Annotated[int | None, typer.Option(min=1, help="How many seeds (default 3; smoke 1).")]
SelectionSplit = Annotated[str | None, typer.Option(help="Split that chooses the checkpoint: `validation`, or `test`.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 (default: the GPU where there is one).")]
Results = Annotated[Path, typer.Option(help="Where records are kept.")]
DataDir = Annotated[Path | None, typer.Option(help="Folder of original data (or ATTNBENCH_DATA).")]
Offline = Annotated[bool, typer.Option(help="Never download.")]
Retry = Annotated[bool, typer.Option("--retry", help="Run cells again that failed.")]
Timeout = Annotated[float | None, typer.Option(min=1, help="Seconds that one cell may take.")]
Threads = Annotated[int, typer.Option(min=0, help="Processor threads (default: all cores).")]
MemoryBudget = Annotated[
    str | None, typer.Option(help="Also find the longest sequence that a sweep's variants run in so much: 2GiB.")
]
Lanes = Annotated[str | None, typer.Option(help="Only these of baseline,train,time.")]


def run(
    variants: Variants = None,
    task: Tasks = None,
    suite: SuiteName = None,
    preset: Preset = None,
    seeds: Seeds = None,
    selection: SelectionSplit = None,
    device: Device = None,
    results: Results = Path("results/local"),
    data_dir: DataDir = None,
    offline: Offline = False,
    retry: Retry = False,
    timeout: Timeout = None,
    threads: Threads = 0,
    lanes: Lanes = None,
    memory_budget: MemoryBudget = None,
) -> None:
    """Train and measure variants on tasks, and print the leaderboard. What is done already is not run again."""
    from .leaderboard import leaderboard
    from .live import Live

    asked = _suite(suite, variants, task, preset, seeds, selection, memory_budget)
    with Live() as live:
        campaign = _campaign(asked, device, results, data_dir, offline, retry, timeout, threads, lanes, live)
        campaign.plan()
        campaign.prepare()
        plan = campaign.plan()
        for notice in plan.notices:
            live.notice(notice)
        for task_spec, data in campaign.data.items():
            if data is not None and data.fidelity == "surrogate":
                live.notice(
                    f"{task_spec} runs on a surrogate ({data.source}), since the original is not here; "
                    f"`attnbench data list {task_spec.name}` says how to get it"
                )
        live.begin(plan, str(campaign.preset), campaign.machine)
        for block in plan.blocks:
            campaign.run(block, live.keep, live.tell)
    failed = Counter(str(record.outcome) for record in live.failures)
    if not plan.blocks:
        typer.echo("Nothing to do: every cell of this selection is measured already.\n")
    # as the cells have it: canonical, so `timing_seconds=1.0` where 1 was typed
    used = {step.cell.task: str(step.cell.preset) for step in plan.steps}
    _show_sweeps(campaign, results, used)
    trained = [task_spec for task_spec in campaign.tasks if not campaign.is_swept(task_spec)]
    for task_spec in trained:
        leaderboard(
            results=results,
            task=str(task_spec),
            preset=used.get(task_spec, str(campaign.preset)),
            selection=asked.selection,
            # where nothing is timed, a board is of no machine
            machine=campaign.machine.id if "time" in campaign.request.lanes else None,
        )
    if suite is not None and task is None and len(trained) > 1:
        try:
            preset_used = next(iter(used.values()), str(campaign.preset))
            leaderboard(results=results, suite=suite, preset=preset_used, selection=asked.selection)
        except SelectionError as error:
            # the folder also holds Records that must not be mixed with these; the tasks' own boards stand above
            typer.echo(f"\nno board of the suite {asked.name}: {error}", err=True)
    if failed:
        listed = ", ".join(f"{count} {outcome}" for outcome, count in failed.items())
        typer.echo(f"\nNot all cells are ok: {listed}; reasons are on the board, `--retry` runs them again.", err=True)
    # that a length is beyond a variant is what a sweep is there to find out
    expected = {True: {"unsupported", "out_of_memory", "timeout"}, False: {"unsupported"}}
    if any(record.outcome not in expected[campaign.is_swept(record.cell.task)] for record in live.failures):
        raise typer.Exit(1)


def plan(
    variants: Variants = None,
    task: Tasks = None,
    suite: SuiteName = None,
    preset: Preset = None,
    seeds: Seeds = None,
    selection: SelectionSplit = None,
    device: Device = None,
    results: Results = Path("results/local"),
    data_dir: DataDir = None,
    threads: Threads = 0,
    lanes: Lanes = None,
    memory_budget: MemoryBudget = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the cells that `run` would run, what is done already, and what the rest is likely to cost."""
    import json

    from .live import Live, duration

    asked = _suite(suite, variants, task, preset, seeds, selection, memory_budget)
    with Live(quiet=as_json) as live:
        campaign = _campaign(asked, device, results, data_dir, True, False, None, threads, lanes, live)
        made = campaign.plan()
    if as_json:
        cells = [
            step.cell.to_json() | {"key": step.cell.key, "state": step.state, "seconds": step.seconds}
            for step in made.steps
        ]
        typer.echo(json.dumps({"cells": cells, "seconds": made.seconds, "unknown": made.unknown}, indent=2))
        return
    for notice in made.notices:
        typer.echo(notice)
    for step in made.steps:
        cost = "" if step.state == "done" else f"  ~{duration(step.seconds)}" if step.seconds else "  cost unknown"
        typer.echo(f"{step.state:<5} {step.cell.key}  {step.cell}{cost}")
    for task_spec, data in campaign.data.items():
        advice = f"not here yet; `attnbench data list {task_spec.name}` says how it is got"
        found = f"{data.fidelity}: {data.source}" if data else advice
        typer.echo(f"data of {task_spec}: {found}")
    known = f"about {duration(made.seconds)}" if made.unknown < len(made.left) or not made.left else ""
    unknown = f"{made.unknown} cells of unknown cost, until one like them has run here" if made.unknown else ""
    cost = ", and ".join(part for part in (known, unknown) if part)
    typer.echo(f"{len(made.steps)} cells, {len(made.left)} to run: {cost}")


def _show_sweeps(campaign: Runner, results: Path, presets: dict[Spec, str]) -> None:
    """One board for each sweep of the campaign: lengths beside each other."""
    from ..board.length_board import boards_over_lengths
    from ..board.select import read_store
    from ..score.key import BoardFilter, board_keys
    from .leaderboard import show, store_of
    from .options import Format

    swept = {str(task): presets.get(task) for task in campaign.tasks if campaign.is_swept(task)}
    if swept:
        table, _ = read_store(store_of(results))
        found = board_keys(table, BoardFilter(machine=campaign.machine.id))
        asked = [q for q in found if q.preset == swept.get(q.task)]
        show(boards_over_lengths(table, asked, least=1), Format.RICH, None)


def _suite(
    suite: str | None,
    variants: str | None,
    task: str | None,
    preset: str | None,
    seeds: int | None,
    selection: str | None,
    memory_budget: str | None,
) -> Suite:
    """The named suite with what the options say in its place, or the options alone."""
    from dataclasses import replace

    from ..core.spec import Spec, parse_selection
    from ..plan.suite import Suite, load_suite

    if suite is None and (variants is None or task is None):
        raise SelectionError(
            "expected --variants and --task, or --suite; for example: "
            "attnbench run --variants rela,entmax15 --task lra-text"
        )
    base = load_suite(suite) if suite else Suite(name="", tasks=(), variants=())
    changes: dict[str, Any] = {}
    if variants is not None:
        changes["variants"] = tuple(parse_selection(variants))
    if task is not None:
        changes["tasks"] = tuple(parse_selection(task))
    if preset is not None:
        changes["preset"] = Spec.parse(preset)
    if seeds is not None:
        changes["seeds"] = seeds
    if selection is not None:
        changes["selection"] = selection
    asked = replace(base, **changes)
    if memory_budget is None:
        return asked
    from ..core.spec import bytes_of
    from ..plan.suite import with_longest

    return replace(asked, tasks=with_longest(asked.tasks, int(bytes_of(memory_budget))))


def _campaign(
    suite: Suite,
    device: str | None,
    results: Path,
    data_dir: Path | None,
    offline: bool,
    retry: bool,
    timeout: float | None,
    threads: int,
    lanes: str | None,
    live: Any,
) -> Runner:
    from ..run.runner import Runner, RunRequest

    request = RunRequest(
        suite=suite,
        results=results,
        device=device,
        data_dir=data_dir,
        offline=offline,
        retry=retry,
        timeout=timeout,
        threads=threads,
    )
    if lanes:
        from dataclasses import replace

        request = replace(request, lanes=cast("tuple[Lane, ...]", tuple(lane.strip() for lane in lanes.split(","))))
    return Runner(request=request, notice=live.notice, progress=live.progress)
