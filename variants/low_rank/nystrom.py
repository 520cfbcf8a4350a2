"""Nyströmformer: softmax attention from its landmarks, with a convolution over the values beside it."""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..contract import AttentionShape, Mask, Range, SelectionError, Variant, Width, masked_softmax
from ..ops.landmarks import iterated_inverse, nystrom_density, real_tokens, segments


class Nystrom(Variant):
    """Softmax attention approximated from landmarks, the means of segments of the real tokens.

    A sequence of at most `landmarks` real tokens gets exact softmax attention, whatever its padding. `kernel`: width of
    the depthwise convolution over values, odd, one filter per head; 0 = none. The starting point of the inverse is
    scaled per sequence and head: released codes take a maximum over the batch, so that an output depends on its
    neighbours. No dropout, as in the released code.
    """

    uses_dropout = False
    kind: ClassVar = "approximate"
    causality: ClassVar = None
    crosses: ClassVar = False
    equation: ClassVar = "O = softmax(Q K~^T) softmax(Q~ K~^T)^+ softmax(Q~ K^T) V + conv(V), scores / sqrt(d)"
    paper: ClassVar = "Xiong et al. 2021, Nyströmformer, section 3"
    time: ClassVar = "O(N m d + m^3)"
    memory: ClassVar = "O(N m + m^2)"

    def __init__(
        self,
        shape: AttentionShape,
        *,
        landmarks: Width = 128,
        iterations: Annotated[int, Range(0, 100)] = 6,
        kernel: Annotated[int, Range(0, 65_535)] = 33,
    ):
        super().__init__(shape)
        if kernel and kernel % 2 == 0:
            raise SelectionError(f"expected an odd width of the convolution, or 0 for none, got kernel={kernel}")
        self.landmarks, self.iterations = landmarks, iterations
        self.filters = nn.Parameter(torch.empty(shape.heads, 1, kernel, 1)) if kernel else None
        if self.filters is not None:
            nn.init.uniform_(self.filters, -(kernel**-0.5), kernel**-0.5)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        valid, q, k, v = real_tokens("nystrom", query, key, value, mask)
        q = q * q.shape[-1] ** -0.5
        mean, used = segments(valid, min(self.landmarks, k.shape[2]), q.dtype)
        # a sequence with fewer real tokens than landmarks leaves rows unused: they are masked in all three matrices
        mean, columns, rows = mean[:, None], used[:, None, None, :], used[:, None, :, None]
        q_marks, k_marks = mean @ q, mean @ k

        # queries to landmarks, landmarks to landmarks, landmarks to keys: three thin softmaxes for one square one
        left = masked_softmax(q @ k_marks.transpose(-2, -1), columns)
        middle = masked_softmax(q_marks @ k_marks.transpose(-2, -1), columns & rows)
        right = masked_softmax(q_marks @ k.transpose(-2, -1), valid[:, None, None, :] & rows)
        summaries = iterated_inverse(middle, self.iterations) @ (right @ v)
        # where each token is its own landmark the product is softmax attention itself, so the inverse is left out
        each_its_own = valid.sum(-1) <= self.landmarks
        output = left @ torch.where(each_its_own[:, None, None, None], mean @ v, summaries)
        if self.filters is not None:
            filters = self.filters.to(v.dtype)
            # the paper's skip connection; padded values are zero already
            output = output + F.conv2d(v, filters, padding=(filters.shape[2] // 2, 0), groups=filters.shape[0])
        return output.to(value.dtype)

    def density(self, shape: AttentionShape) -> float:
        return nystrom_density(shape.max_length, self.landmarks)
