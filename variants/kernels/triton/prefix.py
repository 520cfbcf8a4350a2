"""Prefix softmax as a chunked scan on a GPU: the two rounds of additive attention for language models.

Chunks are folded to (log mass, mean), the chunks are scanned by the same two kernels, and a small triangular product
inside each chunk gives what its positions see. Everything is parallel over chunks; the levels of the scan follow from
the length alone. The backward pass is a scan from the end, in which every exponent is at most zero.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

from typing import Any, cast

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...ops.first_derivative import THROUGH_EAGER, first_derivative_only
from .launch import SIZES, CompileCase, launch
from .tiles import padded

_CHUNK = 32
_LOWEST = torch.finfo(torch.float32).min


def prefix_softmax(logits: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Log mass (…, length) and average (…, length, d) up to each position, as `prefix_softmax` of `ops/prefix_scan`.

    logits: (…, length) and values (…, length, d), float32. A logit of the lowest number has no weight where its value
    is zero. Both results have gradients, once. Work O(length d), nothing larger than the values is kept, and every
    run gives the same bits. Ask `launch.reason` first, for float32.
    """
    return cast(tuple[Tensor, Tensor], PrefixSoftmax.apply(logits.contiguous(), values.contiguous()))


class PrefixSoftmax(torch.autograd.Function):
    """Log mass (…, length) and mean (…, length, d) of logits (…, length) and values (…, length, d); see above."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        mass, mean = _scan(logits.flatten(0, -2), values.flatten(0, -3))
        ctx.save_for_backward(logits, values, mass, mean)
        return mass.view(logits.shape), mean.view(values.shape)

    @staticmethod
    @first_derivative_only(THROUGH_EAGER)
    def backward(ctx: Any, of_mass: Tensor, of_mean: Tensor) -> tuple[Tensor, Tensor]:
        logits, values, mass, mean = ctx.saved_tensors
        logits, values = logits.flatten(0, -2), values.flatten(0, -3)
        gradient = of_mean.reshape(values.shape)
        extra = of_mass.reshape(logits.shape) - torch.einsum("rnd,rnd->rn", gradient, mean)
        of_logits, of_values = _scan_back(logits, mass, gradient.contiguous(), extra.contiguous(), values)
        return of_logits.view(of_mass.shape), of_values.view(of_mean.shape)


def _scan(logits: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Masses (rows, length) and means (rows, length, d)."""
    rows, length, width = values.shape
    chunks = triton.cdiv(length, _CHUNK)
    sizes = {"CHUNK": _CHUNK, "WIDTH": padded(width)}
    # one chunk has nothing before it: any tensors serve, since none of them is read
    before_mass, before_mean = logits, values
    if chunks > 1:
        chunk_mass, chunk_mean = logits.new_empty(rows, chunks), values.new_empty(rows, chunks, width)
        launch(_fold, (rows * chunks,), logits, values, chunk_mass, chunk_mean, length, width, chunks, **sizes)
        # the chunks are scanned as if each were one entry: log_32(N) levels
        before_mass, before_mean = _scan(chunk_mass, chunk_mean)
    mass, mean = torch.empty_like(logits), torch.empty_like(values)
    launch(
        _expand, (rows * chunks,), logits, values, before_mass, before_mean, mass, mean, length, width, chunks,
        LOWEST=_LOWEST, **sizes,
    )  # fmt: skip
    return mass, mean


def _scan_back(
    logits: Tensor, mass: Tensor, gradient: Tensor, extra: Tensor, values: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Sums over i >= j of exp(l_j - mass_i) times extra_i (rows, length) and times gradient_i (rows, length, d).

    Where `values` are given, their product with the second is added to the first: the gradient of the logits.
    """
    rows, length, width = gradient.shape
    chunks = triton.cdiv(length, _CHUNK)
    sizes = {"CHUNK": _CHUNK, "WIDTH": padded(width)}
    # one chunk has nothing after it
    later, later_extra, border = gradient, extra, mass
    if chunks > 1:
        # what a chunk hands back is kept relative to the mass before it, which no later mass is below
        border = torch.cat([mass[:, :1], mass[:, _CHUNK - 1 : length - 1 : _CHUNK]], 1)
        chunk, chunk_extra = gradient.new_empty(rows, chunks, width), extra.new_empty(rows, chunks)
        launch(
            _fold_back, (rows * chunks,), mass, border, gradient, extra, chunk, chunk_extra, length, width, chunks,
            **sizes,
        )  # fmt: skip
        later_extra, later = _scan_back(border, border, chunk, chunk_extra)
    of_logits, of_values = torch.empty_like(logits), torch.empty_like(gradient)
    launch(
        _expand_back, (rows * chunks,), logits, mass, border, gradient, extra,
        gradient if values is None else values, later, later_extra, of_logits, of_values, length, width, chunks,
        TIMES_VALUE=values is not None, **sizes,
    )  # fmt: skip
    return of_logits, of_values


@triton.jit
def _own_chunk(length, width, chunks, CHUNK: tl.constexpr, WIDTH: tl.constexpr):
    """The row of this program and its chunk; its positions, and whether each is inside; the same of columns of values.

    Last, the offsets of its values (CHUNK, WIDTH) and whether each is inside.
    """
    program = tl.program_id(0)
    row, chunk = (program // chunks).to(tl.int64), program % chunks
    at, column = chunk * CHUNK + tl.arange(0, CHUNK), tl.arange(0, WIDTH)
    here, wide = at < length, column < width
    place = (row * length + at)[:, None] * width + column[None, :]
    return program, row, chunk, at, column, here, wide, place, here[:, None] & wide[None, :]


@triton.jit(do_not_specialize=SIZES)
def _fold(logits, values, masses, means, length, width, chunks, CHUNK: tl.constexpr, WIDTH: tl.constexpr):
    """One chunk of one row -> its log mass and its mean."""
    program, row, _, at, column, here, wide, place, inside = _own_chunk(length, width, chunks, CHUNK, WIDTH)
    logit = tl.load(logits + row * length + at, mask=here, other=-float("inf"))
    value = tl.load(values + place, mask=inside, other=0.0)
    top = tl.max(logit, 0)
    weight = tl.exp(logit - top)
    total = tl.sum(weight, 0)
    tl.store(masses + program, top + tl.log(total))
    tl.store(means + program.to(tl.int64) * width + column, tl.sum(weight[:, None] * value, 0) / total, mask=wide)


@triton.jit(do_not_specialize=SIZES)
def _expand(
    logits, values, before_masses, before_means, masses, means, length, width, chunks,
    LOWEST: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One chunk of one row: the averages up to each position, from the mass and mean of all chunks before it."""
    _, row, chunk, at, column, here, _, place, inside = _own_chunk(length, width, chunks, CHUNK, WIDTH)
    logit = tl.load(logits + row * length + at, mask=here, other=-float("inf"))
    value = tl.load(values + place, mask=inside, other=0.0)
    carries = chunk > 0
    before = row * chunks + chunk - 1
    mass = tl.load(before_masses + before, mask=carries, other=LOWEST)
    # Triton 3.9's interpreter makes numbers of one Boolean that meets many, and takes no mask of them
    brought = column < tl.where(carries, width, 0)
    mean = tl.load(before_means + before * width + column, mask=brought, other=0.0)
    # the triangle: position i of the chunk sees j <= i
    score = tl.where(at[None, :] <= at[:, None], logit[None, :], -float("inf"))
    # of the chunk's own entries and of all before: each position measures by the largest it sees
    top = tl.maximum(tl.max(score, 1), mass)
    weight = tl.exp(score - top[:, None])
    carried = tl.where(carries, tl.exp(mass - top), 0.0)
    total = tl.sum(weight, 1) + carried
    # "ieee": a triangle of 32 is a small product, and its digits carry through all levels
    sums = tl.dot(weight, value, input_precision="ieee") + carried[:, None] * mean[None, :]
    tl.store(masses + row * length + at, top + tl.log(total), mask=here)
    tl.store(means + place, sums / total[:, None], mask=inside)


@triton.jit(do_not_specialize=SIZES)
def _fold_back(
    masses, borders, gradients, extras, sums, extra_sums, length, width, chunks,
    CHUNK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One chunk of one row -> its sums of exp(border - mass_i) times gradient and extra, for what lies before it."""
    program, row, _, at, column, here, wide, place, inside = _own_chunk(length, width, chunks, CHUNK, WIDTH)
    mass = tl.load(masses + row * length + at, mask=here, other=float("inf"))
    weight = tl.exp(tl.load(borders + program) - mass)
    gradient = tl.load(gradients + place, mask=inside, other=0.0)
    extra = tl.load(extras + row * length + at, mask=here, other=0.0)
    tl.store(sums + program.to(tl.int64) * width + column, tl.sum(weight[:, None] * gradient, 0), mask=wide)
    tl.store(extra_sums + program, tl.sum(weight * extra, 0))


@triton.jit(do_not_specialize=SIZES)
def _expand_back(
    logits, masses, borders, gradients, extras, values, later_sums, later_extras, of_logits, of_values,
    length, width, chunks, TIMES_VALUE: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One chunk of one row: what each position receives from itself and all after it."""
    _, row, chunk, at, column, here, _, place, inside = _own_chunk(length, width, chunks, CHUNK, WIDTH)
    logit = tl.load(logits + row * length + at, mask=here, other=-float("inf"))
    mass = tl.load(masses + row * length + at, mask=here, other=float("inf"))
    gradient = tl.load(gradients + place, mask=inside, other=0.0)
    extra = tl.load(extras + row * length + at, mask=here, other=0.0)
    # masked before exp: from a later logit to an earlier mass the exponent may be large
    exponent = tl.where(at[None, :] >= at[:, None], logit[:, None] - mass[None, :], -float("inf"))
    weight = tl.exp(exponent)
    summed = tl.dot(weight, gradient, input_precision="ieee")
    extra_sum = tl.sum(weight * extra[None, :], 1)
    goes_on = chunk + 1 < chunks
    after = row * chunks + chunk + 1
    border = tl.load(borders + after, mask=goes_on, other=float("inf"))
    later = tl.load(later_sums + after * width + column, mask=column < tl.where(goes_on, width, 0), other=0.0)
    # at most 1, since the mass at the border has this logit in it
    reach = tl.exp(logit - border)
    summed += reach[:, None] * later[None, :]
    extra_sum += reach * tl.load(later_extras + after, mask=goes_on, other=0.0)
    tl.store(of_values + place, summed, mask=inside)
    if TIMES_VALUE:
        extra_sum += tl.sum(summed * tl.load(values + place, mask=inside, other=0.0), 1)
    tl.store(of_logits + row * length + at, extra_sum, mask=here)


def _pass() -> None:
    logits = torch.empty(2, 8, 4096, device="meta", requires_grad=True)
    values = torch.empty(2, 8, 4096, 64, device="meta", requires_grad=True)
    mass, mean = prefix_softmax(logits, values)
    torch.autograd.backward([mass, mean], [torch.empty_like(mass), torch.empty_like(mean)])


COMPILE_CASES = (CompileCase(name="prefix softmax", run=_pass),)
