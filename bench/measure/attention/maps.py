"""Attention maps: the weights of a trained model on a few real examples, pooled to a size that can be stored."""

from __future__ import annotations

import io

import numpy as np
import torch
from torch import Tensor

from ....variants.contract import Mask, Variant
from ...models.blocks import Batch, Model
from .recorder import recording, slices, weights_of_rows
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

    def record(_: int, variant: Variant, query: Tensor, key: Tensor, mask: Mask) -> None:
        queries, keys = query.shape[2], key.shape[2]
        side = -(-max(queries, keys) // SIDE)
        # whole squares in every part, so that pooling by parts is pooling of all
        parts = weights_of_rows(variant, query, key, mask, slices(queries, CHUNK * side))
        pooled = [shrunk(weights.float(), side).cpu() for _, weights in parts]
        if pooled:
            found.append(torch.cat(pooled, dim=2))

    with recording(model.variants, record), torch.inference_mode():
        model.loss(batch)
    if len(found) < len(model.variants):
        return None
    maps = torch.stack([layer[:: ids.shape[1]] for layer in found], dim=1)
    file = io.BytesIO()
    np.savez_compressed(
        file, maps=maps.numpy().astype(np.float16), tokens=ids[:, 0].astype(np.uint16), lengths=lengths[:, 0]
    )
    return file.getvalue()


def shrunk(weights: Tensor, side: int) -> Tensor:
    """Means over squares of `side`; those at the edges are over what there is. (batch, heads, rows, keys) to fewer."""
    pooled: Tensor = torch.nn.functional.avg_pool2d(weights, side, ceil_mode=True, count_include_pad=False)
    return pooled
