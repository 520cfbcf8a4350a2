"""Record: the outcome and the measurements of one Cell, as one JSON line."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from .bounds import (
    MOST_MAGNITUDE,
    Count,
    CountByName,
    MachineId,
    Name,
    NameByName,
    Names,
    Open,
    RecordKeys,
    Samples,
    Text,
    TextByName,
    Texts,
    Whole,
)
from .cell import Cell
from .decode import brief, check, convert, parse_json, to_builtins, without_surrogates
from .errors import StoreError
from .metrics import METRICS, Metric
from .protocol import VERSION_ZERO

SCHEMA = 1

_NOT_FINITE = ("nan", "inf", "-inf")


class Outcome(StrEnum):
    OK = "ok"
    OUT_OF_MEMORY = "out_of_memory"
    TIMEOUT = "timeout"
    INCORRECT = "incorrect"
    UNSUPPORTED = "unsupported"
    CRASHED = "crashed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One number with its raw samples. `where` narrows it: split, layer, head, block size, length."""

    name: Name
    value: float
    unit: Name
    samples: Samples = ()
    where: Open = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, value: float, samples: tuple[float, ...] = (), **where: Any) -> Measurement:
        """A measurement with the unit that `METRICS` fixes for its name."""
        return cls(name=name, value=value, unit=METRICS[name].unit, samples=samples, where=where)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Hardware and software that a speed depends on. `id` names it, without the threads that a run was given."""

    id: MachineId
    system: Name
    processor: Name
    cores: Count
    threads: Count
    memory_bytes: Count
    accelerators: Names = ()
    driver: Name = ""
    versions: NameByName = field(default_factory=dict)

    @property
    def speed_id(self) -> str:
        """Names the machine with its threads: speeds of two are never compared, and calibrations hold for one.

        Training does not depend on it: its numbers differ with the threads in the last bits alone.
        """
        return f"{self.id}-{self.threads}t"


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where the data came from. `fidelity`: official, regenerated, surrogate, own (a reader's files) or
    synthetic (drawn at random).

    `files`: name → SHA-256 of each original; `counts`: examples per split as used; `notes`: what a board must say.
    """

    source: Text
    fidelity: Name
    files: NameByName = field(default_factory=dict)
    counts: CountByName = field(default_factory=dict)
    notes: Texts = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The outcome of one Cell and all that was measured. Appended the moment the Cell ends and never edited.

    `digest`: `VERSIONS-DATA-VARIANT`: versions of lane, objective and task; hashes of the data and of the variant's
    own source, with the kernels of its device. `metric`: what the task is ranked by. `block`: the process and
    rounds it shared with others in the time lane. `artifacts`: name → file under the results folder's `artifacts`,
    named by its content. `setting`: the preset in full, as it was used; boards compare Records of one setting alone.
    `absent`: name of a metric → why it was not measured. `implementation`: which code of the variant ran, such as
    eager or triton; several are joined by a plus sign. `started`: UTC, ISO 8601. `seconds`: wall time of the Cell.
    `executor`: what brought the Block to its machine, such as slurm; `node`: that machine, by the name that the
    executor gives it; `device`: `cpu`, or the GPU with its UUID.
    """

    cell: Cell
    outcome: Outcome
    reason: Text = ""
    measurements: tuple[Measurement, ...] = ()
    machine: Machine
    data: Provenance | None = None
    digest: Name = ""
    metric: Metric | None = None
    block: Name = ""
    setting: Open = field(default_factory=dict)
    absent: TextByName = field(default_factory=dict)
    implementation: Name = ""
    artifacts: NameByName = field(default_factory=dict)
    started: Name = ""
    seconds: float = 0.0
    executor: Name = ""
    node: Name = ""
    device: Name = ""
    schema: Whole = SCHEMA

    @property
    def key(self) -> str:
        return self.cell.key

    @property
    def measured_on(self) -> str:
        """The machine as boards name it: of a timing with its threads, which in version 0 are part of every id."""
        if self.cell.lane != "time" or self.version == VERSION_ZERO:
            return self.machine.id
        return self.machine.speed_id

    @property
    def version(self) -> str:
        """Versions of lane, objective and task, such as `lane1.objective1.task1`."""
        return version_of(self.digest)

    def first(self, name: str, **where: Any) -> Measurement | None:
        """The first measurement of that name whose `where` has at least these entries."""
        for measurement in self.measurements:
            if measurement.name == name and where.items() <= measurement.where.items():
                return measurement
        return None

    def to_json(self) -> dict[str, Any]:
        values: dict[str, Any] = {"key": self.key} | to_builtins(self)
        # JSON has neither NaN nor infinity: they are kept as text
        for measurement in values["measurements"]:
            measurement["value"] = _finite_or_text(measurement["value"])
            measurement["samples"] = [_finite_or_text(sample) for sample in measurement["samples"]]
            # what narrows a measurement has no such text: a note that is not a number says nothing
            measurement["where"] = {name: each for name, each in measurement["where"].items() if _is_finite(each)}
        return values

    def to_line(self) -> bytes:
        """One line of a file, its end included; `from_line` reads it back.

        Raises StoreError for a value that no Record may hold, such as NaN outside measurements. Lone surrogates, which
        names of files and messages of errors can hold, are written as `\\udcff`.
        """
        values = self.to_json()
        try:
            text = json.dumps(values, separators=(",", ":"), allow_nan=False)
        except ValueError as error:
            raise StoreError(f"this Record cannot be written: {error}") from None
        if "\\ud" in text:
            text = json.dumps(without_surrogates(values), separators=(",", ":"))
        line = text.encode()
        self.from_line(line)
        return line + b"\n"

    @classmethod
    def from_json(cls, values: Any) -> Record:
        """Raises StoreError where `values` is no Record of a schema that this version reads."""
        if not isinstance(values, dict):
            raise StoreError(f"expected a JSON object, got {type(values).__name__}")
        schema = values.get("schema")
        if schema is True or schema != SCHEMA:
            raise StoreError(
                f"expected schema {SCHEMA}, got {brief(repr(schema), 60)}; read it with the version that wrote it"
            )
        rest = {name: value for name, value in values.items() if name != "key"}
        kind = f"a record of schema {SCHEMA}"
        try:
            record = convert(cls, rest, kind)
        except StoreError:
            # few lines hold numbers that are not finite, so that these are looked for last
            measurements = rest.get("measurements")
            if not isinstance(measurements, list):
                raise
            record = convert(cls, rest | {"measurements": [_with_floats(m) for m in measurements]}, kind)
        check(RecordKeys, rest, kind)
        if record.metric is not None and not (record.metric.points > 0 and record.metric.margin >= 1e-6):
            raise StoreError(f"not {kind}: no task is ranked by a metric without points and margin - at `$.metric`")
        if values.get("key") != record.key:
            raise StoreError(
                f"a record's key {brief(repr(values.get('key')), 60)} does not match its cell ({record.key})"
            )
        return record

    @classmethod
    def from_line(cls, line: bytes) -> Record:
        """As `from_json`, of one line of a file."""
        return cls.from_json(parse_json(line))


def version_of(digest: str) -> str:
    """The versions that a digest names; of a Record made before there were any, `version 0`.

    >>> version_of("lane1.objective1.task2-0123456789-abcdef0123"), version_of("308ac99b4a-3d165bf09e-440924ec7e")
    ('lane1.objective1.task2', 'version 0')
    """
    version = digest.partition("-")[0]
    return version if version.startswith("lane") else VERSION_ZERO


def _is_finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _finite_or_text(value: float) -> float | str:
    if abs(value) <= MOST_MAGNITUDE:
        return value
    return str(math.copysign(math.inf, value)) if value == value else "nan"


def _with_floats(measurement: Any) -> Any:
    """`measurement` with floats for the texts of `_finite_or_text`; all else is left for the decoder to judge."""
    if not isinstance(measurement, dict):
        return measurement
    changed: dict[str, Any] = {}
    value, samples = measurement.get("value"), measurement.get("samples")
    if isinstance(value, str) and value in _NOT_FINITE:
        changed["value"] = float(value)
    if isinstance(samples, list) and any(text in samples for text in _NOT_FINITE):
        changed["samples"] = [float(each) if each in _NOT_FINITE else each for each in samples]
    return measurement | changed if changed else measurement
