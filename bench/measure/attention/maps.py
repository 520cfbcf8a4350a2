"""Maps: the weights of a trained model on a few real examples, small enough to keep and to look at."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....variants.contract import Mask, Variant
from ...models.blocks import Batch, Model
from .statistics import CHUNK

SIDE = 64


def attention_maps(model: Model, batch: Batch) -> bytes | None:
    """An .npz of the weights of each example of `batch`; None for a variant without weights.

    `maps`: float16 (examples, layers, heads, rows, keys), means over squares so that no side exceeds 64;
    `tokens`: uint16 (examples, length), 0 = padding; `lengths`: int64 (examples,). Of pairs, the first sequence.
    """
    ids, lengths = (values.cpu().numpy() for values in batch[:2])
    found: list[Tensor] = []
    model.eval()
    handles = [variant.register_forward_hook(_recorder(found)) for variant in model.variants]
    try:
        with torch.inference_mode():
            model.loss(batch)
    finally:
        for handle in handles:
            handle.remove()
    if len(found) < len(model.variants):
        return None
    maps = torch.stack([layer[:: ids.shape[1]] for layer in found], dim=1)
    file = io.BytesIO()
    np.savez_compressed(
        file, maps=maps.numpy().astype(np.float16), tokens=ids[:, 0].astype(np.uint16), lengths=lengths[:, 0]
    )
    return file.getvalue()


def _recorder(found: list[Tensor]) -> Any:
    def record(variant: Variant, arguments: tuple[Tensor, Tensor, Tensor, Mask], _: Tensor) -> None:
        query, key, _, mask = arguments
        queries, keys = query.shape[2], key.shape[2]
        side = -(-max(queries, keys) // SIDE)
        rows = CHUNK * side
        parts = []
        for first in range(0, queries, rows):
            weights = variant.weights(query, key, mask, slice(first, min(first + rows, queries)))
            if weights is None:
                return
            parts.append(shrunk(weights.float(), side).cpu())
        found.append(torch.cat(parts, dim=2))

    return record


def shrunk(weights: Tensor, side: int) -> Tensor:
    """Means over squares of `side`; those at the edges are over what there is. (batch, heads, rows, keys) to fewer."""
    pooled: Tensor = torch.nn.functional.avg_pool2d(weights, side, ceil_mode=True, count_include_pad=False)
    return pooled
