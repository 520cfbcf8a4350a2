"""Softmax attention: the reference of every figure."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor

from ..contract import AttentionShape, Mask, ScoredVariant
from ..ops.fused_softmax import BACKENDS, backend_refusal, fused_softmax


class Softmax(ScoredVariant):
    """Scaled dot-product softmax attention, through PyTorch's fused kernels; the reference.

    `impl=sdpa` leaves the kernel to PyTorch; `flash`, `cudnn`, `efficient` and `math` name one of a CUDA device. A
    Record says which ran. `impl=eager` is the same function from elementary operations: the twin that the gate compares
    with.
    """

    kind: ClassVar = "exact"
    grouped: ClassVar = True
    takes_bounds: ClassVar = True
    simplex: ClassVar = True
    maps_products = True
    equation: ClassVar = "P = softmax(Q K^T / sqrt(d)); O = P V"
    paper: ClassVar = "Vaswani et al. 2017, Attention Is All You Need, eq. 1"
    memory: ClassVar = "O(N d); eager O(N^2)"

    def __init__(
        self,
        shape: AttentionShape,
        *,
        impl: Literal["sdpa", "flash", "cudnn", "efficient", "math", "eager"] = "sdpa",
    ):
        super().__init__(shape)
        self.impl = self.implementation = impl

    def supports(self, shape: AttentionShape) -> str | None:
        named = self.impl in BACKENDS
        return super().supports(shape) or (backend_refusal(self.impl, shape) if named else None)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        if self.impl == "eager":
            return super().forward(query, key, value, mask)
        backend = self.impl if self.impl in BACKENDS else ""
        output, self.implementation = fused_softmax(query, key, value, mask, self.weight_dropout, backend)
        return output
