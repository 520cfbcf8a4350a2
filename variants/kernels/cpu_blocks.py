"""Blocks: attention over a block of queries and heads at a time on CPU, forward and backward, in plain torch or compiled.

Nothing of queries × keys outlives its block: the backward computes the scores again, and the weights from what the
forward kept of each row, two numbers. Shapes inside a block: query (heads, rows, head_dim), already scaled; key and
value (heads, keys, head_dim); keep (heads, 1, keys) or None; at (rows, 1), the last key that each row may see, or None.
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

    attend(query, key, value, keep, at, alpha) -> (output, level): `level`, (heads, rows, 2), is what the backward needs.
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
            attend = _runnable(form.attend, compiled, q[heads, rows], k[heads, keys])
            output[heads, rows], level[heads, rows] = attend(q[heads, rows], k[heads, keys], v[heads, keys], *rest)
        ctx.save_for_backward(query, key, value, alpha, level)
        return output.unflatten(0, query.shape[:2])

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, alpha, level = ctx.saved_tensors
        scale: float = query.shape[-1] ** -0.5
        q, k, v, toward = _flat(query) * scale, _flat(key), _flat(value), _flat(upstream)
        to_query, to_key, to_value = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        learns = ctx.needs_input_grad[3]
        to_alpha = q.new_zeros(q.shape[0], 1, 1) if learns else None
        for heads, rows, keys, rest in _blocks(query, key, alpha, ctx.mask):
            part, seen = q[heads, rows], k[heads, keys]
            differentiate = _runnable(ctx.form.differentiate, ctx.compiled, part, seen)
            found = differentiate(part, seen, v[heads, keys], *rest, level[heads, rows], toward[heads, rows], learns)
            to_query[heads, rows] = found[0]
            to_key[heads, keys] += found[1]
            to_value[heads, keys] += found[2]
            if to_alpha is not None:
                to_alpha[heads] += found[3]
        gradients = (to_query.mul_(scale), to_key, to_value)
        shaped = [
            g.unflatten(0, query.shape[:2]).to(x.dtype) for g, x in zip(gradients, (query, key, value), strict=True)
        ]
        if to_alpha is not None:
            shaped.append(to_alpha.view(query.shape[:2]).sum(0).to(alpha.dtype))
        else:
            shaped.append(None)
        return *shaped, None, None, None


def _flat(x: Tensor) -> Tensor:
    return x.flatten(0, 1).to(accumulator(x.dtype))


def _blocks(
    query: Tensor, key: Tensor, alpha: Tensor | None, mask: Mask
) -> Iterator[tuple[slice, slice, slice, tuple[Tensor | None, Tensor | None, Tensor | None]]]:
    """Heads, rows, keys, and (keep, at, alpha) of each block; causal blocks leave out the keys after their last row."""
    batch, count, queries = query.shape[:3]
    total, keys = batch * count, key.shape[2]
    rows = max(1, min(ROWS, queries, _BLOCK_SCORES // max(keys, 1)))
    group = max(1, min(total, _BLOCK_SCORES // max(rows * keys, 1)))
    keep = None if mask.keep is None else mask.keep[:, None, None, :].expand(-1, count, -1, -1).flatten(0, 1)
    at = None
    if mask.causal:
        at = (torch.arange(queries, device=query.device) + mask.offset(queries, keys))[:, None]
    flat_alpha = None if alpha is None else alpha.to(accumulator(query.dtype)).repeat(batch)[:, None, None]
    for first in range(0, total, group):
        heads = slice(first, first + group)
        for start in range(0, queries, rows):
            block = slice(start, min(start + rows, queries))
            seen = slice(keys if at is None else max(1, min(keys, int(at[block.stop - 1]) + 1)))
            yield (
                heads,
                block,
                seen,
                (
                    None if keep is None else keep[heads, :, seen],
                    None if at is None else at[block],
                    None if flat_alpha is None else flat_alpha[heads],
                ),
            )


def allowed(scores: Tensor, keep: Tensor | None, at: Tensor | None) -> Tensor | None:
    """Boolean, broadcastable to the scores of a block."""
    if at is None:
        return keep
    past = torch.arange(scores.shape[-1], device=scores.device) <= at
    return past if keep is None else keep & past


def _runnable(function: Callable[..., Any], compiled: bool, rows: Tensor, keys: Tensor) -> Callable[..., Any]:
    # a dimension of one would be compiled for by itself
    return _compiled(function) if compiled and 1 not in (*rows.shape, keys.shape[1]) else function


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=True, fullgraph=True)
