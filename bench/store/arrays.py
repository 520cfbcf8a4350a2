"""Arrays of an artifact: an .npz that a stranger may have made, measured before anything is unpacked.

`numpy.load` believes what a header claims, and takes minutes and gigabytes for a file of a few kilobytes. Here the
directory of the archive and the header of each array are held against the bounds first, and the shape against the bytes
that are really there.
"""

from __future__ import annotations

import io
import math
import struct
import warnings
import zipfile
from typing import TYPE_CHECKING, Any

from ..core.errors import StoreError

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
