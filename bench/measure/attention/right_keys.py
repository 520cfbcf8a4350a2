"""Attention at the right key: how much weight an asked position puts on the one key that holds its answer.

It explains curves of accuracy over length: a map that gives every key a little weight has less left for the right one,
the more keys there are.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...models.blocks import Batch
from ...models.decoder import TokenPredictor
from .recorder import CHUNK, Call, recording, slices


@dataclass
class RightKeys:
    """Sums of weights by layer, (heads,) float64 each, over `count` asked positions."""

    sums: dict[int, Tensor] = field(default_factory=dict)
    positions: dict[int, int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return max(self.positions.values(), default=0)

    def means(self) -> Tensor:
        """The mean weight of every head of every layer, (layers · heads,), the layers in order."""
        return torch.cat([self.sums[layer] / self.positions[layer] for layer in sorted(self.sums)])


def weight_on_right_keys(found: RightKeys, model: TokenPredictor, batch: Batch, right_keys: Tensor) -> None:
    """Adds to `found` the weights of one example on its right keys (1, asked), -1 where there is none.

    Weights are shares of what a query gives to all keys, since not every map's weights sum to one; a query that gives
    nothing counts as 0. Nothing is added for variants without weights.
    """
    ids, _, asked, answers = batch[:4]
    wanted = (answers[0] != 0) & (right_keys[0] >= 0)
    rows_asked, keys_right = asked[0][wanted], right_keys[0][wanted]

    def record(layer: int, call: Call) -> None:
        # only the stretches of queries that hold an asked one: weights of all queries of a long sequence are large
        parts = [
            part
            for part in slices(call.queries, CHUNK)
            if bool(((rows_asked >= part.start) & (rows_asked < part.stop)).any())
        ]
        for part, weights in call.weights_of(parts):
            inside = (rows_asked >= part.start) & (rows_asked < part.stop)
            chosen = weights[0, :, rows_asked[inside] - part.start].double()
            total = chosen.abs().sum(-1).clamp(min=torch.finfo(torch.float64).tiny)
            at = keys_right[inside][None, :, None].expand(chosen.shape[0], -1, 1)
            shares = chosen.abs().gather(-1, at)[..., 0] / total
            found.sums[layer] = found.sums.get(layer, torch.zeros(len(shares), dtype=torch.float64)) + (
                shares.sum(-1).cpu()
            )
            found.positions[layer] = found.positions.get(layer, 0) + shares.shape[1]

    if len(rows_asked):
        with recording(model.variants, record):
            model(ids[:, 0], asked)
