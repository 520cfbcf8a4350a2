import os
from pathlib import Path

from attnbench.tasks.contract import DataPlace
from attnbench.tasks.data.sources import ChecksumResult, checksum, verify_originals

ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_an_unchanged_file_is_not_read_again(place: DataPlace) -> None:
    path = place.root / "file"
    path.write_bytes(b"abc")
    checksum(place, "t", path)
    state = path.stat()
    path.write_bytes(b"xyz")
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert checksum(place, "t", path) == ABC


def test_verification_reads_again_and_forgets_what_no_longer_holds(place: DataPlace) -> None:
    path = place.root / "file"
    path.write_bytes(b"abc")
    checksum(place, "t", path)
    state = path.stat()
    assert list(verify_originals(place)) == [ChecksumResult(task="t", path=str(path), state="ok", sha256=ABC)]
    path.write_bytes(b"xyz")
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert [verdict.state for verdict in verify_originals(place)] == ["changed"]
    assert checksum(place, "t", path) != ABC
    path.unlink()
    assert [verdict.state for verdict in verify_originals(place, "t")] == ["gone"]
    assert list(verify_originals(place)) == []


def test_a_trees_checksum_sees_names_contents_and_boundaries(place: DataPlace, tree: Path) -> None:
    def now() -> str:
        for note in (place.cache / "checksums").glob("*.json"):
            note.unlink()
        return checksum(place, "t", tree, ["train/neg", "train/pos"])

    first = now()
    assert now() == first
    path = tree / "train" / "neg" / "0_7.txt"
    text = path.read_bytes()
    path.write_bytes(text + b"!")
    changed = now()
    path.write_bytes(text)
    path.rename(path.with_name("99_7.txt"))
    assert len({first, changed, now()}) == 3
    (tree / "test" / "neg" / "0_7.txt").write_text("outside the folders")
    path.with_name("99_7.txt").rename(path)
    assert now() == first


def test_a_note_that_does_not_read_is_made_anew_or_dropped(place: DataPlace) -> None:
    original = place.root / "original"
    original.write_bytes(b"data")
    digest = checksum(place, "task", original)
    (note,) = (place.cache / "checksums").glob("*.json")
    note.write_bytes(b'{"task":"\xff"}')
    assert checksum(place, "task", original) == digest and b"task" in note.read_bytes()
    note.write_bytes(b"{")
    assert list(verify_originals(place)) == [] and not note.exists()
