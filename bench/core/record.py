"""Record: the outcome and the measurements of one Cell, as one JSON line."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property, lru_cache, partial
from time import perf_counter
from typing import Any, Literal, NamedTuple, get_type_hints

import msgspec
from msgspec import Raw, Struct, defstruct, structs

from .cell import VERSION_ZERO, Cell
from .decode import (
    MOST_LINE_BYTES,
    MOST_MAGNITUDE,
    Count,
    CountByName,
    Finite,
    FiniteSamples,
    MachineId,
    Name,
    NameByName,
    Names,
    Number,
    Open,
    Samples,
    SettingKeys,
    Text,
    TextByName,
    Texts,
    WhereKeys,
    Whole,
    brief,
    check_keys,
    convert,
    parse_json,
    to_builtins,
    without_surrogates,
)
from .errors import StoreError
from .hashing import content_hash
from .metrics import METRICS, Metric

SCHEMA = 1

MOST_REASON = 2_000
"""Characters of a reason. A longer one, such as a compiler's whole output, is cut where the Record is made."""


class Outcome(StrEnum):
    OK = "ok"
    OUT_OF_MEMORY = "out_of_memory"
    TIMEOUT = "timeout"
    INCORRECT = "incorrect"
    UNSUPPORTED = "unsupported"
    CRASHED = "crashed"


class CheckedWhere(dict[str, Any]):
    """The conditions that narrow a measurement of finite numbers, with keys that have been checked; many share it."""


class Measurement(Struct, frozen=True, kw_only=True, gc=False, forbid_unknown_fields=True):
    """One number with its raw samples. `where` narrows it: split, layer, head, block size, length.

    A structure of msgspec, since a file has a million: it is made faster than a dataclass, and the collector
    of garbage does not walk over it.
    """

    name: Name
    value: Number
    unit: Name
    samples: Samples = ()
    where: Open = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises ValueError where `where` has a key that boards read with another type than they expect."""
        if type(self.where) is CheckedWhere:
            return
        if self.where:
            check_keys(WhereKeys, self.where, "where")
        if isinstance(self.value, str):
            structs.force_setattr(self, "value", float(self.value))
        if self.samples and str in map(type, self.samples):
            structs.force_setattr(self, "samples", tuple(map(float, self.samples)))

    @classmethod
    def of(cls, name: str, value: float, samples: tuple[float, ...] = (), **where: Any) -> Measurement:
        """A measurement with the unit that `METRICS` fixes for its name."""
        return cls(name=name, value=value, unit=METRICS[name].unit, samples=samples, where=where)


class Label(NamedTuple):
    """All of a measurement but its numbers."""

    name: str
    unit: str
    where: Mapping[str, Any]


class Labels(tuple[Label, ...]):
    """The labels of the measurements of a Record; Records that agree in all of them share one."""

    @cached_property
    def places(self) -> dict[str, list[int]]:
        """The places of the measurements over a whole model, by name."""
        found: dict[str, list[int]] = {}
        for place, label in enumerate(self):
            if "layer" not in label.where and "head" not in label.where:
                found.setdefault(label.name, []).append(place)
        return found

    def first(self, name: str, where: Mapping[str, object]) -> int | None:
        """The place of the first measurement over a whole model with this name and entries; of None, without that key.

        None where there is none.
        """
        for place in self.places.get(name, ()):
            own = self[place].where
            if all(own.get(key) == value for key, value in where.items()):
                return place
        return None


class Measurements(Sequence[Measurement]):
    """The measurements of a Record as shared labels and numbers of its own; each is made when it is asked for.

    A folder of 20,000 Records has a million, of which a board reads a few.
    """

    __slots__ = ("labels", "samples", "values")

    def __init__(self, labels: Labels, values: Iterable[float], samples: Sequence[tuple[float, ...]]):
        self.labels, self.values, self.samples = labels, array("d", values), samples

    @classmethod
    def of(cls, measurements: Sequence[Measurement]) -> Measurements:
        if isinstance(measurements, Measurements):
            return measurements
        labels = Labels(Label(each.name, each.unit, each.where) for each in measurements)
        return cls(labels, [each.value for each in measurements], [each.samples for each in measurements])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return tuple(self)[at]
        name, unit, where = self.labels[at]
        return Measurement(name=name, value=self.values[at], unit=unit, samples=self.samples[at], where=where)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __repr__(self) -> str:
        return repr(tuple(self))


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

    @property
    def words(self) -> str:
        """The machine in words, such as `AMD EPYC, 2 cores`."""
        used = "" if self.threads == self.cores else f"{self.threads} of "
        cores = f"{used}{self.cores} core{'s' * (self.cores != 1)}"
        return ", ".join([*self.accelerators[:1], self.processor.partition(" (")[0], cores])

    @property
    def described_id(self) -> str:
        """The `id` of a machine of this description: a hash of all that decides a speed but the threads."""
        # memory in GiB, since what the system reports moves a little between two starts
        decides = [self.system, self.processor, self.cores, round(self.memory_bytes / 2**30)]
        return content_hash([*decides, self.accelerators, self.driver, self.versions.get("torch", "")], 12)


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """The source of the data. `fidelity`: official, regenerated, surrogate, own (a reader's files) or
    synthetic (drawn at random).

    `files`: name → SHA-256 of each original; `counts`: examples per split as used; `notes`: what a board must say.
    """

    source: Text
    fidelity: Name
    files: NameByName = field(default_factory=dict)
    counts: CountByName = field(default_factory=dict)
    notes: Texts = ()


@dataclass(frozen=True, slots=True)
class Started:
    """The time at which work on a Cell begins, now, by the calendar and by a clock that nobody sets."""

    at: datetime = field(default_factory=partial(datetime.now, UTC))
    clock: float = field(default_factory=perf_counter)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The outcome of one Cell and all that was measured. Appended the moment the Cell ends and never edited.

    `digest`: `VERSIONS-DATA-VARIANT`: versions of lane, objective and task; hashes of the data and of the variant's
    own source, with the kernels of its device. `metric`: what the task is ranked by. `block`: the process and
    rounds it shared with others in the time lane. `artifacts`: name → file under the results folder's `artifacts`,
    named by its content. `setting`: the preset in full, as it was used; boards compare Records of one setting alone.
    `absent`: name of a metric → why it was not measured. `implementation`: which code of the variant ran, such as
    eager or triton; several are joined by a plus sign. `started`: UTC, ISO 8601. `seconds`: wall time of the Cell.
    `executor`: what brought the job to its machine, such as slurm; `node`: that machine, by the name that the
    executor gives it; `device`: `cpu`, or the GPU with its UUID.
    """

    cell: Cell
    outcome: Outcome
    reason: Text = ""
    measurements: Sequence[Measurement] = ()
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

    def __post_init__(self) -> None:
        """Raises ValueError for a setting or a metric that boards cannot compute with."""
        check_keys(SettingKeys, self.setting, "setting")
        if self.metric is not None and not (self.metric.points > 0 and self.metric.margin >= 1e-6):
            raise ValueError("no task is ranked by a metric without points and margin - at `$.metric`")

    @classmethod
    def of(cls, cell: Cell, outcome: Outcome, reason: str, begun: Started, **fields: Any) -> Record:
        """The Record of a Cell that ends now, with its reason cut to MOST_REASON: every run makes its Records here."""
        seconds = fields.pop("seconds", round(perf_counter() - begun.clock, 3))
        started = begun.at.isoformat(timespec="seconds")
        return cls(
            cell=cell, outcome=outcome, reason=brief(reason, MOST_REASON), started=started, seconds=seconds, **fields
        )

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
        values: dict[str, Any] = {"key": self.key} | to_builtins(replace(self, measurements=tuple(self.measurements)))
        # JSON has neither NaN nor infinity: they are kept as text
        for measurement in values["measurements"]:
            measurement["value"] = _finite_or_text(measurement["value"])
            measurement["samples"] = [_finite_or_text(sample) for sample in measurement["samples"]]
            # what narrows a measurement has no such text: a note that is not a number says nothing
            measurement["where"] = {
                name: each
                for name, each in measurement["where"].items()
                if not isinstance(each, float) or math.isfinite(each)
            }
        return values

    def to_line(self) -> bytes:
        """One line of a file, its end included; `from_line` reads it back, and refuses texts or numbers out of bounds.

        Raises StoreError for a number that JSON lacks outside measurements. Lone surrogates, which names of files and
        messages of errors can hold, are written as `\\udcff`.
        """
        values = self.to_json()
        try:
            text = json.dumps(values, separators=(",", ":"), allow_nan=False)
        except ValueError as error:
            raise StoreError(f"this Record cannot be written: {error}") from None
        if "\\ud" in text:
            text = json.dumps(without_surrogates(values), separators=(",", ":"))
        return text.encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Record:
        """The Record of a line of a file; raises StoreError for none of a schema that this version reads.

        Records of one folder share what they have in common, such as the setting and the machine.
        """
        return _from_usual_line(line) or cls._from_any_line(line)

    @classmethod
    def _from_any_line(cls, line: bytes) -> Record:
        values = parse_json(line)
        if not isinstance(values, dict):
            raise StoreError(f"expected a JSON object, got {type(values).__name__}")
        schema = values.get("schema")
        if schema is True or schema != SCHEMA:
            raise StoreError(
                f"expected schema {SCHEMA}, got {brief(repr(schema), 60)}; read it with the version that wrote it"
            )
        rest = {name: value for name, value in values.items() if name != "key"}
        found = convert(cls, rest, f"a record of schema {SCHEMA}")
        record = replace(found, measurements=Measurements.of(found.measurements))
        if values.get("key") != record.key:
            raise StoreError(
                f"a record's key {brief(repr(values.get('key')), 60)} does not match its cell ({record.key})"
            )
        return record


def version_of(digest: str) -> str:
    """The versions that a digest names; of a Record made before there were any, `version 0`.

    >>> version_of("lane1.objective1.task2-0123456789-abcdef0123"), version_of("308ac99b4a-3d165bf09e-440924ec7e")
    ('lane1.objective1.task2', 'version 0')
    """
    version = digest.partition("-")[0]
    return version if version.startswith("lane") else VERSION_ZERO


class _MeasurementOfLine(Struct, gc=False, forbid_unknown_fields=True):
    name: Raw
    value: Finite
    unit: Raw
    samples: FiniteSamples = ()
    where: Raw = Raw(b"{}")


_HINTS = get_type_hints(Record, include_extras=True)

_SHARED = {name: _HINTS[name] for name in ("machine", "data", "metric", "setting")}
"""Parts that are the same in many Records."""

_LABEL = {"name": Name, "unit": Name, "where": Open}
"""Parts that are the same in many measurements."""

_MOST_SHARED_BYTES = 4096
_MOST_LABELS_BYTES = 16_384


def _fields_of_line() -> Iterator[tuple[str, Any] | tuple[str, Any, Any]]:
    as_read = dict.fromkeys([*_SHARED, "cell"], Raw) | {"measurements": tuple[_MeasurementOfLine, ...]}
    yield from (("key", str), ("schema", Literal[1]))
    for each in fields(Record):
        if each.name == "schema":
            continue
        kind = as_read.get(each.name, _HINTS[each.name])
        if each.default_factory is not MISSING:
            yield each.name, kind, msgspec.field(default_factory=each.default_factory)
        else:
            yield (each.name, kind) if each.default is MISSING else (each.name, kind, each.default)


_LINE = msgspec.json.Decoder(defstruct("_Line", _fields_of_line(), kw_only=True, forbid_unknown_fields=True))


def _from_usual_line(line: bytes) -> Record | None:
    """The Record of a line of finite numbers, as nearly all are; None for any other, whether it can be read or not.

    It takes about half of the time that `convert` takes, since parts that many lines share are decoded once.
    """
    if len(line) > MOST_LINE_BYTES:
        return None
    try:
        found: Any = _LINE.decode(line)
        values = structs.asdict(found)
        key = values.pop("key")
        if found.measurements:
            names, numbers, units, samples, wheres = zip(*map(structs.astuple, found.measurements), strict=True)
            # one text is looked up, and not each part of each measurement
            text = b",".join((*names, *units, *wheres))
            labels = _labels(text) if len(text) <= _MOST_LABELS_BYTES else _labels.__wrapped__(text)
            values["measurements"] = Measurements(labels, numbers, samples)
        values["cell"] = convert(Cell, parse_json(found.cell), "a cell")
        for name in _SHARED.keys() & values.keys():
            if isinstance(values[name], Raw):
                values[name] = _part(name, bytes(values[name]))
        record = Record(**values)
    except (ValueError, RecursionError, OverflowError, StoreError):
        return None
    return record if record.key == key else None


@lru_cache(maxsize=1024)
def _part(name: str, text: bytes) -> Any:
    """The value of a part, for equal texts the same object, which nobody may change."""
    if len(text) > _MOST_SHARED_BYTES:
        raise StoreError(f"the {name} is too long to be kept")
    found = convert((_SHARED | _LABEL)[name], parse_json(text), f"the {name} of a record")
    if name != "where":
        return found
    check_keys(WhereKeys, found, "where")
    return CheckedWhere(found)


@lru_cache(maxsize=1024)
def _labels(text: bytes) -> Labels:
    """The labels of measurements from the texts of their names, then units, then `where`, with commas between."""
    parts = msgspec.json.decode(b"[%b]" % text, type=list[Raw])
    count = len(parts) // 3
    kinds = [kind for kind in _LABEL for _ in range(count)]
    found = [_part(kind, bytes(part)) for kind, part in zip(kinds, parts, strict=True)]
    return Labels(map(Label, found[:count], found[count : 2 * count], found[2 * count :]))


def _finite_or_text(value: float) -> float | str:
    if abs(value) <= MOST_MAGNITUDE:
        return value
    return str(math.copysign(math.inf, value)) if value == value else "nan"
