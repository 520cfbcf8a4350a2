"""Projections of the hidden state, for gates, decays, rates and indexes."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


def projected(linear: nn.Linear, hidden: Tensor) -> Tensor:
    """`linear` of the hidden state, (batch, length, hidden_width) -> (batch, length, out), in the dtype of `hidden`."""
    bias = None if linear.bias is None else linear.bias.to(hidden.dtype)
    return F.linear(hidden, linear.weight.to(hidden.dtype), bias)
