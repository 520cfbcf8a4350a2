"""Tiled patterns: those that C++ computes on a CPU by the tiles of scores in which any is seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..contract import AttentionShape, Mask
from ..kernels.dispatch import choose_implementation, refusal
from ..ops.dropout import WeightDropout
from ..ops.patterns import PatternVariant, absent

if TYPE_CHECKING:
    from ..kernels.cpu.lists import SeenTiles

Impl = Literal["auto", "eager", "cpp"]


class TiledPattern(PatternVariant):
    """A pattern with a form in C++, which a subclass has from its `visible` alone, or from `bounds`.

    Lists of tiles are made by comparing all pairs, once for a length, and kept until another comes. On a CPU weights
    are dropped by the mask of the kernels; elsewhere there is none, and PyTorch's own dropout is fused.
    """

    drops_inside: ClassVar = frozenset({"cpp"})

    def __init__(self, shape: AttentionShape, *, impl: Impl = "auto"):
        super().__init__(shape)
        self.impl = impl
        self.sink: nn.Parameter | None = None
        self._listed: tuple[Any, SeenTiles] | None = None

    def bounds(self, at: Tensor, keys: int, causal: bool) -> Tensor | None:
        """First key that the queries at positions `at` see and the one after the last, (rows, 2), where all between
        are seen and neither falls from one to the next; None where a list of tiles says what is seen."""
        return None

    def key_order(self, keys: int) -> Tensor | None:
        """The key at each place of the tiles, (keys,), where others than neighbours are seen together."""
        return None

    def blocked(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Mask,
        drop: WeightDropout | None = None,
        missing: int = 0,
    ) -> Tensor:
        """The output block by block, as `PatternVariant` has it.

        `drop` numbers queries from the one after the first `missing` on; without it torch's generator drops.
        """
        raise TypeError(f"{type(self).__name__} defines no blocked(query, key, value, mask, drop, missing)")

    def supports(self, shape: AttentionShape) -> str | None:
        return super().supports(shape) or refusal(self.impl, shape, dropping=self.drops_inside)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        self.implementation = choose_implementation(
            *(self.impl, query, key, value),
            dropout=self.weight_dropout,
            dropping=self.drops_inside,
            kernels=self.drops_inside,
        )
        missing, queries, keys = absent(query, key), query.shape[2], key.shape[2]
        drop = (
            WeightDropout.drawn(self.weight_dropout, query.device)
            if query.device.type == "cpu" and self.drops_inside
            else None
        )
        if self.implementation == "eager":
            # the queries before the first are computed as zeros and dropped: blocks begin at position 0
            return self.blocked(F.pad(query, (0, 0, missing, 0)), key, value, mask, drop, missing)[:, :, missing:]
        from ..kernels.cpu.tiles import softmax_attention

        bounds = self.bounds(torch.arange(missing, keys), keys, mask.causal)
        lists = self._lists(queries, keys, mask.causal) if bounds is None else None
        seen = Mask(valid=mask.valid, bounds=None if bounds is None else bounds[None])
        return softmax_attention(query, key, value, seen, drop, sink=self.sink, lists=lists)

    def _lists(self, queries: int, keys: int, causal: bool) -> SeenTiles:
        from ..kernels.cpu.lists import SeenTiles

        # a plan that is loaded is written into its buffer
        now = queries, keys, causal, *(buffer._version for buffer in self.buffers())
        if self._listed is None or self._listed[0] != now:
            # fewer queries than keys are the last positions
            visible = lambda rows: self.visible(rows + keys - queries, keys, causal)  # noqa: E731
            made = SeenTiles.of(visible, queries, keys, self.key_order(keys))
            self._listed = now, made
        return self._listed[1]
