"""Cache: the Frame of a results folder as one parquet file beside the JSON lines, made again whenever these changed.

root/cache/frame.parquet   one row per Record that counts; needs pyarrow, without which all works the same and slower
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from contextlib import suppress
from dataclasses import asdict
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..core.paths import PACKAGE
from ..core.record import Machine, Measurement, Record
from .store import Store
from .table import HEAD, ResultTable, by_head, table_of

if TYPE_CHECKING:
    import pyarrow as pa
import time
from collections.abc import Iterable

WORTH = 4_000_000
"""Bytes of JSON lines below which reading them takes no longer than loading pyarrow."""

_SOURCES = ("store/cache", "core/cell", "store/table", "core/record", "core/spec", "store/store")
_NESTED = ("notes", "counts", "setting", "artifacts")


def table_of_store(store: Store) -> ResultTable:
    """The Frame of all Records, from the cache where that is of these very files; what readers are told is the same.

    Nothing is assumed of the cache: one that is missing, of other files, by other code or damaged is made again, and
    where it cannot be written nothing is lost but time.
    """
    before = _stamp(store.root)
    if sum(size for _, size, *_ in before) < WORTH or find_spec("pyarrow") is None:
        return table_of(store.records())
    key = json.dumps([before, _code()])
    path = store.root / "cache" / "frame.parquet"
    kept = _load(path, key)
    if kept is not None:
        frame, notices = kept
        for notice in notices:
            store.tell(notice)
        return frame
    records = sorted(store.records(), key=lambda r: r.started)
    frame = table_of(records)
    if settled(changed for _, _, changed, _ in before) and _stamp(store.root) == before:
        _keep(path, key, frame, records, store.told)
    return frame


def _stamp(root: Path) -> list[tuple[str, int, int, int]]:
    """Name, bytes, time of change of the content and of the entry, for each file of Records."""
    found = []
    for path in sorted((root / "records").glob("*.jsonl")):
        with suppress(OSError):
            status = path.stat()
            found.append((path.name, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    return found


def _code() -> str:
    return hashlib.sha256(b"".join((PACKAGE / "bench" / f"{name}.py").read_bytes() for name in _SOURCES)).hexdigest()


def _keep(path: Path, key: str, frame: ResultTable, records: list[Record], notices: tuple[str, ...]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: dict[str, Any] = {}
    for name in frame.current.columns:
        values = frame.current[name].tolist()
        columns[name] = pa.array([json.dumps(v) for v in values] if name in _NESTED else values)
    numbers = [records[at].measurements for at in frame.current.index]
    for name in ("name", "unit"):
        columns[f"m_{name}"] = pa.array([[getattr(m, name) for m in row] for row in numbers], pa.list_(pa.string()))
    columns["m_where"] = pa.array([[json.dumps(m.where) for m in row] for row in numbers], pa.list_(pa.string()))
    columns["m_value"] = pa.array([[m.value for m in row] for row in numbers], pa.list_(pa.float64()))
    lists = pa.list_(pa.list_(pa.float64()))
    columns["m_samples"] = pa.array([[list(m.samples) for m in row] for row in numbers], lists)
    about = {
        "key": key,
        "notices": json.dumps(notices),
        "replaced": json.dumps([[*place, count] for place, count in frame.replaced.items()]),
        "machines": json.dumps([asdict(machine) for machine in frame.machines.values()]),
    }
    table = pa.table(columns).replace_schema_metadata(about)
    temporary = None
    # a folder that is read-only or full keeps no cache, and says nothing
    with suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".")
        os.close(handle)
        Path(temporary).chmod(0o644)
        pq.write_table(table, temporary, compression="zstd", write_page_checksum=True)
        Path(temporary).replace(path)
        return
    if temporary is not None:
        with suppress(OSError):
            Path(temporary).unlink()


def _load(path: Path, key: str) -> tuple[ResultTable, list[str]] | None:
    """The Frame and the notices that were kept under this key; None for any other file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            about = {name.decode(): value.decode() for name, value in (file.schema_arrow.metadata or {}).items()}
            if about.get("key") != key:
                return None
            table = file.read()
        machines = [Machine(**m | {"accelerators": tuple(m["accelerators"])}) for m in json.loads(about["machines"])]
        notices = [str(notice) for notice in json.loads(about["notices"])]
        names = [name for name in table.column_names if not name.startswith("m_")]
        cells = pd.DataFrame({name: _column(table, name) for name in names}, columns=names)
        replaced = {(task, preset, why): count for task, preset, why, count in json.loads(about["replaced"])}
        return ResultTable(
            cells, ArrowMeasurements(table), {machine.id: machine for machine in machines}, replaced
        ), notices
    except (OSError, pa.ArrowException, ValueError, KeyError, TypeError):
        return None


def _column(table: pa.Table, name: str) -> Any:
    import pyarrow as pa

    column = table.column(name).combine_chunks()
    if not pa.types.is_string(column.type):
        return column.to_numpy(zero_copy_only=False)
    # most texts stand in many Records: each is made, and read, once
    packed = column.dictionary_encode()
    texts: list[Any] = packed.dictionary.to_pylist()
    if name in _NESTED:
        texts = [tuple(json.loads(text)) if name == "notes" else json.loads(text) for text in texts]
    found = np.empty(len(texts), dtype=object)
    found[:] = texts
    return pd.Series(found[packed.indices.to_numpy()], dtype=object)


class ArrowMeasurements:
    """Numbers that stay in Arrow until they are asked for. Implements `frame.Numbers`."""

    def __init__(self, table: pa.Table):
        names = table.column("m_name").combine_chunks()
        self._offsets = names.offsets.to_numpy()
        names, units, wheres = (
            table.column(f"m_{name}").combine_chunks().flatten().dictionary_encode()
            for name in ("name", "unit", "where")
        )
        self._name_texts, self._unit_texts = names.dictionary.to_pylist(), units.dictionary.to_pylist()
        self._places = [json.loads(text) for text in wheres.dictionary.to_pylist()]
        self._name_codes, self._where_codes = names.indices.to_numpy(), wheres.indices.to_numpy()
        self._values = table.column("m_value").combine_chunks().flatten().to_numpy()
        samples = table.column("m_samples").combine_chunks().flatten()
        self._samples = samples.flatten().to_numpy()
        # single numbers are taken from lists in a fifth of an array's time
        overall = np.array([p.get("layer") is None and p.get("head") is None for p in self._places], dtype=bool)
        chosen = np.flatnonzero(overall[self._where_codes])
        self._first = np.searchsorted(chosen, self._offsets).tolist()
        each = (self._name_codes, units.indices.to_numpy(), self._where_codes, self._values)
        bounds = samples.offsets.to_numpy()
        self._ends = (bounds[:-1], bounds[1:])
        self._overall = list(zip(*(column[chosen].tolist() for column in (*each, *self._ends)), strict=True))
        self._rows: dict[int, dict[str, list[Measurement]]] = {}

    def of(self, at: int) -> dict[str, list[Measurement]]:
        if at not in self._rows:
            self._rows[at] = self._row(at)
        return self._rows[at]

    def _row(self, at: int) -> dict[str, list[Measurement]]:
        found: dict[str, list[Measurement]] = {}
        for name, unit, where, value, start, end in self._overall[self._first[at] : self._first[at + 1]]:
            text = self._name_texts[name]
            measurement = Measurement(
                name=text, value=value, unit=self._unit_texts[unit], where=self._places[where],
                samples=tuple(self._samples[start:end].tolist()) if end > start else (),
            )  # fmt: skip
            found.setdefault(text, []).append(measurement)
        return found

    @cached_property
    def heads(self) -> pd.DataFrame:
        layered = np.array([p.get("layer") is not None for p in self._places], dtype=bool)
        chosen = np.flatnonzero(layered[self._where_codes])
        rows = np.repeat(np.arange(len(self._offsets) - 1), np.diff(self._offsets))
        columns = (rows, self._name_codes, self._where_codes, self._values, *self._ends)
        found = [
            (row, self._name_texts[name], *each)
            for row, name, where, value, start, end in zip(*(c[chosen].tolist() for c in columns), strict=True)
            for each in by_head(self._places[where], value, self._samples[start:end])
        ]
        return pd.DataFrame(found, columns=list(HEAD))


SETTLED_SECONDS = 2.0
"""A file that changed within these may change again without its time telling."""


def settled(changed: Iterable[int]) -> bool:
    """Whether files of these times of change, in nanoseconds, changed long enough ago for the next change to tell."""
    return all(time.time() - each / 1e9 > SETTLED_SECONDS for each in changed)
