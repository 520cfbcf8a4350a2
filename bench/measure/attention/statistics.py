"""Statistics of a trained model's attention on real batches, with the weights of one chunk of queries at a time.

Formulas: zero share, null rows and entropy as in ReLA (Zhang et al. 2021) and adaptively sparse Transformers (Correia
et al. 2019); distance is Long Range Arena's required attention span (Tay et al. 2020, section 2.3), in tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from ....variants.contract import Mask
from ...core.record import Measurement
from ...models.blocks import Batch, Model
from .recorder import CHUNK, Call, recording, slices

BLOCKS = (16, 64, 128)


class AttentionSums:
    """Sums over the rows of one layer, by head: (heads,) float64 each."""

    def __init__(self, heads: int):
        # float64: a count of entries passes 2^24, where float32 stops counting, within a few long sequences
        counts = torch.zeros(4, heads, dtype=torch.float64)
        self.rows, self.null, self.entries, self.zeros = counts
        self.entropy, self.entropy_rows, self.distance, self.distance_rows = torch.zeros_like(counts)
        self.tiles, self.empty_tiles = (
            {block: torch.zeros(heads, dtype=torch.float64) for block in BLOCKS} for _ in range(2)
        )

    def quotients(self) -> Iterator[tuple[str, Tensor, Tensor, dict[str, int]]]:
        """Name of each statistic, its numerator and denominator, and its `where`."""
        yield "sparsity", self.zeros, self.entries, {}
        yield "null_rate", self.null, self.rows, {}
        yield "entropy", self.entropy, self.entropy_rows, {}
        yield "attention_distance", self.distance, self.distance_rows, {}
        for block in BLOCKS:
            yield "block_sparsity", self.empty_tiles[block], self.tiles[block], {"block": block}


def measure_attention(model: Model, batches: Iterable[Batch]) -> list[Measurement]:
    """Overall, per-layer and per-head figures over `batches`; none for a variant without weights."""
    sums: dict[int, AttentionSums] = {}
    model.eval()
    with recording(model.variants, partial(count_weights, sums)), torch.inference_mode():
        for batch in batches:
            model.loss(batch)
    return list(measurements_of(sums))


def count_weights(sums: dict[int, AttentionSums], layer: int, call: Call, parts: Iterable[slice] | None = None) -> None:
    """Adds the weights of the queries in `parts`, by default all, to the sums of `layer`."""
    for rows, weights in call.weights_of(slices(call.queries, CHUNK) if parts is None else parts):
        count_rows(sums.setdefault(layer, AttentionSums(weights.shape[1])), weights, call.mask, call.queries, rows)


def count_rows(sums: AttentionSums, weights: Tensor, mask: Mask, queries: int, rows: slice) -> None:
    """Adds weights (batch, heads, rows, keys) of the queries in `rows`; padded queries do not count.

    `rows` must start at a multiple of the largest block, so that tiles are whole.
    """
    batch, _, count, keys = weights.shape
    # Sums over many rows, and logarithms of small weights, lose digits in float32. Weights below zero, as differential
    # attention has them, count by their size.
    weights = weights.to(torch.float64).abs()
    allowed = mask.allowed(queries, keys, weights.device, rows)
    if allowed is None:
        allowed = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=weights.device)
    real = torch.ones(batch, count, dtype=torch.bool, device=weights.device)
    if mask.valid is not None and queries == keys:
        real = mask.valid[:, rows]
    entry = (allowed & real[:, None, :, None]).expand(batch, 1, count, keys)
    # Exactly zero: a small weight costs as much as a large one, so a threshold would measure nothing that can be saved.
    positive = (weights > 0) & entry
    live = positive.any(-1) & real[:, None]

    def add(total: Tensor, values: Tensor) -> None:
        total += values.sum((0, 2)).cpu().double().expand_as(total)

    add(sums.rows, real[:, None].double())
    add(sums.null, (real[:, None] & ~live).double())
    add(sums.entries, entry.sum(-1).double())
    add(sums.zeros, (entry & (weights == 0)).sum(-1).double())
    normal = weights * entry
    normal = normal / normal.sum(-1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    options = entry.sum(-1)
    counted = live & (options > 1)
    bits = -(torch.where(normal > 0, normal, 1.0).log() * normal).sum(-1)
    # Divided by the logarithm of the keys that may be seen, so that lengths and causal rows compare; 1 is uniform.
    add(sums.entropy, torch.where(counted, bits / options.clamp(min=2).double().log(), 0.0))
    add(sums.entropy_rows, counted.double())
    # Fewer queries than keys are aligned at the end.
    at = torch.arange(rows.start, rows.start + count, device=weights.device) + (keys - queries)
    distance = (torch.arange(keys, device=weights.device)[None, :] - at[:, None]).abs().double()
    add(sums.distance, torch.where(live, (normal * distance).sum(-1), 0.0))
    add(sums.distance_rows, live.double())
    for block in BLOCKS:
        # A kernel can skip a tile only if all of it is zero, which is why element and block sparsity differ so much.
        # (batch, heads, row tiles, key tiles): whether any of the entries may be seen, and is above zero
        inside, filled = (F.max_pool2d(each.float(), block, ceil_mode=True).bool() for each in (entry, positive))
        add(sums.tiles[block], inside.sum(-1).double())
        add(sums.empty_tiles[block], (inside & ~filled).sum(-1).double())


def measurements_of(sums: dict[int, AttentionSums]) -> Iterator[Measurement]:
    """Each statistic: the mean over layers and heads, then that of each head. sums: by layer."""
    layers = sorted(sums)
    for each in zip(*(sums[layer].quotients() for layer in layers), strict=True):
        name, _, _, where = each[0]
        numerators, denominators = (torch.stack([quotient[part] for quotient in each]) for part in (1, 2))
        if float(denominators.sum()) == 0:
            continue
        # the mean over layers and heads, each an average over its own rows: how many rows count differs between them
        cells = numerators / denominators.clamp(min=1)
        yield Measurement.of(name, float(cells[denominators > 0].mean()), **where)
        for at, layer in enumerate(layers):
            for head in range(cells.shape[1]):
                if denominators[at, head] > 0:
                    yield Measurement.of(name, float(cells[at, head]), **where, layer=layer, head=head)
