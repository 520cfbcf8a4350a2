"""A compiled library is loaded from a folder alone that nobody else can write in."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from attnbench.variants.kernels.cpu import build


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Path]]:
    """A cache folder that others may enter, and the user's own; a build writes a file with its name."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setenv("ATTNBENCH_CACHE", f"{folder}/shared")
        monkeypatch.setenv("XDG_CACHE_HOME", f"{folder}/own")
        monkeypatch.setattr(build, "compiler", lambda: ("c++",))
        monkeypatch.setattr(build.shutil, "which", lambda name: name)
        monkeypatch.setattr(build, "_build", built_here)
        first, second = build.folders()
        assert (Path(folder, "shared"), Path(folder, "own")) == (first.parents[1], second.parents[2])
        yield first, second


def built_here(home: Path, library: Path, unit: str) -> None:
    (home / "new").write_text("built")
    build._keep(home / "new", library)


def plant(home: Path, mode: int) -> None:
    home.mkdir(parents=True)
    (home / build.LIBRARY).write_text("planted")
    for folder in (home, *home.parents[:2]):
        folder.chmod(0o755)
    home.chmod(mode)


def test_a_library_is_built_once_in_a_folder_for_this_user_alone(shared: tuple[Path, Path]) -> None:
    library = build.built()
    assert library == shared[0] / build.LIBRARY and library.read_text() == "built"
    assert library.parent.stat().st_mode & 0o777 == 0o700
    first = library.stat().st_ino
    assert build.built().stat().st_ino == first


@pytest.mark.parametrize("damage", ["library", "checksum", "no checksum"])
def test_a_library_that_is_not_as_it_was_built_is_built_again(shared: tuple[Path, Path], damage: str) -> None:
    library = build.built()
    note = library.with_name(f"{build.LIBRARY}.sha256")
    if damage == "library":
        library.write_text("damaged in the middle")
    elif damage == "checksum":
        note.write_bytes(b"\xff")
    else:
        note.unlink()
    before = library.read_text()
    assert build.built().read_text() == "built"
    assert library.with_name(f"{build.LIBRARY}.damaged").read_text() == before


def test_a_library_in_a_folder_that_others_may_write_in_is_built_again(shared: tuple[Path, Path]) -> None:
    plant(shared[0], 0o775)
    library = build.built()
    assert library.parent == shared[0] and library.read_text() == "built"
    assert library.parent.stat().st_mode & 0o777 == 0o700


def test_a_cache_that_others_may_write_in_is_passed_over_for_the_own(shared: tuple[Path, Path]) -> None:
    plant(shared[0], 0o755)
    shared[0].parent.chmod(0o777)
    library = build.built()
    assert library.parent == shared[1] and library.read_text() == "built"
    assert (shared[0] / build.LIBRARY).read_text() == "planted"
    shared[1].parents[2].chmod(0o777)
    with pytest.raises(RuntimeError, match="expected a folder that nobody else can write in"):
        build.built()


def test_a_torn_library_is_set_aside_and_built_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / build.LIBRARY
    library.write_bytes(b"\x7fELF torn")
    loaded: list[bytes] = []

    def built() -> Path:
        if not library.exists():
            library.write_bytes(b"whole")
        return library

    def load(path: Path) -> None:
        if path.read_bytes() != b"whole":
            raise OSError(f"{path}: file too short")
        loaded.append(path.read_bytes())

    monkeypatch.setattr(build, "built", built)
    monkeypatch.setattr(build, "_load", load)
    assert build.failure.__wrapped__() is None
    assert loaded == [b"whole"]
    assert (tmp_path / f"{build.LIBRARY}.damaged").read_bytes() == b"\x7fELF torn"
