"""Validation: every error in a folder of Records that would make a board wrong, found before it is shared."""

from __future__ import annotations

import hashlib
import io
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..core.cell import REFERENCE
from ..core.errors import StoreError
from ..core.metrics import METRICS, RANKING_METRICS
from ..core.record import Measurement, Outcome, Record
from ..stats.bootstrap import corpus_score, sound_statistics
from .store import UNREADABLE

FIDELITIES = ("official", "regenerated", "surrogate", "synthetic")

_DIGEST = re.compile(r"([0-9a-f]+|lane\d+[a-z0-9.]*)-[0-9a-f]+-[0-9a-f]+")
_ARTIFACT = re.compile(r"[0-9a-f]{24}(\.[a-z0-9]{1,12}){1,2}")
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


def validate_records(root: Path) -> ValidationReport:
    """Reads every line under `root/records` and every artifact named there; changes nothing.

    Raises StoreError where there is no such folder.
    """
    folder = root / "records"
    if not folder.is_dir():
        raise StoreError(f"expected a folder {folder} with *.jsonl files, found none; name the folder that holds it")
    findings: list[ValidationIssue] = []
    sound: list[Record] = []
    count = 0
    for path in sorted(folder.glob("*.jsonl")):
        for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
            if not line.strip():
                continue
            count += 1
            place = f"{path.name}:{number}"
            try:
                record = Record.from_line(line)
            except StoreError as error:
                findings.append(ValidationIssue("error", place, f"cannot be read: {error}"))
                continue
            problems = [ValidationIssue("error", place, text) for text in _errors(record, path, root / "artifacts")]
            findings += problems
            if not problems:
                sound.append(record)
    findings += [ValidationIssue("warning", place, text) for place, text in _missing_seeds(sound)]
    return ValidationReport(findings=tuple(findings), sound=tuple(sound), count=count)


def _errors(record: Record, path: Path, artifacts: Path) -> Iterator[str]:
    if path.stem != record.machine.id:
        yield f"{path.name} holds Records of machine {path.stem}, got one of {record.machine.id}"
    if not _DIGEST.fullmatch(record.digest):
        yield f"expected a digest VERSIONS-DATA-VARIANT, got {record.digest!r}"
    if record.data is not None and record.data.fidelity not in FIDELITIES:
        yield f"expected a fidelity of {', '.join(FIDELITIES)}, got {record.data.fidelity!r}"
    if record.outcome is not Outcome.OK and not record.reason:
        yield f"outcome {record.outcome} has no reason"
    yield from _time_errors(record)
    for measurement in record.measurements:
        yield from _number_errors(measurement)
    if record.outcome is Outcome.OK:
        yield from _content_errors(record)
    for name, file in record.artifacts.items():
        yield from _artifact_errors(record, name, file, artifacts)


def _time_errors(record: Record) -> Iterator[str]:
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
    tested = _tested(record)
    if tested is None:
        yield f"outcome ok has no test result: expected {' or '.join(metric.name for metric in RANKING_METRICS)}"
    elif tested.name == "accuracy" and not tested.where.get("examples"):
        yield "its test accuracy does not state the number of examples"


def _tested(record: Record) -> Measurement | None:
    """The test result that a board ranks the Record by."""
    metrics = (record.metric,) if record.metric else RANKING_METRICS
    found = (record.first(metric.name, split="test") for metric in metrics)
    return next((measurement for measurement in found if measurement is not None), None)


def _artifact_errors(record: Record, name: str, file: str, artifacts: Path) -> Iterator[str]:
    path = artifacts / file
    if not _ARTIFACT.fullmatch(file):
        yield f"artifact {name}: {file!r} is not the name of an artifact"
        return
    if not path.is_file():
        yield f"artifact {name}: {file} is missing"
        return
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest()[:24] != file[:24]:
        yield f"artifact {name}: the content of {file} does not match the hash in its name"
        return
    tested = _tested(record)
    if name == "predictions" and tested is not None:
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                found = _score(tested.name, arrays["correct" if tested.name == "accuracy" else "statistics"])
        except UNREADABLE:
            yield f"artifact predictions: {file} cannot be read"
            return
        if found is None:
            yield f"artifact predictions: {file} holds no statistics of {tested.name}"
        elif abs(found - tested.value) > 1e-6 * max(1.0, abs(tested.value)):
            yield f"its {tested.name.replace('_', ' ')} is {tested.value:.4f}, but its predictions give {found:.4f}"


def _score(name: str, kept: npt.NDArray[Any]) -> float | None:
    if name == "accuracy":
        return float(np.mean(kept))
    return corpus_score(name, kept) if sound_statistics(name, kept) else None


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
