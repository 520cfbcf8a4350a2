"""Faults of strangers, each kind as they would write it, are red; and what they get right is green."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from hidden_faults import Honest, Scaled
from torch import Tensor, nn
from torch.nn import functional as F

from attnbench.bench.gate import examine, quick_gate
from attnbench.variants.contract import AttentionShape, KeyValueCache, Mask, ScoredVariant, Variant

EIGHT = AttentionShape(heads=8, head_dim=16, max_length=640)
CAUSAL = replace(EIGHT, causal=True)
SHARED = replace(CAUSAL, kv_heads=2)


class TiledHeads(ScoredVariant):
    """Query head h takes key head h modulo their number, where groups stand side by side."""

    grouped: ClassVar = True

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        times = query.shape[1] // key.shape[1]
        return super().forward(query, key.repeat(1, times, 1, 1), value.repeat(1, times, 1, 1), mask)

    def weights(self, query: Tensor, key: Tensor, mask: Mask, rows: slice | None = None) -> Tensor:
        return super().weights(query, key.repeat(1, query.shape[1] // key.shape[1], 1, 1), mask, rows)


class TiledInStep(ScoredVariant):
    def step(self, query: Tensor, key: Tensor, value: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        times = query.shape[1] // key.shape[1]
        cache = state or KeyValueCache.empty(key, value)
        keys, values = cache.append(key, value)
        tiled = keys.repeat(1, times, 1, 1), values.repeat(1, times, 1, 1)
        return self(query, *tiled, Mask(causal=True)), cache


class PairedHeads(ScoredVariant):
    """Groups of two, whatever the size of a group is."""

    grouped: ClassVar = True

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        key, value = (self.paired(x, query.shape[1]) for x in (key, value))
        return super().forward(query, key, value, mask)

    def weights(self, query: Tensor, key: Tensor, mask: Mask, rows: slice | None = None) -> Tensor:
        return super().weights(query, self.paired(key, query.shape[1]), mask, rows)

    @staticmethod
    def paired(shared: Tensor, heads: int) -> Tensor:
        own = shared.shape[1]
        return shared if own == heads else shared[:, torch.arange(heads) // 2 % own]


class BoundsOfFirst(Honest):
    takes_bounds: ClassVar = True

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        bounds = None if mask.bounds is None else mask.bounds[:1]
        return super().forward(query, key, value, replace(mask, bounds=bounds))


class PaddingOfFirst(Honest):
    """Beyond 95 keys the padding of the first sequence is that of all."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        if mask.valid is not None and key.shape[2] > 95:
            mask = replace(mask, valid=mask.valid[:1].expand(mask.valid.shape))
        return super().forward(query, key, value, mask)


class ScaledOverPadding(Honest):
    def score(self, query: Tensor, key: Tensor, first: int = 0) -> Tensor:
        return super().score(query, key, first) / (1 + key.detach().square().mean((2, 3), keepdim=True))


class DoubledAlone(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor) -> Tensor:
        ctx.save_for_backward(query, key)
        return query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        query, key = ctx.saved_tensors
        gradient = gradients[0] * query.shape[-1] ** -0.5
        alone = 2 - all(ctx.needs_input_grad)
        return alone * gradient @ key, alone * gradient.transpose(-2, -1) @ query


class GradientDoubledAlone(Honest):
    def score(self, query: Tensor, key: Tensor, first: int = 0) -> Tensor:
        return DoubledAlone.apply(query, key)


class GatedLeak(Honest):
    """A residual path that looks ahead, behind a gate that begins at zero."""

    simplex: ClassVar = None
    beyond: ClassVar = 0

    def __init__(self, shape: AttentionShape):
        super().__init__(shape)
        self.opening = nn.Parameter(torch.zeros(shape.heads, 1, 1))

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        output = super().forward(query, key, value, mask)
        if key.shape[2] <= self.beyond:
            return output
        valid = mask.real(key)[:, None, :, None]
        mean = value.where(valid, 0).sum(2, keepdim=True) / valid.sum(2, keepdim=True).clamp(min=1)
        return output + self.opening.to(value.dtype) * mean * valid.any(2, keepdim=True)


class GatedLeakBeyond95(GatedLeak):
    beyond: ClassVar = 95


class WrongInAutocast(Honest):
    """Skips what turns autocast off, and is wrong in it."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, hidden: Tensor | None = None) -> Tensor:
        output = super().__call__(query, key, value, mask, hidden)
        return output * 1.5 if torch.is_autocast_enabled("cpu") else output


class GradientOfBatch11(Honest):
    def score(self, query: Tensor, key: Tensor, first: int = 0) -> Tensor:
        return super().score(query, Scaled.apply(key, 1.01) if key.shape[0] >= 11 else key, first)


class GradientOfHead7(Honest):
    def score(self, query: Tensor, key: Tensor, first: int = 0) -> Tensor:
        if key.shape[1] > 7:
            key = torch.cat([key[:, :7], Scaled.apply(key[:, 7:], 1.01)], 1)
        return super().score(query, key, first)


FAULTS: list[tuple[type[Variant], AttentionShape, str]] = [
    (TiledHeads, CAUSAL, "grouped heads"),
    (TiledHeads, SHARED, "grouped heads"),
    (TiledHeads, replace(CAUSAL, heads=5, kv_heads=5), "grouped heads"),
    (TiledInStep, SHARED, "grouped heads"),
    (PairedHeads, CAUSAL, "grouped heads"),
    (BoundsOfFirst, EIGHT, "bounds"),
    (PaddingOfFirst, EIGHT, "padding length"),
    (ScaledOverPadding, EIGHT, "padding content"),
    (GradientDoubledAlone, EIGHT, "layout"),
    (GatedLeak, CAUSAL, "causal"),
    (GatedLeakBeyond95, CAUSAL, "causal"),
    (WrongInAutocast, EIGHT, "bfloat16"),
    (GradientOfBatch11, EIGHT, "gradient at length"),
    (GradientOfHead7, EIGHT, "gradient"),
]


class ZeroGate(Variant):
    """A layer whose output is shut at first; the weights are those before the gate, so it shows none."""

    def __init__(self, shape: AttentionShape):
        super().__init__(shape)
        self.gate = nn.Parameter(torch.zeros(shape.heads, 1, shape.head_dim))
        self.inner = Honest(shape)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        return self.inner(query, key, value, mask) * self.gate.to(value.dtype)


class SingleSoftmax(Variant):
    """Softmax in float32 always, as most language models have it."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        scores = query.float() @ key.float().transpose(-2, -1) * query.shape[-1] ** -0.5
        allowed = mask.allowed(query.shape[2], key.shape[2], query.device)
        if allowed is not None:
            scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
        weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
        if allowed is not None:
            weights = weights * allowed.any(-1, keepdim=True)
        return F.dropout(weights, self.weight_dropout) @ value


class Rotary(ScoredVariant):
    """Rotary positions in float32, cast back; as in any language model."""

    def score(self, query: Tensor, key: Tensor, first: int = 0) -> Tensor:
        return super().score(self.rotated(query, first), self.rotated(key, 0), first)

    @staticmethod
    def rotated(x: Tensor, first: int) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        half = x.shape[-1] // 2
        places = torch.arange(first, first + x.shape[2], dtype=wide)
        angles = places[:, None] * 10_000 ** (-torch.arange(half, dtype=wide) / half)
        left, right, rest = x.to(wide).split([half, half, x.shape[-1] - 2 * half], -1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([left * cos - right * sin, left * sin + right * cos, rest], -1).to(x.dtype)


class Hardest(ScoredVariant):
    """All weight on the largest score: no gradient reaches queries and keys."""

    ignores = frozenset({"query", "key"})

    def weigh(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        shown = scores if allowed is None else scores.masked_fill(~allowed, -torch.inf)
        chosen = F.one_hot(shown.argmax(-1), scores.shape[-1]).to(scores.dtype)
        return chosen if allowed is None else chosen * allowed


RIGHT: list[type[Variant]] = [ZeroGate, SingleSoftmax, Rotary, Hardest]


@pytest.mark.parametrize(("variant", "shape", "name"), FAULTS, ids=lambda x: getattr(x, "__name__", ""))
def test_a_fault_of_outsiders_is_red(variant: type[Variant], shape: AttentionShape, name: str) -> None:
    if name != "bfloat16":
        finding = quick_gate(variant, shape, batch=12)
        assert finding is not None and finding.property == name
        return
    # which before a measurement of float32 is not asked
    found = examine(variant, replace(shape, max_length=96))
    assert [each.property for each in found if each.held is False and each.property != "float16"] == [name]


@pytest.mark.parametrize("shape", [pytest.param(EIGHT, marks=pytest.mark.slow), CAUSAL], ids=["self", "causal"])
@pytest.mark.parametrize("variant", RIGHT)
def test_what_outsiders_get_right_is_green(variant: type[Variant], shape: AttentionShape) -> None:
    shape = replace(shape, max_length=200)
    assert [each for each in examine(variant, shape) if each.held is False] == []


class OfNoKind(ScoredVariant):
    kind: ClassVar = "nearly"


def test_a_kind_that_is_none_is_red() -> None:
    (found,) = (result for result in examine(OfNoKind, replace(EIGHT, max_length=64)) if result.property == "twin")
    assert found.detail == "kind is 'nearly', expected exact, approximate or different"
