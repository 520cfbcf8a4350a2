"""The part that maps with few weights a query share: parameters, dispatch to kernels, and the eager definition."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor

from ..contract import AttentionShape, Mask, ScoredVariant
from ..kernels.dispatch import DROPPING, choose_implementation, refusal
from ..kernels.gpu import LOWEST_ALPHA
from ..ops.dropout import WeightDropout


class SparseMap(ScoredVariant):
    """Base of sparsemax, entmax15, entmax, asentmax and topk, which go through the same kernels.

    They differ in alpha, asentmax scales its queries, and topk has a kernel for a CPU alone.
    """

    time: ClassVar = "O(N^2 d) and a solve per query"
    memory: ClassVar = "O(N d); eager O(N^2)"
    simplex: ClassVar = True
    maps_products = True
    grouped: ClassVar = True
    takes_bounds: ClassVar = True
    drops_inside: ClassVar = DROPPING
    fixed_alpha: float | None = None

    def __init__(
        self,
        shape: AttentionShape,
        *,
        impl: Literal["auto", "eager", "cpp", "triton"] = "auto",
    ):
        super().__init__(shape)
        self.impl = impl

    def scaled(self, query: Tensor, keys: int, mask: Mask) -> Tensor:
        """The queries whose scaled products with `keys` keys are the scores.

        `query` itself, unless a subclass overrides it.
        """
        return query

    def supports(self, shape: AttentionShape) -> str | None:
        return super().supports(shape) or refusal(
            self.impl, shape, dropping=self.drops_inside, alpha=self.fixed_alpha or 1.5
        )

    def _impl(self, device: str) -> str:
        """`impl`, but eager where `auto` would come to kernels that do not do this alpha."""
        if self.impl != "auto" or self.fixed_alpha is None:
            return self.impl
        # Above 2 the norm that the kernels' Newton method descends is not convex: the eager path bisects. Near 1 the
        # exponent 1 / (alpha - 1) leaves what Triton's float32 can hold.
        lowest = LOWEST_ALPHA if device == "cuda" else 1.0
        return "auto" if lowest <= self.fixed_alpha <= 2.0 else "eager"

    def weights(self, query: Tensor, key: Tensor, mask: Mask, rows: slice | None = None) -> Tensor:
        return super().weights(self.scaled(query, key.shape[2], mask), key, mask, rows)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        """`impl` forces one way to compute it, `eager` is the definition. All drop weights by one mask."""
        self.implementation = choose_implementation(
            *(self._impl(query.device.type), query, key, value),
            dropout=self.weight_dropout,
            dropping=self.drops_inside,
            bounds=mask.bounds is not None,
            kernels=self.drops_inside,
        )
        drop = WeightDropout.drawn(self.weight_dropout, query.device)
        if self.implementation == "eager":
            weights = self.weights(query, key, mask)
            weights = weights if drop is None else drop.apply(weights)
            return self.average(weights.to(value.dtype), value)
        return self.fused(self.scaled(query, key.shape[2], mask), key, value, mask, drop)

    def fused(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, drop: WeightDropout | None) -> Tensor:
        """The output by the kernels that `implementation` names."""
        # a number picks the maps without a logarithm; a tensor is solved for each head, and gets a gradient
        alpha = self.learned_alpha() if self.fixed_alpha is None else self.fixed_alpha
        assert alpha is not None
        if self.implementation == "triton":
            from ..kernels.gpu import entmax as triton_entmax

            # its products take one dtype
            query = query.to(key.dtype)
            return triton_entmax.entmax_attention(query, key, value, alpha, mask.valid, mask.causal, drop)
        from ..kernels.cpu import entmax as cpu_entmax

        return cpu_entmax.entmax_attention(query, key, value, alpha, mask, drop)
