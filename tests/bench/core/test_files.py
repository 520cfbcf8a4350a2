"""Files of others: kinds, sizes, owners and modes."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from attnbench.bench.core import files
from attnbench.bench.core.files import is_trusted, make_private, open_folder, open_regular, read_regular, replacing


def make_link(path: Path) -> None:
    path.with_name("target").write_bytes(b"of somebody else")
    path.symlink_to("target")


@pytest.mark.parametrize(
    ("make", "kind"), [(make_link, "a link"), (Path.mkdir, "a folder"), (os.mkfifo, "a named pipe")]
)
def test_anything_but_a_regular_file_is_refused_at_once(
    tmp_path: Path, make: Callable[[Path], None], kind: str
) -> None:
    make(tmp_path / "file")
    with pytest.raises(OSError, match=f"expected a file, got {kind}"):
        open_regular(tmp_path / "file", follow=False)
    with pytest.raises(OSError, match="expected a file, got a device"):
        open_regular("/dev/null")


def test_a_regular_file_is_read_also_through_a_link_where_links_are_followed(tmp_path: Path) -> None:
    make_link(tmp_path / "file")
    assert read_regular(tmp_path / "file", 100) == b"of somebody else"
    folder = open_folder(tmp_path)
    try:
        assert read_regular("target", 16, folder=folder, follow=False) == b"of somebody else"
    finally:
        os.close(folder)


def test_size_is_bounded_before_anything_is_read(tmp_path: Path) -> None:
    with (tmp_path / "holes").open("wb") as file:
        file.truncate(2**42)
    with pytest.raises(OSError, match=r"it has 4,398,046,511,104 bytes; at most 1,000 are read"):
        read_regular(tmp_path / "holes", 1000)


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in (b"first", b"second"):
        with replacing(path) as file:
            file.write(content)
        assert path.read_bytes() == content
    with pytest.raises(RuntimeError), replacing(path) as file:
        file.write(b"third")
        raise RuntimeError
    assert path.read_bytes() == b"second" and list(tmp_path.iterdir()) == [path]


def test_no_link_that_somebody_planted_is_written_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim, path = tmp_path / "victim", tmp_path / "file"
    victim.write_bytes(b"precious")
    path.symlink_to(victim)
    with replacing(path) as file:
        file.write(b"new")
    assert victim.read_bytes() == b"precious" and not path.is_symlink() and path.read_bytes() == b"new"
    # even where the name was guessed
    monkeypatch.setattr(files.secrets, "token_hex", lambda count: "guessed")
    (tmp_path / "file.guessed.unfinished").symlink_to(victim)
    with pytest.raises(FileExistsError), replacing(path) as file:
        file.write(b"newer")
    assert victim.read_bytes() == b"precious"


def test_a_rename_that_nfs_says_failed_and_made_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    renamed = os.replace

    def retried(*arguments: object, **options: object) -> None:
        """The first call is made, and its answer lost."""
        renamed(*arguments, **options)
        renamed(*arguments, **options)

    monkeypatch.setattr(files.os, "replace", retried)
    with replacing(tmp_path / "file") as file:
        file.write(b"new")
    assert (tmp_path / "file").read_bytes() == b"new"

    def fails(*arguments: object, **options: object) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(files.os, "replace", fails)
    with pytest.raises(OSError, match="Stale"), replacing(tmp_path / "file") as file:
        file.write(b"newer")
    assert (tmp_path / "file").read_bytes() == b"new" and [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_folder_that_is_exchanged_for_a_link_meanwhile_leads_nothing_astray(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "folder", tmp_path / "elsewhere"
    elsewhere.mkdir()
    with replacing(folder / "file") as file:
        file.write(b"new")
        folder.rename(tmp_path / "moved")
        folder.symlink_to(elsewhere)
    assert (tmp_path / "moved" / "file").read_bytes() == b"new" and not list(elsewhere.iterdir())
    with pytest.raises(OSError, match="expected a folder, got a link"), replacing(folder / "file"):
        pass
    with replacing(folder / "file", follow=True) as file:
        file.write(b"new")
    assert (elsewhere / "file").read_bytes() == b"new"


def test_a_folder_that_is_a_link_is_refused_unless_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    os.close(open_folder(tmp_path / "link"))
    with pytest.raises(OSError, match="expected a folder, got a link"):
        open_folder(tmp_path / "link", follow=False)


@pytest.fixture
def home() -> Iterator[Path]:
    """A file in two folders that others may enter; not in pytest's own folder, which they may not."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "outer", "inner")
        made.mkdir(parents=True)
        (made / "file").write_bytes(b"")
        for path, mode in ((Path(folder), 0o755), (made.parent, 0o755), (made, 0o755), (made / "file", 0o644)):
            path.chmod(mode)
        yield made / "file"


def test_a_file_of_our_own_is_trusted(home: Path) -> None:
    assert is_trusted(home) and not is_trusted(home.with_name("missing"))


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_a_file_that_others_may_write_is_not_trusted(home: Path, mode: int) -> None:
    home.chmod(mode)
    assert not is_trusted(home)


@pytest.mark.parametrize("mode", [0o775, 0o757])
@pytest.mark.parametrize("above", [1, 2])
def test_a_file_in_a_folder_that_others_may_write_is_not_trusted(home: Path, mode: int, above: int) -> None:
    folder = home.parents[above - 1]
    folder.chmod(mode)
    assert not is_trusted(home)
    folder.chmod(mode | 0o1000)
    assert is_trusted(home)


def test_a_folder_that_others_cannot_enter_protects_everything_below(home: Path) -> None:
    home.parent.chmod(0o777)
    home.parents[1].chmod(0o700)
    assert is_trusted(home)


def test_a_file_of_another_user_is_not_trusted(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = home.stat().st_uid
    if owner == 0:
        if os.getuid() != 0:
            pytest.skip("needs a file of our own")
        os.chown(home, 12345, -1)
    else:
        monkeypatch.setattr(files.os, "getuid", lambda: owner + 1)
    assert not is_trusted(home)


def test_a_link_is_trusted_only_where_it_and_its_target_lie_safely(home: Path) -> None:
    loose = home.parents[2] / "loose"
    loose.mkdir()
    (loose / "link").symlink_to(home)
    loose.chmod(0o755)
    assert is_trusted(loose / "link")
    loose.chmod(0o777)
    assert not is_trusted(loose / "link")


def test_private_folders_are_for_their_user_alone(tmp_path: Path) -> None:
    make_private(tmp_path / "a" / "b")
    make_private(tmp_path / "a" / "b")
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("a", "a/b")] == [0o700, 0o700]
