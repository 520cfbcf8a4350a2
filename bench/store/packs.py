"""Packs: many artifacts in one file, for a folder that is committed.

`artifacts/TASK-PRESET-KIND-HASH.zip` holds the artifacts of one kind, such as predictions, that Records of a task and
preset name. Its members have the names of the artifacts and lie in it uncompressed, as they are, so that the same
artifacts make the same bytes and nothing grows when it is read. HASH is that of the members' names, which are hashes of
their content. A pack is never edited: what is new goes into a new one.
"""

from __future__ import annotations

import hashlib
import os
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import BinaryIO

from ..core.files import open_regular
from .arrays import LONGEST_END, DamagedArtifact, refuse_many

MOST_MEMBERS = 50_000
MOST_BYTES = 2**30
"""Of the artifacts in one pack; beyond 2 GiB a zip has a form that no reader here takes."""

HEADER_BYTES = 30
"""Of what stands before the name of a member."""

Member = tuple[int, int]
"""Where the header of a member begins in its pack, and how many bytes its content has."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9=._-]{0,150}-[0-9a-f]{12}\.zip")
_WHEN = (1980, 1, 1, 0, 0, 0)


def pack_name(label: str, members: Iterable[str]) -> str:
    """The name of a pack of these members; `label`: what they are of.

    >>> pack_name("recall[length=64]-quick-curve", [])
    'recall-length=64-quick-curve-e3b0c44298fc.zip'
    """
    digest = hashlib.sha256("\n".join(sorted(members)).encode()).hexdigest()[:12]
    return f"{re.sub(r'[^A-Za-z0-9=.]+', '-', label).strip('-.')[:150]}-{digest}.zip"


def parts_of(sizes: Mapping[str, int]) -> Iterator[list[str]]:
    """The artifacts, of so many bytes each, in as many parts as they need packs."""
    part, total = list[str](), 0
    for name, size in sizes.items():
        if len(part) == MOST_MEMBERS or (part and total + size > MOST_BYTES):
            yield part
            part, total = [], 0
        part.append(name)
        total += size
    yield part


def pack_names(folder: int) -> list[str]:
    """The names of the packs in a folder, sorted."""
    return sorted(name for name in os.listdir(folder) if is_pack_name(name))


def is_pack_name(name: str) -> bool:
    """Whether `pack_name` could have given it."""
    return _NAME.fullmatch(name) is not None


def write_pack(file: BinaryIO, members: Iterable[str], read: Callable[[str], bytes]) -> None:
    """Writes the members in the order of their names; equal ones give equal bytes, whenever and wherever."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=False) as archive:
        for name in sorted(members):
            entry = zipfile.ZipInfo(name, _WHEN)
            # the default differs between systems
            entry.create_system = 3
            archive.writestr(entry, read(name))


def members_of(folder: int, pack: str) -> dict[str, Member]:
    """The members by name. Raises DamagedArtifact, or OSError, for what is no pack."""
    with open_regular(pack, folder=folder, follow=False) as file:
        entries = _opened(file).infolist()
    return {each.filename: (each.header_offset, each.file_size) for each in entries if each.header_offset >= 0}


def read_member(folder: int, pack: str, name: str, member: Member, most_bytes: int) -> bytes | None:
    """The content of a member; None where it is not the one that its name is the hash of, or too long.

    The list of all members is not read again: with thousands of them that takes longer than all that they hold. Raises
    OSError for a pack that cannot be opened.
    """
    at, size = member
    if size > most_bytes:
        return None
    with open_regular(pack, folder=folder, follow=False) as file:
        file.seek(at)
        header = file.read(HEADER_BYTES)
        # its name and what else it may say lie before the content
        file.seek(sum(int.from_bytes(header[each : each + 2], "little") for each in (26, 28)), os.SEEK_CUR)
        content = file.read(size)
    # a stranger's pack must not hide the artifact that another one has
    return content if hashlib.sha256(content).hexdigest()[:24] == name[:24] else None


def _opened(file: BinaryIO) -> zipfile.ZipFile:
    """The archive, once it is known to be short and uncompressed."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - LONGEST_END - 20))
    refuse_many(file.read(), MOST_MEMBERS)
    try:
        archive = zipfile.ZipFile(file)
    except Exception as error:
        # zipfile raises many kinds for bytes that are not its own
        raise DamagedArtifact(f"it is no readable zip: {type(error).__name__}") from None
    for entry in archive.infolist():
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
            raise DamagedArtifact("a member is compressed; packs hold artifacts as they are")
    return archive
