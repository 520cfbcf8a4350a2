"""Skyformer: attention by a Gaussian kernel, approximated from a sample of queries and keys."""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from torch import Tensor

from ..contract import AttentionShape, Mask, Range, SelectionError, Variant, Width
from ..ops.landmarks import iterated_inverse, nystrom_density, picks, real_tokens


class Skyformer(Variant):
    """Gaussian-kernel attention approximated from a sample of queries and keys.

    The kernel matrix of queries and keys together is positive semi-definite, which makes its Nyström approximation
    sound where that of softmax is not. Half of the `landmarks` are queries, half keys. The paper samples them at random
    in every pass; here they are evenly spaced over the real tokens, so that a pass can be repeated. `ridge` is added to
    their kernel matrix before it is inverted, 0.1 in the released code. Rows are not normalised: outputs grow with the
    length. No dropout.
    """

    uses_dropout = False
    causality: ClassVar = None
    crosses: ClassVar = False
    equation: ClassVar = "O = k(Q, L) (k(L, L) + r I)^-1 k(L, K) V; k(x, y) = exp(-|x - y|^2 / (2 sqrt(d)))"
    paper: ClassVar = "Chen et al. 2021, Skyformer: Remodel Self-Attention with Gaussian Kernel and Nyström Method"
    time: ClassVar = "O(N m d + m^3)"
    memory: ClassVar = "O(N m + m^2)"

    def __init__(
        self,
        shape: AttentionShape,
        *,
        landmarks: Width = 128,
        iterations: Annotated[int, Range(0, 100)] = 6,
        ridge: Annotated[float, Range(1e-9, 1e3)] = 0.1,
    ):
        super().__init__(shape)
        if landmarks < 2 or landmarks % 2:
            raise SelectionError(f"expected an even number of landmarks, half queries and half keys, got {landmarks}")
        if ridge <= 0:
            raise SelectionError(f"expected a positive ridge, got {ridge}: without it the inverse need not exist")
        self.landmarks, self.iterations, self.ridge = landmarks, iterations, ridge

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        valid, q, k, v = real_tokens("skyformer", query, key, value, mask)
        # both by d^(-1/4), so that the squared distance is divided by sqrt(d)
        q, k = q * q.shape[-1] ** -0.25, k * k.shape[-1] ** -0.25
        chosen, used = picks(valid, min(self.landmarks // 2, k.shape[2]), q.dtype)
        # queries and keys in one set of landmarks: the matrix among them is then positive semi-definite
        marks = torch.cat([chosen[:, None] @ q, chosen[:, None] @ k], 2)
        used = torch.cat([used, used], -1)[:, None]

        left = gaussian(q, marks) * used[:, :, None, :]
        right = gaussian(marks, k) * used[..., None]
        middle = gaussian(marks, marks) * (used[..., None] & used[:, :, None, :])
        middle = middle + self.ridge * torch.eye(middle.shape[-1], dtype=middle.dtype, device=middle.device)
        # scaled by its row sums the matrix has norm 1, where the iteration converges fastest
        shrink = middle.sum(-1, keepdim=True) ** -0.5
        inverse = iterated_inverse(shrink * middle * shrink.transpose(-2, -1), self.iterations)
        return (left @ (shrink * (inverse @ (shrink * (right @ v))))).to(value.dtype)

    def density(self, shape: AttentionShape) -> float:
        return nystrom_density(shape.max_length, self.landmarks)


def gaussian(x: Tensor, y: Tensor) -> Tensor:
    """exp(-|x_i - y_j|^2 / 2), (…, i, j); never above 1, whatever the rounding."""
    squares = x.square().sum(-1)[..., :, None] + y.square().sum(-1)[..., None, :]
    return (x @ y.transpose(-2, -1) - 0.5 * squares).clamp(max=0.0).exp()
