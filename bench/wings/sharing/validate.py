"""Validation: finds every error in a folder of Records that would make a board wrong, before the folder is shared."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from ...core.cell import FIRST_TUNING_SEED, REFERENCE, VERSION_ZERO
from ...core.decode import brief
from ...core.errors import StoreError
from ...core.metrics import METRICS, RANKING_METRICS
from ...core.record import Measurement, Outcome, Record
from ...store import record_files
from ...store.artifacts import curve_of, results_of
from ...store.learning_rates import extended, first_results, search, without_rates
from ...store.packs import DamagedArtifact
from ...store.record_files import LOG, ArrivalLog, RecordFile, in_order_of_arrival, read_log
from ...store.rows import installed_metric, is_too_new, tested
from ...store.store import LOCAL, Store, is_artifact_name, is_given_name
from .agreement import Copies, Repeats, curve_errors, prediction_errors, time_errors
from .releases import Unreleased

MOST_BAD_LINES = 1000
"""Named of one file; the others are counted."""

FIDELITIES = ("official", "regenerated", "surrogate", "own", "synthetic")

_DIGEST = re.compile(r"([0-9a-f]+|lane\d+[a-z0-9.]*)-[0-9a-f]+-[0-9a-f]+")
_SHARES = ("fraction",)
# weights as they are: rows of ReLA do not sum to one
_UNBOUNDED = ("positional_attention",)


@dataclass(frozen=True, slots=True)
class ValidationIssue:
    """An `error` keeps a Record from being shared; a `warning` is a lack that boards will show."""

    severity: Literal["error", "warning"]
    place: str
    text: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.place}: {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationReport:
    """`sound`: the Records without an error, in the order of arrival; `count`: of all lines."""

    findings: tuple[ValidationIssue, ...]
    sound: tuple[Record, ...]
    count: int

    @property
    def errors(self) -> int:
        return sum(f.severity == "error" for f in self.findings)


def validate_records(root: Path, *, beside: Path | None = None) -> ValidationReport:
    """Read every line under `root/records` and every artifact named there; change nothing.

    `beside`: a results folder that Records may have been copied from. Raises StoreError where there is no such folder.
    """
    errors: list[tuple[str, int, str]] = []
    warnings: list[ValidationIssue] = []
    sound: list[Record] = []
    copies, repeats, unreleased, damaged = Copies(), Repeats(), Unreleased(), list[str]()
    # of artifacts alone, a store warns of packs
    store = Store(root, damaged.append)
    if beside is not None:
        _remember(beside, copies, repeats)
    files, log = _record_files(root)
    warnings += _strange_files(root)
    for file in files:
        errors += _file_errors(file)
    errors += _log_errors(log, files)
    for arrived in in_order_of_arrival(files, log):
        contents: dict[str, bytes] = {}
        problems = list(_errors(arrived.record, arrived.file, store, contents))
        errors += [(arrived.file, arrived.number, text) for text in problems]
        if not problems and not unreleased.add(arrived):
            sound.append(arrived.record)
            found = [*copies.add(arrived.place, arrived.record, contents.get("predictions")), *repeats.add(arrived)]
            warnings += [ValidationIssue("warning", arrived.place, text) for text in found]
    errors += unreleased.errors()
    errors += [("artifacts", 0, text) for text in damaged]
    warnings += [
        ValidationIssue("warning", place, text)
        for place, text in (
            *copies.copied_predictions(),
            *_log_warnings(log, files, repeats.undecided),
            *_missing_seeds(sound),
            *_other_machines(sound),
            # trials of another machine may have come later, so that nobody need have been wrong
            *_other_choices(sound),
        )
    ]
    named = [ValidationIssue("error", _place(file, number), text) for file, number, text in sorted(errors)]
    count = sum(len(file.records) + sum(bad.number > 0 for bad in file.bad_lines) for file in files)
    return ValidationReport(findings=(*named, *warnings), sound=tuple(sound), count=count)


def _place(file: str, number: int) -> str:
    return f"{record_files.spelt(file)}:{number}" if number else record_files.spelt(file)


def _file_errors(file: RecordFile) -> Iterator[tuple[str, int, str]]:
    """The errors in the lines of a file, each with the file's name and the number of the line."""
    for bad in file.bad_lines[:MOST_BAD_LINES]:
        yield file.name, bad.number, f"cannot be read: {bad.reason}"
    if len(file.bad_lines) > MOST_BAD_LINES:
        yield file.name, 0, f"{len(file.bad_lines) - MOST_BAD_LINES:,} more lines cannot be read"
    # the next Record would change this line, which looks as if it had been edited
    if not file.ends and file.numbers and file.numbers[-1] > file.lines:
        yield file.name, file.numbers[-1], "the line has no end; add the line feed that is missing"


def _strange_files(root: Path) -> Iterator[ValidationIssue]:
    """Files among Records and artifacts that no attnbench makes, such as a `.gitattributes` that hides changes."""
    given = {record_files.FOLDER: record_files.is_given_name, "artifacts": is_given_name}
    for folder, is_given in given.items():
        strange: list[str] = []
        with suppress(OSError), record_files.opened(root, folder) as descriptor:
            strange = record_files.other_names(descriptor, is_given)
        if strange:
            text = f"{len(strange):,} files have names that attnbench does not give, such as {strange[0]}"
            yield ValidationIssue("warning", folder, text)


def _log_errors(log: ArrivalLog, files: Sequence[RecordFile]) -> Iterator[tuple[str, int, str]]:
    for bad in log.bad_lines:
        yield LOG, bad.number, bad.reason
    there = {file.name: file.lines for file in files}
    for name, lines in log.lines.items():
        # who could log lines in advance could send Records later that came first
        if lines > there.get(name, 0):
            yield LOG, 0, f"{record_files.spelt(name)} has {there.get(name, 0):,} lines, but {lines:,} have arrived"


def _log_warnings(log: ArrivalLog, files: Sequence[RecordFile], undecided: int) -> Iterator[tuple[str, str]]:
    unlogged = sum(file.lines > log.lines.get(file.name, 0) for file in files)
    if log.arrivals and unlogged:
        yield LOG, f"{unlogged} files have lines that are in no arrival; they count after all others"
    if undecided and not log.arrivals:
        yield (
            record_files.FOLDER,
            f"{undecided} cells have two different results, and no {LOG} says which came first; the one that states "
            "the earlier start counts",
        )


def _remember(root: Path, copies: Copies, repeats: Repeats) -> None:
    """Adds the readable Records of a folder to `copies` and `repeats`; none where there is no folder yet."""
    store = Store(root)
    with suppress(StoreError):
        files, log = _record_files(root)
        for arrived in in_order_of_arrival(files, log):
            try:
                content = store.artifact(arrived.record.artifacts.get("predictions", ""))
            except StoreError:
                content = None
            place = f"{root}: {arrived.place}"
            # said of the target by validating it
            for _ in copies.add(place, arrived.record, content):
                pass
            repeats.remember(place, arrived.record)
        copies.equal.clear()


def _record_files(root: Path) -> tuple[list[RecordFile], ArrivalLog]:
    try:
        with record_files.opened(root, record_files.FOLDER) as folder:
            files = [record_files.read_file(folder, name) for name in record_files.names_in(folder)]
            return files, read_log(folder)
    except OSError as error:
        if root.name == record_files.FOLDER and any(root.glob("*.jsonl")):
            raise StoreError(f"{root} is the inside of a results folder; name {root.parent}") from None
        raise StoreError(
            f"expected a folder {root / record_files.FOLDER} with *.jsonl files: {error.strerror or error}; "
            f"name {LOCAL if LOCAL.is_dir() else 'the folder that holds it'}"
        ) from None


def _errors(record: Record, file: str, store: Store, contents: dict[str, bytes]) -> Iterator[str]:
    """The errors of a Record; puts the contents of its artifacts into `contents`."""
    if file != f"{record.machine.id}.jsonl":
        yield f"{record_files.spelt(file)} holds Records of one machine, got one of {record.machine.id}"
    if not _DIGEST.fullmatch(record.digest):
        yield f"expected a digest VERSIONS-DATA-VARIANT, got {brief(repr(record.digest))}"
    elif is_too_new(record.version, record.cell.lane, record.cell.task.name):
        yield f"its digest states {record.version}, which is newer than the installed attnbench"
    installed = installed_metric(record.cell.task) if record.metric is not None else None
    if installed not in (None, record.metric):
        yield f"its metric is {brief(record.metric)}, but that of the installed task is {installed}"
    if record.data is not None and record.data.fidelity not in FIDELITIES:
        yield f"expected a fidelity of {', '.join(FIDELITIES)}, got {brief(repr(record.data.fidelity))}"
    if record.outcome is not Outcome.OK and not record.reason:
        yield f"outcome {record.outcome} has no reason"
    yield from _start_errors(record)
    for measurement in record.measurements:
        yield from _number_errors(measurement)
    for name, artifact in record.artifacts.items():
        yield from _artifact_errors(name, artifact, store, contents)
    if record.outcome is Outcome.OK:
        yield from _content_errors(record)
    yield from _agreement_errors(record, contents)


def _agreement_errors(record: Record, contents: dict[str, bytes]) -> Iterator[str]:
    if record.outcome is Outcome.OK and record.cell.lane == "train":
        # nothing else bears a score out
        for name in ("predictions", "curve"):
            if name not in record.artifacts:
                yield f"a trained Record of outcome ok needs the artifact {name}"
    try:
        if "predictions" in contents:
            yield from prediction_errors(record, results_of(contents["predictions"]))
    except DamagedArtifact as error:
        yield f"artifact predictions is damaged: {error}"
    try:
        if "curve" in contents:
            yield from curve_errors(record, curve_of(contents["curve"]))
    except DamagedArtifact as error:
        yield f"artifact curve is damaged: {error}"
    if record.cell.lane == "time":
        yield from time_errors(record)


def _start_errors(record: Record) -> Iterator[str]:
    try:
        started = datetime.fromisoformat(record.started)
    except (ValueError, TypeError):
        yield f"expected started as an ISO 8601 time, got {record.started!r}"
        return
    if started.tzinfo is None:
        yield f"started has no time zone: {record.started!r}"
    elif started > datetime.now(UTC) + timedelta(days=1):
        yield f"started lies in the future: {record.started}"
    if not (math.isfinite(record.seconds) and record.seconds >= 0):
        yield f"expected seconds of 0 or more, got {record.seconds}"


def _number_errors(measurement: Measurement) -> Iterator[str]:
    name, metric = measurement.name, METRICS.get(measurement.name)
    if metric is None:
        yield f"no metric is named {name!r}"
        return
    if measurement.unit != metric.unit:
        yield f"expected {name} in {metric.unit!r}, got {measurement.unit!r}"
    values = [measurement.value, *measurement.samples]
    if name != "loss" and not all(isinstance(v, int | float) and math.isfinite(v) for v in values):
        yield f"{name} has a value that is not finite"
        return
    highest = math.inf if name in _UNBOUNDED else 1 + 1e-9
    if metric.unit in _SHARES and not all(-1e-9 <= v <= highest for v in values):
        yield f"{name} lies outside the range from 0 to 1"
    if metric.unit == "seconds" and not all(v > 0 for v in measurement.samples):
        yield f"{name} has a sample of 0 seconds or less"
    # a layer may have fewer parameters than the projections that it replaces
    if metric.unit in ("bytes", "count", "steps") and name != "extra_parameters" and min(values) < 0:
        yield f"{name} is negative"


def _content_errors(record: Record) -> Iterator[str]:
    if record.data is None:
        yield "outcome ok does not name its data"
    if record.cell.lane == "time":
        own, reference = record.first("step_seconds"), record.first("reference_step_seconds")
        forward = record.first("forward_seconds") or record.first("decode_seconds")
        if own is None and forward is None:
            yield "outcome ok has no times"
        if own is not None and (reference is None or len(own.samples) != len(reference.samples)):
            yield "its times lack those of the reference in the same rounds"
        return
    grid, used = record.setting.get("learning_rates"), record.first("learning_rate")
    if record.cell.lane == "train" and grid:
        rates = extended(grid, record.setting.get("rate_extensions", 0))
        if used is None or used.value not in rates:
            yield f"expected its learning_rate to be one of {', '.join(map(str, rates[:9]))}, as its preset has them"
    stated = tested(record)
    if stated is None:
        yield f"outcome ok has no test result: expected {' or '.join(metric.name for metric in RANKING_METRICS)}"
        return
    examples = stated.where.get("examples", 0)
    if stated.name == "accuracy" and not examples:
        yield "its test accuracy does not state the number of examples"
    counted = record.data.counts.get("test", examples) if record.data else examples
    if examples > counted:
        yield f"it states {examples:,} test examples, but its data has {counted:,}"


def _artifact_errors(name: str, file: str, store: Store, contents: dict[str, bytes]) -> Iterator[str]:
    name = brief(name, 60)
    if not is_artifact_name(file):
        yield f"artifact {name}: {brief(repr(file))} is not the name of an artifact"
        return
    try:
        content = store.artifact(file)
    except StoreError as error:
        yield f"artifact {name}: {error}"
        return
    if hashlib.sha256(content).hexdigest()[:24] != file[:24]:
        yield f"artifact {name}: the content of {file} does not match the hash in its name"
        return
    contents[name] = content


def _other_choices(records: list[Record]) -> Iterator[tuple[str, str]]:
    """Trainings at another learning rate than the one that the trials beside them give; trials may be missing."""
    trials: dict[tuple[Hashable, ...], dict[int, Record]] = {}
    for trial in first_results(record for record in records if record.cell.lane == "tune").values():
        place = (*_trained(trial), trial.setting.get("learning_rate"))
        trials.setdefault(place, {})[trial.cell.seed] = trial
    for record in records:
        grid, used = record.setting.get("learning_rates"), record.first("learning_rate")
        if record.cell.lane != "train" or used is None or not grid:
            continue
        count = record.setting.get("tuning_seeds", 1)
        seeds = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + count)
        trained = _trained(record)

        def trials_of(rate: float, trained: tuple[Hashable, ...] = trained, seeds: range = seeds) -> list[Record]:
            found = trials.get((*trained, rate), {})
            return [found[seed] for seed in sorted(found) if seed in seeds]

        _, choice = search(grid, record.setting.get("rate_extensions", 0), count, trials_of)
        if choice is not None and (best := choice.rate) != used.value:
            yield (
                str(record.cell),
                (
                    f"it was trained at learning rate {used.value:g}, but validation of the trials chooses "
                    f"{'none' if best is None else format(best, 'g')}"
                ),
            )


def _trained(record: Record) -> tuple[Hashable, ...]:
    """The key that a trial and the training that it chooses a rate for have in common."""
    return record.cell.variant, record.cell.task, record.digest.partition("-")[2], without_rates(record.setting)


def _other_machines(records: list[Record]) -> Iterator[tuple[str, str]]:
    """Machines whose id is not the hash of their description: whose Records they are, nothing tells."""
    machines = {record.machine.id: record.machine for record in records if record.version != VERSION_ZERO}
    for name, machine in sorted(machines.items()):
        if machine.described_id != name:
            yield f"{name}.jsonl", f"its machine id is not {machine.described_id}, the hash of what it describes"


def _missing_seeds(records: list[Record]) -> Iterator[tuple[str, str]]:
    """Seeds that the reference has and a variant has not, which will leave it unranked."""
    seeds: dict[tuple[str, str, str, str], dict[str, set[int]]] = {}
    for record in records:
        cell = record.cell
        if cell.lane == "train" and record.outcome is Outcome.OK:
            fidelity = record.data.fidelity if record.data else ""
            board_key = (str(cell.task), str(cell.preset), str(cell.selection), fidelity)
            seeds.setdefault(board_key, {}).setdefault(str(cell.variant), set()).add(cell.seed)
    for board_key, by_variant in sorted(seeds.items()):
        place = ", ".join(filter(None, board_key))
        if REFERENCE not in by_variant:
            yield place, f"{REFERENCE} has no result, so that no variant can be ranked"
            continue
        without: dict[str, list[str]] = {}
        for variant, own in sorted(by_variant.items()):
            if missing := sorted(by_variant[REFERENCE] - own):
                without.setdefault(", ".join(map(str, missing)), []).append(variant)
        for missed, variants in without.items():
            yield place, f"no result of seed {missed}, which {REFERENCE} has: {', '.join(variants)}"
