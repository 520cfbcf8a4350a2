"""A causal convolution over embeddings, before the blocks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...tasks.contract import Recipe


class EmbeddingConvolution(nn.Module):
    """x_t + sum over 0 < u < kernel of W_u x_(t - u): each token knows the `kernel` - 1 before it.

    Of width 2 it is a token shift, as that of RWKV (Peng et al. 2023), with a full matrix: the short way by which a
    value knows its key in recall (Arora et al. 2023 put a convolution of width 3 there). The token itself stays as it
    is: a matrix on it as well halves the others at the start, and selective copying then learns half as fast.
    """

    def __init__(self, width: int, kernel: int):
        super().__init__()
        self.kernel = kernel
        self.convolution = nn.Conv1d(width, width, kernel - 1, bias=False)

    def forward(self, x: Tensor, past: Tensor | None = None) -> Tensor:
        """(batch, length, width) to the same; `past`: the inputs before, (batch, kernel - 1, width), else 0."""
        past = self.nothing_before(x) if past is None else past
        before = torch.cat([past, x], dim=1)[:, :-1]
        added: Tensor = self.convolution(before.transpose(1, 2))
        return x + added.transpose(1, 2)

    def nothing_before(self, like: Tensor) -> Tensor:
        """The past of a first token: zeros, of a batch like (batch, length, width)."""
        return like.new_zeros(like.shape[0], self.kernel - 1, like.shape[2])


def convolution_of(recipe: Recipe) -> EmbeddingConvolution | None:
    """None where the recipe has none, which draws no random number."""
    return EmbeddingConvolution(recipe.width, recipe.convolution) if recipe.convolution else None
