"""Blocks: attention over a block of queries and heads at a time on CPU, in plain torch or compiled.

Nothing of queries × keys outlives its block: the backward computes the scores again, and the weights from what the
forward kept of each row, two numbers. Products are batched ones of torch, into memory that all blocks share; between
them a map takes the scores of a block as rows, in place, and is what gets compiled. Masks never reach it: masked keys
lie behind the real ones, and where a row ends its scores are -inf.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor

from ...contract import Mask, accumulator
from ...ops.dropout import WeightDropout, kept_scale
from ...ops.first_derivative import OF_SIMPLEX, first_derivative_only
from ...ops.inputs import check_inputs
from .packing import Packing, flat, unflat

# a row of scores is as many groups, each of whole vectors of eight
# see `block_maps`: the start of Newton's method takes the largest entry of each 16
GROUPS = 16
_MULTIPLE = 8 * GROUPS
ROWS = 256
# scores of a block: of four heads and 256 queries at 1024 keys, 4 MiB in float32, which stay in the outer cache
_BLOCK_SCORES = 2**20
# of four steps each; rounding ends long before
_MOST_LOOKS = 16

Start = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]
GoOn = Callable[[Tensor, Tensor | None, Tensor], tuple[Tensor, Tensor]]
Attend = Callable[[Tensor, Tensor | None, Tensor], None]
Differentiate = Callable[[Tensor, Tensor, Tensor | None, Tensor, bool], Tensor | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One map from scores to weights, as functions of rows, to be run as they are or compiled.

    scores: (rows, width), times `factor`, -inf where masked; alpha: (rows, 1), or None where the map has none.
    start(scores, alpha) -> (level, moved): what is known of each row, (rows, 2), and by how much it still moved.
    order: of the error that a step leaves, in that step; None where it is alpha - 1.
    go_on(scores, alpha, level) -> the same after more steps; start and go_on are None where there is nothing to find.
    attend(scores, alpha, level): scores become weights.
    differentiate(scores, grad_weights, alpha, level, learns): the gradients of the weights become those of the scores;
    returns those of alpha, (rows, 1), where `learns`.
    second_derivative: what is said to whoever asks for one.
    Each writes one tensor in place: where a map sums, the compiler of torch 2.13 fails at two.
    """

    factor: float = 1.0
    order: float | None = 1.0
    start: Start | None = None
    go_on: GoOn | None = None
    attend: Attend
    differentiate: Differentiate
    second_derivative: str = OF_SIMPLEX


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask,
    form: Form,
    alpha: Tensor | None = None,
    *,
    compiled: bool,
    drop: WeightDropout | None = None,
) -> Tensor:
    """Weighted sums of values, (batch, heads, queries, head_dim), float32 at least; `alpha`: (heads,), or None.

    Keys and values may have fewer heads, which divide those of the query: the rows of the heads that share some are
    more rows of one product. Values may have another width than keys, and so has the output. drop: dropout of the
    weights, whose mask the backward computes again. Differentiable once. Raises SelectionError for shapes that do not
    fit.
    """
    check_inputs(query, key, value, mask.valid, grouped=True)
    return cast(Tensor, _Blocked.apply(query, key, value, alpha, mask, form, compiled, drop))  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """Some queries of some heads with the same keys: they see the keys before `free`, and none from `seen` on.

    shared: the heads of keys and values that belong to `heads`, each to as many. limits: (rows, 1), how many keys each
    sees.
    """

    heads: slice
    shared: slice
    rows: slice
    free: int
    seen: int
    limits: Tensor

    def products(self, left: Tensor, right: Tensor, room: Tensor, beyond: float) -> Tensor:
        """Products of their rows in `room`, (heads, rows, width), filled up to whole groups with `beyond`."""
        # keys behind `seen` are not even multiplied: for causal blocks that is half of the work
        left, right = left[self.heads, self.rows], right[self.shared, : self.seen]
        shape = *left.shape[:2], _width(self.seen)
        # the same memory for all blocks: fresh pages would have to be touched, which cost as much as the product
        found = room[: math.prod(shape)].view(shape)
        target = _by_shared(found, len(right))[..., : self.seen]
        torch.bmm(_by_shared(left, len(right)), right.transpose(1, 2), out=target)
        # -inf for scores, so that they weigh nothing; 0 for gradients, since a weight of zero times what lay there
        # may be NaN
        found[..., self.seen :] = beyond
        return found

    def hide(self, scores: Tensor) -> None:
        """Scores (heads, rows, width) become -inf, in place, where a query may not see the key."""
        # only the part of a block that not all of its queries see: the diagonal of a causal mask, or nothing
        if self.free < self.seen:
            hidden = torch.arange(self.free, self.seen) >= self.limits
            scores[..., self.free : self.seen].masked_fill_(hidden, -math.inf)

    def drop_factors(self, packing: Packing, drop: WeightDropout, heads: int, dtype: torch.dtype) -> Tensor:
        """What dropout multiplies the weights of this block with, (heads, rows, seen); `heads` in a sequence."""
        return packing.drop_kept(drop, self.heads, heads, self.rows, self.seen).to(dtype).mul_(kept_scale(drop.rate))

    def each(self, of_rows: Tensor) -> Tensor:
        """The rows of this block, (rows, n), of numbers by query, (heads, queries, n)."""
        return of_rows[self.heads, self.rows].flatten(0, 1)


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
        drop: WeightDropout | None,
    ) -> Tensor:
        ctx.packing = packing = Packing.of(mask, query.shape[0], query.shape[2], key.shape[2])
        ctx.form, ctx.compiled, ctx.drop = form, compiled, drop
        q, k, v = _operands(query, key, value, packing, form)
        alphas, level, room = _alphas(alpha, q), q.new_zeros(*q.shape[:2], 2), q.new_empty(_room(q, k))
        output = v.new_zeros(q.shape[0], q.shape[1], v.shape[2])
        with compilations(compiled):
            for block in _blocks(packing, q, k):
                scores = block.products(q, k, room, -math.inf)
                block.hide(scores)
                among, found = None if alphas is None else block.each(alphas), block.each(level)
                if form.start is not None:
                    found = _solve(form, scores.flatten(0, 1), among, compiled)
                    # all that the backward needs of a row: its maximum and its threshold. The weights follow from
                    # them and the scores
                    level[block.heads, block.rows] = found.view(*scores.shape[:2], 2)
                _run(form.attend, compiled, scores.flatten(0, 1), among, found)
                if drop is not None:
                    scores[..., : block.seen] *= block.drop_factors(packing, drop, query.shape[1], q.dtype)
                # one writer for each query: blocks divide heads and queries, never the keys of a query
                target = output[block.heads, block.rows]
                _write_product(target, scores[..., : block.seen], v[block.shared, : block.seen])
        ctx.save_for_backward(query, key, value, alpha, level)
        shaped: Tensor = output.view(*query.shape[:2], *output.shape[1:])[..., : value.shape[-1]]
        return shaped

    @staticmethod
    @first_derivative_only(lambda ctx: ctx.form.second_derivative)
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, alpha, level = ctx.saved_tensors
        form, packing, learns = ctx.form, ctx.packing, ctx.needs_input_grad[3]
        q, k, v = _operands(query, key, value, packing, form)
        grad_output, alphas = flat(grad_output, q.dtype), _alphas(alpha, q)
        # two rooms: gradients of the weights beside the scores that become weights
        room, other = q.new_empty(2, _room(q, k))
        to_query, to_alpha = torch.zeros_like(q), torch.zeros_like(level[..., :1])
        # a product of transposed rows reads its left factor by columns; its transpose does not
        to_key, to_value = (x.new_zeros(x.shape[0], x.shape[2], x.shape[1]) for x in (k, v))
        with compilations(ctx.compiled):
            for block in _blocks(packing, q, k):
                scores, grad_weights = block.products(q, k, room, -math.inf), block.products(grad_output, v, other, 0.0)
                block.hide(scores)
                among = None if alphas is None else block.each(alphas)
                rows, found = scores.flatten(0, 1), block.each(level)
                factors = None
                if ctx.drop is not None:
                    # the gradients of the weights before they were dropped
                    factors = block.drop_factors(packing, ctx.drop, query.shape[1], q.dtype)
                    grad_weights[..., : block.seen] *= factors
                # gradients first, while the scores stand: `attend` overwrites them with the weights that the values'
                # gradient needs
                by_row = _run(form.differentiate, ctx.compiled, rows, grad_weights.flatten(0, 1), among, found, learns)
                _run(form.attend, ctx.compiled, rows, among, found)
                if factors is not None:
                    scores[..., : block.seen] *= factors
                if learns:
                    to_alpha[block.heads, block.rows] = by_row.view(*scores.shape[:2], 1)
                shared, own, seen = block.shared, (block.heads, block.rows), slice(block.seen)
                _write_product(to_query[own], grad_weights[..., seen], k[shared, seen])
                for total, left, right in ((to_key, q, grad_weights), (to_value, grad_output, scores)):
                    # in this form, unlike baddbmm_, its operations are counted by torch
                    target = total[shared, :, seen]
                    left, right = (_by_shared(x, len(target)) for x in (left[own], right[..., seen]))
                    torch.baddbmm(target, left.transpose(1, 2), right, out=target)
        # q was scaled before the product, so its gradient takes the factor now; that of the keys has it from q
        to_query *= form.factor * query.shape[-1] ** -0.5
        # back to (positions, columns), and to the order in which the keys came
        kept = (packing.unpack(x.transpose(1, 2), like) for x, like in ((to_key, key), (to_value, value)))
        for_alpha = to_alpha.view(query.shape[:3]).sum((0, 2)).to(alpha.dtype) if learns else None
        of_query = unflat(to_query, query, query.shape[-1], query.dtype)
        return of_query, *(x.contiguous() for x in kept), for_alpha, None, None, None, None


def _by_shared(x: Tensor, shared: int) -> Tensor:
    """(heads, rows, n) as (shared, rows of the heads that share keys, n)."""
    return x if len(x) == shared else x.reshape(shared, -1, x.shape[-1])


def _write_product(target: Tensor, left: Tensor, right: Tensor) -> None:
    """left @ right into target, (heads, rows, columns); right: (shared, n, columns)."""
    if len(left) == len(right):
        torch.bmm(left, right, out=target)
    else:
        # rows of a group are not side by side in the target
        target.copy_(torch.bmm(_by_shared(left, len(right)), right).view(target.shape))


def _operands(query: Tensor, key: Tensor, value: Tensor, packing: Packing, form: Form) -> tuple[Tensor, Tensor, Tensor]:
    """The query times all that scores are multiplied with, and the real keys and values first."""
    # float32 at least: half precision would lose the threshold, which is a difference of scores
    dtype = accumulator(query.dtype)
    scaled = flat(query, dtype) * (form.factor * query.shape[-1] ** -0.5)
    return scaled, packing.pack(key, dtype), packing.pack(value, dtype)


def _alphas(alpha: Tensor | None, query: Tensor) -> Tensor | None:
    """(heads in all, queries, 1)."""
    if alpha is None:
        return None
    return alpha.to(query.dtype).repeat(query.shape[0] // len(alpha))[:, None, None].expand(-1, query.shape[1], 1)


def _room(query: Tensor, key: Tensor) -> int:
    """Scores of the largest block."""
    rows, group = _sizes(query, key)
    return rows * group * _width(key.shape[1])


def _width(keys: int) -> int:
    # never 0: blocks are sized by it
    return -(-max(keys, 1) // _MULTIPLE) * _MULTIPLE


def _sizes(query: Tensor, key: Tensor) -> tuple[int, int]:
    """Rows and heads of a block."""
    width = _width(key.shape[1])
    # long sequences take fewer rows, then fewer heads, so that a block of scores stays in the cache
    rows = max(1, min(ROWS, query.shape[1], _BLOCK_SCORES // width))
    heads = max(1, min(query.shape[0], _BLOCK_SCORES // (rows * width)))
    # whole groups of heads that share keys, or a part of one; an empty batch has neither
    group = query.shape[0] // max(key.shape[0], 1)
    if not group:
        return rows, heads
    return rows, heads - heads % group if heads >= group else math.gcd(heads, group)


def _blocks(packing: Packing, query: Tensor, key: Tensor) -> Iterator[_Block]:
    """Blocks with a key to see; where examples differ in their keys, no block has heads of two."""
    if not query.shape[0]:
        return
    rows, group = _sizes(query, key)
    total, examples = query.shape[0], len(packing.limits)
    sharing = total // key.shape[0]
    # without padding all examples are alike, and a block may hold heads of several
    shared = bool((packing.limits == packing.limits[:1]).all())
    span = total if shared else total // examples
    for start in range(0, total, span):
        limits = packing.limits[start * examples // total]
        for first in range(start, start + span, group):
            heads = slice(first, min(first + group, start + span))
            of_keys = slice(first // sharing, (heads.stop - 1) // sharing + 1)
            for at in range(0, len(limits), rows):
                own = limits[at : at + rows]
                # limits never fall
                free, seen = int(own[0]), int(own[-1])
                if seen:
                    queries = slice(at, at + len(own))
                    yield _Block(heads=heads, shared=of_keys, rows=queries, free=free, seen=seen, limits=own[:, None])


def _solve(form: Form, scores: Tensor, alpha: Tensor | None, compiled: bool) -> Tensor:
    """The level of each row, (rows, 2)."""
    assert form.start is not None and form.go_on is not None
    # the head with the largest alpha asks for the smallest last step; see `thresholds._tolerance`
    order = float(alpha.max()) - 1.0 if alpha is not None else form.order or 0.0
    eps = torch.finfo(scores.dtype).eps
    # as in `ops/thresholds`; NaN ends it as well
    enough = max((1e-4 * eps) ** max(order, 0.5), 4 * eps)
    level, moved = _run(form.start, compiled, scores, alpha)
    for _ in range(_MOST_LOOKS):
        # the one look at the data between two graphs
        if not bool((moved > enough).any()):
            break
        level, moved = _run(form.go_on, compiled, scores, alpha, level)
    found: Tensor = level
    return found


def _run(function: Callable[..., Any], compiled: bool, scores: Tensor, *more: Any) -> Any:
    # a single row would be compiled for by itself
    return (compiled_form(function) if compiled and len(scores) > 1 else function)(scores, *more)


def compiled_form(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` compiled; as it is where operations are being counted, since torch.compile refuses there."""
    # under FlopCounterMode, for one
    return function if torch._C._len_torch_dispatch_stack() else _compiled(function)


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    # dynamic: one graph for all sizes of a block. fullgraph: a break would run as plain torch unseen, and be recorded
    # as compiled
    return torch.compile(function, dynamic=True, fullgraph=True)


@contextlib.contextmanager
def compilations(wanted: bool = True) -> Iterator[None]:
    """Where compiled functions are called."""
    if not wanted:
        yield
        return
    import torch._dynamo.config
    import torch._functorch.config

    # sizes that happen to be equal are compiled for again: some ways to be so, and none may end in plain torch unseen
    limit = torch._dynamo.config.patch(recompile_limit=64)
    # asked by compiled graphs when they run backward: buffers that they have given away do not serve a second time, so
    # that the first backward is refused already under create_graph and under retain_graph
    valid = torch._functorch.config.patch(donated_buffer=False)
    with limit, valid, warnings.catch_warnings():
        # the compiler looks whether inputs that are no leaves have gathered a gradient
        warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a leaf")
        yield
