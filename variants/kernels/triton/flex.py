"""FlexAttention of PyTorch for attention over intervals of keys: on a GPU only, since it has no backward on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from ...ops.inputs import check_inputs


def flex_interval_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lower: Tensor,
    upper: Tensor,
    valid: Tensor | None,
    *,
    scale: float,
    bias: Tensor | None = None,
    back: int = 0,
    offset: int = 0,
) -> Tensor:
    """Attention over the keys lower[i] <= j < upper[i], both (queries,); (batch, heads, queries, head_dim).

    query (batch, heads, queries, head_dim); key and value (batch, heads, keys, head_dim); valid (batch, keys) or None.
    `bias` (batch, heads, queries, columns) is added to the scaled scores, by clipped distance as in
    `interval.interval_attention`. Its gradient adds in no fixed order, so the last bits may differ from run to
    run. Queries without a key give zeros.
    """
    check_inputs(query, key, value, valid, one_width=True)
    valid = None if valid is None else valid.expand(query.shape[0], -1)
    batch, queries, keys = query.shape[0], query.shape[2], key.shape[2]

    def seen(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        inside = (j >= lower[i]) & (j < upper[i])
        return inside if valid is None else inside & valid[b, j]

    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        assert bias is not None
        column = (j - i - offset).clamp(-back, bias.shape[-1] - 1 - back) + back
        return s + bias[b, h, i, column]

    # made anew at every call, since bounds and padding may differ
    blocks = create_block_mask(
        seen, batch if valid is not None else None, None, queries, keys, device=str(query.device)
    )
    run: Any = _compiled() if query.is_cuda else flex_attention
    output: Tensor = run(query, key, value, score_mod=None if bias is None else score, block_mask=blocks, scale=scale)
    # rows without a key are set here, whatever FlexAttention makes of them
    dead = (lower >= upper)[None, None, :, None]
    if valid is not None:
        # real keys before each place: an interval without one has as many at both ends
        real = torch.nn.functional.pad(valid.cumsum(-1), (1, 0))
        dead = (real[:, upper.long().clamp(min=0)] <= real[:, lower.long()])[:, None, :, None]
    return output.masked_fill(dead, 0.0)


@cache
def _compiled() -> Callable[..., Any]:
    return torch.compile(flex_attention)
