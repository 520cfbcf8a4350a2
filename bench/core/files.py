"""Files that others may have made: opened only where they are regular, read within a limit, written beside links."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

PACKAGE = Path(__file__).resolve().parent.parent.parent
"""The folder of the package on disk."""

RESULTS = Path("results/local")
"""The results folder where none is named, below the current folder."""

_KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
}


def open_regular(path: str | Path, *, folder: int | None = None, follow: bool = True) -> BinaryIO:
    """The regular file, opened for reading; never waits, as opening a named pipe would.

    `folder`: descriptor of the folder that `path` is relative to. Without `follow`, `path` itself must be no link.
    Raises OSError for anything else than a regular file; its `strerror` says which kind it is.
    """
    # before opening, since to open a device may already do something
    _refuse_others(path, os.stat(path, dir_fd=folder, follow_symlinks=follow))
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    descriptor = os.open(path, flags, dir_fd=folder)
    try:
        # it may have been exchanged since
        _refuse_others(path, os.fstat(descriptor))
        return os.fdopen(descriptor, "rb", 65_536)
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: str | Path, most_bytes: int, *, folder: int | None = None, follow: bool = True) -> bytes:
    """The content of a regular file, see `open_regular`. Raises OSError too where it is longer than `most_bytes`."""
    with open_regular(path, folder=folder, follow=follow) as file:
        size = os.fstat(file.fileno()).st_size
        # the size is asked first, since a file of holes claims any size at no cost
        content = file.read(most_bytes + 1) if size <= most_bytes else b""
    if size > most_bytes or len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it has {max(size, len(content)):,} bytes; at most {most_bytes:,} are read")
    return content


def open_to_append(path: str | Path, *, folder: int | None = None) -> int:
    """A descriptor that reads and appends, of a regular file that is made where there is none; follows no link.

    The caller closes it. Raises OSError as `open_regular` does.
    """
    with suppress(FileNotFoundError):
        _refuse_others(path, os.stat(path, dir_fd=folder, follow_symlinks=False))
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o644, dir_fd=folder)
    try:
        _refuse_others(path, os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def made_folder(path: Path, *, follow: bool = False) -> Iterator[int]:
    """A descriptor of the folder, which is made where it is missing. Raises OSError; also for a link, unless `follow`.

    Whoever writes by the descriptor writes there, though others exchange the folder for a link meanwhile.
    """
    path.mkdir(parents=True, exist_ok=True)
    descriptor = open_folder(path, follow=follow)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def replacing(path: Path, *, follow: bool = False) -> Iterator[BinaryIO]:
    """A new file that takes the place of `path` at the end of the `with` statement, whole and on disk, or not at all.

    Its folder is made where it is missing, and must be no link, unless `follow`. The file is written under a name that
    nobody can know before, and never through a link: whoever may write in the folder cannot choose another file to be
    overwritten. Every new file of a results folder is made here. Raises OSError where it cannot be written.
    """
    unfinished = f"{path.name}.{secrets.token_hex(8)}.unfinished"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with made_folder(path.parent, follow=follow) as folder:
        try:
            with os.fdopen(os.open(unfinished, flags, 0o644, dir_fd=folder), "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
                made = os.fstat(file.fileno())
            try:
                os.replace(unfinished, path.name, src_dir_fd=folder, dst_dir_fd=folder)
            except FileNotFoundError:
                # NFS asks again where its answer was lost, and then finds the file renamed already
                if not os.path.samestat(made, os.stat(path.name, dir_fd=folder, follow_symlinks=False)):
                    raise
        finally:
            with suppress(OSError):
                os.unlink(unfinished, dir_fd=folder)


def open_folder(path: str | Path, *, folder: int | None = None, follow: bool = True) -> int:
    """A descriptor of the folder, for `folder` above, which the caller closes; OSError where it is none."""
    _refuse_others(path, os.stat(path, dir_fd=folder, follow_symlinks=follow), stat.S_IFDIR)
    return os.open(
        path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW), dir_fd=folder
    )  # fmt: skip


def is_trusted(path: Path) -> bool:
    """True if `path` is there and nobody but this user and root could have made or changed it.

    Owner and mode are looked at, of the file and of every folder above it, since who may write in a folder may exchange
    what lies there. A sticky folder such as `/tmp` protects what others own. A folder that others cannot enter protects
    everything below.
    """
    try:
        # a link is as safe as both the folders that it lies in and those that it leads to
        return _is_own(path.resolve(strict=True)) and (not path.is_symlink() or _is_own(path.parent.resolve()))
    except OSError:
        return False


def make_private(folder: Path) -> None:
    """Makes the folder with those above it, for this user alone; raises OSError where that fails."""
    for missing in reversed([each for each in (folder, *folder.parents) if not each.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)


def _refuse_others(path: str | Path, found: os.stat_result, wanted: int = stat.S_IFREG) -> None:
    kind = stat.S_IFMT(found.st_mode)
    if kind != wanted:
        expected = "a file" if wanted == stat.S_IFREG else "a folder"
        code = errno.EISDIR if kind == stat.S_IFDIR else errno.EINVAL
        raise OSError(code, f"expected {expected}, got {_KINDS.get(kind, 'a file')}", str(path))


def _is_own(path: Path) -> bool:
    is_loose = False
    for each in (path, *path.parents):
        found = each.lstat()
        if found.st_uid not in (os.getuid(), 0):
            return False
        is_folder, mode = stat.S_ISDIR(found.st_mode), found.st_mode
        if is_folder and not mode & (stat.S_IXGRP | stat.S_IXOTH):
            # whatever the modes below, others cannot reach them; the folder itself they might exchange from above
            is_loose = False
        elif mode & (stat.S_IWGRP | stat.S_IWOTH):
            # in a sticky folder nobody may exchange what others own
            is_loose |= not (is_folder and mode & stat.S_ISVTX)
    return not is_loose
