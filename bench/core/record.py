"""Record: what one Cell yielded, as one JSON line; and the names that measurements may have."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from .cell import Cell
from .errors import SelectionError, StoreError
from .metrics import METRICS, Metric
from .protocol import VERSION_ZERO

SCHEMA = 1


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

    name: str
    value: float
    unit: str
    samples: tuple[float, ...] = ()
    where: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, value: float, samples: tuple[float, ...] = (), **where: Any) -> Measurement:
        """A measurement with the unit that `METRICS` fixes for its name."""
        return cls(name=name, value=value, unit=METRICS[name].unit, samples=samples, where=where)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Hardware and software that a speed depends on. `id` names it; speeds of two ids are never compared."""

    id: str
    system: str
    processor: str
    cores: int
    threads: int
    memory_bytes: int
    accelerators: tuple[str, ...] = ()
    driver: str = ""
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where the data came from. `fidelity`: official, regenerated, surrogate or synthetic (drawn at random).

    `files`: name → SHA-256 of each original; `counts`: examples per split as used; `notes`: what a board must say.
    """

    source: str
    fidelity: str
    files: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What one Cell yielded. Appended the moment the Cell ends and never edited.

    `digest`: `VERSIONS-DATA-VARIANT`: versions of lane, objective and task; hashes of the data and of the variant's own
    source. `metric`: what the task is ranked by. `block`: the process and rounds it shared with
    others in the time lane. `artifacts`: name → file under the results folder's `artifacts`, named by its content.
    `setting`: the preset in full, as it was used. `implementation`: which code of the variant ran, such as eager or
    triton; several are joined by a plus sign. `started`: UTC, ISO 8601. `seconds`: wall time of the Cell.
    """

    cell: Cell
    outcome: Outcome
    reason: str = ""
    measurements: tuple[Measurement, ...] = ()
    machine: Machine
    data: Provenance | None = None
    digest: str = ""
    metric: Metric | None = None
    block: str = ""
    setting: dict[str, Any] = field(default_factory=dict)
    implementation: str = ""
    artifacts: dict[str, str] = field(default_factory=dict)
    started: str = ""
    seconds: float = 0.0
    schema: int = SCHEMA

    @property
    def key(self) -> str:
        return self.cell.key

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
        values: dict[str, Any] = {"key": self.key, "cell": self.cell.to_json()}
        for name in self.__dataclass_fields__:
            if name != "cell":
                value = getattr(self, name)
                values[name] = asdict(value) if hasattr(value, "__dataclass_fields__") else value
        values["outcome"] = str(self.outcome)
        values["measurements"] = [_measurement_json(m) for m in self.measurements]
        return values

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Record:
        """Raises StoreError where `values` is no Record of a schema that this version reads."""
        if values.get("schema") != SCHEMA:
            schema = values.get("schema")
            raise StoreError(f"expected schema {SCHEMA}, got {schema!r}; read it with the version that wrote it")
        try:
            rest = {name: value for name, value in values.items() if name != "key"}
            rest["cell"] = Cell.from_json(values["cell"])
            rest["outcome"] = Outcome(values["outcome"])
            rest["measurements"] = tuple(
                Measurement(
                    **m | {"samples": tuple(float(s) for s in m.get("samples", ())), "value": float(m["value"])}
                )
                for m in values["measurements"]
            )
            machine = values["machine"]
            rest["machine"] = Machine(**machine | {"accelerators": tuple(machine.get("accelerators", ()))})
            data = values.get("data")
            metric = values.get("metric")
            rest["metric"] = Metric(**metric) if metric else None
            rest["data"] = Provenance(**data | {"notes": tuple(data.get("notes", ()))}) if data else None
            record = cls(**rest)
            _expect_types(record)
        except (KeyError, TypeError, ValueError, AttributeError, SelectionError) as error:
            raise StoreError(f"not a record of schema {SCHEMA}: {type(error).__name__}: {error}") from None
        if values.get("key") != record.key:
            raise StoreError(f"a record's key {values.get('key')!r} does not match its cell ({record.key})")
        return record


def version_of(digest: str) -> str:
    """The versions that a digest names; of a Record made before there were any, `version 0`.

    >>> version_of("lane1.objective1.task2-0123456789-abcdef0123"), version_of("308ac99b4a-3d165bf09e-440924ec7e")
    ('lane1.objective1.task2', 'version 0')
    """
    version = digest.partition("-")[0]
    return version if version.startswith("lane") else VERSION_ZERO


def _expect_types(record: Record) -> None:
    """Records come from strangers too: raises TypeError where a field is not of the kind that readers rely on."""
    texts = [record.reason, record.digest, record.block, record.implementation, record.started, record.machine.id]
    texts += record.artifacts.values()
    texts += [text for m in record.measurements for text in (m.name, m.unit)]
    texts += [record.data.source, record.data.fidelity, *record.data.notes] if record.data else []
    maps = [record.setting, record.artifacts, record.machine.versions, *(m.where for m in record.measurements)]
    wholes = [record.cell.seed, record.cell.protocol]
    for kind, values in ((str, texts), (dict, maps), (int, wholes), (int | float, [record.seconds])):
        for value in values:
            if not isinstance(value, kind) or isinstance(value, bool):
                raise TypeError(f"expected {getattr(kind, '__name__', kind)}, got {value!r}")


def _measurement_json(measurement: Measurement) -> dict[str, Any]:
    samples = [_finite_or_text(sample) for sample in measurement.samples]
    return asdict(measurement) | {"value": _finite_or_text(measurement.value), "samples": samples}


def _finite_or_text(value: float) -> float | str:
    # JSON has neither infinity nor NaN; float() reads the text back
    return value if math.isfinite(value) else str(value)
