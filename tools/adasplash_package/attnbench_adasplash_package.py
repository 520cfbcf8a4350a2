"""AdaSplash-2, the Triton kernels of the package `adasplash`, as its users call them: what ours are held against."""

from __future__ import annotations

from importlib.util import find_spec
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from attnbench.variants.contract import AttentionShape, Mask, Unsupported, Variant

HEAD_DIMS = (16, 32, 64, 128, 256)
SHORTEST = 64
"""Its tiles have so many rows; a length that is no power of two has to be told to it as that of a padded sequence."""


class AdaSplash(Variant):
    """Causal 1.5-entmax attention by AdaSplash-2: histogram of scores, one refinement of the threshold, block masks."""

    causality: ClassVar = "strict"
    crosses: ClassVar = False
    decodes: ClassVar = False
    grouped: ClassVar = True
    uses_dropout = False
    equation: ClassVar = "P = entmax15(Q K^T / sqrt(d)); O = P V"
    paper: ClassVar = "Goncalves, Treviso & Martins 2025, AdaSplash; AdaSplash-2 by the same authors"
    implementation = "adasplash"

    def supports(self, shape: AttentionShape) -> str | None:
        # first what no other shape would mend
        if not shape.device.startswith("cuda"):
            return f"AdaSplash-2 needs a CUDA device, and this is {shape.device}"
        if find_spec("adasplash") is None:
            return "the package adasplash is not installed: pip install adasplash"
        if not shape.causal:
            return "AdaSplash-2 is causal"
        if shape.padding:
            return "padding is left to others: AdaSplash-2 takes lengths, and no mask"
        if shape.head_dim not in HEAD_DIMS:
            return f"AdaSplash-2 takes a head_dim of {', '.join(map(str, HEAD_DIMS))}, not {shape.head_dim}"
        if shape.dtype == "float64":
            return "AdaSplash-2 computes in float32 at most"
        return super().supports(shape)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        from adasplash import adasplash_v2

        if mask.valid is not None or not mask.causal:
            raise Unsupported("AdaSplash-2 takes no mask but the causal one")
        queries, keys = query.shape[2], key.shape[2]
        if queries == keys and keys >= SHORTEST and keys & (keys - 1) == 0:
            whole: Tensor = adasplash_v2(query.contiguous(), key.contiguous(), value.contiguous())
            return whole
        # queries are the last of the sequence; what is missing of it is made up, and told by its length
        length = max(keys, SHORTEST)
        query = F.pad(query, (0, 0, keys - queries, length - keys))
        key, value = (F.pad(x, (0, 0, 0, length - keys)) for x in (key, value))
        lengths = torch.full((query.shape[0],), keys, dtype=torch.int32, device=query.device)
        padded: Tensor = adasplash_v2(query.contiguous(), key.contiguous(), value.contiguous(), varlen=lengths)
        return padded[:, :, keys - queries : keys]
