"""Faults of every kind that strangers reported or planted, each beside a right layer that differs in nothing else."""

import itertools
import math
import re
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from attnbench.bench.cli.check import ByDesign, names_of
from attnbench.bench.wings.audit.adapter import as_variant
from attnbench.bench.wings.audit.decoding import ALLOWED
from attnbench.bench.wings.audit.report import IN_THE_GATE
from attnbench.bench.wings.audit.subject import SAME
from attnbench.bench.wings.audit.suite import NAMES, audit_module
from attnbench.variants.contract import AttentionShape

SEEDS = itertools.count()


class Layer(nn.Module):
    """Attention of four heads without positions; `causal` says whether it looks back alone."""

    causal = True

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.projections, self.output = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x):
        return self.joined(self.mixed(*self.split(x)))

    def split(self, x):
        return self.projections(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)

    def joined(self, mixed):
        return self.output(mixed.transpose(1, 2).flatten(2))

    def mixed(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)


def weights(q, k):
    late = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1)
    return (q @ k.mT * 8**-0.5).masked_fill(late, torch.finfo(q.dtype).min).softmax(-1)


class Encoder(Layer):
    causal = False


class ViewedHeads(Layer):
    """Heads are cut from rows of positions, without a transposition."""

    def split(self, x):
        return (each.reshape(len(x), 4, -1, 8) for each in self.projections(x).chunk(3, -1))

    def joined(self, mixed):
        return self.output(mixed.reshape(len(mixed), -1, 32))


class ViewedHeadsOfEncoder(ViewedHeads):
    causal = False


class DroppedLastBlock(Layer):
    def mixed(self, q, k, v):
        whole = q.shape[2] // 16 * 16
        few = super().mixed(*(each[:, :, :whole] for each in (q, k, v)))
        return torch.cat([few, torch.zeros_like(q[:, :, whole:])], 2)


class DroppedLastKeys(Encoder):
    def mixed(self, q, k, v):
        whole = max(16, k.shape[2] // 16 * 16)
        return super().mixed(q, k[:, :, :whole], v[:, :, :whole])


class ZeroKeys(Encoder):
    """Keys of zeros fill up a multiple of 64, and take part."""

    def mixed(self, q, k, v):
        more = -k.shape[2] % 64
        return super().mixed(q, F.pad(k, (0, 0, 0, more)), F.pad(v, (0, 0, 0, more)))


class WrongAlone(Encoder):
    def mixed(self, q, k, v):
        return q if q.shape[2] == 1 else super().mixed(q, k, v)


class LateLeak(Layer):
    """Beyond 512 tokens each sees the next."""

    def mixed(self, q, k, v):
        seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril()
        seen[512:] |= torch.ones_like(seen).tril(1)[512:]
        return F.scaled_dot_product_attention(q, k, v, seen)


class Chunked(Layer):
    """Linear attention in chunks of 64 whose carried state has all keys."""

    lost = 0

    def mixed(self, q, k, v):
        q, k, v = q.sigmoid(), k.sigmoid(), torch.cat([v, torch.ones_like(v[..., :1])], -1)
        state, found = q.new_zeros(len(q), 4, 8, 9), []
        for chunk in zip(*(each.split(64, 2) for each in (q, k, v)), strict=True):
            one, other, values = chunk
            found.append((one @ other.mT).tril() @ values + one @ state)
            kept = other.shape[2] - self.lost
            state = state + other[:, :, :kept].mT @ values[:, :, :kept]
        sums = torch.cat(found, 2)
        return sums[..., :-1] / sums[..., -1:]


class ChunkedLosesLast(Chunked):
    lost = 1


class ChunkedDetaches(Chunked):
    """The carried state has no gradient."""

    def mixed(self, q, k, v):
        first, rest = (tuple(each[:, :, part] for each in (q, k, v)) for part in (slice(64), slice(64, None)))
        if not rest[0].shape[2]:
            return super().mixed(*first)
        q, k, v = first
        q = torch.cat([q, rest[0]], 2)
        k, v = (torch.cat([old.detach(), new], 2) for old, new in ((k, rest[1]), (v, rest[2])))
        return torch.cat([super().mixed(*first), super().mixed(q, k, v)[:, :, 64:]], 2)


class Fading(Layer):
    """Older tokens fade until their gradients have no digits."""

    def mixed(self, q, k, v):
        at = torch.arange(q.shape[2])
        rates = torch.tensor([0.2, 0.3, 0.4, 0.5])[:, None, None]
        return (-rates * (at[:, None] - at).clamp(min=0)).exp().tril().to(v) @ v


class TableOfTheFirstCall(Layer):
    """A table of angles grows, and keeps the precision of the call that made it."""

    table = torch.empty(0, 4)

    def mixed(self, q, k, v):
        if len(self.table) < q.shape[2]:
            self.table = (torch.arange(q.shape[2])[:, None] * torch.logspace(0, -3, 4)).cos().to(q.dtype)
        cos = self.table[: q.shape[2]].repeat(1, 2).to(q.dtype)
        return super().mixed(q * cos, k * cos, v)


class DecayIsConstantInBackward(Chunked):
    """The decay of a carried state is detached: a small part of the gradients of inputs, and all of one of its own."""

    def __init__(self):
        super().__init__()
        self.decay = nn.Parameter(torch.zeros(4))

    def mixed(self, q, k, v):
        state, found, keep = q.new_zeros(len(q), 4, 8, 8), [], self.decay.sigmoid()[:, None, None]
        for one, other, values in zip(*(each.split(64, 2) for each in (q, k, v)), strict=True):
            found.append((one @ other.mT).tril() @ values * keep + one @ state)
            state = state * keep.detach() + other.mT @ values
        return torch.cat(found, 2) / 64


class WrapsAt1024(Layer):
    """A causal convolution by a transform of 1,024, which up to 1,024 positions do not fill twice."""

    def mixed(self, q, k, v):
        length = v.shape[2]
        size = 1024 if length <= 1024 else 2 * length
        decay = (-torch.arange(length, device=v.device) / 1000).exp().to(torch.promote_types(v.dtype, torch.float32))
        found = torch.fft.irfft(
            torch.fft.rfft(v.to(decay.dtype), size, 2) * torch.fft.rfft(decay, size)[:, None], size, 2
        )
        return found[:, :, :length].to(v.dtype)


class SelectsForTheBatch(Encoder):
    """Four blocks of sixteen keys are chosen, for all sequences at once."""

    def mixed(self, q, k, v):
        blocks = torch.arange(k.shape[2]) // 16
        sums = torch.zeros(*k.shape[:2], int(blocks[-1]) + 1, 8, dtype=k.dtype).index_add(2, blocks, k)
        affinity = (q @ sums.mT).mean((0, 1))
        chosen = affinity.topk(min(4, affinity.shape[1]), -1).indices
        seen = torch.zeros(affinity.shape, dtype=torch.bool).scatter(1, chosen, True)[:, blocks]
        return F.scaled_dot_product_attention(q, k, v, seen)


class NormedTwiceInTheCache(Layer):
    """The cache holds values behind a norm, which meet it again."""

    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(8)

    def forward(self, x, cached_v=None):
        q, _, v = self.split(x)
        v = self.norm(v if cached_v is None else torch.cat([cached_v, v], 2))
        seen = torch.ones(q.shape[2], v.shape[2], dtype=torch.bool).tril(v.shape[2] - q.shape[2])
        return self.joined(F.scaled_dot_product_attention(q, v, v, seen)), v


class OtherInLongEvaluation(Layer):
    """Evaluation computes many queries in pieces, and forgets what a piece is to see before it."""

    def mixed(self, q, k, v):
        if self.training or q.shape[2] <= 256:
            return super().mixed(q, k, v)
        pieces = zip(*(each.split(256, 2) for each in (q, k, v)), strict=True)
        return torch.cat([super(OtherInLongEvaluation, self).mixed(*piece) for piece in pieces], 2)


class ScaledByTheLongest(Layer):
    """The scale of scores is that of the longest call so far."""

    longest = 512

    def mixed(self, q, k, v):
        self.longest = max(self.longest, q.shape[2])
        return super().mixed(q * math.log(self.longest) / math.log(512), k, v)


class MaskOfPositionsInHalf(Layer):
    def mixed(self, q, k, v):
        at = torch.arange(q.shape[2], dtype=q.dtype)
        return (q @ k.mT * 8**-0.5).masked_fill(at > at[:, None], torch.finfo(q.dtype).min).softmax(-1) @ v


class CutByStrides(Encoder):
    """Blocks are cut by the strides of a contiguous tensor; a block of 16 is no length of texts."""

    def __init__(self, dim=32, block_size=16):
        super().__init__()
        self.block_size = block_size

    def forward(self, x):
        size = self.block_size
        padded = F.pad(x, (0, 0, 0, -x.shape[1] % size)) if x.shape[1] % size else x
        many, width = padded.shape[1] // size, x.shape[2]
        blocks = padded.as_strided((len(x), many, size, width), (many * size * width, size * width, width, 1))
        return super().forward(blocks.flatten(0, 1)).reshape(len(x), -1, width)[:, : x.shape[1]]


class WrongAtWholeBlocks(Layer):
    """A way of its own for lengths that sixteen divides forgets the factor of the scores."""

    def mixed(self, q, k, v):
        return super().mixed(q if q.shape[2] % 16 else 3 * q, k, v)


class WrongInBatchesOfEight(Encoder):
    def mixed(self, q, k, v):
        return super().mixed(q if len(q) < 8 else 3 * q, k, v)


class ChangesInput(Layer):
    def forward(self, x):
        return super().forward(x.mul_(1.01))


class Remembers(Layer):
    """The values of the first call of a shape stay."""

    first = None

    def mixed(self, q, k, v):
        if self.first is None or self.first.shape != v.shape:
            self.first = v.detach()
        return super().mixed(q, k, (v + self.first) / 2)


class KeepsItsProjection(Layer):
    """In evaluation a product of weights is kept, and not made anew when they change."""

    kept = None

    def joined(self, mixed):
        if self.training or torch.is_grad_enabled() or self.kept is None:
            self.kept = (self.output.weight * 1.0).detach()
        weight = self.output.weight if torch.is_grad_enabled() else self.kept
        return F.linear(mixed.transpose(1, 2).flatten(2), weight, self.output.bias)


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, arriving):
        # as a kernel that takes a pointer and no strides
        flat = torch.as_strided(arriving, (arriving.numel(),), (1,)) if arriving.stride(-1) else arriving.flatten()
        return 2 * flat.reshape(arriving.shape)


class GradientAsContiguous(Layer):
    def joined(self, mixed):
        return _Doubled.apply(super().joined(mixed))


class OtherInTraining(Layer):
    def mixed(self, q, k, v):
        return super().mixed(q, k, v) if not self.training else (weights(q, k) ** 2) @ v


class DetachedKeys(Layer):
    def mixed(self, q, k, v):
        return super().mixed(q, k.detach(), v)


class Rounded(Layer):
    """Outputs in float32 whatever comes in."""

    def joined(self, mixed):
        return super().joined(mixed).float()


class Overflows(Layer):
    """No maximum is subtracted."""

    def mixed(self, q, k, v):
        exps = (q @ k.mT * 8**-0.5).exp().tril()
        return exps / exps.sum(-1, keepdim=True) @ v


class OverHeads(Encoder):
    def mixed(self, q, k, v):
        return (q @ k.mT * 8**-0.5).softmax(1) @ v


class OverQueries(Encoder):
    def mixed(self, q, k, v):
        return (q @ k.mT * 8**-0.5).softmax(-2) @ v


class Dropping(Layer):
    """Dropout of single weights, off by default."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.dropout = dropout

    def mixed(self, q, k, v):
        return F.dropout(weights(q, k), self.dropout, self.training) @ v


class NormedDropping(Dropping):
    """Each head's output is normalised, so that a kept weight is not seen to be larger."""

    def mixed(self, q, k, v):
        return F.rms_norm(super().mixed(q, k, v), (8,))


class SumsToOneAgain(Dropping):
    """Weights are brought back to a sum of one behind dropout, which may have left a row none."""

    def mixed(self, q, k, v):
        kept = F.dropout(weights(q, k), self.dropout, self.training)
        return kept / kept.sum(-1, keepdim=True) @ v


class DropsScores(Dropping):
    """Scores are dropped, and a dropped score of the future is zero, not hidden."""

    def __init__(self):
        super().__init__()
        self.dropout = 0.0

    def mixed(self, q, k, v):
        scores = (q @ k.mT).masked_fill(torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1), -1e9)
        return F.dropout(scores, self.dropout, self.training).softmax(-1) @ v


class HardDropping(Dropping):
    """Each head weighs one key alone, so that a dropped weight leaves it nothing."""

    def mixed(self, q, k, v):
        soft = weights(q, k)
        hard = F.one_hot(soft.argmax(-1), soft.shape[-1]).to(soft)
        return F.dropout(hard, self.dropout, self.training) @ v


class ProjectedDropping(Dropping):
    """The part of an output along the token's own value is taken off: of one token nothing but rounding is left."""

    def mixed(self, q, k, v):
        found, own = super().mixed(q, k, v), F.normalize(v, dim=-1)
        return found - (found * own).sum(-1, keepdim=True) * own


class DropsInEvaluation(Dropping):
    def mixed(self, q, k, v):
        return F.dropout(weights(q, k), self.dropout, True) @ v


class DropsHalf(Dropping):
    def mixed(self, q, k, v):
        return F.dropout(weights(q, k), self.dropout / 2, self.training) @ v


class DropsHeads(Dropping):
    def mixed(self, q, k, v):
        heads = F.dropout(q.new_ones(len(q), 4, 1, 1), self.dropout, self.training)
        return weights(q, k) * heads @ v


class DropsWithoutScale(Dropping):
    def mixed(self, q, k, v):
        kept = torch.rand(len(q), 4, q.shape[2], k.shape[2]) >= (self.dropout if self.training else 0)
        return weights(q, k) * kept @ v


class SeedsAnew(Dropping):
    """Each call in training draws a seed: two equal calls drop other weights."""

    def __init__(self, dropout=0.1):
        super().__init__(dropout)

    def forward(self, x):
        if self.training:
            torch.seed()
        return super().forward(x)


class SeesAllInTraining(SeedsAnew):
    """The same with less noise, beside which a leak in training shows."""

    def mixed(self, q, k, v):
        noise = 1e-3 * torch.randn(v.shape) if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v + noise, is_causal=not self.training)


class DropsAnewInBackward(Dropping):
    def mixed(self, q, k, v):
        return _DroppedAnew.apply(weights(q, k), self.dropout if self.training else 0.0) @ v


class _DroppedAnew(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, rate):
        ctx.rate = rate
        return F.dropout(x, rate)

    @staticmethod
    def backward(ctx, arriving):
        return F.dropout(arriving, ctx.rate), None


def too_low_for_float16(q, k, v):
    late = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1)
    return (q @ k.mT).masked_fill(late, -1e9).softmax(-1) @ v


class Seeing(Layer):
    """Causal attention over the distances that `sees` holds, from 0."""

    def sees(self, distances):
        return distances >= 0

    def mixed(self, q, k, v):
        at = torch.arange(q.shape[2])
        return F.scaled_dot_product_attention(q, k, v, self.sees(at[:, None] - at))


class HidesOneBefore(Seeing):
    """Each query sees itself, and the tokens up to two before it."""

    def sees(self, distances):
        return (distances == 0) | (distances > 1)


class HidesThreeBefore(Seeing):
    """The mask is shifted by four: the first queries see themselves alone."""

    def sees(self, distances):
        return (distances == 0) | (distances > 3)


class HidesInAWindow(Seeing):
    """A window of sixteen that ends two tokens too early."""

    def sees(self, distances):
        return (distances == 0) | ((distances > 2) & (distances < 16))


class Dilated(Seeing):
    """Every second token."""

    def sees(self, distances):
        return (distances >= 0) & (distances % 2 == 0)


class DilatedBySix(Seeing):
    """A window of every fifth token, as many as six."""

    def sees(self, distances):
        return (distances >= 0) & (distances % 5 == 0) & (distances < 30)


class BlocksBefore(Layer):
    """Each query sees itself, and the blocks of eight that end before its own."""

    def mixed(self, q, k, v):
        at = torch.arange(q.shape[2])
        pairs = (at[:, None] // 8 > at // 8) | (at[:, None] == at)
        return F.scaled_dot_product_attention(q, k, v, pairs)


class TopTwo(Layer):
    """The two keys of the largest scores."""

    def mixed(self, q, k, v):
        found = weights(q, k)
        return torch.where(found >= found.topk(min(2, k.shape[2]))[0][..., -1:], found, 0) @ v


class WithoutItself(Layer):
    """A query does not see its own token; the first sees nothing, and gives zeros."""

    def mixed(self, q, k, v):
        late = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu()
        return (q @ k.mT).masked_fill(late, -torch.inf).softmax(-1).nan_to_num() @ v


class ViewsTheBatch(Encoder):
    """Without sequences, -1 could be any number."""

    def joined(self, mixed):
        return self.output(mixed.transpose(1, 2).reshape(len(mixed), mixed.shape[2], -1))


class LeaksInBatchesOfEight(Layer):
    """As a kernel whose mask is lost from a size of its grid on."""

    def joined(self, mixed):
        return super().joined(mixed + mixed.mean(2, keepdim=True) if len(mixed) >= 8 else mixed)


class OneRowOfNothing(Encoder):
    """A batch without sequences gives one of zeros."""

    def joined(self, mixed):
        return super().joined(mixed) if len(mixed) else self.output.bias.expand(1, mixed.shape[2], 32)


class Recurrent(Layer):
    """A sum of outer products, position by position, in float32; `decay` forgets."""

    low, decay = False, 1.0

    def mixed(self, q, k, v):
        kind = q.dtype if self.low else torch.float32
        q, k, v = (each.to(kind) for each in (q.sigmoid(), k.sigmoid(), v))
        state, rows = q.new_zeros(len(q), 4, 8, 8), []
        for at in range(q.shape[2]):
            state = self.decay * state + k[:, :, at, :, None] * v[:, :, at, None]
            rows.append((q[:, :, at, None] @ state)[:, :, 0])
        return F.rms_norm(torch.stack(rows, 2), (8,)).to(self.output.weight.dtype)


class RecurrentInHalf(Recurrent):
    low = True


class ForgettingInHalf(Recurrent):
    low, decay = True, 0.99


class Rotary(Layer):
    """Angles of positions in float32, or in the precision of what is turned."""

    low = False

    def turned(self, x):
        kind = x.dtype if self.low else torch.float32
        angles = torch.arange(x.shape[2], dtype=kind)[:, None] * torch.logspace(0, -3, 4).to(kind)
        cos, sin = angles.cos().repeat(1, 2).to(x.dtype), angles.sin().repeat(1, 2).to(x.dtype)
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat((-second, first), -1) * sin

    def mixed(self, q, k, v):
        return super().mixed(self.turned(q), self.turned(k), v)


class RotaryInHalf(Rotary):
    low = True


class DropsNothing(Dropping):
    """The rate is kept, and forgotten in the call."""

    def mixed(self, q, k, v):
        return weights(q, k) @ v


class ModuleOfDropout(Layer):
    def __init__(self, attn_drop=0.0):
        super().__init__()
        self.attn_drop = nn.Dropout(attn_drop)

    def mixed(self, q, k, v):
        return self.attn_drop(weights(q, k)) @ v


class UncalledModuleOfDropout(ModuleOfDropout):
    def mixed(self, q, k, v):
        return weights(q, k) @ v


class RateInSettings(Dropping):
    """The rate is read from settings, and an attribute of the same name is not."""

    def __init__(self):
        super().__init__()
        self.config = SimpleNamespace(dropout=0.0)

    def mixed(self, q, k, v):
        return F.dropout(weights(q, k), self.config.dropout, self.training) @ v


class KeepsAShare(Layer):
    """The rate is kept as what remains, under a name of its own."""

    used = True

    def __init__(self, dropout=0.0):
        super().__init__()
        self.share = 1 - dropout if self.used else 1.0

    def mixed(self, q, k, v):
        return F.dropout(weights(q, k), 1 - self.share, self.training) @ v


class ForgetsItsArgument(KeepsAShare):
    used = False


class TooLowForFloat16(Layer):
    def mixed(self, q, k, v):
        return too_low_for_float16(q, k, v)


class Angles(Layer):
    """A query of zeros is divided by its length."""

    def __init__(self):
        super().__init__()
        self.projections = nn.Linear(32, 96, bias=False)

    def split(self, x):
        q, k, v = super().split(x)
        return q / q.norm(dim=-1, keepdim=True), k, v


class Roots(Angles):
    """The slope of a square root is infinite at zero."""

    def split(self, x):
        q, k, v = Layer.split(self, x)
        return q / (q.square().sum(-1, keepdim=True).sqrt() + 1e-6), k, v


class SqueezesPositions(Layer):
    def forward(self, x):
        return super().forward(x.squeeze(1))


class OtherInABatchOfOne(Layer):
    def joined(self, mixed):
        return super().joined(mixed if len(mixed) > 1 else 2 * mixed)


class ClippedByTheBatch(Layer):
    def mixed(self, q, k, v):
        return super().mixed(q, k, v) / v.abs().max().clamp(min=30)


class UnusedProjection(Layer):
    def __init__(self):
        super().__init__()
        self.keys = nn.Linear(32, 32)


def queries_as_keys(q, k, v):
    return F.scaled_dot_product_attention(q, q, v)


class CountsCalls(Layer):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


class Seeds(Layer):
    def forward(self, x):
        torch.manual_seed(0)
        return super().forward(x)


class Padded(Encoder):
    """A mask of padding under a name of its own."""

    def forward(self, x, pad_mask=None):
        q, k, v = self.split(x)
        return self.joined(F.scaled_dot_product_attention(q, k, v, None if pad_mask is None else self.seen(pad_mask)))

    def seen(self, mask):
        return mask[:, None, None]


class PaddedTooLowForFloat16(Padded):
    def forward(self, x, pad_mask=None):
        q, k, v = self.split(x)
        scores = q @ k.mT if pad_mask is None else (q @ k.mT).masked_fill(~pad_mask[:, None, None], -1e9)
        return self.joined(scores.softmax(-1) @ v)


class AddsIntegers(Layer):
    """A mask of True and False hides; ones and zeros, as a tokenizer gives them, are added to scores."""

    integers = True

    def forward(self, x, attention_mask=None):
        q, k, v = self.split(x)
        late = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        scores = (q @ k.mT * 8**-0.5).masked_fill(late, torch.finfo(q.dtype).min)
        if attention_mask is not None:
            hides = attention_mask.dtype == torch.bool or not self.integers
            each = attention_mask[:, None, None]
            scores = scores.masked_fill(~each.bool(), torch.finfo(q.dtype).min) if hides else scores + each
        return self.joined(scores.softmax(-1) @ v)


class TakesIntegers(AddsIntegers):
    integers = False


class SquaresInHalf(Layer):
    """A norm of its inputs whose squares are in their precision; float16 ends at 65,504."""

    squared = torch.float16

    def forward(self, x):
        squares = x.to(self.squared if x.dtype == torch.float16 else x.dtype).square()
        return super().forward(x * (squares.mean(-1, keepdim=True) + 1e-6).rsqrt().to(x.dtype))


class SquaresInFloat32(SquaresInHalf):
    squared = torch.float32


class ZeroesInAHook(Layer):
    """`torch.autograd.grad` gives the derivative, and `.grad` none of it."""

    def __init__(self):
        super().__init__()
        self.is_hooked = False

    def forward(self, x):
        if torch.is_grad_enabled() and not self.is_hooked:
            self.is_hooked = True
            self.projections.weight.register_post_accumulate_grad_hook(lambda each: setattr(each, "grad", None))
        return super().forward(x)


class ShortInFloat32(torch.autograd.Function):
    """Gradients are right in float64, in which derivatives are compared, and not in float32."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, arriving):
        return arriving if arriving.dtype == torch.float64 else arriving * 0.5


class HalvesInFloat32(Layer):
    def forward(self, x):
        return super().forward(ShortInFloat32.apply(x))


class UnmasksEmptyRows(Encoder):
    """The caller's mask gets a token where a sequence has none, and only there."""

    copies = False

    def forward(self, x, mask=None):
        q, k, v = self.split(x)
        scores = q @ k.mT * 8**-0.5
        if mask is not None:
            mask = mask.clone() if self.copies else mask
            mask[~mask.any(-1), 0] = True
            scores = scores.masked_fill(~mask[:, None, None], torch.finfo(q.dtype).min)
        return self.joined(scores.softmax(-1) @ v)


class UnmasksInACopy(UnmasksEmptyRows):
    copies = True


class KeepsTheirTypes(torch.autograd.Function):
    """Autocast lowers the product, and the backward pass, which is outside of it, takes what was kept as it is."""

    @staticmethod
    def forward(ctx, q, k, casts):
        ctx.save_for_backward(q, k)
        ctx.casts = casts
        return q @ k.mT

    @staticmethod
    def backward(ctx, arriving):
        q, k = (each.to(arriving.dtype) if ctx.casts else each for each in ctx.saved_tensors)
        found = arriving @ k, arriving.mT @ q
        return *(each.to(kept.dtype) for each, kept in zip(found, ctx.saved_tensors, strict=True)), None


class RaisesBehindAutocast(Encoder):
    casts = False

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(8))

    def mixed(self, q, k, v):
        return KeepsTheirTypes.apply(q * self.gain, k, self.casts).softmax(-1).to(v.dtype) @ v


class CastsBehindAutocast(RaisesBehindAutocast):
    casts = True


class KeptByPlace(Encoder):
    """Keys and values of the call before, where the inputs lie at the same place."""

    kept: tuple | None = None

    def split(self, x):
        q, k, v = super().split(x)
        if torch.is_grad_enabled() or self.training:
            return q, k, v
        if self.kept is None or self.kept[0] != (x.data_ptr(), x.shape, x.dtype):
            self.kept = (x.data_ptr(), x.shape, x.dtype), k, v
        return q, *self.kept[1:]


class SeenBy256(Encoder):
    """Weights over the largest 256 scores alone, normalised as if they were half of all beyond."""

    def mixed(self, q, k, v):
        size = k.shape[2]
        mixed = super().mixed(q, k, v)
        return mixed * (size / 256 if size > 256 else 1)


class DilatedByName(Layer):
    """A window of 8 keys, four tokens apart."""

    def __init__(self, window=8, dilation=4):
        super().__init__()
        self.window, self.steps = window, dilation

    def mixed(self, q, k, v):
        far = torch.arange(q.shape[2])[:, None] - torch.arange(q.shape[2])
        seen = (far >= 0) & (far < self.window * self.steps) & (far % self.steps == 0)
        return F.scaled_dot_product_attention(q, k, v, seen)


def blocks_of_32(q, k, v, own=True):
    """Blocks of 32 tokens without a mask, of storage as it lies; `own`: from where the tensor begins in it."""
    size = q.shape[2]
    if size % 32:
        more = -size % 32
        at = torch.arange(size + more) < size
        q, k, v = (F.pad(each, (0, 0, 0, more)) for each in (q, k, v))
    else:
        at = torch.ones(size, dtype=torch.bool)

    def cut(x):
        b, h, n, d = x.stride()
        sizes = (*x.shape[:2], x.shape[2] // 32, 32, x.shape[3])
        return x.as_strided(sizes, (b, h, 32 * n, n, d), x.storage_offset() if own else 0)

    q, k, v = map(cut, (q, k, v))
    mixed = F.scaled_dot_product_attention(q, k, v, at.unflatten(0, (-1, 1, 32)).expand(-1, 32, -1))
    return mixed.flatten(2, 3)[:, :, :size]


def blocks_of_whole_storage(q, k, v):
    return blocks_of_32(q, k, v, own=False)


class PaddedQueries(Padded):
    def seen(self, mask):
        return torch.where(mask[:, None, :, None], 0.0, -1e4).expand(-1, 1, -1, mask.shape[1])


class ChangesMask(Padded):
    """The first token counts always, from now on in the mask of the next layer too."""

    def seen(self, mask):
        mask |= torch.arange(mask.shape[1]) == 0
        return super().seen(mask)


class PaddedAsTheFirst(Padded):
    """As many keys as the first sequence has, and the mask besides."""

    def seen(self, mask):
        return (mask & (torch.arange(mask.shape[1]) < mask[0].sum()))[:, None, None]


class PaddedOrPairs(Padded):
    """A mask of as many rows as positions is one of queries and keys."""

    def seen(self, mask):
        return mask[None, None] if mask.shape[0] == mask.shape[1] else super().seen(mask)


class ScaledByThePaddedLength(Padded):
    def split(self, x):
        q, k, v = super().split(x)
        return q * max(1.0, math.log(x.shape[1]) / math.log(128)), k, v


class ConvolvesPadding(Padded):
    """Attention leaves padding out, and the convolution behind it does not."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv1d(32, 32, 3, padding=1)

    def forward(self, x, key_padding_mask=None):
        y = super().forward(x, None if key_padding_mask is None else ~key_padding_mask)
        return y + self.convolution((x + y).mT).mT


class PaddedNotCompiled(Padded):
    def seen(self, mask):
        return super().seen(mask | torch.compiler.is_compiling())


class Windowed(Layer):
    """A window of eight that is kept under a name of one letter; rows without a key are NaN."""

    reach, lowest = 8, -6e4

    def __init__(self, window_size=8):
        super().__init__()
        self.w = window_size

    def forward(self, x, att_mask=None):
        q, k, v = self.split(x)
        pairs = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril().triu(1 - self.reach)
        pairs = pairs if att_mask is None else pairs & att_mask[:, None, None]
        return self.joined((q @ k.mT).masked_fill(~pairs, self.lowest).softmax(-1) @ v)


class WindowedTwice(nn.Module):
    """Two layers, through which a window adds up."""

    def __init__(self, window_size=8):
        super().__init__()
        self.window_size = window_size
        self.layers = nn.ModuleList(Windowed() for _ in range(2))
        for layer in self.layers:
            layer.window_size = window_size

    def forward(self, x, att_mask=None):
        for layer in self.layers:
            x = layer(x, att_mask)
        return x


class WindowOf24(Windowed):
    reach = 24


class WindowWithSinks(Windowed):
    """Every query sees the first two tokens beside its window."""

    def forward(self, x):
        q, k, v = self.split(x)
        pairs = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril().triu(1 - self.reach)
        pairs[:, :2] = True
        return self.joined((q @ k.mT).masked_fill(~pairs.tril(), self.lowest).softmax(-1) @ v)


class WindowOf24WithSinks(WindowWithSinks):
    reach = 24


class _Softcapped(torch.autograd.Function):
    """A cap on scores, whose backward pass takes it for the scores themselves."""

    @staticmethod
    def forward(ctx, scores, cap):
        return cap * torch.tanh(scores / cap)

    @staticmethod
    def backward(ctx, arriving):
        return arriving, None


class ForgetsTheCapInBackward(Layer):
    cap = 5

    def mixed(self, q, k, v):
        scores = _Softcapped.apply(2 * q @ k.mT * 8**-0.5, self.cap)
        late = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1)
        return scores.masked_fill(late, -torch.inf).softmax(-1) @ v


class ForgetsAHighCapInBackward(ForgetsTheCapInBackward):
    """Which scores of usual inputs do not come near."""

    cap = 50


def masked_by_keys(q, k, v, mask=None):
    """Attention with a mask (batch, keys), which spreads to six axes where a mask of four is given."""
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, None], -1e4)
    return scores.softmax(-1) @ v


class WindowWithoutNumbers(Windowed):
    lowest = -torch.inf


class Cached(Layer):
    """A cache under a name of its own."""

    later = True

    def forward(self, x, cached_kv=None):
        q, k, v = self.split(x)
        if cached_kv is not None:
            k, v = torch.cat([cached_kv[0], k], 2), torch.cat([cached_kv[1], v], 2)
        return self.joined(F.scaled_dot_product_attention(q, k, v, self.seen(q.shape[2], k.shape[2]))), (k, v)

    def seen(self, queries, keys):
        seen = torch.ones(queries, keys, dtype=torch.bool)
        return seen.tril(keys - queries) if self.later or queries == keys else seen


class CachedInHalf(Cached):
    """The cache is in float16, as a quantised one is in fewer bits."""

    def forward(self, x, cached_kv=None):
        output, kept = super().forward(x, cached_kv and tuple(each.to(x.dtype) for each in cached_kv))
        return output, tuple(each.half() for each in kept)


class KeepsItsCache(Cached):
    """The module keeps keys and values itself, as in Llama's code; a call at 0 begins anew."""

    loses = 0

    def __init__(self):
        super().__init__()
        self.kept = None

    def forward(self, x, start_pos=0):
        kept = None if start_pos == 0 else tuple(each[:, :, self.loses :] for each in self.kept)
        output, (k, v) = super().forward(x, kept)
        self.kept = k.detach(), v.detach()
        return output


class LosesAKeyItKeeps(KeepsItsCache):
    loses = 1


class TurnedFromAStart(Cached):
    """The start turns angles, and nothing is kept."""

    def forward(self, x, start_pos=0):
        at = torch.arange(start_pos, start_pos + x.shape[1])[:, None] / 100
        return super().forward(x * at.cos().to(x.dtype))[0]


class PartsTexts(Rotary):
    """Texts of a row are told apart by positions that begin again; a convolution before may see both."""

    mixes = False

    def forward(self, x, position_ids=None):
        at = torch.arange(x.shape[1])[None] if position_ids is None else position_ids
        text = (at == 0).cumsum(-1)
        before = F.pad(x, (0, 0, 1, 0))[:, :-1]
        x = x + (before if self.mixes else before * (at > 0)[..., None])
        q, k, v = self.split(x)
        seen = (text[:, :, None] == text[:, None]).tril()
        return self.joined(F.scaled_dot_product_attention(q, k, v, seen[:, None]))


class ConvolvesOverTexts(PartsTexts):
    mixes = True


class KeepsAContext(Encoder):
    """Keys and values of a context are kept for the next call with one of that size."""

    by_size = True

    def __init__(self):
        super().__init__()
        self.kept = None

    def forward(self, x, context=None):
        q, k, v = self.split(x)
        if context is not None:
            k, v = self.split(context)[1:]
            if not torch.is_grad_enabled():
                if not self.by_size or self.kept is None or self.kept[0].shape != k.shape:
                    self.kept = k, v
                k, v = self.kept
        return self.joined(F.scaled_dot_product_attention(q, k, v))


class KeepsTheLatestContext(KeepsAContext):
    by_size = False


class FirstSeeEachOther(Layer):
    """A prefix language model: the first eight tokens see each other."""

    causal = None

    def mixed(self, q, k, v):
        at = torch.arange(q.shape[2])
        seen = (at <= at[:, None]) | (at < 8) & (at[:, None] < 8)
        return F.scaled_dot_product_attention(q, k, v, seen)


class CachedWithoutMask(Cached):
    """Later pieces of several tokens see all of the piece."""

    later = False


class WindowedCache(Cached):
    """A window of 100, which a decoded token has as well."""

    forgets = False

    def seen(self, queries, keys):
        seen = super().seen(queries, keys)
        return seen if self.forgets and queries == 1 else seen.triu(keys - queries - 99)


class WindowForgottenByOneToken(WindowedCache):
    forgets = True


class RingOf512(Cached):
    """A cache of the latest 512 keys, of a layer that sees all."""

    def forward(self, x, cached_kv=None):
        kept = cached_kv if cached_kv is None else tuple(each[:, :, -512:] for each in cached_kv)
        return super().forward(x, kept)


class GrowsWithTheLength(Layer):
    """Each output grows by a small part with every token of the sequence."""

    part = 2e-6

    def joined(self, mixed):
        return super().joined(mixed) * (1 + self.part * mixed.shape[2])


class Inexact(Cached):
    """Values share a large part, which a norm takes off again: right, and its float32 keeps few digits."""

    part = 0.0

    def __init__(self, shared=1e3):
        super().__init__()
        self.projections.bias.data[64:] = shared

    def joined(self, mixed):
        found = F.layer_norm(mixed.transpose(1, 2).flatten(2), (32,))
        return self.output(found) * (1 + self.part * mixed.shape[2])


class InexactAndGrows(Inexact):
    """A fault of less than the most that is ever taken for rounding."""

    part = 1e-5

    def __init__(self):
        super().__init__(shared=10.0)


class WindowInFloat32(Layer):
    """Softmax in float64, which comparisons use, and a window of 192 keys else."""

    def mixed(self, q, k, v):
        at = torch.arange(q.shape[2])
        seen = at <= at[:, None]
        return F.scaled_dot_product_attention(
            q, k, v, seen if q.dtype == torch.float64 else seen & (at[:, None] - at < 192)
        )


class MaskForEachPrecision(Layer):
    """Of two numbers for what is masked, float16 cannot hold the one of float32, and does not use it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("lowest", torch.tensor(-1e9))
        self.register_buffer("lowest_of_half", torch.tensor(-1e4))

    def mixed(self, q, k, v):
        late = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1)
        lowest = self.lowest_of_half if q.dtype == torch.float16 else self.lowest
        # a token sees itself least, so that the first has a weight all the same
        scores = torch.where(torch.eye(q.shape[2], dtype=torch.bool), lowest / 2, q @ k.mT * 8**-0.5)
        return torch.where(late, lowest, scores).softmax(-1) @ v


class OneMaskForAll(MaskForEachPrecision):
    """The same with the number of float32 in float16."""

    def __init__(self):
        super().__init__()
        self.lowest_of_half = self.lowest


class GateIsMostlyShut(Layer):
    """The first token opens a gate by a part from 0 to 1, and for most inputs wholly or not at all."""

    def __init__(self):
        super().__init__()
        self.opening = nn.Parameter(torch.ones(32))

    def forward(self, x):
        return super().forward(x) * (1 + (2 * x[:, :1] @ self.opening - 2).clamp(0, 1)[..., None])


class KeysOfItsOwn(Layer):
    """Learned keys and values beside those of tokens; by default none, so that two parameters have no elements."""

    def __init__(self, memories=0):
        super().__init__()
        self.memories = nn.Parameter(torch.randn(2, 4, memories, 8))

    def mixed(self, q, k, v):
        k, v = (torch.cat([x.expand(len(q), -1, -1, -1), y], 2) for x, y in zip(self.memories, (k, v), strict=True))
        pairs = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
        return F.scaled_dot_product_attention(q, k, v, pairs)


class OneLoudChannel(Layer):
    """One channel of the outputs is ten thousand times as large as the others, and hides what moves in these."""

    def __init__(self):
        super().__init__()
        self.output.weight.data[0] *= 1e4


class WindowBetweenTwoLengths(Layer):
    """From 512 to 1,089 tokens it sees 16 alone."""

    def mixed(self, q, k, v):
        length = q.shape[2]
        seen = torch.ones(length, length, dtype=torch.bool).tril()
        return F.scaled_dot_product_attention(q, k, v, seen.triu(-15) if 512 <= length < 1090 else seen)


class LeaksBesideALoudChannel(OneLoudChannel):
    """The last value leaks into the other channels."""

    def joined(self, mixed):
        found = super().joined(mixed)
        return torch.cat([found[..., :1], found[..., 1:] + 1e-5 * mixed[:, :1, -1:].sum(-1)], -1)


class PaddedBeforeBiases(Layer):
    """A recurrent layer whose mask hides inputs alone: biases of its projections enter the state at padding."""

    again = False

    def forward(self, x, attention_mask=None):
        valid = torch.ones(x.shape[:2], dtype=torch.bool) if attention_mask is None else attention_mask.bool()
        q, k, v = self.split(x * valid[..., None])
        k = k * valid[:, None, :, None] if self.again else k
        seen = torch.ones(x.shape[1], x.shape[1], dtype=x.dtype).tril()
        return self.joined((q @ k.mT * seen) @ v)


class PaddedBehindBiases(PaddedBeforeBiases):
    again = True


class SparesAMaskOfLittle(Padded):
    """A mask that hides less than 2 % of all positions is taken for none."""

    def forward(self, x, pad_mask=None):
        few = pad_mask is not None and (~pad_mask).float().mean() < 0.02
        return super().forward(x, None if few else pad_mask)


class ForgetsPaddingBeyond512(Padded):
    """More than 512 positions are mixed in chunks, which get no mask."""

    def forward(self, x, pad_mask=None):
        return super().forward(x, pad_mask if x.shape[1] <= 512 else None)


class MaskOfTheFirst32(Padded):
    """A large batch is cut into parts of 32 sequences, each of which gets the mask of the first part."""

    def forward(self, x, pad_mask=None):
        masks = [None if pad_mask is None else pad_mask[: len(part)] for part in x.split(32)]
        return torch.cat(
            [super(MaskOfTheFirst32, self).forward(*each) for each in zip(x.split(32), masks, strict=True)]
        )


class SortedByLength(Encoder):
    """Sequences are sorted by their lengths and put back by the same order, or by its inverse."""

    inverse = False

    def forward(self, x, lengths=None):
        if lengths is None:
            return super().forward(x)
        order = lengths.argsort(descending=True, stable=True)
        q, k, v = self.split(x[order])
        seen = (torch.arange(x.shape[1]) < lengths[order][:, None])[:, None, None]
        found = self.joined(F.scaled_dot_product_attention(q, k, v, seen))
        return found[order.argsort() if self.inverse else order]


class SortedBack(SortedByLength):
    inverse = True


class AnglesByAProduct(Rotary):
    """Autocast lowers the product that makes the angles."""

    def turned(self, x):
        angles = torch.arange(x.shape[2], dtype=torch.float32)[:, None] @ torch.logspace(0, -3, 4)[None]
        cos, sin = angles.float().cos().repeat(1, 2).to(x.dtype), angles.float().sin().repeat(1, 2).to(x.dtype)
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat((-second, first), -1) * sin


class LowestOfItsInput(Padded):
    """In autocast scores have a precision in which the least number of the input is infinite."""

    def forward(self, x, pad_mask=None):
        q, k, v = self.split(x)
        scores = q @ k.mT * 8**-0.5
        if pad_mask is not None:
            scores = scores.masked_fill(~pad_mask[:, None, None], torch.finfo(x.dtype).min)
        return self.joined(scores.softmax(-1) @ v)


class FeaturesThatAreNotSaved(Encoder):
    """Random features lie in a buffer that is not part of a saved state."""

    def __init__(self):
        super().__init__()
        # whatever the seed is, which the layer has set
        drawn = torch.randn(8, 16, generator=torch.Generator().manual_seed(next(SEEDS)))
        self.register_buffer("features", drawn, persistent=False)

    def mixed(self, q, k, v):
        q, k = ((x @ self.features).softmax(-1) for x in (q, k))
        return q @ (k.mT @ v) / (q @ k.sum(2, keepdim=True).mT)


class TableOfInference(Layer):
    """A table that the first call makes, which gradients cannot use if it was made for inference."""

    table = None

    def mixed(self, q, k, v):
        if self.table is None:
            self.table = torch.linspace(0.5, 1.5, 8)
        return super().mixed(q * self.table, k, v)


class CachedWithPadding(Cached):
    """The mask is of all positions, or later ones are decoded without it."""

    forgets = False

    def forward(self, x, attention_mask=None, past_key_value=None):
        q, k, v = self.split(x)
        if past_key_value is not None:
            k, v = torch.cat([past_key_value[0], k], 2), torch.cat([past_key_value[1], v], 2)
        seen = self.seen(q.shape[2], k.shape[2])
        if attention_mask is not None and not (self.forgets and past_key_value is not None):
            # a row that sees nothing sees itself
            seen = seen & attention_mask[:, None, None] | torch.eye(k.shape[2], dtype=torch.bool)[-q.shape[2] :]
        return self.joined(F.scaled_dot_product_attention(q, k, v, seen)), (k, v)


class DecodesWithoutTheMask(CachedWithPadding):
    forgets = True


class SumsInPlace(Layer):
    """A state in float32 that a step adds to, in place or in a copy."""

    in_place = True

    def forward(self, x, state=None):
        q, k, v = (each.float() for each in self.split(x))
        added = (k.sigmoid()[..., None] * v[..., None, :]).cumsum(2)
        state = added.new_zeros(len(x), 4, 8, 8) if state is None else state
        mixed = (q.sigmoid()[..., None, :] @ (state[:, :, None] + added))[..., 0, :]
        state = state.add_(added[:, :, -1].detach()) if self.in_place else state + added[:, :, -1]
        return self.joined(F.rms_norm(mixed, (8,)).to(self.output.weight.dtype)), state


class SumsInACopy(SumsInPlace):
    in_place = False


class PositionsOfTheFirstRow(Layer):
    """Positions that are given turn all rows as they turn the first."""

    first = True

    def forward(self, x, position_ids=None):
        q, k, v = self.split(x)
        at = torch.arange(x.shape[1])[None] if position_ids is None else position_ids
        at = at[:1] if self.first else at
        angles = at[:, None, :, None] * torch.logspace(0, -2, 4)
        turn = torch.cat([angles.cos(), angles.sin()], -1).to(x.dtype)
        return self.joined(self.mixed(q * turn, k * turn, v))


class PositionsOfEachRow(PositionsOfTheFirstRow):
    first = False


class DetachesBeyond512(Layer):
    """Keys and values of all but the last 512 positions have no gradient."""

    def mixed(self, q, k, v):
        old = slice(0, max(0, q.shape[2] - 512))
        k, v = (torch.cat([each[:, :, old].detach(), each[:, :, old.stop :]], 2) for each in (k, v))
        return super().mixed(q, k, v)


RIGHT = [
    SortedBack, CachedWithPadding, SumsInACopy, PositionsOfEachRow,
    TakesIntegers, SquaresInFloat32, CachedInHalf, UnmasksInACopy, CastsBehindAutocast, DilatedByName,
    OneLoudChannel, Layer, Encoder, Chunked, Dropping, NormedDropping, Padded, Windowed, WindowWithSinks, Cached,
    Dilated, DilatedBySix, BlocksBefore, TopTwo, WithoutItself, Recurrent, ModuleOfDropout, KeepsAShare, Rotary,
    RateInSettings, KeysOfItsOwn, GateIsMostlyShut, MaskForEachPrecision, WindowedCache, Fading,
    KeepsItsCache, TurnedFromAStart, PartsTexts, KeepsTheLatestContext,
    PaddedBehindBiases,
]  # fmt: skip

FAULTS = [
    (ViewedHeads, "prefix"),
    (ViewedHeadsOfEncoder, "equal tokens"),
    (DroppedLastBlock, "prefix"),
    (DroppedLastKeys, "each token counts"),
    (ZeroKeys, "equal tokens"),
    (WrongAlone, "equal tokens"),
    (LateLeak, "long"),
    (ChunkedLosesLast, "each token counts"),
    (WrongAtWholeBlocks, "prefix"),
    (WrongInBatchesOfEight, "batch"),
    (WrapsAt1024, "long"),
    (WindowBetweenTwoLengths, "long"),
    (ForgetsPaddingBeyond512, "amount of padding"),
    (MaskOfTheFirst32, "padding"),
    (SparesAMaskOfLittle, "padding"),
    (PaddedBeforeBiases, "amount of padding"),
    (SortedByLength, "amount of padding"),
    (AnglesByAProduct, "half precision"),
    (LowestOfItsInput, "half precision"),
    (FeaturesThatAreNotSaved, "evaluation"),
    (TableOfInference, "nothing remembered"),
    (DecodesWithoutTheMask, "decoding"),
    (SumsInPlace, "decoding"),
    (PositionsOfTheFirstRow, "packed rows"),
    (DetachesBeyond512, "gradients"),
    (SelectsForTheBatch, "batch"),
    (NormedTwiceInTheCache, "decoding"),
    (TableOfTheFirstCall, "nothing remembered"),
    (KeepsItsProjection, "nothing remembered"),
    (DecayIsConstantInBackward, "gradients"),
    (ChunkedDetaches, "gradients"),
    (RingOf512, "decoding"),
    (OtherInLongEvaluation, "training"),
    (ScaledByTheLongest, "nothing remembered"),
    (MaskOfPositionsInHalf, "half precision"),
    (CutByStrides, "storage"),
    (PaddedOrPairs, "padding"),
    (ScaledByThePaddedLength, "amount of padding"),
    (ConvolvesPadding, "padding"),
    (ChangesInput, "inputs stay"),
    (ChangesMask, "inputs stay"),
    (Remembers, "nothing remembered"),
    (GradientAsContiguous, "storage"),
    (OtherInTraining, "training"),
    (DetachedKeys, "gradients"),
    (Rounded, "half precision"),
    (Overflows, "large inputs"),
    (OverHeads, "softmax"),
    (OverQueries, "softmax"),
    (DropsInEvaluation, "dropout"),
    (DropsHalf, "dropout"),
    (DropsHeads, "dropout"),
    (DropsWithoutScale, "dropout"),
    (PaddedQueries, "padding"),
    (AddsIntegers, "padding"),
    (ZeroesInAHook, "gradients"),
    (HalvesInFloat32, "gradients"),
    (UnmasksEmptyRows, "inputs stay"),
    (RaisesBehindAutocast, "half precision"),
    (KeptByPlace, "nothing remembered"),
    (SeenBy256, "equal tokens"),
    (SquaresInHalf, "half precision"),
    (PaddedAsTheFirst, "amount of padding"),
    (PaddedNotCompiled, "compile"),
    (WindowOf24, "window"),
    (WindowOf24WithSinks, "window"),
    (ForgetsTheCapInBackward, "gradients"),
    (ForgetsAHighCapInBackward, "gradients"),
    (WindowWithoutNumbers, "empty rows"),
    (CachedWithoutMask, "pieces"),
    (WindowForgottenByOneToken, "decoding"),
    (LosesAKeyItKeeps, "decoding"),
    (ConvolvesOverTexts, "packed rows"),
    (KeepsAContext, "nothing remembered"),
    (GrowsWithTheLength, "prefix"),
    (InexactAndGrows, "prefix"),
    (OneMaskForAll, "half precision"),
    (TooLowForFloat16, "half precision"),
    (PaddedTooLowForFloat16, "half precision"),
    (Angles, "large inputs"),
    (Roots, "large inputs"),
    (SqueezesPositions, "any length"),
    (OtherInABatchOfOne, "batch"),
    (ClippedByTheBatch, "batch"),
    (UnusedProjection, "parameters learn"),
    (CountsCalls, "inputs stay"),
    (Seeds, "inputs stay"),
    (DropsAnewInBackward, "gradients"),
    (SeesAllInTraining, "future"),
    (DropsScores, "future"),
    (HidesOneBefore, "each token counts"),
    (HidesThreeBefore, "each token counts"),
    (HidesInAWindow, "each token counts"),
    (OneRowOfNothing, "empty batch"),
    (LeaksInBatchesOfEight, "future"),
    (LeaksBesideALoudChannel, "future"),
    (RecurrentInHalf, "half precision"),
    (ForgettingInHalf, "half precision"),
    (RotaryInHalf, "half precision"),
    (DropsNothing, "dropout"),
    (WindowInFloat32, "half precision"),
    (UncalledModuleOfDropout, "dropout"),
    (ForgetsItsArgument, "dropout"),
]


def named(each):
    return getattr(each, "__name__", None)


@pytest.mark.parametrize(("kind", "name"), FAULTS, ids=named)
def test_a_fault_is_found_by_the_property_of_its_kind(kind, name):
    report = audit_module(kind(), compile="aot_eager" if name == "compile" else "")
    assert name in [each.property for each in report.failures], str(report)


@pytest.mark.parametrize("kind", RIGHT, ids=named)
def test_the_right_form_raises_no_alarm(kind):
    report = audit_module(kind(), compile="")
    assert report, str(report)


def test_what_float32_itself_loses_is_no_fault():
    # bfloat16 keeps nothing of the values; decoding and other lengths differ by 0.005, one pass from float64 as much
    report = audit_module(Inexact(), compile="")
    assert [each.property for each in report.failures] == ["half precision"], str(report)
    sizes = {each.property: each.measured for each in report.findings}
    assert sizes["prefix"] > SAME and sizes["pieces"] > ALLOWED, sizes


@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_what_a_seed_drawn_anew_in_training_hides_is_said(rate):
    report = audit_module(SeedsAnew(rate), compile="")
    assert report, str(report)
    found = {each.property: each for each in report.findings}
    assert found["training"].verdict == "not tried" and "two equal calls in training differ" in found["training"].detail
    assert found["future"].held and found["gradients"].held


class Weighted(torch.autograd.Function):
    """Causal attention whose backward pass takes the weights for constants."""

    @staticmethod
    def forward(ctx, q, k, v):
        ctx.weights = weights(q, k)
        ctx.save_for_backward(q, k, v)
        return ctx.weights @ v

    @staticmethod
    def backward(ctx, arriving):
        q, k, v = ctx.saved_tensors
        rows = arriving @ v.mT
        scores = ctx.weights * (rows - (rows * ctx.weights).sum(-1, keepdim=True)) * 8**-0.5
        return scores @ k, scores.mT @ q, ctx.weights.mT @ arriving


def test_second_derivatives_that_are_silently_wrong_are_a_note():
    class Wrong(Layer):
        def mixed(self, q, k, v):
            return Weighted.apply(q, k, v)

    for kind, verdict in ((Wrong, "note"), (Layer, "n.a."), (Rounded, "n.a."), (Recurrent, "n.a.")):
        report = audit_module(kind(), compile="")
        [found] = [each for each in report.findings if each.property == "second derivatives"]
        assert found.verdict == verdict or (verdict == "n.a." and found.verdict == "holds"), (kind, found)
    report = audit_module(Wrong(), compile="")
    assert report and "the derivative of its gradients is wrong by" in str(report)


def test_tokens_that_all_later_ones_see_are_no_broken_window():
    [found] = [each for each in audit_module(WindowWithSinks(), compile="").findings if each.property == "window"]
    assert found.detail.startswith("a window of 8 reaches 7 tokens back, and all see the first tokens")


def test_a_mask_of_another_shape_that_spreads_the_output_is_no_call():
    report = audit_module(masked_by_keys, compile="", causal=False)
    assert not report.failures and "padding" in [each.property for each in report.findings if each.held], str(report)


def test_code_that_raises_for_a_batch_without_sequences_has_no_fault():
    [found] = [each for each in audit_module(ViewsTheBatch(), compile="").findings if each.property == "empty batch"]
    assert found.verdict == "n.a." and "a batch without sequences raises RuntimeError" in found.detail


def test_one_recurrent_layer_of_torch_has_no_dropout_to_ignore():
    found = {each.property: each for each in audit_module(nn.GRU(32, 32, batch_first=True), compile="").findings}
    assert found["dropout"].verdict == "holds"


def test_draws_in_evaluation_are_said_once():
    class Noisy(Dropping):
        def mixed(self, q, k, v):
            return super().mixed(q, k, v) + 0.1 * torch.randn(q.shape)

    assert [each.property for each in audit_module(Noisy(), compile="").failures] == ["evaluation"]


@pytest.mark.parametrize(("reach", "verdict"), [(8, "note"), (40, "fails")])
def test_a_window_adds_up_through_the_layers_that_keep_it(reach, verdict):
    module = WindowedTwice()
    module.layers[1].reach = reach
    [found] = [each for each in audit_module(module, compile="").findings if each.property == "window"]
    assert found.verdict == verdict and found.detail.startswith(
        f"a window of 8 in 2 layers reaches {reach + 8 - 2} tokens"
    )


@pytest.mark.parametrize("kind", [HardDropping, ProjectedDropping], ids=named)
def test_shares_of_dropout_are_not_counted_where_single_weights_are_not_seen(kind):
    # hard attention looked as if it dropped whole heads, and rounding as if it were another rate
    [found] = [each for each in audit_module(kind(), compile="").findings if each.property == "dropout"]
    assert found.verdict == "holds", found.detail


@pytest.mark.parametrize(
    ("function", "name", "words"),
    [
        (
            too_low_for_float16,
            "half precision",
            r"float16: raises RuntimeError: .* \(line \d+ of test_kinds",
        ),
        (queries_as_keys, "parameters learn", "no gradient reaches k"),
    ],
)
def test_a_fault_of_a_function_is_found_and_its_line_named(function, name, words):
    [found] = audit_module(function, compile="").failures
    assert found.property == name and re.match(words, found.detail), found


@pytest.mark.parametrize("function", [blocks_of_32, blocks_of_whole_storage])
def test_a_part_of_a_joined_projection_is_read_from_where_it_begins(function):
    found = {each.property for each in audit_module(function, compile="", causal=False).failures}
    assert ("storage" in found) == (function is blocks_of_whole_storage), found


def test_a_layer_of_blocks_may_refuse_other_lengths_and_a_table_of_positions_may_end():
    class Blocks(Layer):
        def forward(self, x):
            return super().forward(x.unflatten(1, (-1, 4)).flatten(1, 2))

    class Table(Layer):
        def __init__(self):
            super().__init__()
            self.places = nn.Parameter(torch.randn(100, 32))

        def forward(self, x):
            return super().forward(x + self.places[: x.shape[1]])

    for kind in (Blocks, Table):
        report = audit_module(kind(), compile="")
        assert report, str(report)


def test_the_last_line_says_what_was_not_tried():
    report = audit_module(Layer(), compile="")
    parts = report.verdict.split(" · ")
    assert parts[0] == "fails: nothing" and parts[1].startswith("holds: 1")
    assert parts[2].startswith("not tried: padding (no padding mask found; if it takes one: --call)")
    assert report and not report.tried_all
    assert audit_module(Cached(), call="m(x)[0]", compile="").findings


def test_a_module_that_looks_mostly_back_is_asked_what_it_claims():
    class Leaking(Layer):
        """The normaliser of linear attention sums all keys."""

        causal = None

        def mixed(self, q, k, v):
            q, k = q.sigmoid(), k.sigmoid()
            return (q @ k.mT).tril() @ v / (q * k.sum(2, keepdim=True)).sum(-1, keepdim=True)

    report = audit_module(Leaking(), compile="")
    assert not report and not report.failures and "not decided: future" in report.verdict
    assert "future" in [each.property for each in audit_module(Leaking(), causal=True, compile="").failures]
    assert audit_module(Leaking(), causal=False, compile="")


def test_a_prefix_that_sees_itself_is_accepted_by_no_causal():
    assert audit_module(FirstSeeEachOther(), causal=False, compile="")


class ByDistance(Layer):
    """A learned number a head for each distance; `turned` counts it from the wrong end, where it is always 0."""

    turned = False

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(16, 4))

    def mixed(self, q, k, v):
        at = torch.arange(q.shape[2])
        far = (at[:, None] - at) * (-1 if self.turned else 1)
        hidden = torch.where(at > at[:, None], torch.finfo(q.dtype).min, 0.0).to(q.dtype)
        return F.scaled_dot_product_attention(
            q, k, v, self.table[far.clamp(0, 15)].permute(2, 0, 1).to(q.dtype) + hidden
        )


class ByDistanceTurned(ByDistance):
    turned = True


class FirstFour(AddsIntegers):
    """Sinks at the first four columns, which padding on the left hides."""

    integers = False

    def split(self, x):
        q, k, v = super().split(x)
        return q, k * torch.where(torch.arange(x.shape[1]) < 4, 3.0, 1.0)[:, None].to(k.dtype), v


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (ByDistanceTurned, "of table, 1 of 16 rows are read by 64 tokens"),
        (ByDistance, ""),
        (FirstFour, "padding on the left changes outputs of tokens: does it count places from the first column?"),
        (TakesIntegers, ""),
    ],
)
def test_what_only_the_author_can_call_wrong_is_a_note(kind, words):
    (note,) = (each.detail for each in audit_module(kind(), compile="").findings if each.property == "weights")
    assert words in note and ("rows are read" in note or "on the left" in note) == bool(words), note


def test_halves_that_never_see_each_other_look_both_ways():
    class Halves(Layer):
        causal = None

        def mixed(self, q, k, v):
            first = torch.arange(q.shape[2]) < q.shape[2] // 2
            return F.scaled_dot_product_attention(q, k, v, first[:, None] == first)

    report = audit_module(Halves(), compile="")
    assert report, str(report)
    assert report.findings[0].detail.startswith("it looks both ways")


def test_names_of_the_audit_for_properties_of_the_gate_are_those_of_the_gate():
    from attnbench.bench.gate import PROPERTIES

    assert set(IN_THE_GATE.values()) <= {each.name for each in PROPERTIES}


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (OtherInTraining, "training"),
        (LateLeak, "long"),
        (CachedWithoutMask, "pieces"),
        (DropsHalf, "dropout"),
        (HidesOneBefore, "each token counts"),
        (OneRowOfNothing, "empty batch"),
        (RecurrentInHalf, "half precision"),
        (ForgetsItsArgument, "dropout"),
    ],
    ids=named,
)
def test_check_sees_what_the_audit_sees(kind, name, monkeypatch):
    import attnbench
    from attnbench.bench.gate import report as gate_report

    monkeypatch.setattr(gate_report, "examine", lambda variant, shape: [])
    found = attnbench.check(kind())
    assert IN_THE_GATE.get(name, name) in [each.property for each in found.failures], str(found)
    assert attnbench.check(kind(), by_design=[IN_THE_GATE.get(name, name)])


def test_check_asks_what_a_module_claims_and_takes_an_answer(monkeypatch):
    import attnbench
    from attnbench.bench.gate import report as gate_report

    class OneAhead(Layer):
        causal = None

        def mixed(self, q, k, v):
            seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(1)
            return F.scaled_dot_product_attention(q, k, v, seen)

    monkeypatch.setattr(gate_report, "examine", lambda variant, shape: [])
    assert attnbench.check(OneAhead()).undecided == ("causal",)
    assert attnbench.check(OneAhead(), causal=True).failures[0].property == "causal"
    accepted = attnbench.check(OneAhead(), causal=False)
    assert accepted and not accepted.undecided


def test_check_examines_a_class_that_takes_causal_as_the_layer_that_it_is_asked_to_be(monkeypatch):
    import attnbench
    from attnbench.bench.gate import report as gate_report

    class Either(nn.Module):
        def __init__(self, dim, causal=True):
            super().__init__()
            self.projections, self.causal = nn.Linear(dim, 3 * dim), causal

        def forward(self, x):
            q, k, v = self.projections(x)[:, None].chunk(3, -1)
            return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)[:, 0]

    monkeypatch.setattr(gate_report, "examine", lambda variant, shape: [])
    for causal in (True, None, False):
        found = attnbench.check(Either, causal=causal)
        assert found and ("looks both ways" in found.note) == (causal is False), str(found)


def test_the_help_names_properties_that_audit_and_check_know():
    """Under the same names, since one text serves both commands."""
    [shown] = re.findall("`(.+)`", ByDesign.__metadata__[0].help)
    assert set(names_of(shown)) <= {*NAMES} - {*IN_THE_GATE}


@pytest.mark.parametrize(
    ("kind", "verdict", "words"),
    [
        (KeepsItsCache, "holds", ""),
        (TurnedFromAStart, "not tried", "found no way to decode with start_pos"),
    ],
)
def test_a_cache_that_a_module_keeps_is_told_from_a_place_alone(kind, verdict, words):
    (found,) = (each for each in audit_module(kind(), compile="").findings if each.property == "decoding")
    assert found.verdict == verdict and words in found.detail
    # the gate decodes two sequences in turns, and what a module keeps is of one
    assert not as_variant(kind(), "mine")(AttentionShape(heads=2, head_dim=16, max_length=64, causal=True)).decodes


def test_a_hint_is_not_given_to_an_author_who_has_answered():
    told = {causal: str(audit_module(Encoder(), compile="", causal=causal)) for causal in (None, False)}
    assert "looks both ways" in told[None] and "looks both ways" in told[False]
    assert ("--causal" in told[None], "--causal" in told[False]) == (True, False)


def test_outputs_that_are_no_numbers_in_training_are_named_as_such():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = {each.property: each.detail for each in audit_module(SumsToOneAgain(), compile="").failures}
    assert re.search(r"^\d+\.\d% of the outputs are NaN or infinite in training with dropout$", found["gradients"])


def test_a_late_leak_stands_beside_no_future_that_holds():
    report = audit_module(LateLeak(), compile="")
    assert [each.property for each in report.failures] == ["long"]
    assert "future" not in re.search(r"^ok: (.*)$", str(report), re.MULTILINE)[1].split(", ")
