"""Local attention: each block of queries sees its own block of keys and the `flange` keys beside it."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from ..contract import AttentionShape, Count, Mask, Range, Width
from ..kernels.dispatch import DROPPING, choose_implementation, refusal
from ..ops.bands import Band, RecentCache, attend, cached_bytes
from ..ops.dropout import WeightDropout
from ..ops.patterns import PatternVariant, absent, whole
from ..ops.relative_positions import RankPositions


class Local(PatternVariant):
    """Block-local attention: each block of queries sees its own block and the `flange` keys before it.

    Without a causal mask it also sees the `flange` keys after. The flange is the overlap of neighbouring windows: a
    window has query_block + flange keys, or query_block + 2 flange without a causal mask. The block, not the query,
    sets the window: the first query of a block sees `flange` keys back, the last one block - 1 more. `query_block`: 256
    as in the Routing Transformer, or an eighth of max_length where that is less. `flange`: as `query_block`; any
    number, also 0 (blocks apart). `relative` adds vectors by distance, as the Routing Transformer does; `max_relative`,
    how far they go (at least query_block + flange, which is the default), turns it on. Only the blocks are computed.
    Decoding keeps query_block + flange tokens. `impl`: auto takes C++ on a CPU and Triton's kernels on a GPU where they
    can run, eager otherwise; `flex` is FlexAttention of PyTorch, without them and
    without dropout; eager is the definition, and drops weights by the mask of the kernels.
    """

    equation: ClassVar = "o_i = sum_j softmax_j(q_i·(k_j + a_{j-i}) / sqrt(d)) (v_j + b_{j-i}); j in block(i) ± flange"
    paper: ClassVar = "Parmar et al. 2018, Image Transformer, 1D local attention; Roy et al. 2021, Routing Transformer"
    time: ClassVar = "O(N (query_block + flange) d)"
    memory: ClassVar = "O(N (query_block + flange))"
    drops_inside: ClassVar = DROPPING

    def __init__(
        self,
        shape: AttentionShape,
        *,
        query_block: Count | None = None,
        flange: Annotated[int, Range(0, 1_048_576)] | None = None,
        relative: bool = False,
        max_relative: Width | None = None,
        impl: Literal["auto", "eager", "cpp", "triton", "flex"] = "auto",
    ):
        super().__init__(shape)
        self.impl = impl
        self.query_block = whole("query_block", query_block, min(256, shape.max_length // 8))
        self.flange = whole("flange", flange, self.query_block, least=0)
        needed = self.query_block + self.flange
        because = f"query_block {self.query_block} + flange {self.flange}"
        self.positions = RankPositions.wanted(relative, max_relative, shape.head_dim, needed=needed, because=because)
        self.brings_positions = self.positions is not None
        self.maps_products = not self.brings_positions

    def supports(self, shape: AttentionShape) -> str | None:
        if self.impl == "flex" and self.positions is not None:
            return "impl=flex cannot add vectors to values: use impl=triton, or relative=false"
        return super().supports(shape) or refusal(self.impl, shape, dropping=self.drops_inside)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        self.implementation = choose_implementation(
            *(self.impl, query, key, value),
            dropout=self.weight_dropout,
            dropping=self.drops_inside,
            kernels=DROPPING,
        )
        # fewer queries than keys are the last positions: their bounds count from `missing` on
        missing, keys, scale = absent(query, key), key.shape[2], query.shape[-1] ** -0.5
        drop = WeightDropout.drawn(self.weight_dropout, query.device)
        if self.implementation == "eager":
            # as `PatternVariant.forward`, with dropout, which numbers queries from the first of the call on
            return self.blocked(F.pad(query, (0, 0, missing, 0)), key, value, mask, drop, missing)[:, :, missing:]
        lower, upper = self.bounds(torch.arange(missing, keys, device=query.device), keys, mask.causal)
        # the first query of a block sees query_block + flange - 1 keys ahead, the last one as many back: so far must
        # ranks go
        back = min(self.query_block + self.flange, keys) - 1
        ahead = 0 if mask.causal else back
        if self.implementation == "cpp":
            from ..kernels.cpu import tiles

            # bounds of a causal mask end at each query
            seen = Mask(valid=mask.valid, bounds=torch.stack([lower, upper], -1)[None])
            given = query, key, value, seen, self.positions, drop
            return tiles.rank_attention(*given, back=back, ahead=ahead, offset=missing)
        if self.implementation == "flex":
            from ..kernels.gpu import flex_interval_attention

            return flex_interval_attention(query, key, value, lower, upper, mask.valid, scale=scale)
        from ..kernels.gpu import Intervals, rank_attention

        return rank_attention(
            query,
            key,
            value,
            Intervals(lower=lower[None], upper=upper[None], offset=missing),
            mask.valid,
            scale=scale,
            positions=self.positions,
            back=back,
            ahead=ahead,
            drop=drop,
        )

    def bounds(self, at: Tensor, keys: int, causal: bool) -> tuple[Tensor, Tensor]:
        """First key that the queries at positions `at` may see, and the one after the last: both int32 like `at`."""
        start = at // self.query_block * self.query_block
        # neither bound falls from one query to the next, which the kernels ask for
        upper = at + 1 if causal else (start + self.query_block + self.flange).clamp(max=keys)
        return (start - self.flange).clamp(min=0).int(), upper.int()

    def visible(self, at: Tensor, keys: int, causal: bool) -> Tensor:
        lower, upper = self.bounds(at, keys, causal)
        key_at = torch.arange(keys, device=at.device)
        return ((key_at >= lower[:, None]) & (key_at < upper[:, None]))[None]

    def blocked(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Mask,
        drop: WeightDropout | None = None,
        missing: int = 0,
    ) -> Tensor:
        # the keys of the own block that are later than a query are masked, not left out: the block is one product
        after = 0 if mask.causal else self.flange
        band = Band.fit(query.shape[2], self.query_block, self.flange, after)
        output = attend(
            band.split(query),
            band.spans(key),
            band.spans(value),
            band.allowed(mask.valid, mask.causal, query.device),
            scale=query.shape[-1] ** -0.5,
            kept=band.kept(drop, query.shape[0], query.shape[1], missing),
            positions=self.positions,
            before=band.before,
        )
        return band.merge(output)

    def entries(self, length: int, causal: bool) -> int:
        total = 0
        for start in range(0, length, self.query_block):
            own = min(self.query_block, length - start)
            before, after = min(self.flange, start), min(self.flange, length - start - own)
            total += own * before + (own * (own + 1) // 2 if causal else own * (own + after))
        return total

    def state_bytes(self, shape: AttentionShape) -> int:
        return cached_bytes(shape, self.query_block + self.flange)

    def step(
        self, query: Tensor, key: Tensor, value: Tensor, state: RecentCache | None = None
    ) -> tuple[Tensor, RecentCache]:
        cache = state or RecentCache.empty(key, value)
        # a new block begins: of what came before it only the flange can still be seen
        if cache.seen % self.query_block == 0:
            cache.trim(0, self.flange)
        cache.append(key, value)
        output = attend(
            query,
            cache.key,
            cache.value,
            None,
            scale=query.shape[-1] ** -0.5,
            dropout=self.weight_dropout,
            positions=self.positions,
            before=cache.key.shape[2] - 1,
        )
        return output, cache
