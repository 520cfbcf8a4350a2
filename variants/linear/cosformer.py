"""cosFormer: ReLU features, reweighted by the cosine of the distance."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from ..contract import Unsupported, accumulator
from ..ops.features import FeatureVariant, KeyFeatures


class Cosformer(FeatureVariant):
    """ReLU features times cos and sin of the position, so that weights fall as cos(pi/2 (i - j)/M).

    M is `max_length` and not the length at hand, as in the released code: otherwise a longer sequence would change
    every earlier output. A length above it raises Unsupported. No dropout.
    """

    equation: ClassVar = "W_ij = relu(q_i)·relu(k_j) cos(pi/2 (i - j)/M); O = W V / max(W 1, 1e-6)"
    paper: ClassVar = "Qin et al. 2022, cosFormer: Rethinking Softmax in Attention, section 3"
    time: ClassVar = "O(N d^2)"
    memory: ClassVar = "O(N d + d^2)"
    floor: ClassVar = 1e-6

    @property
    def feature_count(self) -> int:
        return 2 * self.shape.head_dim

    def query_features(self, query: Tensor, first: int) -> Tensor:
        return self._features(query, first)

    def key_features(self, key: Tensor, first: int) -> KeyFeatures:
        return KeyFeatures(self._features(key, first))

    def _features(self, x: Tensor, first: int) -> Tensor:
        longest, end = self.shape.max_length, first + x.shape[2]
        if end > longest:
            raise Unsupported(f"expected at most {longest} positions, got {end}: build cosformer for a longer length")
        dtype = accumulator(x.dtype)
        # cos(a - b) = cos a cos b + sin a sin b: a weight by distance becomes features of either side
        angle = torch.arange(first, end, device=x.device, dtype=dtype)[:, None] * (math.pi / 2 / longest)
        rectified = x.to(dtype).relu()
        return torch.cat([rectified * angle.cos(), rectified * angle.sin()], -1)
