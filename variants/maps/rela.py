"""Rectified linear attention: ReLU in the place of softmax, and a gated norm of what comes out."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn

from ..contract import AttentionShape, Mask, Range, ScoredVariant
from ..kernels.dispatch import DROPPING, choose_implementation, refusal
from ..ops.dropout import WeightDropout
from ..ops.inputs import check_inputs
from ..ops.written import write


class ReLA(ScoredVariant):
    """Rectified linear attention: ReLU of the scores as weights, then an RMS norm gated by its own input.

    Weights are the rectified scores: not normalised, before dropout. The norm runs over the concatenated heads, so that
    their relative size matters; `norm=head` gives each head its own, `gated=false` leaves the gate out. `epsilon` is
    the paper's 1e-8. Sums, norm and gate are computed in float32 whatever the dtype of the inputs, since the sum over
    keys grows with their number and leaves the range of float16.

    A query without a positive score in any head is a null row: its output is exactly zero, and so is its gradient. The
    norm multiplies gradients by up to 1 / sqrt(epsilon) = 1e4 there, which float32 holds with room (it would leave the
    range of float16, and then meet a zero as infinity), and the ReLU lets nothing of it through. Rows that are nearly
    null do pass it on; a larger epsilon tames them.

    `impl` forces one way to compute the weighted sums; `eager` is the definition. All drop weights by one mask.
    """

    equation: ClassVar = "P = ReLU(Q K^T / sqrt(d)); o = P V; O = s * o / sqrt(mean(o^2) + eps) * sigmoid(g * o)"
    paper: ClassVar = "Zhang, Titov & Sennrich 2021, Sparse Attention with Linear Units"
    memory: ClassVar = "O(N d); eager O(N^2)"
    simplex: ClassVar = False
    # the norm then averages over two dimensions of zeros more: a constant factor, which `scale` holds as well
    maps_products = True
    grouped: ClassVar = True
    takes_bounds: ClassVar = True
    drops_inside: ClassVar = DROPPING

    def __init__(
        self,
        shape: AttentionShape,
        *,
        gated: bool = True,
        norm: Literal["concat", "head"] = "concat",
        epsilon: Annotated[float, Range(0, 1)] = 1e-8,
        impl: Literal["auto", "eager", "cpp", "triton"] = "auto",
    ):
        super().__init__(shape)
        self.impl = impl
        self.norm = norm
        self.epsilon = epsilon
        self.scale = nn.Parameter(torch.ones(shape.width))
        # uniform with the variance 1 / width: the gate starts near one half
        bound = math.sqrt(3.0 / shape.width)
        self.gate = nn.Parameter(torch.empty(shape.width).uniform_(-bound, bound)) if gated else None

    def weigh(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        # no normalisation here: the norm after the values takes that part
        weights = scores.relu()
        # not times zero: a key that is hidden may hold NaN
        return weights if allowed is None else weights.masked_fill(~allowed, 0.0)

    def supports(self, shape: AttentionShape) -> str | None:
        return super().supports(shape) or refusal(self.impl, shape, dropping=self.drops_inside)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        # scale and gate are as wide as the heads together
        check_inputs(query, key, value, mask.valid, one_width=True, grouped=True)
        sums = self.sums(query, key, value, mask)
        # the norm goes the way that the sums went, so that a path is fused as a whole
        parameters = (self.scale, self.gate, self.epsilon)
        if self.implementation == "triton":
            from ..kernels.gpu import norm as triton_norm

            return triton_norm.gated_rms_norm(sums, *parameters, self.norm, value.dtype)
        if self.implementation == "cpp":
            from ..kernels.cpu import norm as cpu_norm

            return cpu_norm.gated_rms_norm(sums, *parameters, self.norm).to(value.dtype)
        return self.normalise(sums).to(value.dtype)

    def sums(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        """Weighted sums of values, (batch, heads, queries, head_dim), float32 at least."""
        self.implementation = choose_implementation(
            *(self.impl, query, key, value),
            dropout=self.weight_dropout,
            dropping=self.drops_inside,
            bounds=mask.bounds is not None,
            kernels=DROPPING,
        )
        drop = WeightDropout.drawn(self.weight_dropout, query.device)
        if self.implementation == "eager":
            weights = self.weights(query, key, mask)
            weights = weights if drop is None else drop.apply(weights)
            return self.average(weights, value.to(weights.dtype))
        if self.implementation == "triton":
            from ..kernels.gpu import map_attention

            return map_attention(query, key, value, mask.valid, mask.causal, write(torch.relu), drop, homogeneous=True)
        from ..kernels.cpu.tiles import tiled_attention

        return tiled_attention(query, key, value, mask, write(torch.relu), drop)

    def normalise(self, sums: Tensor) -> Tensor:
        """The gated norm of the weighted sums of values, both (batch, heads, queries, head_dim), float32 at least."""
        return gated_rms_norm(sums, self.scale, self.gate, self.epsilon, self.norm == "concat")


def gated_rms_norm(sums: Tensor, scale: Tensor, gate: Tensor | None, epsilon: float, concat: bool) -> Tensor:
    """scale * x / sqrt(mean(x^2) + epsilon) * sigmoid(gate * x), x = `sums`, (batch, heads, queries, head_dim).

    scale and gate are (heads * head_dim,), gate None = no gate. The mean is over all heads of a query with `concat`,
    else over each head. Zhang, Titov & Sennrich 2021, eq. 7-8.
    """
    per_head = (sums.shape[1], 1, sums.shape[3])
    inverse = torch.rsqrt(sums.square().mean((1, 3) if concat else (3,), keepdim=True) + epsilon)
    # scale and gate are indexed by head and dimension, whichever the mean is over
    output = sums * inverse * scale.view(per_head)
    return output if gate is None else output * torch.sigmoid(gate.view(per_head) * sums)
