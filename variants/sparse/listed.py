"""Listed patterns: those that C++ computes on a CPU by a list of the tiles that each block of queries sees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from ..contract import AttentionShape, Mask
from ..kernels.dispatch import choose_implementation, refusal
from ..ops.patterns import PatternVariant

if TYPE_CHECKING:
    from ..kernels.cpu.lists import SeenTiles

Impl = Literal["auto", "eager", "cpp"]


class ListedPattern(PatternVariant):
    """A pattern with a form in C++, without dropout, which a subclass has from its `visible` alone.

    The lists are made by comparing all pairs, once for a length, and kept until another comes.
    """

    def __init__(self, shape: AttentionShape, *, impl: Impl = "auto"):
        super().__init__(shape)
        self.impl = impl
        self._listed: tuple[Any, SeenTiles] | None = None

    def supports(self, shape: AttentionShape) -> str | None:
        return super().supports(shape) or refusal(self.impl, shape)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        self.implementation = choose_implementation(
            self.impl, query, key, value, dropout=self.weight_dropout, kernels=frozenset({"cpp"})
        )
        if self.implementation == "eager":
            return super().forward(query, key, value, mask)
        from ..kernels.cpu.tiles import softmax_attention

        lists = self._lists(query.shape[2], key.shape[2], mask.causal)
        return softmax_attention(query, key, value, Mask(valid=mask.valid), lists=lists)

    def _lists(self, queries: int, keys: int, causal: bool) -> SeenTiles:
        from ..kernels.cpu.lists import SeenTiles

        # a plan that is loaded is written into its buffer
        now = queries, keys, causal, *(buffer._version for buffer in self.buffers())
        if self._listed is None or self._listed[0] != now:
            # fewer queries than keys are the last positions
            made = SeenTiles.of(lambda rows: self.visible(rows + keys - queries, keys, causal), queries, keys)
            self._listed = now, made
        return self._listed[1]
