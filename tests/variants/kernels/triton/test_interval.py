"""Dropout inside the interval kernels: the mask pair by pair, and gradients against a dense definition in float64."""

from dataclasses import dataclass

import pytest
import torch
from error_budget import over_budget, runs
from seeds import seed
from soaked import soaked
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")

from attnbench.variants.contract import masked_softmax
from attnbench.variants.kernels.triton import launch as triton_launch
from attnbench.variants.kernels.triton.interval import Intervals, interval_attention
from attnbench.variants.ops.dropout import WeightDropout, keep_mask, kept_scale

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and not triton_launch.interpreted():
    pytest.skip("needs a CUDA device, or TRITON_INTERPRET=1", allow_module_level=True)

BATCH, HEADS = 2, 2


def drawn_intervals(queries: int, keys: int, offset: int, hide_self: bool, *, rows: int, least: int = 0) -> Intervals:
    """Bounds that never fall, of `rows` (batch, head), with `least` keys or more."""
    generator = torch.Generator().manual_seed(seed(1))
    lower = torch.randint(keys - least, (rows, queries), generator=generator).sort(-1).values
    wide = torch.randint(least, keys, (rows, queries), generator=generator)
    upper = (lower + wide).clamp(max=keys).cummax(-1).values
    bounds = (x.int().to(DEVICE) for x in (lower, upper))
    return Intervals(lower=next(bounds), upper=next(bounds), offset=offset, hide_self=hide_self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One call: distances are clipped to -`back` and `columns` - 1 - `back`; without columns there is no bias."""

    intervals: Intervals
    valid: Tensor | None
    drop: WeightDropout
    columns: int
    back: int = 5

    def kernel(self, leaves: list[Tensor]) -> list[Tensor]:
        """Output, and weights by distance where there are columns."""
        bias = leaves[3] if self.columns else None
        output, collected = interval_attention(
            *leaves[:3], self.intervals, self.valid, scale=0.3, bias=bias, back=self.back, collect=self.columns > 0,
            drop=self.drop,
        )  # fmt: skip
        return [output] if collected is None else [output, collected]

    def definition(self, leaves: list[Tensor]) -> list[Tensor]:
        """The same by dense matrices."""
        query, key, value = leaves[:3]
        scores = query.to(leaves[-1].dtype) @ key.to(leaves[-1].dtype).mT * 0.3
        i, j = torch.arange(query.shape[2], device=DEVICE)[:, None], torch.arange(key.shape[2], device=DEVICE)
        column = (j - i - self.intervals.offset).clamp(-self.back, self.columns - 1 - self.back) + self.back
        column = column.expand(*query.shape[:2], *column.shape)
        if self.columns:
            scores = scores + leaves[3].gather(-1, column)
        weights = self.drop.apply(masked_softmax(scores, seen(self.intervals, self.valid, i, j)))
        output = weights.to(value.dtype) @ value
        if not self.columns:
            return [output]
        return [output, torch.zeros_like(leaves[3]).scatter_add(-1, column, weights)]


def seen(intervals: Intervals, valid: Tensor | None, i: Tensor, j: Tensor) -> Tensor:
    """(batch, heads | 1, queries, keys), pair by pair as the module of the kernels says."""
    lower, upper = (x.view(-1 if x.shape[0] == 1 else BATCH, x.shape[0] // BATCH or 1, i.shape[0], 1)
                    for x in (intervals.lower, intervals.upper))  # fmt: skip
    found = (j >= lower) & (j < upper)
    if intervals.hide_self:
        found = found & ((i != j) | (upper - lower <= 1))
    return found if valid is None else found & valid[:, None, None]


@pytest.mark.soak
@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_every_pass_drops_the_pairs_of_the_eager_mask(rate: float) -> None:
    # more than one tile of queries and of keys; a value for each key, and a direction of the gradient for each query
    queries, keys, offset = 70, 100, 30
    intervals = drawn_intervals(queries, keys, offset, hide_self=False, rows=BATCH * HEADS, least=25)
    drop = WeightDropout.drawn(rate, torch.device(DEVICE))
    assert drop is not None
    query = torch.zeros(BATCH, HEADS, queries, keys, device=DEVICE)
    value = torch.eye(keys, device=DEVICE).expand(BATCH, HEADS, -1, -1).contiguous().requires_grad_()
    # a column for each distance
    bias = torch.zeros(BATCH, HEADS, queries, queries + keys, device=DEVICE, requires_grad=True)
    case = Case(intervals=intervals, valid=None, drop=drop, columns=queries + keys, back=keys)
    output, collected = case.kernel([query, torch.zeros_like(value), value, bias])
    i, j = torch.arange(queries, device=DEVICE)[:, None], torch.arange(keys, device=DEVICE)
    inside = seen(intervals, None, i, j)
    kept = keep_mask(drop.seed, rate, BATCH, HEADS, queries, keys) & inside
    assert torch.equal(output != 0, kept)
    column = (j - i - offset + keys).expand_as(kept)
    assert torch.equal(collected.gather(-1, column) != 0, kept)
    weights = kept / inside.sum(-1, keepdim=True) * kept_scale(rate)
    torch.testing.assert_close(output, weights, rtol=1e-5, atol=0.0)
    upstream = torch.eye(keys, device=DEVICE)[:queries].expand_as(output)
    of_value, of_bias = torch.autograd.grad([output, collected], [value, bias], [upstream, torch.ones_like(collected)])
    assert torch.equal(of_value.mT[:, :, :queries] != 0, kept)
    # the gradient of a score is positive where its weight is kept and negative elsewhere, in a row that has both
    both = kept.any(-1) & (kept != inside).any(-1)
    assert both.float().mean() > 0.9
    # the output's own part of it is the same for all but one key of a row
    other = i != j
    found = of_bias.gather(-1, column) > 0
    assert torch.equal((found & other)[both], (kept & other)[both])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rate", "padded", "hide_self", "columns", "rows", "dtype"),
    # one of each dtype
    soaked(
        [
            (0.1, True, False, 13, 1, torch.float32),
            (0.5, False, True, 0, 4, torch.float32),
            (0.5, True, True, 13, 4, torch.float32),
            (1.0, True, False, 13, 1, torch.float32),
            (0.3, True, False, 0, 1, torch.float16),
            (0.3, False, True, 13, 4, torch.float16),
        ],
        quick=(0, 4),
    ),
)
def test_outputs_and_gradients_are_those_of_the_dense_definition_in_float64(
    rate: float, padded: bool, hide_self: bool, columns: int, rows: int, dtype: torch.dtype
) -> None:
    queries, keys, offset = 100, 140, 40
    generator = torch.Generator().manual_seed(seed())
    sizes = [(queries, 16), (keys, 16), (keys, 16)]
    ours = [torch.randn(BATCH, HEADS, *size, generator=generator).to(DEVICE, dtype).requires_grad_() for size in sizes]
    if columns:
        ours.append(torch.randn(BATCH, HEADS, queries, columns, generator=generator).to(DEVICE).requires_grad_())
    valid = (torch.rand(BATCH, keys, generator=generator) > 0.3).to(DEVICE) if padded else None
    drop = WeightDropout.drawn(rate, torch.device(DEVICE))
    assert drop is not None
    intervals = drawn_intervals(queries, keys, offset, hide_self, rows=rows)
    case = Case(intervals=intervals, valid=valid, drop=drop, columns=columns)
    outputs = case.kernel(ours)
    upstream = [torch.randn(x.shape, generator=generator).to(x) for x in outputs]
    found = [*outputs, *torch.autograd.grad(outputs, ours, upstream)]

    def passes(given: list[Tensor]) -> list[Tensor]:
        leaves = [x.detach().requires_grad_() for x in given]
        results = case.definition(leaves)
        upstreams = [g.to(x.dtype) for g, x in zip(upstream, results, strict=True)]
        return [*results, *torch.autograd.grad(results, leaves, upstreams)]

    assert not over_budget(found, runs(passes, ours), passes([x.double() for x in ours]))
    if rate == 1.0:
        assert not any(x.any() for x in found)
