"""BigBird: a window of blocks, random blocks and global blocks."""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ..contract import AttentionShape, Mask, Range, SelectionError, Unsupported, Width
from ..ops.bands import attend
from ..ops.dropout import KeptPairs, WeightDropout
from ..ops.patterns import whole
from .tiled import Impl, TiledPattern


class BigBird(TiledPattern):
    """Block-sparse attention: each block of queries sees a window of blocks, random blocks and the global blocks.

    `block`: 64 as in the paper, or 1/32 of max_length where that is less; `window_blocks`, odd, is centred on the
    query's own. The random blocks differ by head and layer, are drawn over max_length at construction and saved, and
    never coincide with window or global blocks; in a shorter sequence those past its end drop out. The first
    `global_blocks` blocks see everything and are seen by all; the authors' code takes the first and the last block, but
    the last one would move with the padding. Not causal, as in the paper, where decoders use full attention. On a CPU
    C++ goes by tiles of 64.
    """

    causality: ClassVar = None
    equation: ClassVar = "o_i = sum_j softmax_j(q_i·k_j / sqrt(d)) v_j; block(j) in window, random, global of block(i)"
    paper: ClassVar = "Zaheer et al. 2020, Big Bird: Transformers for Longer Sequences, sec. 2 and app. D"
    time: ClassVar = "O(N (window + random + global blocks) block d)"
    memory: ClassVar = "O(N (window + random + global blocks) block)"

    plan: Tensor
    planned: Tensor

    def __init__(
        self,
        shape: AttentionShape,
        *,
        block: Width | None = None,
        window_blocks: Width = 3,
        random_blocks: Annotated[int, Range(0, 65_536)] = 3,
        global_blocks: Annotated[int, Range(0, 65_536)] = 2,
        impl: Impl = "auto",
    ):
        super().__init__(shape, impl=impl)
        self.block = whole("block", block, min(64, shape.max_length // 32))
        self.window_blocks = whole("window_blocks", window_blocks, 3)
        if window_blocks % 2 == 0:
            raise SelectionError(f"expected window_blocks to be odd, centred on the query's own, got {window_blocks}")
        self.random_blocks = whole("random_blocks", random_blocks, 3, least=0)
        self.global_blocks = whole("global_blocks", global_blocks, 2, least=0)
        # drawn once, for all passes, and saved: a model that is loaded has the plan it was trained with
        plan, planned = self._draw()
        self.register_buffer("plan", plan)
        self.register_buffer("planned", planned)

    def _draw(self) -> tuple[Tensor, Tensor]:
        """Blocks that each block sees, (heads, blocks, seen), and which of them count; the others are fillers."""
        blocks = -(-self.shape.max_length // self.block)
        at = torch.arange(blocks)
        reach = self.window_blocks // 2
        is_global = at < self.global_blocks
        is_window = (at[:, None] - at).abs() <= reach
        window = at[:, None] + torch.arange(-reach, reach + 1)
        window_counts = (window >= self.global_blocks) & (window < blocks)
        many = min(self.random_blocks, blocks)
        plans, counts = [], []
        for _ in range(self.shape.heads):
            # -1 puts a window or global block behind every other, so that it is drawn only where nothing else is left
            lot = torch.rand(blocks, blocks).masked_fill(is_window | is_global, -1.0)
            drawn = lot.topk(many, -1)
            everywhere = at[is_global].expand(blocks, -1)
            # a fixed number of places for each block, so that keys gather into one tensor; those that do not count
            # are masked
            plans.append(torch.cat([everywhere, window.clamp(0, blocks - 1), drawn.indices], -1))
            counts.append(torch.cat([everywhere >= 0, window_counts, drawn.values >= 0], -1))
        return torch.stack(plans), torch.stack(counts)

    def visible(self, at: Tensor, keys: int, causal: bool) -> Tensor:
        row = at // self.block
        blocks = self.plan.shape[1]
        seen = torch.zeros(self.shape.heads, len(at), blocks + 1, dtype=torch.bool, device=at.device)
        # fillers are sent to a column of their own
        column = self.plan[:, row].masked_fill(~self.planned[:, row], blocks)
        # global blocks see everything
        seen = seen.scatter(-1, column, True) | (row < self.global_blocks)[:, None]
        return seen[..., torch.arange(keys, device=at.device) // self.block]

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        if mask.causal:
            raise Unsupported("bigbird has no causal form; for a causal window with global tokens use longformer")
        return super().forward(query, key, value, mask)

    def blocked(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Mask,
        drop: WeightDropout | None = None,
        missing: int = 0,
    ) -> Tensor:
        batch, heads, length, _ = query.shape
        block, device = self.block, query.device
        given = {"scale": query.shape[-1] ** -0.5, "dropout": self.weight_dropout}
        blocks = -(-length // block)
        tail = blocks * block - length
        real = torch.arange(blocks * block, device=device) < length
        valid = real[None] if mask.valid is None else F.pad(mask.valid, (0, tail))
        # a shorter sequence lacks blocks of the plan
        counts = self.planned[:, :blocks] & (self.plan[:, :blocks] < blocks)
        plan = self.plan[:, :blocks].clamp(max=blocks - 1)
        # place of each seen block among the blocks of all heads
        head = torch.arange(self.shape.heads, device=device)[:, None, None]
        places = (head * blocks + plan).flatten()

        def parts(x: Tensor) -> Tensor:
            """(batch, heads, length, d) -> (batch, heads, blocks, block, d)."""
            return F.pad(x, (0, 0, 0, tail)).reshape(*x.shape[:2], blocks, block, x.shape[3])

        def pick(x: Tensor) -> Tensor:
            """(batch, heads, length, d) -> (batch, heads, blocks, seen · block, d)."""
            # the gradient of an index in brackets adds up in any order where there are several threads; this one's does
            # not
            picked = parts(x).flatten(1, 2).index_select(1, places)
            return picked.view(len(x), *plan.shape[:2], -1, x.shape[3])

        # (batch, heads, blocks, 1, seen · block)
        allowed = (valid.view(valid.shape[0], blocks, block)[:, plan] & counts[None, ..., None]).flatten(3)[
            :, :, :, None
        ]
        kept = None
        if drop is not None:
            rows = torch.arange(blocks * block).view(1, blocks, block, 1) - missing
            by_block = drop.kept(batch, heads, rows, block, plan[:, :, None] * block)
            kept = KeptPairs(by_block.mask.flatten(-2), by_block.scale)
        output = attend(parts(query), pick(key), pick(value), allowed, kept=kept, **given)
        output = output.flatten(2, 3)[:, :, :length]
        first = min(self.global_blocks * block, length)
        if not first:
            return output
        # the queries of global blocks, densely: they are few
        everything = mask.allowed(first, length, device)
        kept = None if drop is None else drop.kept(batch, heads, torch.arange(first)[None] - missing, length)
        dense = attend(query[:, :, :first], key, value, everything, kept=kept, **given)
        return torch.cat([dense, output[:, :, first:]], 2)

    def entries(self, length: int, causal: bool) -> float:
        start = torch.arange(0, length, self.block)
        size = (length - start).clamp(max=self.block).double()
        row = torch.arange(len(start))
        counts = self.planned[:, row].cpu() & (self.plan[:, row].cpu() < len(start))
        keys = (size[self.plan[:, row].cpu().clamp(max=len(start) - 1)] * counts).sum(-1)
        keys = torch.where(row < self.global_blocks, float(length), keys)
        return float((keys * size).sum(-1).mean())
