"""Variants that break one promise each, and the property that must be red for it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnbench.variants.contract import AttentionShape, Mask, ScoredVariant, Variant, Wrapper, masked_softmax
from attnbench.variants.ops.dropout import WeightDropout
from attnbench.variants.scores.relative import Relative, collect

CAUSAL = AttentionShape(heads=2, head_dim=16, max_length=96, causal=True)
SELF = replace(CAUSAL, causal=False)
CROSS = replace(SELF, cross=True)
FOUR_HEADS = replace(SELF, heads=4)


class Honest(ScoredVariant):
    """Softmax, from which every fault below differs in one thing."""

    simplex: ClassVar = True


class CausalLeak(Honest):
    def weights(self, query: Tensor, key: Tensor, mask: Mask, rows: slice | None = None) -> Tensor:
        if mask.causal and query.shape[2] == key.shape[2]:
            at = torch.arange(query.shape[2])
            allowed = at <= at[:, None] + 1
            allowed = allowed if mask.valid is None else allowed & mask.valid[:, None, None]
            return self.weigh(self.score(query, key), allowed)[:, :, rows or slice(None)]
        return super().weights(query, key, mask, rows)


class FaintCausalLeak(Honest):
    """A ten millionth of the mean value: no more than the rounding of float32."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        if mask.valid is not None or query.shape[2] != key.shape[2]:
            return super().forward(query, key, value, mask)
        return super().forward(query, key, value, mask) + 1e-7 * value.mean(2, keepdim=True)


class SelectionLeaksValues(CausalLeak):
    causality: ClassVar = "selection"


class IgnoresPadding(Honest):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        output = super().forward(query, key, value, replace(mask, valid=None))
        allowed = mask.allowed(query.shape[2], key.shape[2], query.device)
        return output if allowed is None else output * allowed.any(-1, keepdim=True)


class KeepsPaddingWhenCompiled(Honest):
    """A branch for the compiler, without a mask that depends on data."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        mask = replace(mask, valid=None) if torch.compiler.is_compiling() else mask
        return super().forward(query, key, value, mask)


class CountsPadding(Honest):
    """Scales by the padded length, as an average over it does."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        scale = 1.0 if mask.causal else 1 + 1 / key.shape[2]
        return super().forward(query, key, value, mask) * scale


class BatchLeak(Honest):
    """Scales by the largest key of the whole batch, as a shared pseudo-inverse does."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        largest = key.detach().abs().amax((0, 2, 3), keepdim=True) if mask.valid is None and not mask.causal else 1.0
        return super().forward(query, key, value, mask) * largest


class Skewed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 1.0001 * gradient


class WrongGradient(Honest):
    def score(self, query: Tensor, key: Tensor, first: int = 0) -> Tensor:
        return super().score(query, Skewed.apply(key), first)


class DetachedKey(Honest):
    def score(self, query: Tensor, key: Tensor, first: int = 0) -> Tensor:
        return super().score(query, key.detach(), first)


class DeadParameter(Honest):
    def __init__(self, shape: AttentionShape):
        super().__init__(shape)
        self.temperature = torch.nn.Parameter(torch.ones(1))


class FalselyIgnores(Honest):
    ignores = frozenset({"key"})


class NanOnMaskedRow(Honest):
    def weigh(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return scores.softmax(-1) if allowed is None else scores.masked_fill(~allowed, -math.inf).softmax(-1)


class UniformOnMaskedRow(Honest):
    def weigh(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return scores.softmax(-1) if allowed is None else scores.masked_fill(~allowed, -1e9).softmax(-1)


class Nondeterministic(Honest):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        output = super().forward(query, key, value, mask)
        return output * (1 + torch.finfo(output.dtype).eps * torch.randint(0, 2, output.shape))


class DrawsUnseeded(Honest):
    """Its table differs from instance to instance, whatever the seed."""

    def __init__(self, shape: AttentionShape):
        super().__init__(shape)
        table = torch.rand(1, shape.heads, 1, shape.head_dim, generator=torch.Generator().manual_seed(id(self)))
        self.register_buffer("table", 1 + table)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        return super().forward(query, key, value * self.table.to(value.dtype), mask)


class ChangesInputs(Honest):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        output = super().forward(query, key, value, mask)
        if not torch.is_grad_enabled():
            query.mul_(1 + 1e-3)
        return output


class ForgetfulStep(Honest):
    """Decoding forgets all but the last 50 tokens; the forward pass does not."""

    def step(self, query: Tensor, key: Tensor, value: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        if state is not None:
            key, value = torch.cat([state[0], key], 2), torch.cat([state[1], value], 2)
        state = key[:, :, -50:], value[:, :, -50:]
        return self(query, *state, Mask(causal=True)), state


class UndeclaredState(Honest):
    def state_bytes(self, shape: AttentionShape) -> int | None:
        return shape.width


class WrongRows(Honest):
    def weights(self, query: Tensor, key: Tensor, mask: Mask, rows: slice | None = None) -> Tensor:
        if rows is None or not mask.causal:
            return super().weights(query, key, mask, rows)
        # the slice is masked as though it stood at the end
        return super().weights(query[:, :, rows], key, mask)


class OtherWeights(Honest):
    """Shows weights sharper than those it uses."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        weights = self.weights(query / 2, key, mask)
        return F.dropout(weights, self.shape.dropout, self.training).to(value.dtype) @ value


class WeightsOutside(Honest):
    """Uses right weights and shows them with a floor under the forbidden ones."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        weights = ScoredVariant.weights(self, query, key, mask)
        return F.dropout(weights, self.shape.dropout, self.training).to(value.dtype) @ value

    def weights(self, query: Tensor, key: Tensor, mask: Mask, rows: slice | None = None) -> Tensor:
        return super().weights(query, key, mask, rows) + 1e-9


class NoSimplex(Honest):
    def weigh(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        weights = scores.sigmoid() / 7
        return weights if allowed is None else weights.masked_fill(~allowed, 0.0)


class DeniedSimplex(Honest):
    simplex: ClassVar = False


class DropoutRenormalises(Honest):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        weights = self.weights(query, key, mask)
        if self.training and self.shape.dropout:
            weights = F.dropout(weights, self.shape.dropout)
            weights = weights / weights.sum(-1, keepdim=True).clamp_min(1e-9)
        return weights.to(value.dtype) @ value


class DropoutUnscaled(Honest):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        weights = self.weights(query, key, mask)
        if self.training and self.shape.dropout:
            weights = weights * (torch.rand(weights.shape) > self.shape.dropout)
        return weights.to(value.dtype) @ value


class DropoutOfHalfTheRate(Honest):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        weights = self.weights(query, key, mask)
        return F.dropout(weights, self.shape.dropout / 2, self.training).to(value.dtype) @ value


class DropoutOfHeads(Honest):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        heads = F.dropout(query.new_ones(*query.shape[:2], 1, 1), self.shape.dropout, self.training)
        return (self.weights(query, key, mask) * heads).to(value.dtype) @ value


class NaNAtLargeScores(Honest):
    """Beyond 5,000, where it subtracts no maximum."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        output = super().forward(query, key, value, mask)
        largest = self.score(query, key).abs().amax(-1, keepdim=True)
        return output.masked_fill(largest > 5000, math.nan) if mask.valid is None else output


class DropoutInEvaluation(Honest):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        return F.dropout(self.weights(query, key, mask), self.shape.dropout, True).to(value.dtype) @ value


class NoDropout(Honest):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        return self.weights(query, key, mask).to(value.dtype) @ value


class DeniesDropout(Honest):
    """Drops weights and says that it does not."""

    uses_dropout = False


class DroppedAnew(torch.autograd.Function):
    """Dropout that draws a second mask in its backward pass, as a kernel does that loses its seed."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, rate: float) -> Tensor:
        ctx.rate = rate
        return F.dropout(weights, rate)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        return F.dropout(grad_outputs[0], ctx.rate), None


class DropoutAnewInBackward(Honest):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        weights = self.weights(query, key, mask)
        if self.weight_dropout:
            weights = DroppedAnew.apply(weights, self.weight_dropout)
        return weights.to(value.dtype) @ value


class FusedDropsOthers(Honest):
    """Its fused path is right in all but the mask, which it says to share with its eager twin."""

    drops_inside: ClassVar = frozenset({"fused"})

    def __init__(self, shape: AttentionShape, *, impl: Literal["eager", "fused"] = "fused"):
        super().__init__(shape)
        self.impl = impl

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        if self.impl == "fused" and self.weight_dropout:
            # a draw more, and all that follow are others
            torch.rand(1)
        return super().forward(query, key, value, mask)


class FusedNumbersRealKeys(Honest):
    """Its fused path moves pads away before it draws, so that the keys behind them take the draws of others."""

    drops_inside: ClassVar = frozenset({"fused"})

    def __init__(self, shape: AttentionShape, *, impl: Literal["eager", "fused"] = "fused"):
        super().__init__(shape)
        self.impl = impl

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        weights = self.weights(query, key, mask)
        drop = WeightDropout.drawn(self.weight_dropout, query.device)
        if drop is not None:
            kept = drop.apply(torch.ones_like(weights))
            if self.impl == "fused" and mask.valid is not None:
                place = (mask.valid.cumsum(-1) - 1).clamp(min=0)
                kept = kept.gather(-1, place[:, None, None].expand_as(kept))
            weights = weights * kept
        return weights.to(value.dtype) @ value


class FusedSparesPositions(Relative):
    """Its fused path drops the weights of the values, and not those of the vectors by distance."""

    drops_inside: ClassVar = frozenset({"fused"})

    def __init__(self, shape: AttentionShape, *, impl: Literal["eager", "fused"] = "fused"):
        super().__init__(shape, clip=2)
        self.form = impl

    def supports(self, shape: AttentionShape) -> str | None:
        return None

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        weights = self.weights(query, key, mask)
        drop = WeightDropout.drawn(self.weight_dropout, query.device)
        dropped = weights if drop is None else drop.apply(weights)
        spared = weights if self.form == "fused" else dropped
        assert self.value_table is not None
        by_distance = collect(spared, mask.offset(query.shape[2], key.shape[2]), self.clip)
        return dropped.to(value.dtype) @ value + (by_distance @ self.value_table.to(weights.dtype)).to(value.dtype)


class HalfAccumulation(Honest):
    """Scores and sums stay in the dtype of the inputs."""

    def score(self, query: Tensor, key: Tensor, first: int = 0) -> Tensor:
        return query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5


class AlignedAtFirstKey(Honest):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        if not mask.causal or query.shape[2] == key.shape[2] or query.shape[2] == 1:
            return super().forward(query, key, value, mask)
        seen = query.shape[2]
        return super().forward(query, key[:, :, :seen], value[:, :, :seen], mask)


class DependsOnLength(Honest):
    """Scores are scaled by the length, so that a prefix alone differs and decoding with it."""

    def score(self, query: Tensor, key: Tensor, first: int = 0) -> Tensor:
        return super().score(query, key, first) * math.log(1 + key.shape[2])


class ExactWithoutTwin(Honest):
    kind: ClassVar = "exact"


class InexactTwin(Honest):
    kind: ClassVar = "exact"
    twin: ClassVar = "softmax[impl=eager]"

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        return super().forward(query, key, value, mask) * (1 + 1e-5)


class FusedBackwardWrong(Honest):
    """Its fused path has the right output and, in the precision it is fused for, the wrong gradient of the keys."""

    def __init__(self, shape: AttentionShape, *, impl: Literal["eager", "fused"] = "fused"):
        super().__init__(shape)
        self.impl = impl

    def score(self, query: Tensor, key: Tensor, first: int = 0) -> Tensor:
        wrong = self.impl == "fused" and query.dtype != torch.float64
        return super().score(query, Skewed.apply(key) if wrong else key, first)


class FalseDensity(Honest):
    """Sees every other key and says that it computes one in ten."""

    simplex: ClassVar = None

    def weigh(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        even = torch.arange(scores.shape[-1]) % 2 == 0
        return masked_softmax(scores, even if allowed is None else even & allowed)

    def density(self, shape: AttentionShape) -> float:
        return 0.1


class WrongDtype(Honest):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        output = super().forward(query, key, value, mask)
        # half precision has properties of its own
        return output.double() if query.dtype == torch.float32 else output


class FailsAtLengthOne(Honest):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        if key.shape[2] == 1 and mask.valid is None and query.shape[0] == 1:
            raise RuntimeError("cannot view one position as blocks")
        return super().forward(query, key, value, mask)


class Overflows(Honest):
    def weigh(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        weights = scores.exp() if allowed is None else scores.exp().masked_fill(~allowed, 0.0)
        return weights / weights.sum(-1, keepdim=True).clamp_min(1e-30)


class NeedsOneLength(Honest):
    def score(self, query: Tensor, key: Tensor, first: int = 0) -> Tensor:
        return super().score(query, key, first) + torch.eye(query.shape[2])


class PairsHeadsInTurn(Honest):
    """Gives query head i the keys of head i modulo their number, where heads of a group stand side by side."""

    grouped: ClassVar = True

    def weights(self, query: Tensor, key: Tensor, mask: Mask, rows: slice | None = None) -> Tensor:
        return super().weights(query, self._tiled(query, key), mask, rows)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        return super().forward(query, self._tiled(query, key), self._tiled(query, value), mask)

    @staticmethod
    def _tiled(query: Tensor, shared: Tensor) -> Tensor:
        return shared.repeat(1, query.shape[1] // shared.shape[1], 1, 1)


class IgnoresBounds(Honest):
    takes_bounds: ClassVar = True

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        return super().forward(query, key, value, replace(mask, bounds=None))


class BoundsOneTooWide(Honest):
    takes_bounds: ClassVar = True

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        if mask.bounds is not None:
            mask = replace(mask, bounds=mask.bounds + torch.tensor([0, 1]))
        return super().forward(query, key, value, mask)


class PacksAsOneSequence(Honest):
    def _packed(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        return self(query, key, value, replace(mask, lengths=None))


class PacksInOrderOfLength(Honest):
    """Puts the outputs of sequences of one length side by side, wherever the sequences stand."""

    def _packed(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        lengths = mask.lengths or ()
        pieces = zip(*(x.split(lengths, 2) for x in (query, key, value)), strict=True)
        outputs = [self(*piece, Mask(causal=mask.causal)) for piece in pieces]
        return torch.cat(sorted(outputs, key=lambda x: -x.shape[2]), 2)


class Gated(Wrapper):
    """An output gate by the hidden state, from which the faults below differ in one thing."""

    takes_hidden = True

    def __init__(self, shape: AttentionShape):
        super().__init__(shape, Honest(shape))
        self.projection = nn.Linear(shape.hidden_width, shape.heads)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, hidden: Tensor) -> Tensor:  # type: ignore[override]
        return self.inner(query, key, value, mask) * self.gate(hidden)

    def step(
        self, query: Tensor, key: Tensor, value: Tensor, state: Any = None, hidden: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        output, state = super().step(query, key, value, state)
        assert hidden is not None
        return output * self.gate(hidden), state

    def gate(self, hidden: Tensor) -> Tensor:
        weight, bias = self.projection.weight.to(hidden.dtype), self.projection.bias.to(hidden.dtype)
        return F.linear(hidden, weight, bias).transpose(1, 2).sigmoid()[..., None]


class GateSeesFuture(Gated):
    def gate(self, hidden: Tensor) -> Tensor:
        return super().gate(hidden.roll(-1, 1))


class GateCountsPadding(Gated):
    def gate(self, hidden: Tensor) -> Tensor:
        return super().gate(hidden + hidden.mean(1, keepdim=True))


class GateSharesBatch(Gated):
    def gate(self, hidden: Tensor) -> Tensor:
        return super().gate(hidden + hidden.amax(0, keepdim=True))


class DetachedGate(Gated):
    def gate(self, hidden: Tensor) -> Tensor:
        return super().gate(hidden.detach())


class StepWithoutGate(Gated):
    def step(
        self, query: Tensor, key: Tensor, value: Tensor, state: Any = None, hidden: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        return self.inner.step(query, key, value, state)


FAULTS: list[tuple[type[Variant], AttentionShape, str]] = [
    (CausalLeak, CAUSAL, "causal"),
    (FaintCausalLeak, CAUSAL, "causal"),
    (SelectionLeaksValues, CAUSAL, "causal values"),
    (DependsOnLength, CAUSAL, "prefix consistency"),
    (AlignedAtFirstKey, CAUSAL, "aligned at the last key"),
    (IgnoresPadding, SELF, "padding content"),
    (IgnoresPadding, SELF, "padding length"),
    (CountsPadding, SELF, "padding length"),
    (KeepsPaddingWhenCompiled, CAUSAL, "compiled"),
    (BatchLeak, SELF, "batch independence"),
    (NanOnMaskedRow, SELF, "masked rows"),
    (UniformOnMaskedRow, CAUSAL, "masked rows"),
    (Nondeterministic, SELF, "deterministic"),
    (DrawsUnseeded, SELF, "deterministic"),
    (ChangesInputs, SELF, "no side effects"),
    (WrongDtype, SELF, "shape and dtype"),
    (FailsAtLengthOne, SELF, "any length"),
    (NeedsOneLength, CROSS, "queries differ from keys"),
    (PairsHeadsInTurn, FOUR_HEADS, "grouped heads"),
    (IgnoresBounds, SELF, "bounds"),
    (BoundsOneTooWide, CAUSAL, "bounds"),
    (PacksAsOneSequence, SELF, "packed sequences"),
    (PacksInOrderOfLength, CAUSAL, "packed sequences"),
    (Overflows, SELF, "finite"),
    (WrongGradient, SELF, "gradient"),
    (DetachedKey, SELF, "gradient reaches"),
    (DetachedKey, SELF, "gradient"),
    (FalselyIgnores, SELF, "gradient reaches"),
    (DeadParameter, SELF, "parameters learn"),
    (ExactWithoutTwin, SELF, "twin"),
    (InexactTwin, SELF, "twin"),
    (FusedBackwardWrong, SELF, "implementations"),
    (HalfAccumulation, replace(SELF, head_dim=64, max_length=512), "bfloat16"),
    (HalfAccumulation, replace(SELF, head_dim=64, max_length=512), "float16"),
    (WeightsOutside, SELF, "weights within mask"),
    (WrongRows, CAUSAL, "weights by rows"),
    (OtherWeights, SELF, "weights make output"),
    (NoSimplex, SELF, "simplex"),
    (NoSimplex, SELF, "closed cases"),
    (DeniedSimplex, SELF, "simplex"),
    (ForgetfulStep, CAUSAL, "decode"),
    (UndeclaredState, CAUSAL, "decode state"),
    (FalseDensity, SELF, "density"),
    (DropoutInEvaluation, SELF, "dropout in training only"),
    (NoDropout, SELF, "dropout in training only"),
    (DeniesDropout, SELF, "dropout in training only"),
    (DropoutAnewInBackward, SELF, "dropout in backward"),
    (FusedDropsOthers, SELF, "dropout in backward"),
    (FusedNumbersRealKeys, SELF, "dropout in backward"),
    (FusedSparesPositions, SELF, "dropout in backward"),
    (DropoutOfHalfTheRate, CAUSAL, "dropout share"),
    (DropoutOfHeads, CAUSAL, "dropout share"),
    (NaNAtLargeScores, SELF, "finite"),
    (DropoutUnscaled, SELF, "dropout mean"),
    (DropoutRenormalises, SELF, "dropout sums"),
    (GateSeesFuture, CAUSAL, "causal"),
    (GateCountsPadding, SELF, "padding content"),
    (GateCountsPadding, SELF, "padding length"),
    (GateSharesBatch, SELF, "batch independence"),
    (DetachedGate, SELF, "gradient reaches"),
    (DetachedGate, SELF, "gradient"),
    (StepWithoutGate, CAUSAL, "decode"),
]

ALONE = {
    AlignedAtFirstKey, NanOnMaskedRow, UniformOnMaskedRow, WrongDtype,
    FalselyIgnores, DeadParameter, ExactWithoutTwin, FusedBackwardWrong, WeightsOutside, WrongRows, OtherWeights,
    IgnoresBounds, BoundsOneTooWide, PacksAsOneSequence, PacksInOrderOfLength,
    DeniedSimplex, ForgetfulStep, UndeclaredState, FalseDensity, DropoutInEvaluation, NoDropout,
    DropoutAnewInBackward, FusedDropsOthers, FusedNumbersRealKeys, FusedSparesPositions,
}  # fmt: skip
"""Faults that break one promise alone, so that a second red property would be a false alarm."""
