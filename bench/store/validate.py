"""Validation: every error in a folder of Records that would make a board wrong, found before it is shared."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Hashable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from ..core.cell import FIRST_TUNING_SEED, REFERENCE
from ..core.decode import brief
from ..core.errors import StoreError
from ..core.metrics import METRICS, RANKING_METRICS
from ..core.record import Measurement, Outcome, Record
from . import record_files
from .agreement import Copies, curve_errors, prediction_errors, tested, time_errors
from .arrays import DamagedArtifact
from .artifacts import curve_of, results_of
from .learning_rates import choose_rate, first_results, without_rates
from .store import Store, is_artifact_name

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
    """`sound`: the Records without an error, in the order of the files; `count`: of all lines."""

    findings: tuple[ValidationIssue, ...]
    sound: tuple[Record, ...]
    count: int

    @property
    def errors(self) -> int:
        return sum(f.severity == "error" for f in self.findings)


def validate_records(root: Path, *, beside: Path | None = None) -> ValidationReport:
    """Reads every line under `root/records` and every artifact named there; changes nothing.

    `beside`: a results folder that Records may have been copied from. Raises StoreError where there is no such folder.
    """
    errors: list[ValidationIssue] = []
    warnings: list[ValidationIssue] = []
    sound: list[Record] = []
    count, copies, store = 0, Copies(), Store(root)
    if beside is not None:
        _remember(beside, copies)
    for file in _record_files(root):
        count += len(file.records) + sum(bad.number > 0 for bad in file.bad_lines)
        spelt = record_files.spelt(file.name)
        found = [(bad.number, f"cannot be read: {bad.reason}") for bad in file.bad_lines[:MOST_BAD_LINES]]
        if len(file.bad_lines) > MOST_BAD_LINES:
            found.append((0, f"{len(file.bad_lines) - MOST_BAD_LINES:,} more lines cannot be read"))
        for number, record in zip(file.numbers, file.records, strict=True):
            contents: dict[str, bytes] = {}
            problems = [(number, text) for text in _errors(record, file.name, store, contents)]
            found += problems
            if not problems:
                sound.append(record)
                place = f"{spelt}:{number}"
                shared = copies.add(place, record, contents.get("predictions"))
                warnings += [ValidationIssue("warning", place, text) for text in shared]
        for number, text in sorted(found):
            errors.append(ValidationIssue("error", f"{spelt}:{number}" if number else spelt, text))
    warnings += [ValidationIssue("warning", place, text) for place, text in copies.copied_predictions()]
    warnings += [ValidationIssue("warning", place, text) for place, text in _missing_seeds(sound)]
    # trials of another machine may have come later, so that nobody need have been wrong
    warnings += [ValidationIssue("warning", place, text) for place, text in _other_choices(sound)]
    return ValidationReport(findings=(*errors, *warnings), sound=tuple(sound), count=count)


def _remember(root: Path, copies: Copies) -> None:
    """Adds the readable Records of a folder to `copies`; none where there is no folder yet."""
    store = Store(root)
    with suppress(StoreError):
        for file in _record_files(root):
            for number, record in zip(file.numbers, file.records, strict=True):
                name = record.artifacts.get("predictions", "")
                try:
                    content = store.artifact(name)
                except StoreError:
                    content = None
                place = f"{root}: {record_files.spelt(file.name)}:{number}"
                # said of the target by validating it
                for _ in copies.add(place, record, content):
                    pass
        copies.equal.clear()


def _record_files(root: Path) -> Iterator[record_files.RecordFile]:
    try:
        with record_files.opened(root, record_files.FOLDER) as folder:
            yield from (record_files.read_file(folder, name) for name in record_files.names_in(folder))
    except OSError as error:
        if root.name == record_files.FOLDER and any(root.glob("*.jsonl")):
            raise StoreError(f"{root} is the inside of a results folder; name {root.parent}") from None
        raise StoreError(
            f"expected a folder {root / record_files.FOLDER} with *.jsonl files: {error.strerror or error}; "
            "name the folder that holds it"
        ) from None


def _errors(record: Record, file: str, store: Store, contents: dict[str, bytes]) -> Iterator[str]:
    """What is wrong with a Record; puts the contents of its artifacts into `contents`."""
    if file != f"{record.machine.id}.jsonl":
        yield f"{record_files.spelt(file)} holds Records of one machine, got one of {record.machine.id}"
    if not _DIGEST.fullmatch(record.digest):
        yield f"expected a digest VERSIONS-DATA-VARIANT, got {brief(repr(record.digest))}"
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
    if metric.unit in ("bytes", "count", "steps") and min(values) < 0:
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
    if record.cell.lane == "train" and grid and (used is None or used.value not in grid):
        yield f"expected its learning_rate to be one of {', '.join(map(str, grid[:9]))}, as its preset has them"
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
        own = {rate: trials.get((*_trained(record), rate), {}) for rate in grid}
        tried = {rate: [found[seed] for seed in sorted(found) if seed in seeds] for rate, found in own.items()}
        if any(len(found) < count for found in tried.values()):
            continue
        best = choose_rate(tried).rate
        if best != used.value:
            yield (
                str(record.cell),
                (
                    f"it was trained at learning rate {used.value:g}, but validation of the trials chooses "
                    f"{'none' if best is None else format(best, 'g')}"
                ),
            )


def _trained(record: Record) -> tuple[Hashable, ...]:
    """What a trial and the training that it chooses a rate for have in common."""
    return record.cell.variant, record.cell.task, record.digest.partition("-")[2], without_rates(record.setting)


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
        for variant, own in sorted(by_variant.items()):
            missing = sorted(by_variant[REFERENCE] - own)
            if missing:
                yield place, f"{variant} has no result of seed {', '.join(map(str, missing))}, which {REFERENCE} has"
