"""Results folders that a stranger may send: sound Records of ours with one thing beside them that is not."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import socket
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs
from seeds import seed as seed_of

from attnbench.bench.core.hashing import content_hash
from attnbench.bench.core.record import Record
from attnbench.bench.core.spec import Spec
from attnbench.bench.store.artifacts import score_of
from attnbench.bench.store.packs import arrays_of
from attnbench.bench.store.record_files import MOST_LINES
from attnbench.bench.store.store import Store

COMMITTED = Path(__file__).parents[2] / "results"
TRANSLATIONS = Path(__file__).with_name("translations")
"""Nine Records of a task whose board is gone, cut as below: no committed board has BLEU."""

EXAMPLES = 40
KEPT = ("correct", "predicted", "statistics", "sentence_statistics", "sentence_sets", "set_names")

Json = dict[str, Any]
Change = Callable[[bytes], bytes]


@dataclass(frozen=True)
class HostileFolder:
    """`make` changes a sound folder into it. `keeps_records`: whether its sound Records can still be read.

    `notice`: words of a notice that whoever reads the Records must get.
    """

    name: str
    make: Callable[[Path], None]
    keeps_records: bool = True
    notice: str = ""


@cache
def sound_folder() -> tuple[tuple[Record, ...], dict[str, bytes]]:
    """Records of two variants, of a task of each kind, and their artifacts: committed ones, cut to EXAMPLES."""
    artifacts: dict[str, bytes] = {}
    records: list[Record] = []
    for task, folder in (("lra-text", COMMITTED), ("wmt14-en-de", TRANSLATIONS), ("sweep", COMMITTED)):
        store = Store(folder, lambda text: None)
        of_task = [record for record in store.records() if record.cell.task.name == task]
        for variant in ("softmax", "rela"):
            own = [r for r in of_task if r.cell.variant == Spec(variant)]
            # the newest of each cell, on the machine of the newest
            newest = {r.key: r for r in own if r.machine.id == own[-1].machine.id}
            records += [_cut(r, store, artifacts) for r in list(newest.values())[-5:]]
        records += [r for r in of_task if r.cell.lane == "baseline"][:1]
    return tuple(records), artifacts


def _cut(record: Record, store: Store, artifacts: dict[str, bytes]) -> Record:
    tested = next((m for m in record.measurements if m.where.get("split") == "test"), None)
    if record.cell.lane != "train" or tested is None:
        return record
    kept = arrays_of(store.artifact(record.artifacts["predictions"]), *KEPT)
    kept = {name: array if name == "set_names" else array[:EXAMPLES] for name, array in kept.items()}
    file = io.BytesIO()
    np.savez(file, **kept)  # type: ignore[arg-type]
    score = score_of(tested.name, kept.get("statistics", kept.get("correct")))
    cut = structs.replace(tested, value=score, where=tested.where | {"examples": EXAMPLES})
    curve = store.artifact(record.artifacts["curve"])
    named = {"predictions": _named_artifact(file.getvalue(), ".npz"), "curve": _named_artifact(curve, ".json")}
    artifacts.update({named["predictions"]: file.getvalue(), named["curve"]: curve})
    changed = tuple(cut if m is tested else m for m in record.measurements if m.where.get("block") in (None, 64))
    return replace(record, measurements=changed, artifacts=named)


def _named_artifact(content: bytes, suffix: str) -> str:
    return hashlib.sha256(content).hexdigest()[:24] + suffix


def sound_records() -> tuple[Record, ...]:
    return sound_folder()[0]


def write_sound(folder: Path) -> None:
    """The sound folder that every case begins with."""
    (folder / "records").mkdir(parents=True)
    (folder / "artifacts").mkdir()
    for record in sound_records():
        with (folder / "records" / f"{record.machine.id}.jsonl").open("ab") as file:
            file.write(record.to_line())
    for name, content in sound_folder()[1].items():
        (folder / "artifacts" / name).write_bytes(content)


def hostile_folders() -> list[HostileFolder]:
    """Every generated case, in an order that does not change."""
    return [*_fields(), *_lines(), *_names(), *_places(), *_artifacts(), *_packs()]


# fields of Records

DEEP = json.loads("[" * 900 + "]" * 900)
VALUES: list[Any] = [
    *(None, True, [], {}, [{}], {"a": [1]}, -1, 0, 2**63, 10**400, 1e308, -1e-300, 1.5, 99_999, "", "x" * 3000),
    *("\ud800", "\x1b]0;x\x07\n\r", "<script>alert(1)</script>", "=cmd|'/c'!A1", "nan", "{0}", DEEP, {"a": DEEP}),
]


def _fields() -> Iterator[HostileFolder]:
    """Every field of some Records with every kind of value; of each, all values as lines of one file."""
    for record, path in fields():
        name = f"{record.cell.lane} {record.cell.task.name} {'.'.join(map(str, path))}"
        yield HostileFolder(name, _with_values(record, path, VALUES))


def fields() -> Iterator[tuple[Record, tuple[Any, ...]]]:
    """Every field of a Record of each lane and task."""
    samples = {}
    for record in sound_records():
        samples[record.cell.lane, record.cell.task.name] = record
    for (lane, task), record in sorted(samples.items()):
        if lane != "baseline" and (lane, task) != ("time", "lra-text"):
            yield from ((record, path) for path in _paths(json.loads(record.to_line())))


def _paths(values: Json) -> list[tuple[Any, ...]]:
    """Where a value may stand: each key, the first of a list, and one measurement of each shape."""
    shapes: dict[str, int] = {}
    for at, measurement in enumerate(values["measurements"]):
        shapes.setdefault(" ".join([*measurement["where"], str(bool(measurement["samples"]))]), at)

    def walk(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        yield path
        if isinstance(value, dict):
            for name, each in islice(value.items(), 1 if path[-1:] in [("files",), ("versions",), ("counts",)] else 40):
                yield from walk(each, (*path, name))
        elif isinstance(value, list) and path == ("measurements",):
            for at in shapes.values():
                yield from walk(value[at], (*path, at))
        elif isinstance(value, list) and value:
            yield from walk(value[0], (*path, 0))

    return list(walk(values, ()))[1:]


def _with_values(record: Record, path: tuple[Any, ...], values: list[Any]) -> Callable[[Path], None]:
    return lambda folder: _append(folder, record.machine.id, list(changed_lines(record, path, values)))


def changed_lines(record: Record, path: tuple[Any, ...], values: list[Any]) -> Iterator[bytes]:
    """The line of a Record with each of `values` at `path` instead of its own; each of a seed of its own."""
    line = record.to_line()
    for seed, value in enumerate(values):
        changed = json.loads(line)
        changed["cell"]["seed"] = seed
        changed["key"] = content_hash(changed["cell"])
        place: Any = changed
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = value
        yield _line(_as_newest(changed, path))


def _as_newest(values: Json, path: tuple[Any, ...]) -> Json:
    """With the key that its cell then has, and a start after all others, so that boards take it before them."""
    if path[0] != "started":
        values["started"] = "2026-11-23T00:00:00+00:00"
    if path[0] == "cell" and isinstance(values["cell"], dict):
        with suppress(RecursionError, UnicodeEncodeError):
            values["key"] = content_hash(values["cell"])
    return values


def _line(values: Any) -> bytes:
    return json.dumps(values).encode() + b"\n"


def _append(folder: Path, machine: str, lines: list[bytes]) -> None:
    """Hostile lines between the sound ones."""
    path = folder / "records" / f"{machine}.jsonl"
    first, *rest = path.read_bytes().split(b"\n")
    path.write_bytes(first + b"\n" + b"".join(lines) + b"\n".join(rest))


# whole lines

LINES: dict[str, Callable[[], bytes]] = {
    "brackets": lambda: b"[" * 100_000,
    "many objects": lambda: b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "number of 5,000 digits in a field": lambda: b'{"schema":' + b"9" * 5000 + b"}",
    "words": lambda: b'{"schema":NaN}',
    "surrogate in a key": lambda: b'{"schema":1,"\\ud800":NaN}',
    "bytes": lambda: bytes(range(1, 10)) + bytes(range(11, 256)),
    "20 MB": lambda: b'{"a":"' + b"x" * 20_000_000 + b'"}',
    "UTF-16": lambda: '{"schema":1}'.encode("utf-16"),
    "a list": lambda: b"[]",
    "a pickle": lambda: b"cposix\nsystem\n(S'touch executed'\ntR.",
    "endless product": lambda: _spec_line("a[" + ",".join(f"{c}=1,2,3,4,5,6,7,8,9" for c in "bcdefghijklmnop") + "]"),
    "a thousand measurements": lambda: _measurements_line(1000, {"layer": 9999, "head": 9999}),
    "measurements of every layer": lambda: _measurements_line(3000, None),
    "twenty thousand bad lines": lambda: b"\n".join([b"{}"] * 20_000),
}


def _spec_line(text: str) -> bytes:
    values = json.loads(sound_records()[0].to_line())
    values["cell"]["task"] = text
    values["key"] = content_hash(values["cell"])
    return _line(values)[:-1]


def _measurements_line(count: int, where: Json | None) -> bytes:
    record = next(r for r in sound_records() if r.cell.lane == "train")
    values = json.loads(record.to_line())
    values["measurements"] += [
        {"name": "sparsity", "value": 0.5, "unit": "fraction", "samples": [], "where": where or {"layer": n, "head": n}}
        for n in range(count)
    ]
    return _line(_as_newest(values, ("measurements",)))[:-1]


def _lines() -> Iterator[HostileFolder]:
    def make(content: Callable[[], bytes], end: bytes) -> Callable[[Path], None]:
        def change(folder: Path) -> None:
            machine = sound_records()[0].machine.id
            if end:
                _append(folder, machine, [content() + end])
            else:
                with (folder / "records" / f"{machine}.jsonl").open("ab") as file:
                    file.write(content())

        return change

    for name, content in LINES.items():
        yield HostileFolder(f"line: {name}", make(content, b"\n"))
        yield HostileFolder(f"last line: {name}", make(content, b""))
    yield HostileFolder("as many lines as are read", _of_lines(MOST_LINES))
    yield HostileFolder(
        "one line more than are read", _of_lines(MOST_LINES + 1), keeps_records=False,
        notice=f"longer than {MOST_LINES:,} lines",
    )  # fmt: skip


def _of_lines(count: int) -> Callable[[Path], None]:
    """A file of so many lines, most of them empty, the last a sound Record."""

    def change(folder: Path) -> None:
        machine = sound_records()[0].machine.id
        there = (folder / "records" / f"{machine}.jsonl").read_bytes().count(b"\n")
        _append(folder, machine, [b"\n" * (count - there)])

    return change


# names of code by its place, which may lie in the folder itself

CODE = "from pathlib import Path\nPath('executed').touch()\nclass Mine: pass\n"
NAMES = (
    "{folder}/evil.py:Mine", "{folder}/evil.py:Mine[call=exit(m)]", "../../case/theirs/evil.py:Mine", "evil:Mine",
    "gate+{folder}/evil.py:Mine//softmax", "{folder}/deep.py:Mine", "/dev/zero.py:Mine",
    "attnbench.bench.core.files:os.getcwd", "antigravity:fly_to", "rela:500//softmax:499//rela",
)  # fmt: skip


def _names() -> Iterator[HostileFolder]:
    for field in ("task", "variant"):
        for name in NAMES:
            yield HostileFolder(f"{field} named {name}", _named_by(field, name))


def _named_by(field: str, name: str) -> Callable[[Path], None]:
    """The name as the task or the variant of Records that do not agree on a metric."""

    def change(folder: Path) -> None:
        (folder / "evil.py").write_text(CODE, encoding="utf-8")
        (folder / "deep.py").write_text("-" * 100_000 + "(" * 1000, encoding="utf-8")
        lines = []
        for number, record in enumerate(sound_records()):
            values = json.loads(record.to_line())
            values["cell"][field] = str(Spec.parse(name.format(folder=folder)))
            if values["metric"] is not None:
                values["metric"]["margin"] += number
            lines.append(_line(_as_newest(values, ("cell", field))))
        _append(folder, sound_records()[0].machine.id, lines)

    return change


# what lies where files belong


def _link_to_home(path: Path) -> None:
    path.symlink_to(Path.home() / ".bashrc")


def _socket(path: Path) -> None:
    # a path of a socket is short
    before = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(before)


def _holes(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)


KINDS: dict[str, Callable[[Path], None]] = {
    "link to a file of the reader": _link_to_home,
    "broken link": lambda path: path.symlink_to("nowhere"),
    "looping link": lambda path: path.symlink_to(path.name),
    "link to a folder of the reader": lambda path: path.symlink_to(Path.home()),
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
    "folder": lambda path: path.mkdir(),
    "named pipe": lambda path: os.mkfifo(path),
    "socket": _socket,
    "file of holes": _holes,
    "file that cannot be read": lambda path: path.touch(mode=0o000),
}


def _places() -> Iterator[HostileFolder]:
    machine = sound_records()[0].machine.id

    def put(place: str, kind: Callable[[Path], None], torn: bool) -> Callable[[Path], None]:
        def change(folder: Path) -> None:
            path = folder / place
            if path.is_dir():
                path.rename(folder / "moved")
            path.unlink(missing_ok=True)
            kind(path)
            if torn:
                with (folder / "records" / f"{machine}.jsonl").open("ab") as file:
                    file.write(b"alias ls='touch executed'")

        return change

    beside = ["records/zz.jsonl", f"records/{machine}.jsonl.torn", f"records/.{machine}.jsonl.lock", "cache", "boards"]
    artifact = next(iter(r.artifacts["predictions"] for r in sound_records() if "predictions" in r.artifacts))
    for kind, made in KINDS.items():
        for place in beside:
            yield HostileFolder(f"{place}: {kind}", put(place, made, torn=True))
        for place in ("artifacts", f"artifacts/{artifact}", "checkpoints"):
            yield HostileFolder(f"{place}: {kind}", put(place, made, torn=False))
        yield HostileFolder(f"records: {kind}", put("records", made, torn=False), keeps_records=False)
    for name in ("\x1b]0;x\x07.jsonl", "a\nb.jsonl", "<b>.jsonl", "x" * 240 + ".jsonl", os.fsdecode(b"\xff\xfe.jsonl")):
        yield HostileFolder(f"file name {name!r}", _named(name))
    yield HostileFolder("five thousand files", _many)


def _named(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / "records" / name).write_bytes(b"{}\n") and None


def _many(folder: Path) -> None:
    for number in range(5000):
        (folder / "records" / f"{number}.jsonl").write_bytes(b"")


# artifacts


def npy(header: str, body: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    """An array with any header, whatever its body."""
    text = header.encode("latin-1") + b"\n"
    return b"\x93NUMPY" + version + struct.pack("<H" if version[0] == 1 else "<I", len(text)) + text + body


def npz(compression: int = zipfile.ZIP_DEFLATED, **arrays: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in arrays.items():
            archive.writestr(f"{name}.npy", content)
    return file.getvalue()


def _described(shape: str, kind: str = "|u1") -> str:
    return f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}"


def _pickled() -> bytes:
    file = io.BytesIO()

    class Touch:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, ("touch executed",)

    np.save(file, np.array([Touch()], dtype=object), allow_pickle=True)
    return file.getvalue()


def _saved(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


ARRAYS: dict[str, Callable[[str], bytes]] = {
    "an .npy": lambda key: _saved(np.ones(4, np.uint8)),
    "a pickle": lambda key: b"cposix\nsystem\n(S'touch executed'\ntR.",
    "a pickled array": lambda key: npz(**{key: _pickled()}),
    "a shape of 1e12": lambda key: npz(**{key: npy(_described("(1000000000000,)", "<f8"))}),
    "a shape of zero times 1e12": lambda key: npz(**{key: npy(_described("(0, 1000000000000)", "<f8"))}),
    "a negative shape": lambda key: npz(**{key: npy(_described("(-1,)"), b"\1" * 9)}),
    "a shape beyond 64 bits": lambda key: npz(**{key: npy(_described(f"({10**30},)"))}),
    "a deep header": lambda key: npz(**{key: npy("(" * 5000 + ")" * 5000)}),
    "a long header": lambda key: npz(**{key: npy(_described("(1,)") + " " * 1_000_000, b"\1", b"\x02\x00")}),
    "a wide type": lambda key: npz(**{key: npy(_described("(1,)", "|V1000000000"), b"")}),
    "objects": lambda key: npz(**{key: npy(_described("(1,)", "|O"), b"\0" * 8)}),
    "text": lambda key: npz(**{key: _saved(np.array(["\ud800", "x"]))}),
    "infinities": lambda key: npz(**{key: _saved(np.full((4, 10), np.inf))}),
    "no examples": lambda key: npz(**{key: _saved(np.ones(0, np.uint8))}),
    "a million examples": lambda key: npz(**{key: _saved(np.ones(1_000_000, np.uint8))}),
    "no arrays": lambda key: npz(),
    "a thousand arrays": lambda key: npz(**{f"a{n}": b"" for n in range(1000)}),
    "LZMA": lambda key: npz(zipfile.ZIP_LZMA, **{key: _saved(np.ones(4, np.uint8))}),
    "a zip bomb": lambda key: npz(**{key: npy(_described("(300000000,)"), b"\0" * 300_000_000)}),
    "a wrong checksum": lambda key: _flipped(npz(zipfile.ZIP_STORED, **{key: _saved(np.ones(400, np.uint8))})),
    "half a file": lambda key: npz(**{key: _saved(np.ones(400, np.uint8))})[:150],
    "noise": lambda key: random.Random(0).randbytes(10_000),
    "a member outside": lambda key: npz(**{f"../../{key}": _saved(np.ones(4, np.uint8))}),
}

CURVES: dict[str, Callable[[], bytes]] = {
    "nesting": lambda: b"[" * 100_000,
    "deep points": lambda: b'[{"step":1,"a":' + b"[" * 900 + b"]" * 900 + b"}]",
    "no points": lambda: b"[]",
    "steps beyond range": lambda: b'[{"step":' + b"9" * 400 + b"}]",
    "negative steps": lambda: b'[{"step":-1,"validation_loss":1}]',
    "losses of 400 digits": lambda: b'[{"step":1,"validation_loss":' + b"9" * 400 + b"}]",
    "losses of text": lambda: b'[{"step":1,"validation_loss":"1","validation_accuracy":[]}]',
    "words": lambda: b'[{"step":1,"validation_loss":NaN,"validation_accuracy":Infinity}]',
    "surrogates": lambda: b'[{"step":1,"\\ud800":NaN}]',
    "too many points": lambda: b"[" + b",".join([b'{"step":1}'] * 100_001) + b"]",
    "a thousand keys": lambda: json.dumps([{"step": 1} | {f"k{n}": n for n in range(1000)}]).encode(),
}


def _flipped(content: bytes) -> bytes:
    return content[:200] + bytes([content[200] ^ 1]) + content[201:]


def _artifacts() -> Iterator[HostileFolder]:
    for name, array in ARRAYS.items():
        for artifact, keys in (("predictions", ("correct", "statistics", "sentence_statistics")), ("maps", ("maps",))):
            for key in keys:
                yield HostileFolder(f"{artifact}.{key}: {name}", _exchanged(artifact, key, array))
    for name, curve in CURVES.items():
        yield HostileFolder(f"curve: {name}", _exchanged("curve", "", lambda key, curve=curve: curve()))


def _exchanged(artifact: str, key: str, content: Callable[[str], bytes]) -> Callable[[Path], None]:
    """A newer Record of each trained cell that names the hostile artifact by its proper hash."""

    def change(folder: Path) -> None:
        data = content(key)
        suffix = ".json" if artifact == "curve" else ".npz"
        name = _named_artifact(data, suffix)
        (folder / "artifacts" / name).write_bytes(data)
        for record in sound_records():
            if record.cell.lane == "train" and record.cell.task.name in ("lra-text", "wmt14-en-de"):
                values = _as_newest(json.loads(record.to_line()), ("artifacts",))
                values["artifacts"][artifact] = name
                _append(folder, record.machine.id, [_line(values)])

    return change


# packs of artifacts


def _members(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {each.filename: archive.read(each) for each in archive.infolist()}


def _zipped(members: list[tuple[str, bytes]], compression: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive, warnings.catch_warnings():
        # of a name that is there twice
        warnings.simplefilter("ignore")
        for name, content in members:
            archive.writestr(name, content)
    return file.getvalue()


def _rezipped(change: Callable[[dict[str, bytes]], list[tuple[str, bytes]]], compression: int = 0) -> Change:
    return lambda content: _zipped(change(_members(content)), compression)


def _in_directory(at: int, value: bytes) -> Change:
    """These bytes at that place of each entry of the directory."""

    def change(content: bytes) -> bytes:
        changed, entry = bytearray(content), content.find(b"PK\x01\x02")
        while entry >= 0:
            changed[entry + at : entry + at + len(value)] = value
            entry = content.find(b"PK\x01\x02", entry + 1)
        return bytes(changed)

    return change


def _at_end(at: int, value: bytes) -> Change:
    return lambda content: content[: len(content) - 22 + at] + value + content[len(content) - 22 + at + len(value) :]


def _flipped_bits(number: int) -> Change:
    def change(content: bytes) -> bytes:
        draw, changed = random.Random(seed_of(number)), bytearray(content)
        for _ in range(3 + len(content) // 500):
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
        return bytes(changed)

    return change


PACKS: dict[str, Change] = {
    "cut in half": lambda content: content[: len(content) // 2],
    "cut at its end": lambda content: content[:-10],
    "empty": lambda content: b"",
    "noise": lambda content: random.Random(0).randbytes(10_000),
    "something before it": lambda content: b"x" * 1000 + content,
    "something behind it": lambda content: content + b"x" * 1000,
    "a long comment": lambda content: content[:-2] + b"\xff\xff" + b"PK\x05\x06" * 16_383,
    "many members announced": _at_end(8, b"\xff\xff\xff\xff"),
    "a long directory": _at_end(12, b"\xff\xff\xff\x7f"),
    "a directory far away": _at_end(16, b"\xff\xff\xff\xff"),
    "a directory at its beginning": _at_end(16, b"\0\0\0\0"),
    "encrypted members": _in_directory(8, b"\x01\0"),
    "an unknown compression": _in_directory(10, b"\x63\0"),
    "members of 4 GB": _in_directory(20, b"\xfe\xff\xff\xff\xfe\xff\xff\xff"),
    "long names": _in_directory(28, b"\xff\xff"),
    "members before the beginning": _in_directory(42, b"\xff\xff\xff\xff"),
    "compressed members": _rezipped(lambda members: [*members.items()], zipfile.ZIP_DEFLATED),
    "a bomb": _rezipped(lambda members: [(name, b"\0" * 100_000_000) for name in members][:2], zipfile.ZIP_DEFLATED),
    "other contents": _rezipped(lambda members: [(name, b"[]") for name in members]),
    "exchanged contents": _rezipped(lambda members: [*zip(members, reversed(members.values()), strict=True)]),
    "names outside": _rezipped(lambda members: [(f"../../{name}", each) for name, each in members.items()]),
    "odd names": _rezipped(lambda members: [(f"\x1b[2J\n{name}", each) for name, each in members.items()]),
    "names without content": _rezipped(lambda members: [(name, b"") for name in members]),
    "names twice": _rezipped(lambda members: [(name, b"[]") for name in members] + [*members.items()]),
    "a thousand members": _rezipped(lambda members: [*members.items()] + [(f"{n:024}.npz", b"") for n in range(1000)]),
    **{f"flipped bits {number}": _flipped_bits(number) for number in range(6)},
}


def _packs() -> Iterator[HostileFolder]:
    def change(folder: Path, write: Callable[[Path], object]) -> None:
        Store(folder, lambda text: None).pack()
        for path in sorted((folder / "artifacts").glob("*.zip")):
            write(path)

    for name, changed in PACKS.items():
        write = partial(_rewrite, changed)
        yield HostileFolder(f"pack: {name}", partial(change, write=write))
    for name, made in KINDS.items():
        yield HostileFolder(f"pack: {name}", partial(change, write=lambda path, made=made: path.unlink() or made(path)))


def _rewrite(changed: Change, path: Path) -> None:
    path.write_bytes(changed(path.read_bytes()))
