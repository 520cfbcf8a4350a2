"""`attnbench data`: list, get, look at, export and verify the data of tasks."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core.errors import AttnbenchError, DataError, SelectionError
from ..core.registry import TASKS, nearest
from ..core.spec import Spec, parse_selection
from ..plan.facts import recipe_facts, resolve
from ..plan.suites import built_in
from ..process.ask import ask
from ..stats.format import counted
from .command import leave_to_child
from .options import DataDir, Json, Offline
from .output import print_rows, say, say_json

if TYPE_CHECKING:
    from ...tasks.contract import Task
    from ...tasks.data.prepared import CachedData

app = typer.Typer(
    no_args_is_help=True, rich_help_panel="Measure", help="List, get, preview, export and verify the data of tasks."
)


@app.command("list", epilog="Example: attnbench data list lra-text")
def list_(
    task: Annotated[str | None, typer.Argument(help="A task (default: all).")] = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """List the sources of each task, present and missing, and the prepared data; download nothing."""
    from ...tasks.data.data import place
    from ...tasks.data.prepared import stored

    here = place(data_dir, offline=True)
    specs = _specs([task]) if task else [Spec(entry.name) for entry in TASKS.entries()]
    found = [_found(spec, data_dir, stored(here, spec.name)) for spec in specs]
    if json:
        say_json(found)
        return
    say(f"originals: {here.root}\nprepared:  {here.cache / 'prepared'}")
    for entry in found:
        say(f"\n{entry['name']}")
        print_rows(_rows(entry), indent=2)


@app.command("get", epilog="Example: attnbench data get lra-text")
def get(
    tasks: Annotated[list[str], typer.Argument(help="Tasks, such as `lra-text`, or a suite, such as `lra`.")],
    preset: Annotated[str, typer.Option(help="Prepare the data that this preset needs.")] = "quick",
    data_dir: DataDir = None,
    offline: Offline = False,
) -> None:
    """Download and prepare data; after an interruption, the same command resumes."""
    from ...tasks.data.data import place
    from ...tasks.data.download import forget_failures
    from ..run.questions import DATA_PATIENCE, FindData, FindSources, tried
    from .live import Live

    failed: list[DataError] = []
    named = {spec.name for name in tasks for spec in parse_selection(name)}
    with Live() as live:
        here = place(data_dir, offline, live.notice, live.progress)
        forget_failures(here)
        for spec in _specs(tasks):
            wanted = Spec.parse(preset)
            try:
                recipe_facts(spec, wanted)
            except SelectionError as error:
                if spec.name in named:
                    raise
                live.notice(f"{spec}: left out; {error}")
                continue
            sources = ask(TASKS, spec.name, FindSources(task=spec, data_dir=data_dir, offline=offline))
            if not offline and (ways := tried(sources)):
                live.notice(f"{spec}: tries {ways}")
            question = FindData(
                task=spec, preset=wanted, selection="validation", data_dir=data_dir, offline=offline, fetch=True
            )
            try:
                data = ask(TASKS, spec.name, question, reporter=live, patience=DATA_PATIENCE)
            except DataError as error:
                failed.append(error)
                continue
            assert data is not None
            if data.fidelity == "surrogate":
                live.notice(f"{spec}: a surrogate, not the original; `attnbench data list {spec.name}` says why")
            counts = ", ".join(f"{count:,} {split}" for split, count in data.counts.items())
            live.notice(f"{spec}: {data.fidelity}, from {data.source}; {counts}")
            for note in data.notes:
                live.notice(f"  {note}")
    if failed:
        raise _together(failed)


@app.command("preview", epilog="Example: attnbench data preview lra-text")
def preview(
    task: Annotated[str, typer.Argument(help="A task.")],
    out: Annotated[Path | None, typer.Option(help="Image file (default: TASK.png).")] = None,
    examples: Annotated[int, typer.Option(help="Number of examples; 0 shows 48 images or 5 texts.", min=0)] = 0,
    preset: Annotated[str, typer.Option(help="Show the training examples of this preset.")] = "smoke",
    data_dir: DataDir = None,
    offline: Offline = False,
) -> None:
    """Show training examples: images as a contact sheet with labels, all else as text."""
    from ...tasks.data.data import place
    from .live import Live
    from .preview import contact_sheet, is_image, text_of

    [spec, *others] = _specs([task])
    if others:
        raise SelectionError(f"expected one task, got {len(others) + 1}")
    leave_to_child(TASKS, spec)
    built: Task = TASKS.build(spec)
    if "train" not in built.lanes:
        raise SelectionError(f"{spec} has no examples: it times attention; `attnbench run --task {spec.name}` runs it")
    recipe = built.recipe(Spec.parse(preset))
    with Live() as live:
        here = place(data_dir, offline, live.notice, live.progress)
        train = built.load(here, recipe, 0, "validation").train
    problem = built.problem()
    if not is_image(problem, train):
        for line in text_of(problem, train, examples or 5):
            say(line)
        return
    path = out or Path(f"{spec.name}.png")
    shown = contact_sheet(train, examples or 48, path)
    say(f"{path}: {counted(shown, 'training image')} of {spec}, each with its label")


@app.command("export", epilog="Example: attnbench data export --tfds FOLDER")
def export(
    tfds: Annotated[Path, typer.Option("--tfds", help="Folder of TFDS data sets, such as ~/tensorflow_datasets.")],
    tasks: Annotated[list[str] | None, typer.Argument(help="Tasks or a suite (default: all prepared data).")] = None,
    data_dir: DataDir = None,
) -> None:
    """Write prepared data as TFDS array_record sets, for TFDS or for attnbench on another machine."""
    from ...tasks.data.data import place
    from ...tasks.data.prepared import stored
    from ...tasks.data.tfds import export as export_to
    from .live import Live

    specs = _specs(tasks) if tasks else None
    with Live() as live:
        here = place(data_dir, offline=True, notice=live.notice, progress=live.progress)
        names = [None] if specs is None else list(dict.fromkeys(spec.name for spec in specs))
        found = [each for name in names for each in stored(here, name)]
        if not found:
            raise DataError(f"nothing of that is prepared in {here.cache}; `attnbench data get TASK` prepares it")
        for each in found:
            path = export_to(each, tfds.expanduser().absolute(), here)
            counts = ", ".join(f"{count:,} {split}" for split, count in each.examples.items())
            live.notice(f"{each.task}: {each.provenance.fidelity}, from {each.provenance.source}; {counts}: {path}")


@app.command("verify", epilog="Example: attnbench data verify lra-text")
def verify(
    task: Annotated[str | None, typer.Argument(help="A task (default: all).")] = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Compare prepared files and originals with their SHA-256. Exit with code 3 on a difference."""
    from ...tasks.data.data import place
    from ...tasks.data.prepared import damaged, stored
    from ...tasks.data.sources import verify_originals
    from .live import Live

    name = _specs([task])[0].name if task else None
    rows: list[dict[str, Any]] = []
    with Live() as live:
        here = place(data_dir, offline=True, notice=live.notice, progress=live.progress)
        for each in stored(here, name):
            bad = damaged(each.folder)
            state = f"damaged: {', '.join(bad)}; delete the folder to prepare it again" if bad else "ok"
            rows.append({"task": each.task, "what": "prepared", "path": str(each.folder), "state": state})
        for verdict in verify_originals(here, name):
            state = {"changed": "changed since it was read", "gone": "no longer there"}.get(verdict.state, "ok")
            rows.append({"task": verdict.task, "what": "original", "path": verdict.path, "state": state})
    if json:
        say_json(rows)
    elif not rows:
        say(f"nothing is prepared in {here.cache}; `attnbench data get {name or 'TASK'}` prepares it")
    else:
        print_rows([tuple(row.values()) for row in rows])
    wrong = [row["path"] for row in rows if row["state"] not in ("ok", "no longer there")]
    if wrong:
        raise DataError(f"{len(wrong)} of {len(rows)} differ from their checksum: {', '.join(wrong)}")


def _together(failed: list[DataError]) -> DataError:
    """One error for all that are lacking, with their messages and notes as its notes."""
    if len(failed) == 1:
        return failed[0]
    lack = DataError(f"{len(failed)} tasks have no data here")
    for error in failed:
        for line in (str(error), *(f"  {note}" for note in getattr(error, "__notes__", ()))):
            lack.add_note(line)
    return lack


def _specs(names: list[str]) -> list[Spec]:
    """The tasks of a selection; the name of a built-in suite stands for its tasks."""
    from ..plan.suite_file import read_suite

    known, suites = {entry.name for entry in TASKS.entries()}, built_in()
    specs: dict[Spec, None] = {}
    for spec in (spec for name in names for spec in parse_selection(name)):
        if spec.name in known:
            specs[resolve(TASKS, spec)] = None
            continue
        if spec.name not in suites:
            near = nearest(spec.name, [*known, *suites])
            raise SelectionError(f"no task or suite named {spec.name!r}{near}; `attnbench list tasks` lists the tasks")
        specs |= dict.fromkeys(resolve(TASKS, each) for each in read_suite(spec.name).tasks)
    return list(specs)


def _found(spec: Spec, data_dir: Path | None, prepared: list[CachedData]) -> dict[str, Any]:
    from ..run.questions import FindSources

    try:
        ways = ask(TASKS, spec.name, FindSources(task=spec, data_dir=data_dir))
    except AttnbenchError as error:
        return {"name": str(spec), "problem": str(error), "sources": [], "prepared": []}
    return {
        "name": str(spec),
        "problem": None,
        "sources": [asdict(way) for way in ways],
        "prepared": [asdict(each) | {"folder": str(each.folder)} for each in prepared],
    }


def _rows(entry: dict[str, Any]) -> list[tuple[str, ...]]:
    """A row for each source and each prepared data set: whether it is here, its fidelity, its name, where and how."""
    if entry["problem"]:
        return [(entry["problem"],)]
    rows: list[tuple[str, ...]] = []
    for way in entry["sources"]:
        detail = way["detail"] if way["ready"] else f"{way['detail']}: {way['advice']}"
        rows.append(("here" if way["ready"] else "missing", way["fidelity"], way["source"], detail))
    for each in entry["prepared"]:
        data = each["provenance"]
        counts = ", ".join(f"{count:,} {split}" for split, count in each["examples"].items())
        size = f"{each['bytes'] / 1e9:.2f} GB in {each['folder']}; {counts}"
        rows.append(("prepared", data["fidelity"], data["source"], size))
    return rows
