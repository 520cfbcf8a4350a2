"""Relative positions of groups of keys, by rank within the group."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..contract import SelectionError


class RankPositions(nn.Module):
    """A vector for each difference of ranks from -reach to reach, one table for keys and one for values.

    Tables (2 reach + 1, head_dim), one pair per layer, shared over heads; row `reach` is the query's own rank. The rank
    is the place of a key in its group: the position in a local span, the order within a cluster for routing. Shaw et
    al. 2018, eq. 3-4, with ranks as in the code of the Routing Transformer. Keys that get weight are less than `reach`
    ranks away; those further away are masked. Raises SelectionError where `reach` is below `needed`, the span that the
    groups have.
    """

    def __init__(self, reach: int | None, head_dim: int, *, needed: int, because: str):
        super().__init__()
        self.reach = needed if reach is None else reach
        if self.reach < needed:
            raise SelectionError(
                f"expected max_relative of at least {needed} ({because}), got {reach}: ranks further apart would share "
                "one vector; raise max_relative, or leave it out"
            )
        self.key_table = nn.Parameter(nn.init.xavier_uniform_(torch.empty(2 * self.reach + 1, head_dim)))
        self.value_table = nn.Parameter(nn.init.xavier_uniform_(torch.empty(2 * self.reach + 1, head_dim)))

    @classmethod
    def wanted(
        cls, relative: bool, reach: int | None, head_dim: int, *, needed: int, because: str
    ) -> RankPositions | None:
        """Positions where `relative`, or where a reach asks for them; otherwise None."""
        return cls(reach, head_dim, needed=needed, because=because) if relative or reach is not None else None

    def scores(self, query: Tensor, keys: int, before: int) -> Tensor:
        """q_i·a of (…, queries, d): (…, queries, keys), where query r has the rank of key `before` + r."""
        # only the ranks that occur: the product is queries by queries + keys - 1, not by the whole table
        rows = self._rows(self.key_table, query.shape[-2], keys, before).to(query.dtype)
        return skew(query @ rows.T, keys)

    def values(self, weights: Tensor, before: int) -> Tensor:
        """sum_j P_ij b of (…, queries, keys): (…, queries, d), with ranks as in `scores`."""
        rows = self._rows(self.value_table, weights.shape[-2], weights.shape[-1], before).to(weights.dtype)
        return unskew(weights) @ rows

    def pair_scores(self, query: Tensor, difference: Tensor) -> Tensor:
        """q_i·a of (…, queries, d) for given rank differences (…, queries, keys)."""
        # for ranks that follow no pattern: all rows of the table, and each pair picks its own
        by_rank = query @ self.key_table.to(query.dtype).T
        column = difference.clamp(-self.reach, self.reach) + self.reach
        return by_rank.gather(-1, column.expand(*query.shape[:-1], column.shape[-1]))

    def _rows(self, table: Tensor, queries: int, keys: int, before: int) -> Tensor:
        """The vectors of the differences 1 - queries - before up to keys - 1 - before; zeros past `reach`."""
        # the last query stands furthest from the first key, the first one furthest from the last
        back, ahead = before + queries - 1, keys - 1 - before
        rows = table[max(0, self.reach - back) : self.reach + ahead + 1]
        # ranks past the reach belong to pairs that are masked: any finite number serves
        return F.pad(rows, (0, 0, max(0, back - self.reach), max(0, ahead - self.reach)))


def skew(by_rank: Tensor, keys: int) -> Tensor:
    """(…, queries, queries + keys - 1) by difference of ranks -> (…, queries, keys) by key, without an index.

    Row r starts queries - 1 - r columns in: in the flat order, one column earlier in each row.
    """
    queries, columns = by_rank.shape[-2:]
    if queries == 1:
        return by_rank
    # dropping queries - 1 entries at the front and reading rows one shorter shifts each row by one more
    flat = by_rank.flatten(-2)[..., queries - 1 : queries - 1 + queries * (columns - 1)]
    return flat.view(*by_rank.shape[:-1], columns - 1)[..., :keys]


def unskew(by_key: Tensor) -> Tensor:
    """The inverse of `skew`, with zeros for the differences that do not occur in a row."""
    queries, keys = by_key.shape[-2:]
    if queries == 1:
        return by_key
    # the same shift backwards, and zeros in what no key of the row has
    flat = F.pad(by_key, (0, queries - 2)).flatten(-2)
    return F.pad(flat, (queries - 1, 1)).view(*by_key.shape[:-1], queries + keys - 1)
