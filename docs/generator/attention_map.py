"""Pictures of the weights of an untrained variant on drawn input: which keys can a query see, and which get nothing?"""

from __future__ import annotations

import struct
import zlib

import numpy as np
import torch

from attnbench.bench.core.errors import AttnbenchError
from attnbench.bench.core.registry import VARIANTS
from attnbench.bench.core.spec import Spec
from attnbench.tasks.sweep_inputs import draw_heads
from attnbench.variants.contract import AttentionShape, Mask

LENGTH = 128
HEADS, HEAD_DIM = 2, 32
NOTHING = (208, 208, 208)
"""The colour of a weight that is exactly zero, told from a small one in light and in dark."""

LOW, HIGH = (255, 236, 170), (110, 10, 90)


def attention_map(name: str, causal: bool) -> bytes | None:
    """A PNG of the first head's weights, queries down and keys across; None for a variant without weights.

    Input `local` of the sweeps, seed 0: neighbours are alike. A lighter pixel is a smaller weight, on the scale of the
    square root of the largest; grey is exactly zero.
    """
    shape = AttentionShape(heads=HEADS, head_dim=HEAD_DIM, max_length=LENGTH, causal=causal)
    torch.manual_seed(0)
    try:
        variant = VARIANTS.build(Spec(name), shape)
    except AttnbenchError:
        return None
    if variant.supports(shape) is not None:
        return None
    drawn = draw_heads("local", 1, HEADS, LENGTH, HEAD_DIM, seed=0)
    query, key = (torch.from_numpy(array) for array in (drawn.query, drawn.key))
    # neighbours of the hidden state are alike too: the same drawing, its heads side by side
    hidden = query.transpose(1, 2).flatten(2)
    with torch.no_grad():
        weights = variant.eval().weights_with(query, key, Mask(causal=causal), None, hidden)
    return None if weights is None else png(weights[0, 0].double().abs().numpy())


def png(weights: np.ndarray) -> bytes:
    """An image of 256 colours: the first for zeros, the others along the square root of the weights."""
    largest = float(weights.max()) or 1.0
    share = np.sqrt(weights / largest)
    indices = np.where(weights > 0, 1 + np.rint(share * 254), 0).astype(np.uint8)
    ramp = np.linspace(0, 1, 255)[:, None]
    colours = np.vstack([[NOTHING], np.rint((1 - ramp) * np.array(LOW) + ramp * np.array(HIGH))]).astype(np.uint8)
    height, width = indices.shape
    rows = b"".join(b"\0" + row.tobytes() for row in indices)
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    parts = [(b"IHDR", header), (b"PLTE", colours.tobytes()), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in parts)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
