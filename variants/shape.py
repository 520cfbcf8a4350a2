"""The shape of attention that a variant is built for."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..bench.core.errors import SelectionError


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """The shape that a variant is built for. `max_length` bounds queries and keys; `dropout` is that of the weights.

    kv_heads: heads of keys and values, each shared by a group of heads / kv_heads query heads that stand side by side
    (grouped-query attention, Ainslie et al. 2023); 0, the default, stands for `heads`, and is so after construction.
    hidden_width: width of the hidden state; 0, the default, stands for heads * head_dim, and is so after construction.
    dtype: that of query, key and value, by its name in torch; device as torch writes it. `layer` counts from 0. Raises
    SelectionError where kv_heads does not divide heads.
    """

    heads: int
    head_dim: int
    max_length: int
    kv_heads: int = 0
    hidden_width: int = 0
    causal: bool = False
    cross: bool = False
    padding: bool = True
    dropout: float = 0.0
    dtype: str = "float32"
    device: str = "cpu"
    layer: int = 0
    layers: int = 1

    def __post_init__(self) -> None:
        if not self.kv_heads:
            object.__setattr__(self, "kv_heads", self.heads)
        if not self.hidden_width:
            object.__setattr__(self, "hidden_width", self.width)
        if not 1 <= self.kv_heads <= self.heads or self.heads % self.kv_heads:
            raise SelectionError(f"expected kv_heads that divides {self.heads} heads, got {self.kv_heads}")

    @property
    def width(self) -> int:
        """heads times head_dim: the width of the model that the heads make up."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """kv_heads times head_dim: the width of the keys of a token, and of its values."""
        return self.kv_heads * self.head_dim

    @property
    def bytes_per_value(self) -> int:
        """Bytes of a number of `dtype`."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype.itemsize
