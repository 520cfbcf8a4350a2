"""Blocks: attention over a block of queries and heads at a time on CPU, in plain torch or compiled.

Nothing of queries × keys outlives its block: the backward computes the scores again, and the weights from what the
forward kept of each row, two numbers. Shapes inside a block: query (heads, rows, head_dim), already scaled; key and
value (heads, keys, head_dim); keep (heads, 1, keys), Boolean; at (rows, 1), the last key that each row may see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..contract import Mask, accumulator

ROWS = 256
# scores of a block: of four heads and 256 queries at 1024 keys, 4 MiB in float32, which stay in the outer cache
_BLOCK_SCORES = 2**20

Attend = Callable[..., tuple[Tensor, Tensor]]
Differentiate = Callable[..., tuple[Tensor, Tensor, Tensor, Tensor | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One map from scores to weights, as functions of a block, to be run as they are or compiled.

    attend(query, key, value, keep, at, alpha) -> (output, level): what the backward needs, (heads, rows, 2).
    differentiate(query, key, value, keep, at, alpha, level, upstream, learns) -> gradients of query as scaled, key,
    value and, where `learns`, alpha (heads, 1, 1). `alpha`: (heads, 1, 1), or None where the map has none.
    """

    name: str
    attend: Attend
    differentiate: Differentiate


def attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Mask, form: Form, alpha: Tensor | None = None, *, compiled: bool
) -> Tensor:
    """Weighted sums of values, (batch, heads, queries, head_dim), float32 at least; `alpha`: (heads,), or None."""
    output: Tensor = _Blocked.apply(query, key, value, alpha, mask, form, compiled)  # type: ignore[no-untyped-call]
    return output


class _Blocked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        alpha: Tensor | None,
        mask: Mask,
        form: Form,
        compiled: bool,
    ) -> Tensor:
        ctx.mask, ctx.form, ctx.compiled = mask, form, compiled
        q, k, v = _flat(query) * query.shape[-1] ** -0.5, _flat(key), _flat(value)
        output = q.new_empty(*q.shape[:2], v.shape[-1])
        level = q.new_empty(*q.shape[:2], 2)
        for heads, rows, keys, rest in _blocks(query, key, alpha, mask):
            block = q[heads, rows], k[heads, keys], v[heads, keys], *rest
            output[heads, rows], level[heads, rows] = _run(form.attend, compiled, block)
        ctx.save_for_backward(query, key, value, alpha, level)
        shaped: Tensor = output.view(*query.shape[:2], *output.shape[1:])
        return shaped

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, alpha, level = ctx.saved_tensors
        scale: float = query.shape[-1] ** -0.5
        q, k, v, toward = _flat(query) * scale, _flat(key), _flat(value), _flat(upstream)
        to_query, to_key, to_value = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        learns = ctx.needs_input_grad[3]
        to_alpha = q.new_zeros(q.shape[0], 1, 1) if learns else None
        for heads, rows, keys, rest in _blocks(query, key, alpha, ctx.mask):
            block = q[heads, rows], k[heads, keys], v[heads, keys], *rest, level[heads, rows], toward[heads, rows]
            found = _run(ctx.form.differentiate, ctx.compiled, block, learns)
            to_query[heads, rows] = found[0]
            to_key[heads, keys] += found[1]
            to_value[heads, keys] += found[2]
            if to_alpha is not None:
                to_alpha[heads] += found[3]
        gradients = (to_query.mul_(scale), to_key, to_value)
        shaped = [g.view(*x.shape).to(x.dtype) for g, x in zip(gradients, (query, key, value), strict=True)]
        for_alpha = None if to_alpha is None else to_alpha.view(query.shape[:2]).sum(0).to(alpha.dtype)
        return *shaped, for_alpha, None, None, None


def _flat(x: Tensor) -> Tensor:
    return x.flatten(0, 1).to(accumulator(x.dtype))


def _blocks(
    query: Tensor, key: Tensor, alpha: Tensor | None, mask: Mask
) -> Iterator[tuple[slice, slice, slice, tuple[Tensor, Tensor, Tensor | None]]]:
    """Heads, rows, keys, and (keep, at, alpha) of each block; causal blocks leave out the keys after their last row."""
    batch, count, queries = query.shape[:3]
    total, keys, device = batch * count, key.shape[2], query.device
    rows = max(1, min(ROWS, queries, _BLOCK_SCORES // max(keys, 1)))
    group = max(1, min(total, _BLOCK_SCORES // max(rows * keys, 1)))
    keep = torch.ones(1, keys, dtype=torch.bool, device=device) if mask.keep is None else mask.keep
    keep = keep.expand(batch, -1).repeat_interleave(count, 0)[:, None]
    last = torch.full((queries, 1), keys - 1, device=device)
    if mask.causal:
        last = (torch.arange(queries, device=device) + mask.offset(queries, keys))[:, None]
    each = None if alpha is None else alpha.to(accumulator(query.dtype)).repeat(batch)[:, None, None]
    for first in range(0, total, group):
        heads = slice(first, first + group)
        for start in range(0, queries, rows):
            block = slice(start, min(start + rows, queries))
            seen = slice(max(1, int(last[block.stop - 1]) + 1))
            yield heads, block, seen, (keep[heads, :, seen], last[block], None if each is None else each[heads])


def allowed(scores: Tensor, keep: Tensor, at: Tensor) -> Tensor:
    """Boolean, broadcastable to the scores of a block."""
    return keep & (torch.arange(scores.shape[-1], device=scores.device) <= at)


def _run(function: Callable[..., Any], compiled: bool, block: tuple[Tensor | None, ...], *more: bool) -> Any:
    query, key = block[:2]
    assert query is not None and key is not None
    # a dimension of one would be compiled for by itself
    if not compiled or 1 in (*query.shape, key.shape[1]):
        return function(*block, *more)
    # sizes that happen to be equal are compiled for again: some ways to be so, and none may end in plain torch unseen
    import torch._dynamo.config

    with torch._dynamo.config.patch(recompile_limit=64):
        return _compiled(function)(*(None if x is None else x.contiguous() for x in block), *more)


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=True, fullgraph=True)
