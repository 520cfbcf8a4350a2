import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from attnbench.bench.core.errors import DataError
from attnbench.bench.core.record import Provenance
from attnbench.tasks.contract import DataPlace
from attnbench.tasks.data import prepared as module
from attnbench.tasks.data.prepared import PreparedData, damaged, open_prepared, pack, prepare, stored

SEQUENCES = [np.array([5, 256, 1], np.uint16), np.array([2], np.uint16), np.array([65_535, 9], np.uint16)]


def built() -> PreparedData:
    splits = {"train": pack(SEQUENCES, [1, 0, 1]), "test": pack(SEQUENCES[:1], [0])}
    provenance = Provenance(source="here", fidelity="surrogate", files={"a": "b"}, notes=("one", "two"))
    return PreparedData(splits=splits, provenance=provenance, repeated={"train": (2,)})


def test_what_was_built_comes_back_memory_mapped_and_equal(place: DataPlace) -> None:
    found = prepare(place, "thing", {"source": "x"}, built)
    train = found.splits["train"]
    assert isinstance(train.tokens, np.memmap) and train.tokens.dtype == np.uint16
    assert [train.sequence(i).tolist() for i in range(3)] == [[5, 256, 1], [2], [65_535, 9]]
    assert train.labels.tolist() == [1, 0, 1] and len(found.splits["test"]) == 1
    assert found.provenance == built().provenance and found.repeated == {"train": (2,)}


def test_a_second_use_builds_nothing_and_another_identity_builds_anew(place: DataPlace) -> None:
    calls = []

    def build() -> PreparedData:
        calls.append(1)
        return built()

    first = prepare(place, "thing", {"sha256": "a"}, build)
    assert prepare(place, "thing", {"sha256": "a"}, build).folder == first.folder and len(calls) == 1
    assert prepare(place, "thing", {"sha256": "b"}, build).folder != first.folder and len(calls) == 2


CHILD = """
import os, signal, sys, time
from pathlib import Path
import numpy as np
from attnbench.bench.core.record import Provenance
from attnbench.tasks.data import prepared as module
from attnbench.tasks.contract import DataPlace

cache, mark, die_at = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])

def build():
    with mark.open("a") as file:
        file.write("built\\n")
    time.sleep(0.3)
    split = module.pack([np.arange(1, 50, dtype=np.uint16)] * 10, range(10))
    provenance = Provenance(source="x", fidelity="surrogate")
    return module.PreparedData(splits={"train": split, "test": split}, provenance=provenance)

digest, calls = module.file_digest, []

def dying(path):
    calls.append(path)
    if len(calls) == die_at:
        os.kill(os.getpid(), signal.SIGKILL)
    return digest(path)

module.file_digest = dying
place = DataPlace(root=cache, cache=cache, notice=lambda message: None)
print(len(module.prepare(place, "thing", {}, build).splits["train"]))
"""


def start(place: DataPlace, mark: Path, die_at: int = 0) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", CHILD, str(place.cache), str(mark), str(die_at)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_processes_that_want_the_same_data_build_it_once(place: DataPlace, tmp_path: Path) -> None:
    children = [start(place, tmp_path / "mark") for _ in range(3)]
    assert [child.communicate()[0].strip() for child in children] == ["10"] * 3
    assert (tmp_path / "mark").read_text() == "built\n"


@pytest.mark.parametrize("die_at", [1, 6])
def test_a_build_killed_between_files_is_not_taken_for_whole(place: DataPlace, tmp_path: Path, die_at: int) -> None:
    killed = start(place, tmp_path / "mark", die_at)
    killed.communicate()
    assert killed.returncode == -9 and stored(place) == []
    again = start(place, tmp_path / "mark")
    assert again.communicate()[0].strip() == "10"
    assert [path.name for path in (place.cache / "prepared").iterdir() if path.name.startswith(".partial")] == []


def test_a_build_that_fails_leaves_nothing_and_names_its_error(place: DataPlace) -> None:
    def build() -> PreparedData:
        raise FileNotFoundError("an original is gone")

    with pytest.raises(DataError, match="cannot read thing: an original is gone; put the original there again"):
        prepare(place, "thing", {}, build)
    assert stored(place) == []
    assert len(prepare(place, "thing", {}, built).splits["train"]) == 3


def test_a_flipped_byte_is_found_by_its_hash(place: DataPlace) -> None:
    folder = prepare(place, "thing", {}, built).folder
    assert folder is not None and damaged(folder) == []
    path = folder / "train.tokens.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert damaged(folder) == ["train.tokens.npy"]
    (folder / "test.labels.npy").unlink()
    assert damaged(folder) == ["train.tokens.npy", "test.labels.npy"]


def damage_by_label(folder: Path) -> None:
    path = folder / "train.labels.npy"
    content = bytearray(path.read_bytes())
    content[-8] = 77
    path.write_bytes(content)


DAMAGE = {
    "cut": lambda folder: (folder / "train.labels.npy").write_bytes(b"cut"),
    "gone": lambda folder: (folder / "train.tokens.npy").unlink(),
    "label of that size": damage_by_label,
    "header of that size": lambda folder: (folder / "train.tokens.npy").write_bytes(
        bytes((folder / "train.tokens.npy").stat().st_size)
    ),
    "manifest": lambda folder: (folder / "manifest.json").write_text("{"),
    "other format": lambda folder: (folder / "manifest.json").write_text(json.dumps({"format": 99})),
    "binary manifest": lambda folder: (folder / "manifest.json").write_bytes(bytes(range(256))),
    "deep manifest": lambda folder: (folder / "manifest.json").write_bytes(b'{"x":' + b"[" * 100_000),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_data_are_refused_passed_over_and_made_anew(damage: str, place: DataPlace) -> None:
    folder = prepare(place, "thing", {}, built).folder
    DAMAGE[damage](folder)
    with pytest.raises(DataError, match="prepare it again"):
        open_prepared(folder)
    notices: list[str] = []
    told = replace(place, notice=notices.append)
    assert stored(told) == [] and len(notices) == 1
    again = prepare(told, "thing", {}, built)
    assert len(again.splits["train"]) == 3 and damaged(folder) == []
    assert any("set aside" in notice for notice in notices)
    assert (folder.parent / f".damaged-{folder.name}").is_dir() and len(stored(place)) == 1


def test_a_folder_without_a_manifest_counts_as_not_prepared_and_is_made_anew(place: DataPlace) -> None:
    folder = prepare(place, "thing", {}, built).folder
    (folder / "manifest.json").unlink()
    notices: list[str] = []
    told = replace(place, notice=notices.append)
    assert stored(told) == [] and len(prepare(told, "thing", {}, built).splits["train"]) == 3
    # it is what a killed build leaves, and no damage
    assert len(notices) == 1 and "preparing thing" in notices[0] and damaged(folder) == []


def test_a_split_without_examples_is_refused(place: DataPlace) -> None:
    def build() -> PreparedData:
        found = built()
        return replace(found, splits={**found.splits, "test": pack([], [])})

    with pytest.raises(DataError, match="expected examples in the test split of thing, got none"):
        prepare(place, "thing", {}, build)
    assert stored(place) == []


def test_a_cache_that_cannot_be_written_says_what_to_do(place: DataPlace, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="ATTNBENCH_CACHE"):
        prepare(replace(place, cache=tmp_path / "file"), "thing", {}, built)


def test_a_full_disk_says_what_to_do(place: DataPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.np, "save", full)
    with pytest.raises(DataError, match="No space left on device; free some space"):
        prepare(place, "thing", {}, built)
    monkeypatch.undo()
    assert len(prepare(place, "thing", {}, built).splits["train"]) == 3


def test_stored_lists_size_and_examples(place: DataPlace) -> None:
    prepare(place, "thing", {}, built)
    prepare(place, "other", {}, built)
    [only] = stored(place, "thing")
    assert only.task == "thing" and only.examples == {"train": 3, "test": 1}
    assert only.bytes == sum(path.stat().st_size for path in only.folder.glob("*.npy"))
    assert [each.task for each in stored(place)] == ["other", "thing"]
