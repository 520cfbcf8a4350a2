"""Attention over intervals with vectors by rank difference, `RankPositions`, for local and routing attention."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from ...ops.bands import scaled
from ...ops.dropout import WeightDropout
from ...ops.relative_positions import RankPositions
from .interval import Intervals, interval_attention


def rank_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    intervals: Intervals,
    valid: Tensor | None = None,
    *,
    scale: float,
    positions: RankPositions | None,
    back: int,
    ahead: int,
    drop: WeightDropout | None = None,
    precision: Literal["tf32x3", "tf32"] = "tf32x3",
) -> Tensor:
    """Interval attention, (batch, heads, queries, head_dim), with the vectors of `positions` where given.

    No pair that is visible may be more than `back` keys back or `ahead` keys ahead. Scores by rank difference are a
    product of size queries by back + ahead + 1, and weights come back in the same order for the value vectors, so that
    the tables themselves never enter the kernels. Ask `launch.reason` first.
    """
    if positions is None:
        return interval_attention(query, key, value, intervals, valid, scale=scale, drop=drop, precision=precision)[0]
    # the rows of the tables that can occur: fewer columns for the kernel to read
    ranks = slice(positions.reach - back, positions.reach + ahead + 1)
    by_query = scaled(query, scale)
    output, by_rank = interval_attention(
        query,
        key,
        value,
        intervals,
        valid,
        scale=scale,
        bias=by_query @ positions.key_table[ranks].to(by_query.dtype).T,
        back=back,
        collect=True,
        drop=drop,
        precision=precision,
    )
    assert by_rank is not None
    return output + (by_rank @ positions.value_table[ranks].to(by_rank.dtype)).to(value.dtype)
