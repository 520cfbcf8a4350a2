"""Attention with any map of `ops/written.py` in C++, by tiles of scores: nothing of queries × keys in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from ...contract import Mask
from ...ops.dropout import WeightDropout
from ...ops.first_derivative import THROUGH_EAGER, first_derivative_only
from ...ops.inputs import check_inputs
from ...ops.relative_positions import RankPositions
from ...ops.written import Written, write
from .lists import BLOCK, SeenTiles
from .packing import Packing, flat, unflat
from .written import address


def tiled_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask,
    written: Written,
    drop: WeightDropout | None = None,
    *,
    learned: Mapping[str, Tensor] | None = None,
    sink: Tensor | float | None = None,
    epsilon: float = 0.0,
    lists: SeenTiles | None = None,
) -> Tensor:
    """Sums of values by the weights of a map, (batch, heads, queries, head_dim), float32.

    learned: numbers of each head by name, (heads,). sink: the score of one key more without a value, (heads,) or one
    number; epsilon: added to the sums that divide the weights. drop: dropout of the weights; its mask is computed again
    in the backward, and never stored. The bounds of the mask, if it has any, never fall from one query to the next.
    lists: which keys each query sees, for a map that takes `top`; the mask then says which keys are real, and no more.
    Computed in float32 whatever the dtype of the inputs; values may have another width than keys, and the sums have
    that of the values. Differentiable once. Needs the kernels loaded: `build.failure()` is None. Raises SelectionError
    for shapes that do not fit.
    """
    check_inputs(query, key, value, mask.valid, grouped=True)
    if sink is not None and not isinstance(sink, Tensor):
        sink = torch.full((query.shape[1],), float(sink))
    further = mask, written, drop, epsilon, lists, (0, 0, False), *((learned or {})[name] for name in written.learned)
    return cast(Tensor, _Sums.apply(query, key, value, sink, None, *further)[0])  # type: ignore[no-untyped-call]


def softmax_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask,
    drop: WeightDropout | None = None,
    *,
    sink: Tensor | None = None,
    lists: SeenTiles | None = None,
) -> Tensor:
    """`tiled_attention` by softmax, in the dtype of `value`; sink: a score of each head, (heads,), without a value."""
    written = write(_exponential, ("top",), (), True)
    return tiled_attention(query, key, value, mask, written, drop, sink=sink, lists=lists).to(value.dtype)


def softmax_by_distance(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask,
    bias: Tensor,
    drop: WeightDropout | None = None,
    *,
    back: int,
    offset: int,
    collect: bool,
) -> tuple[Tensor, Tensor | None]:
    """Softmax of (q·k + a number by distance) / sqrt(head_dim): sums of values, and of weights by distance, or None.

    bias: (batch, heads, queries, back + 1 + ahead), for each query the numbers of the distances j - i from -back to
    ahead; keys further away have the outermost. The sums by distance are like it. Both float32. offset: the position
    of the first query among the keys.
    """
    check_inputs(query, key, value, mask.valid, grouped=True)
    written = write(_exponential, ("top",), (), True)
    further = mask, written, drop, 0.0, None, (back, offset, collect)
    return cast(tuple[Tensor, Tensor | None], _Sums.apply(query, key, value, None, bias, *further))  # type: ignore[no-untyped-call]


def rank_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask,
    positions: RankPositions | None,
    drop: WeightDropout | None = None,
    *,
    back: int,
    ahead: int,
    offset: int = 0,
) -> Tensor:
    """`softmax_attention` with the vectors of `positions` where given, (batch, heads, queries, head_dim).

    No pair that the bounds of `mask` leave may be more than `back` keys back or `ahead` keys ahead; `offset` is the
    place of the first query among the keys.
    """
    if positions is None:
        return softmax_attention(query, key, value, mask, drop)
    # the rows of the tables that can occur
    ranks = slice(positions.reach - back, positions.reach + ahead + 1)
    bias = query.float() @ positions.key_table[ranks].float().T
    output, by_rank = softmax_by_distance(
        *(query, key, value, mask, bias, drop), back=back, offset=offset, collect=True
    )
    assert by_rank is not None
    return (output + by_rank @ positions.value_table[ranks].float()).to(value.dtype)


def _exponential(scores: Tensor, top: Tensor) -> Tensor:
    return (scores - top).exp()


class _Sums(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sink: Tensor | None,
        bias: Tensor | None,
        mask: Mask,
        written: Written,
        drop: WeightDropout | None,
        epsilon: float,
        lists: SeenTiles | None,
        distances: tuple[int, int, bool],
        *learned: Tensor,
    ) -> tuple[Tensor, Tensor | None]:
        batch, _, queries, _ = query.shape
        # a list names keys by their place, so that padding stays where it is
        packing = Packing.of(Mask() if lists else mask, batch, queries, key.shape[2])
        if lists and lists.order is not None:
            packing = replace(packing, order=lists.order.expand(batch, -1))
        ctx.packing = packing
        ctx.lists, ctx.valid = lists, mask.valid
        ctx.drop, ctx.written = drop, written
        ctx.scale = query.shape[-1] ** -0.5
        ctx.rows = BLOCK if lists else _rows(mask, packing)
        count = (packing.limits - packing.lowers).clamp(min=1)[:, None]
        numbers = written.numbers(written.forward, query.shape[:3], count, learned)
        sinks = None if sink is None else sink.float().repeat(batch)
        ctx.distances, by_query = distances, None if bias is None else bias.float().contiguous()
        output, tops, inverses, collected = torch.ops.attnbench_cpu.tiles_forward(
            *(*packing.pack(query, key, value), packing.lowers, packing.limits),
            *(ctx.scale, address(written), numbers, sinks, epsilon, ctx.rows),
            [*lists.by_queries, lists.real(mask.valid, batch)] if lists else [],
            *(by_query, *distances, *packing.drop_arguments(drop)),
        )
        by_distance = collected.view(bias.shape) if bias is not None and distances[2] else None
        # the scores are computed again in the backward: keeping them would cost queries × keys
        ctx.save_for_backward(query, key, value, sink, bias, output, by_distance, tops, inverses, count, *learned)
        return unflat(output, query, value.shape[-1], torch.float32), by_distance

    @staticmethod
    @first_derivative_only(THROUGH_EAGER)
    def backward(ctx: Any, grad_output: Tensor, grad_by_distance: Tensor | None) -> tuple[Tensor | None, ...]:
        query, key, value, sink, bias, output, by_distance, tops, inverses, count, *learned = ctx.saved_tensors
        packing, written = ctx.packing, ctx.written
        batch, heads, queries, _ = query.shape
        top = tops.view(batch, heads, queries) if written.tops else None
        numbers = written.numbers(written.backward, query.shape[:3], count, learned, top)
        sinks = None if sink is None else sink.float().repeat(batch)
        along = further = None
        if by_distance is not None and grad_by_distance is not None:
            # what comes to the sums by distance comes to the weights, as a bias does to the scores
            along, further = grad_by_distance.contiguous(), (grad_by_distance * by_distance).sum(-1)
        to_query, to_key, to_value, to_numbers, to_sinks, to_bias = torch.ops.attnbench_cpu.tiles_backward(
            *(flat(grad_output), output, inverses, *packing.pack(query, key, value), packing.lowers, packing.limits),
            *(ctx.scale, address(written), numbers, sinks, ctx.rows),
            [*ctx.lists.by_keys, ctx.lists.real(ctx.valid, batch)] if ctx.lists else [],
            *(None if bias is None else bias.float().contiguous(), *ctx.distances[:2], along, further),
            *packing.drop_arguments(ctx.drop),
        )
        gradient = unflat(to_query, query, query.shape[-1], query.dtype)
        # float64: a sum over all queries of terms of either sign
        of_learned = (
            part.double().view(batch, heads, queries).sum((0, 2)).to(x.dtype)
            for part, x in zip(to_numbers, learned, strict=True)
        )
        of_sink = to_sinks.view(batch, heads).sum(0).to(sink.dtype) if ctx.needs_input_grad[3] else None
        of_inputs = gradient, packing.unpack(to_key, key), packing.unpack(to_value, value), of_sink
        of_bias = None
        if bias is not None:
            # the scale of the scores is that of the bias as well
            of_bias = to_bias.mul_(ctx.scale).view(bias.shape).to(bias.dtype)
        return *of_inputs, of_bias, *(None,) * 6, *of_learned


def _rows(mask: Mask, packing: Packing) -> int:
    """Queries of a block: fewer where windows are narrow, since a block computes all keys that one of them sees."""
    if mask.bounds is None:
        return 128
    return 64 if int((packing.limits - packing.lowers).max()) <= 256 else 128
