"""Performer: softmax attention through positive orthogonal random features (FAVOR+)."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..contract import AttentionShape, Count, Width, accumulator
from ..ops.features import FeatureVariant, KeyFeatures


class Performer(FeatureVariant):
    """Softmax attention estimated with positive orthogonal random features (FAVOR+), in linear time.

    `features` is int(d ln d) where None; they are drawn at construction, and saved. Each key is scaled by its own
    largest feature and the scale is carried in the log domain, where released codes subtract one maximum over the whole
    sequence, which lets the future and the padding in. They also add 1e-4 to every feature, which then depends on that
    maximum; here nothing is added.

    `kernel=relu` is the generalised kernel relu(W x) + 1e-3, which does not aim at softmax; as in the authors' code x
    is not scaled by d^-1/4 there. `redraw`: draw new features after so many optimiser steps; never where None. The
    features are shared by the heads. No dropout.
    """

    kind: ClassVar = "approximate"
    simplex: ClassVar = True
    equation: ClassVar = "phi(x)_f = m^-1/2 exp(w_f·x d^-1/4 - |x|^2 d^-1/2 / 2), w orthogonal; O = phi(Q) S / phi(Q) z"
    paper: ClassVar = "Choromanski et al. 2021, Rethinking Attention with Performers, lemma 1"

    feature_seed: Tensor
    projection: Tensor
    steps: Tensor

    def __init__(
        self,
        shape: AttentionShape,
        *,
        features: Width | None = None,
        kernel: Literal["softmax", "relu"] = "softmax",
        redraw: Count | None = None,
    ):
        super().__init__(shape)
        self.features = features or max(1, int(shape.head_dim * math.log(shape.head_dim)))
        self.kernel, self.redraw = kernel, redraw
        # of a seed of its own, so that drawing anew moves no other random number; both are saved, so that a model that
        # is loaded has the features it was trained with, and goes on with those it would have had
        self.register_buffer("feature_seed", torch.randint(2**31, ()))
        self.register_buffer("projection", self._draw(0).to(torch.get_default_dtype()))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    @property
    def feature_count(self) -> int:
        return self.features

    def query_features(self, query: Tensor, first: int) -> Tensor:
        projected = self._project(query)
        if self.kernel == "relu":
            return projected.relu() + 1e-3
        # the factor exp(-|q|^2/2) of a row cancels, as does this maximum
        return (projected - projected.detach().amax(-1, keepdim=True)).exp()

    def key_features(self, key: Tensor, first: int) -> KeyFeatures:
        projected = self._project(key)
        if self.kernel == "relu":
            return KeyFeatures(projected.relu() + 1e-3)
        key = key.to(projected.dtype)
        # ln of exp(w k - |k|^2 / 2): kept as a logarithm, since it leaves the range of float32
        logs = projected - key.square().sum(-1, keepdim=True) * (0.5 * key.shape[-1] ** -0.5)
        # the gradient of a scale that cancels is zero
        scale = logs.detach().amax(-1)
        return KeyFeatures((logs - scale[..., None]).exp(), scale)

    def after_step(self) -> None:
        if self.redraw is None:
            return
        self.steps += 1
        count = int(self.steps)
        if count % self.redraw == 0:
            self.projection.copy_(self._draw(count // self.redraw))

    def state_bytes(self, shape: AttentionShape) -> int | None:
        sums = super().state_bytes(shape)
        scale = shape.heads * accumulator(getattr(torch, shape.dtype)).itemsize if self.kernel == "softmax" else 0
        return None if sums is None else sums + scale

    def _project(self, x: Tensor) -> Tensor:
        x = x.to(accumulator(x.dtype))
        # each side of the softmax kernel takes its half of the scale 1/sqrt(d); the other kernel has none
        scaled = x * x.shape[-1] ** -0.25 if self.kernel == "softmax" else x
        projected: Tensor = scaled @ self.projection.to(x.dtype).T
        return projected

    def _draw(self, draw: int) -> Tensor:
        generator = torch.Generator().manual_seed(int(self.feature_seed) + draw)
        return orthogonal_features(self.features, self.shape.head_dim, generator)


def orthogonal_features(count: int, width: int, generator: torch.Generator) -> Tensor:
    """(count, width), float64: rows orthogonal in blocks of `width`, each of the norm of a Gaussian vector."""
    squares = torch.randn(math.ceil(count / width), width, width, generator=generator, dtype=torch.float64)
    q, r = torch.linalg.qr(squares)
    # without the signs q is not uniform over rotations
    directions: Tensor = (q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None, :]).flatten(0, 1)[:count]
    norms: Tensor = torch.randn(count, width, generator=generator, dtype=torch.float64).norm(dim=1, keepdim=True)
    return directions * norms
