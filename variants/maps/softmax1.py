"""Softmax with a sink: a row may give its keys less than all of its weight."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from ..contract import AttentionShape, ScoredVariant


class Softmax1(ScoredVariant):
    """Softmax with a sink, one more entry in each row's sum that has a score but no value: a head can abstain.

    `sink=zero`: the score of the sink is 0, as in Miller's "softmax one". `sink=learned`: one score for each head,
    started at 0, as gpt-oss has it. Unlike softmax, it is not the same for scores that all are shifted.
    """

    simplex: ClassVar = False
    maps_products = True
    grouped: ClassVar = True
    takes_bounds: ClassVar = True
    equation: ClassVar = "P_ij = exp(s_ij) / (exp(sink) + sum_j exp(s_ij)), s = Q K^T / sqrt(d); O = P V"
    paper: ClassVar = (
        "Miller 2023, Attention Is Off By One; sink=learned: OpenAI 2025, gpt-oss model card (arXiv 2508.10925)"
    )

    def __init__(self, shape: AttentionShape, *, sink: Literal["zero", "learned"] = "zero"):
        super().__init__(shape)
        self.sink = nn.Parameter(torch.zeros(shape.heads)) if sink == "learned" else None

    def weigh(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        if allowed is not None:
            scores = scores.masked_fill(~allowed, -torch.inf)
        sink = scores.new_zeros(()) if self.sink is None else self.sink.to(scores.dtype)[:, None, None]
        # the sink keeps the maximum finite on a row without a key; it cancels, so no gradient is due
        top = torch.maximum(scores.amax(-1, keepdim=True), sink).detach()
        exponentials = (scores - top).exp()
        return exponentials / (exponentials.sum(-1, keepdim=True) + (sink - top).exp())
