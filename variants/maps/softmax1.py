"""Softmax with a sink: a row may give its keys less than all of its weight."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from ..contract import AttentionShape
from .elementwise import ElementwiseMap, Impl


class Softmax1(ElementwiseMap):
    """Softmax with a sink, one more entry in each row's sum that has a score but no value: a head can abstain.

    `sink=zero`: the score of the sink is 0, as in Miller's "softmax one". `sink=learned`: one score for each head,
    started at 0, as gpt-oss has it. Unlike softmax, it is not the same for scores that all are shifted.
    """

    simplex: ClassVar = False
    normaliser: ClassVar = "sum"
    sink_score: ClassVar = 0.0
    equation: ClassVar = "P_ij = exp(s_ij) / (exp(sink) + sum_j exp(s_ij)), s = Q K^T / sqrt(d); O = P V"
    paper: ClassVar = (
        "Miller 2023, Attention Is Off By One; sink=learned: OpenAI 2025, gpt-oss model card (arXiv 2508.10925)"
    )

    def __init__(self, shape: AttentionShape, *, sink: Literal["zero", "learned"] = "zero", impl: Impl = "auto"):
        super().__init__(shape, impl=impl)
        if sink == "learned":
            self.sink = nn.Parameter(torch.zeros(shape.heads))

    @staticmethod
    def map(scores: Tensor, top: Tensor) -> Tensor:
        return (scores - top).exp()
