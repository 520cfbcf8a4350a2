"""Faults planted into variants and wrappers that take the hidden state, select keys or decode, and what finds each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from attnbench.bench.gate import quick_gate
from attnbench.variants.contract import AttentionShape, KeyValueCache, Mask, Variant
from attnbench.variants.linear.delta import Delta
from attnbench.variants.maps.selective import Selective
from attnbench.variants.maps.softmax import Softmax
from attnbench.variants.maps.softpick import softpick
from attnbench.variants.ops.key_blocks import block_means
from attnbench.variants.ops.nearest_first import highest
from attnbench.variants.ops.recurrences import Terms
from attnbench.variants.scores.forgetting import Forgetting
from attnbench.variants.sparse.block_selection import BlockSelection
from attnbench.variants.sparse.indexer import Indexer
from attnbench.variants.sparse.native_sparse import NativeSparse
from attnbench.variants.sparse.window import Window
from attnbench.variants.wrappers.convolution import ShortConvolution
from attnbench.variants.wrappers.gate import OutputGate
from attnbench.variants.wrappers.sink import Sink

SHAPE = AttentionShape(heads=2, head_dim=8, max_length=80, causal=True)


class WindowThatGrows(Window):
    def __init__(self, shape: AttentionShape):
        super().__init__(shape, size=7, sink="learned")

    def step(self, query: Tensor, key: Tensor, value: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        if state is None:
            return super().step(query, key, value)
        state.append(key, value)
        return self._attend(query, state.key, state.value, None), state


class TermsThatDecay(Terms):
    def without(self, absent: Tensor) -> Terms:
        return super().without(absent)._replace(log_decay=self.log_decay)


class DeltaWhosePaddingDecays(Delta):
    def __init__(self, shape: AttentionShape):
        super().__init__(shape, decay="channel")

    def terms(self, query: Tensor, key: Tensor, value: Tensor, hidden: Tensor) -> Terms:
        return TermsThatDecay(*super().terms(query, key, value, hidden))


class FoxThatForgetsTheFuture(Forgetting):
    def _log_gates(self, hidden: Tensor) -> Tensor:
        return super()._log_gates(hidden.roll(-1, 1))


class FoxThatDecodesWithoutItsPast(Forgetting):
    def step(
        self, query: Tensor, key: Tensor, value: Tensor, state: Any = None, hidden: Any = None
    ) -> tuple[Tensor, Any]:
        output, state = super().step(query, key, value, state, hidden)
        state.sums = torch.zeros_like(state.sums)
        return output, state


class IndexerThatLetsTiesToTheKernel(Indexer):
    """All scores tie; whole sequences choose the first keys of a row, decoding the last."""

    def _scores(self, hidden: Tensor, index_key: Tensor) -> Tensor:
        scores = torch.zeros_like(super()._scores(hidden, index_key))
        places = torch.arange(scores.shape[-1], dtype=scores.dtype)
        return scores - places if scores.shape[1] > 1 else scores + places


class BlocksThatAreNotWhole(BlockSelection):
    """The mean of the own block decides whether it is seen, later keys and all."""

    def __init__(self, shape: AttentionShape):
        super().__init__(shape, block=4, blocks=3)

    def _seen(self, query: Tensor, key: Tensor, own: Tensor, mask: Mask) -> Tensor:
        means, counts = block_means(key, mask.real(key), self.block)
        allowed = (torch.arange(means.shape[2]) <= own) & (counts > 0)[:, None, None]
        return highest(query @ means.repeat_interleave(query.shape[1] // means.shape[1], 1).mT, allowed, self.blocks)


class NSAWithBlocksUnderWay(NativeSparse):
    """The mean of a block is seen from its second token on."""

    def _compressed(self, query: Tensor, key: Tensor, at: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
        return super()._compressed(query, key, at + self.block - 2, mask)


class RoundSoftmax:
    """A wrapper is built round a variant; the gate takes what it can build of a shape."""

    def __init__(self, shape: AttentionShape, **parameters: Any):
        super().__init__(shape, Softmax(shape), **parameters)  # type: ignore[call-arg]


class GateThatSeesTheFuture(RoundSoftmax, OutputGate):
    def _gated(self, output: Tensor, hidden: Tensor) -> Tensor:
        return super()._gated(output, hidden.roll(-1, 1))


class SinkThatDecodingForgets(RoundSoftmax, Sink):
    def step(
        self, query: Tensor, key: Tensor, value: Tensor, state: Any = None, hidden: Any = None
    ) -> tuple[Tensor, Any]:
        return self.inner.step(query, key, value, state or KeyValueCache.empty(key, value))


class ConvolutionOverPadding(RoundSoftmax, ShortConvolution):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, hidden: Any = None) -> Tensor:
        query, key, value = self._convolved([F.pad(x, (0, 0, 3, 0)) for x in (query, key, value)])
        return self.inner(query, key, value, mask)


class ConvolutionThatDecodesOneToken(RoundSoftmax, ShortConvolution):
    def step(
        self, query: Tensor, key: Tensor, value: Tensor, state: Any = None, hidden: Any = None
    ) -> tuple[Tensor, Any]:
        output, state = super().step(query, key, value, state, hidden)
        state.recent = [torch.zeros_like(x) for x in state.recent]
        return output, state


class SelectiveByPadding(Selective):
    def weights(self, query: Tensor, key: Tensor, mask: Mask, rows: slice | None = None) -> Tensor:
        scores = self.score(query, key)
        taken = F.pad(scores[:, :1].relu().tril(-1).cumsum(-2), (0, 0, 1, -1))
        allowed = mask.allowed(query.shape[2], key.shape[2], query.device)
        return self.weigh(scores - taken, allowed)[:, :, rows or slice(None)]


class SoftpickOverHiddenKeys(softpick):  # type: ignore[misc, valid-type]
    def weigh(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        weights = super().weigh(scores, None)
        return weights if allowed is None else weights.masked_fill(~allowed, 0.0)


FAULTS: dict[Callable[..., Variant], str] = {
    WindowThatGrows: "grouped heads",
    DeltaWhosePaddingDecays: "padding content",
    FoxThatForgetsTheFuture: "causal",
    FoxThatDecodesWithoutItsPast: "grouped heads",
    IndexerThatLetsTiesToTheKernel: "weights by rows",
    BlocksThatAreNotWhole: "causal",
    NSAWithBlocksUnderWay: "causal",
    GateThatSeesTheFuture: "causal",
    SinkThatDecodingForgets: "grouped heads",
    SelectiveByPadding: "padding content",
    SoftpickOverHiddenKeys: "causal",
    ConvolutionOverPadding: "padding content",
    ConvolutionThatDecodesOneToken: "grouped heads",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_gate_names_the_property_that_a_fault_breaks(fault: Callable[..., Variant]) -> None:
    finding = quick_gate(fault, SHAPE)
    assert finding is not None
    assert finding.property == FAULTS[fault]
