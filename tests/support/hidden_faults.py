"""Variants that are wrong in one setting only, each as a stranger would write it, and the property that finds it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from attnbench.variants.contract import AttentionShape, Mask, ScoredVariant, Variant

CAUSAL = AttentionShape(heads=6, head_dim=16, max_length=512, causal=True)
SELF = replace(CAUSAL, causal=False)


class Honest(ScoredVariant):
    simplex: ClassVar = True


def leaking(output: Tensor, value: Tensor) -> Tensor:
    """The mean of all values, those of the future too."""
    return output + 0.1 * value.mean(2, keepdim=True)


class LargeBatchShares(Honest):
    """Normalises by the largest key of the batch where there are more than eight."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        if query.shape[0] > 8:
            key = key / key.detach().abs().amax((0, 2, 3), keepdim=True)
        return super().forward(query, key, value, mask)


class NinthExampleLost(Honest):
    """A grid of eight."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        output = super().forward(query, key, value, mask)
        return torch.cat([output[:8], torch.zeros_like(output[8:])])


class LeaksBeyond400Keys(Honest):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        output = super().forward(query, key, value, mask)
        return leaking(output, value) if key.shape[2] > 400 else output


class PaddingBeyond400Keys(Honest):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        mask = Mask(causal=mask.causal) if key.shape[2] > 400 else mask
        return super().forward(query, key, value, mask)


class LeaksFromFifthHead(Honest):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        output = super().forward(query, key, value, mask)
        return torch.cat([output[:, :4], leaking(output[:, 4:], value[:, 4:])], 1)


class StepOfTwo(Honest):
    """A decode buffer for two sequences."""

    def step(self, query: Tensor, key: Tensor, value: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        output, state = super().step(query, key, value, state)
        output[2:] = output[:1]
        return output, state


class StepKeepsStateOnItself(Honest):
    def step(self, query: Tensor, key: Tensor, value: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        if state is None:
            self.kept = None
        output, self.kept = super().step(query, key, value, self.kept)
        return output, self.kept


class KeepsLargestBatch(Honest):
    """A scale of the largest batch so far."""

    largest = 0

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        self.largest = max(self.largest, query.shape[0])
        return super().forward(query, key, value, mask) * (1 + 1e-3 * (self.largest > query.shape[0]))


class KeepsFirstMask(Honest):
    """A mask made for the first call."""

    kept: Tensor | None = None

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        if mask.valid is not None and self.kept is None:
            self.kept = mask.valid[:1].clone()
        if mask.valid is not None and self.kept is not None and self.kept.shape[1] == mask.valid.shape[1]:
            mask = replace(mask, valid=self.kept.expand(mask.valid.shape))
        return super().forward(query, key, value, mask)


class OneOutputBuffer(Honest):
    """Every call of one shape without gradients writes to the same memory."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        output = super().forward(query, key, value, mask)
        if output.requires_grad:
            return output
        if getattr(self, "buffer", torch.empty(0)).numel() < output.numel() or self.buffer.dtype != output.dtype:
            self.buffer = torch.empty(output.numel() * 8, dtype=output.dtype)
        return self.buffer[: output.numel()].view(output.shape).copy_(output)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None


class SingleGradientWrong(Honest):
    """Its backward is written for float32, and float64 goes through autograd."""

    def score(self, query: Tensor, key: Tensor, first: int = 0) -> Tensor:
        return super().score(query, Scaled.apply(key, 1.01) if key.dtype == torch.float32 else key, first)


class SingleGradientWrongWhereLong(Honest):
    def score(self, query: Tensor, key: Tensor, first: int = 0) -> Tensor:
        wrong = key.dtype == torch.float32 and key.shape[2] > 400
        return super().score(query, Scaled.apply(key, 1.01) if wrong else key, first)


class SingleGradientOfSomeKeysWrong(Honest):
    """One block in sixteen of the keys, in float32."""

    def score(self, query: Tensor, key: Tensor, first: int = 0) -> Tensor:
        if key.dtype == torch.float32:
            few = -(-key.shape[2] // 16)
            key = torch.cat([Scaled.apply(key[:, :, :few], 1.1), key[:, :, few:]], 2)
        return super().score(query, key, first)


class AtKink(Honest):
    """No fault: rounding puts a weight of the last query beyond a kink, which moves the gradients of all keys."""

    def score(self, query: Tensor, key: Tensor, first: int = 0) -> Tensor:
        scores = super().score(query, key, first)
        if key.dtype != torch.float32 or key.shape[2] <= 400:
            return scores
        return torch.cat([scores[:, :, :-1], Scaled.apply(scores[:, :, -1:], 1.5)], 2)


class GradientOf64(Honest):
    """Keys from the 65th on are detached."""

    def score(self, query: Tensor, key: Tensor, first: int = 0) -> Tensor:
        return super().score(query, torch.cat([key[:, :, :64], key[:, :, 64:].detach()], 2), first)


class GradientSkewedWhereLong(Honest):
    def score(self, query: Tensor, key: Tensor, first: int = 0) -> Tensor:
        return super().score(query, Scaled.apply(key, 1.01) if key.shape[2] > 400 else key, first)


class LandmarkGradientDetached(Variant):
    """Two dozen landmarks, whose scale is detached: with fewer tokens than landmarks there is nothing to detach."""

    crosses: ClassVar = False

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        valid = mask.real(key)[:, None, :, None]
        allowed = valid.transpose(-2, -1) & valid
        scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
        scale = torch.ones_like(scores[..., :1])
        if key.shape[2] > 24:
            scale = 1 + (scores.detach().square() * allowed).sum(-1, keepdim=True) / allowed.sum(
                -1, keepdim=True
            ).clamp(min=1)
        weights = (scores / scale).masked_fill(~allowed, -1e30).softmax(-1).masked_fill(~allowed, 0)
        return weights @ value


class BatchStatistics(Honest):
    """Normalises keys by the batch, and in evaluation by constants."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        if self.training:
            key = key / key.std((0, 2), keepdim=True)
        return super().forward(query, key, value, mask)


class LeaksInTraining(Honest):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        output = super().forward(query, key, value, mask)
        return leaking(output, value) if self.training else output


class IgnoresPaddingInTraining(Honest):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        return super().forward(query, key, value, Mask(causal=mask.causal) if self.training else mask)


class LeaksAfterStep(Honest):
    steps = 0

    def after_step(self) -> None:
        self.steps += 1

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        output = super().forward(query, key, value, mask)
        return leaking(output, value) if self.steps else output


class BatchAfterStep(LeaksAfterStep):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        if self.steps:
            key = key - key.mean(0, keepdim=True)
        return ScoredVariant.forward(self, query, key, value, mask)


class NanAfterStep(LeaksAfterStep):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        return (
            ScoredVariant.forward(self, query, key, value, mask)
            / float(self.steps != 2 or not self.training)
            * (math.nan if self.steps else 1.0)
        )


class OddWidth(Honest):
    """Vectorised by two; the last entry of an odd head_dim is lost."""

    kind: ClassVar = "exact"
    twin: ClassVar = "softmax[impl=eager]"

    def score(self, query: Tensor, key: Tensor, first: int = 0) -> Tensor:
        even = query.shape[-1] // 2 * 2
        return query[..., :even] @ key[..., :even].transpose(-2, -1) * query.shape[-1] ** -0.5


class WideHead(OddWidth):
    """Buffers for a head_dim of 64."""

    def score(self, query: Tensor, key: Tensor, first: int = 0) -> Tensor:
        return query[..., :64] @ key[..., :64].transpose(-2, -1) * query.shape[-1] ** -0.5


class ScaleOf64(OddWidth):
    """The scale of head_dim 64, whatever head_dim is: fused for it, and never tried with another."""

    def score(self, query: Tensor, key: Tensor, first: int = 0) -> Tensor:
        return query @ key.transpose(-2, -1) / 8


class FusedOddWidth(Honest):
    def __init__(self, shape: AttentionShape, *, impl: Literal["eager", "fused"] = "fused"):
        super().__init__(shape)
        self.impl = impl

    def score(self, query: Tensor, key: Tensor, first: int = 0) -> Tensor:
        even = query.shape[-1] // 2 * 2 if self.impl == "fused" else query.shape[-1]
        return query[..., :even] @ key[..., :even].transpose(-2, -1) * query.shape[-1] ** -0.5


class ReadsMemoryAsContiguous(Honest):
    """Its kernel takes the pointer and the shape, not the strides."""

    kind: ClassVar = "exact"
    twin: ClassVar = "softmax[impl=eager]"

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        if not key.is_contiguous() and key.numel():
            key = torch.as_strided(key, key.shape, torch.empty(key.shape, device="meta").stride())
        return super().forward(query, key, value, mask)


class NeedsContiguous(Honest):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        flat = query.view(-1, *query.shape[2:])
        return super().forward(flat.view(query.shape), key, value, mask)


class WrongAtMultiplesOf128(Honest):
    """The last block is taken for a remainder of no rows, and left out."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        output = super().forward(query, key, value, mask)
        return leaking(output, value) if key.shape[2] % 128 == 0 else output


class WrongAtMultiplesOf256(Honest):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        output = super().forward(query, key, value, mask)
        return output * 1.5 if key.shape[2] % 256 == 0 and query.shape[0] > 1 else output


class HalfIgnoresPadding(Honest):
    """Its half precision kernel has no mask."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        half = query.dtype in (torch.bfloat16, torch.float16)
        return super().forward(query, key, value, Mask(causal=mask.causal) if half else mask)


class RoundedThreshold(Honest):
    """Exponentials of scores minus a threshold that is rounded at the size of the scores."""

    def weigh(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        shown = scores if allowed is None else scores.masked_fill(~allowed, -1e30)
        bound = (shown.amax(-1, keepdim=True) + math.log(scores.shape[-1])).detach()
        weights = (shown - bound).exp() * (1 if allowed is None else allowed)
        # it trusts the bound where scores are large
        total = weights.sum(-1, keepdim=True).clamp(min=1e-30)
        return weights / torch.where(bound > 100, 1 + (bound - bound.bfloat16().float()).abs().to(total), total)


class PaddingTimesZero(Honest):
    """Skips what clears padding before a forward, and multiplies it with zero, which NaN survives."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, hidden: Tensor | None = None) -> Tensor:
        output: Tensor = torch.nn.Module.__call__(self, query, key, value, mask)
        return output


class NoEmptyBatch(Honest):
    """Skips what returns no output for no input, and takes a maximum over nothing."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, hidden: Tensor | None = None) -> Tensor:
        output: Tensor = torch.nn.Module.__call__(self, query, key, value, mask)
        return output

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        largest = query.detach().abs().max()
        return super().forward(query, key, value, mask) + 0 * largest


class FillsEmptyBatch(Honest):
    """Pads a batch of none to a batch of one."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, hidden: Tensor | None = None) -> Tensor:
        output: Tensor = torch.nn.Module.__call__(self, query, key, value, mask)
        return output

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, hidden: Tensor | None = None) -> Tensor:
        output = super().forward(query, key, value, mask)
        return torch.nn.functional.pad(output, (0, 0, 0, 0, 0, 0, 0, int(len(query) == 0)))


class ChangesMask(Honest):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        output = super().forward(query, key, value, mask)
        if mask.valid is not None:
            mask.valid.fill_(True)
        return output


class ChangesParameter(Honest):
    """Projects a parameter to the sphere in every forward."""

    def __init__(self, shape: AttentionShape):
        super().__init__(shape)
        self.direction = torch.nn.Parameter(torch.randn(shape.head_dim))

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        with torch.no_grad():
            self.direction.div_(2 * self.direction.norm())
        return super().forward(query + self.direction.to(query), key, value, mask)


class CountsInEvaluation(Honest):
    def __init__(self, shape: AttentionShape):
        super().__init__(shape)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        self.calls += 1
        return super().forward(query, key, value, mask)


class DrawsInEvaluation(Honest):
    """Takes random numbers of the process and does nothing with them."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        torch.rand(1)
        return super().forward(query, key, value, mask)


class ChangesDefaultDtype(Honest):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        torch.set_default_dtype(query.dtype if query.dtype == torch.float64 else torch.bfloat16)
        return super().forward(query, key, value, mask)


class WeightsOfFewKeys(Honest):
    """Its weights are those of the definition up to 400 keys; beyond, its forward is sharper."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        return super().forward(query * (1 + 0.1 * (key.shape[2] > 400)), key, value, mask)

    def weights(self, query: Tensor, key: Tensor, mask: Mask, rows: slice | None = None) -> Tensor:
        query = query / (1 + 0.1 * (key.shape[2] > 400)) if self.asked(rows) else query
        return super().weights(query, key, mask, rows)

    def asked(self, rows: slice | None) -> bool:
        return rows is not None


class DropsFinalGradient(Honest):
    """The last query of a long row gets no gradient: an index that is off by one."""

    def score(self, query: Tensor, key: Tensor, first: int = 0) -> Tensor:
        if key.shape[2] <= 64:
            return super().score(query, key, first)
        return super().score(torch.cat([query[:, :, :-20], query[:, :, -20:].detach()], 2), key, first)


class FreezesAfterStep(LeaksAfterStep):
    """What it has learned by then has no gradient any more."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        return ScoredVariant.forward(self, query, key.detach() if self.steps else key, value, mask)


HIDDEN: list[tuple[type[Variant], AttentionShape, str]] = [
    (LargeBatchShares, SELF, "batch independence"),
    (NinthExampleLost, SELF, "batch independence"),
    (LeaksBeyond400Keys, CAUSAL, "causal"),
    (PaddingBeyond400Keys, SELF, "padding length"),
    (LeaksFromFifthHead, CAUSAL, "causal"),
    (StepOfTwo, CAUSAL, "decode"),
    (StepKeepsStateOnItself, CAUSAL, "decode"),
    (KeepsLargestBatch, SELF, "no state"),
    (KeepsFirstMask, SELF, "padding length"),
    (OneOutputBuffer, SELF, "no state"),
    (SingleGradientWrong, SELF, "gradient in precision"),
    (SingleGradientWrongWhereLong, SELF, "gradient in precision"),
    (SingleGradientOfSomeKeysWrong, SELF, "gradient in precision"),
    (GradientOf64, SELF, "gradient at length"),
    (GradientSkewedWhereLong, SELF, "gradient at length"),
    (LandmarkGradientDetached, SELF, "gradient at length"),
    (BatchStatistics, SELF, "batch independence"),
    (LeaksInTraining, CAUSAL, "causal"),
    (IgnoresPaddingInTraining, SELF, "padding length"),
    (LeaksAfterStep, CAUSAL, "causal"),
    (BatchAfterStep, SELF, "batch independence"),
    (NanAfterStep, SELF, "finite"),
    (OddWidth, SELF, "twin"),
    (WideHead, SELF, "twin"),
    (ScaleOf64, replace(SELF, head_dim=64), "twin"),
    (FusedOddWidth, SELF, "implementations"),
    (ReadsMemoryAsContiguous, SELF, "twin"),
    (ReadsMemoryAsContiguous, SELF, "layout"),
    (NeedsContiguous, SELF, "no side effects"),
    (WrongAtMultiplesOf128, CAUSAL, "causal"),
    (WrongAtMultiplesOf256, SELF, "batch independence"),
    (RoundedThreshold, SELF, "rows sum"),
    (ChangesMask, SELF, "no side effects"),
    (ChangesParameter, SELF, "no side effects"),
    (CountsInEvaluation, SELF, "no side effects"),
    (DrawsInEvaluation, SELF, "no side effects"),
    (ChangesDefaultDtype, SELF, "no side effects"),
    (WeightsOfFewKeys, SELF, "weights make output"),
    (DropsFinalGradient, SELF, "gradient at length"),
    (FreezesAfterStep, SELF, "gradient"),
    (PaddingTimesZero, SELF, "padding without numbers"),
    (NoEmptyBatch, SELF, "empty batch"),
    (FillsEmptyBatch, SELF, "empty batch"),
]
"""Each is found by both forms of the gate."""


ALSO: dict[type[Variant], set[str]] = {
    LeaksBeyond400Keys: {"rows sum"},
    WrongAtMultiplesOf256: {"padding length"},
    KeepsLargestBatch: {"deterministic"},
    KeepsFirstMask: {"no state", "padding content"},
    IgnoresPaddingInTraining: {"padding content"},
    BatchAfterStep: {"padding content"},
    BatchStatistics: {"padding content"},
    LandmarkGradientDetached: {"padding length"},
    WeightsOfFewKeys: {"padding length"},
}
"""Properties that come before the one named above and are red too."""
