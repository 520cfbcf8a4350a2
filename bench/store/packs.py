"""Packs: many artifacts in one file, for a folder that is committed.

`artifacts/TASK-PRESET-KIND-HASH.zip` holds the artifacts of one kind, such as predictions, that Records of a task and
preset name. Its members have the names of the artifacts and lie in it uncompressed, as they are, so that the same
artifacts make the same bytes and nothing grows when it is read. HASH is that of the members' names, which are hashes of
their content. A pack is never edited: what is new goes into a new one.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import re
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO

from ..core.errors import StoreError
from ..core.files import open_regular

if TYPE_CHECKING:
    import numpy.typing as npt


MOST_UNPACKED_BYTES = 256 * 2**20
MOST_ARRAYS = 64

_KINDS = "biufU"
_HEADER_CHARACTERS = 10_000
LONGEST_END = 65_557
"""Bytes from the end of an archive's directory to the end of the file."""

_END, _LONG_END = b"PK\x05\x06", b"PK\x06\x07"
_MOST_ENTRY_BYTES = 1000


class DamagedArtifact(StoreError):
    """An artifact that is not what it claims to be; the message says why."""


def arrays_of(content: bytes, *names: str) -> dict[str, npt.NDArray[Any]]:
    """Read the arrays of these names that the .npz has. Raises DamagedArtifact for other bytes, and unsafe arrays."""
    try:
        refuse_many(content, MOST_ARRAYS)
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            found = {info.filename: info for info in archive.infolist()}
            wanted = {name: found[f"{name}.npy"] for name in names if f"{name}.npy" in found}
            size = sum(info.file_size for info in wanted.values())
            if size > MOST_UNPACKED_BYTES:
                raise DamagedArtifact(f"it unpacks to {size:,} bytes; at most {MOST_UNPACKED_BYTES:,} are read")
            return {name: _array(_unpacked(archive, info)) for name, info in wanted.items()}
    except DamagedArtifact:
        raise
    except Exception as error:
        # zipfile, zlib and numpy raise some twenty kinds for bytes that are not theirs
        raise DamagedArtifact(f"it is no readable .npz: {type(error).__name__}") from None


def refuse_many(content: bytes, most: int) -> None:
    """Raises DamagedArtifact where a zip, or its last 64 KiB, announces more members than `most`, or no list of them.

    zipfile reads the whole list, of whatever length, and a longer kind of list where one is announced beside it.
    """
    at = content.rfind(_END, -LONGEST_END)
    if at < 0 or len(content) < at + 22:
        raise DamagedArtifact("it is no readable zip: it has no directory")
    count, length = struct.unpack_from("<HL", content, at + 10)
    if count > most or length > most * _MOST_ENTRY_BYTES or content[max(0, at - 20) : at].startswith(_LONG_END):
        raise DamagedArtifact(f"it has {count:,} members or more; at most {most} are read")


def _unpacked(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & 1:
        raise DamagedArtifact("it is compressed in a way that numpy never uses")
    # reads no more than the directory claims, which is bounded
    return archive.read(info)


def _array(content: bytes) -> npt.NDArray[Any]:
    import numpy as np
    from numpy.lib import format as npy

    file = io.BytesIO(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        version = npy.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise DamagedArtifact("an array has a header of another version")
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, is_fortran, dtype = read(file, max_header_size=_HEADER_CHARACTERS)
    if dtype.kind not in _KINDS or dtype.subdtype is not None or dtype.itemsize == 0 or len(shape) > 8:
        raise DamagedArtifact(f"an array of {dtype.name[:60]} is not one of numbers or text")
    count = math.prod(shape)
    if min(shape, default=0) < 0 or count * dtype.itemsize != len(content) - file.tell():
        raise DamagedArtifact("an array has another size than its header claims")
    found = np.frombuffer(content, dtype=dtype, count=count, offset=file.tell())
    return found.reshape(shape, order="F" if is_fortran else "C")


MOST_MEMBERS = 50_000
MOST_BYTES = 2**30
"""The most bytes of artifacts in one pack; beyond 2 GiB a zip has a form that no reader here takes."""

HEADER_BYTES = 30
"""The bytes before the name of a member."""

Member = tuple[int, int]
"""The place of a member's header in its pack, and the number of bytes of its content."""

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
    """True if `pack_name` could have given it."""
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
