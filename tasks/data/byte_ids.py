"""Byte ids: text as token ids, and back."""

from __future__ import annotations

import numpy as np

from ..contract import Ids


def byte_ids(text: bytes) -> Ids:
    """Token ids of a text: byte + 1, since id 0 is padding."""
    return np.frombuffer(text, dtype=np.uint8).astype(np.uint16) + np.uint16(1)


def bytes_of(ids: Ids) -> bytes:
    """The text of ids that `byte_ids` made.

    >>> bytes_of(byte_ids(b"caf\\xc3"))
    b'caf\\xc3'
    """
    return (np.asarray(ids) - np.uint16(1)).astype(np.uint8).tobytes()
