"""Packs: the artifacts of a board in one file, read like single ones, whoever made it."""

import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from sent_folders import invoke, trained

from attnbench.bench.core.errors import StoreError
from attnbench.bench.store import packs
from attnbench.bench.store.store import Store
from attnbench.bench.wings.sharing.command import merge
from attnbench.bench.wings.sharing.validate import validate_records

Bench = Callable[..., object]


@pytest.fixture
def store(bench: Bench, tmp_path: Path) -> Store:
    """Two trained Records, and a file that no Record names."""
    store = Store(tmp_path / "results")
    trained(bench, store, "softmax", 12)
    trained(bench, store, "rela", 15)
    store.put_artifact(b"[]", ".json")
    return store


def contents(store: Store) -> dict[str, bytes]:
    return {name: store.artifact(name) for record in store.records() for name in record.artifacts.values()}


def files(store: Store) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (store.root / "artifacts").iterdir()}


def test_a_packed_folder_has_one_file_a_kind_and_is_read_as_before(store: Store, tmp_path: Path) -> None:
    before = contents(store)
    made = store.pack()
    assert sorted(name.rpartition("-")[0] for name in made) == ["lra-text-quick-curve", "lra-text-quick-predictions"]
    assert set(made.values()) == {2} and len(files(store)) == 3
    again = Store(store.root)
    assert contents(again) == before and validate_records(store.root).findings == ()
    assert invoke(merge, store.root, "--results", tmp_path / "ours")[0] == 0
    assert contents(Store(tmp_path / "ours")) == before


def test_equal_artifacts_make_equal_packs_and_a_pack_is_never_edited(
    store: Store, bench: Bench, tmp_path: Path
) -> None:
    twin = Store(tmp_path / "twin")
    for variant, right in (("rela", 15), ("softmax", 12)):
        trained(bench, twin, variant, right)
    twin.pack()
    store.pack()
    packed = files(store)
    assert files(twin).items() <= packed.items()
    assert store.pack() == {} and files(store) == packed
    trained(bench, store, "linear", 9)
    assert len(store.pack()) == 2
    assert packed.items() <= files(store).items() and len(contents(Store(store.root))) == 6


def test_an_artifact_that_is_not_what_its_name_says_is_not_packed(store: Store) -> None:
    name = next(iter(contents(store)))
    (store.root / "artifacts" / name).write_bytes(b"other")
    with pytest.raises(StoreError, match="does not have the content that its name says"):
        store.pack()
    assert (store.root / "artifacts" / name).is_file()


def test_what_no_pack_holds_is_put_into_several(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "MOST_BYTES", 300)
    before = contents(store)
    assert len(store.pack()) == 4 and contents(Store(store.root)) == before
    assert list(packs.parts_of({"a": 100, "b": 200, "c": 1, "d": 900, "e": 1})) == [["a", "b"], ["c"], ["d"], ["e"]]
    monkeypatch.setattr(packs, "MOST_MEMBERS", 2)
    assert list(packs.parts_of(dict.fromkeys("abcde", 0))) == [["a", "b"], ["c", "d"], ["e"]]


def test_the_list_of_a_pack_is_read_once_however_many_artifacts_are_read(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.pack()
    opened: list[object] = []
    whole = zipfile.ZipFile
    monkeypatch.setattr(zipfile, "ZipFile", lambda *given: opened.append(given) or whole(*given))
    assert len(contents(Store(store.root))) == 4 and len(opened) == 2


def test_a_member_that_lies_elsewhere_than_its_list_says_is_none(store: Store) -> None:
    name, content = next(iter(contents(store).items()))
    store.pack()
    folder = store.root / "artifacts"
    (held,) = (each for each in sorted(folder.glob("*.zip")) if name in zipfile.ZipFile(each).namelist())
    whole = held.read_bytes()
    # longer names, than the file has bytes; a place before its beginning, by a list that says it begins later
    at = whole.find(content) - len(name) - 30
    held.write_bytes(whole[: at + 26] + b"\xff\xff\xff\xff" + whole[at + 30 :])
    with pytest.raises(StoreError, match="is missing"):
        Store(store.root).artifact(name)
    held.write_bytes(whole[at + 5 :])
    with pytest.raises(StoreError, match="is missing"):
        Store(store.root, lambda text: None).artifact(name)


def zipped(*members: tuple[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return file.getvalue()


def test_a_pack_of_a_stranger_hides_nothing_and_is_named(store: Store) -> None:
    before = contents(store)
    store.pack()
    name, other = list(before)[:2]
    whole = zipped((name, b"other"))
    end = whole.rfind(b"PK\x05\x06")
    hostile = {
        # members with the names of honest artifacts, or of places elsewhere
        "a-other": zipped((name, b"other"), (other, b""), ("../../escaped", b"x"), ("/etc/passwd", b"x")),
        "b-bomb": zipped((name, b"\0" * 10**7), compression=zipfile.ZIP_DEFLATED),
        "c-many": whole[: end + 10] + struct.pack("<H", 60_000) + whole[end + 12 :],
        "d-long": whole[:end] + b"PK\x06\x07" + b"\0" * 16 + whole[end:],
        "e-torn": whole[: len(whole) // 2],
        "f-none": b"",
    }
    folder = store.root / "artifacts"
    for label, content in hostile.items():
        (folder / f"{label}-{'0' * 12}.zip").write_bytes(content)
    (folder / f"g-link-{'0' * 12}.zip").symlink_to(folder / f"a-other-{'0' * 12}.zip")
    assert contents(Store(store.root, lambda text: None)) == before
    found = validate_records(store.root)
    named = {label for label in (*hostile, "g-link") if any(label in issue.text for issue in found.findings)}
    assert named == {"b-bomb", "c-many", "d-long", "e-torn", "f-none", "g-link"} and found.errors == 6
    assert len(found.sound) == 2 and not (store.root.parent / "escaped").exists()
