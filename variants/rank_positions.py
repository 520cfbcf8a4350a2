"""Relative positions of groups of keys, by rank within the group."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..bench.errors import SelectionError


class RankPositions(nn.Module):
    """A vector for each difference of ranks from -reach to reach, one table for keys and one for values.

    Tables (2 reach + 1, head_dim), one pair per layer, shared over heads; row `reach` is the query's own rank. The rank
    is the place of a key in its group: the position in a local span, the order within a cluster for routing. Shaw et
    al. 2018, eq. 3-4, with ranks as in the code of the Routing Transformer. Keys that get weight are less than `reach`
    ranks away; those further away, masked, fall on the end rows. Raises SelectionError where `reach` is below `needed`,
    the span that the groups have.
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

    def scores(self, query: Tensor, keys: int, before: int) -> Tensor:
        """q_i·a of (…, queries, d): (…, queries, keys), where query r has the rank of key `before` + r."""
        rows, column = self._near(query.shape[-2], keys, before, query.device)
        by_rank = query @ self.key_table[rows].to(query.dtype).T
        return by_rank.gather(-1, column.expand(*query.shape[:-1], keys))

    def values(self, weights: Tensor, before: int) -> Tensor:
        """sum_j P_ij b of (…, queries, keys): (…, queries, d), with ranks as in `scores`."""
        rows, column = self._near(weights.shape[-2], weights.shape[-1], before, weights.device)
        table = self.value_table[rows].to(weights.dtype)
        by_rank = weights.new_zeros(*weights.shape[:-1], len(table))
        # a row has one key of each rank, or zeros on an end row: nothing is added, the order of writing is free
        return by_rank.scatter(-1, column.expand_as(weights), weights) @ table

    def pair_scores(self, query: Tensor, difference: Tensor) -> Tensor:
        """q_i·a of (…, queries, d) for given rank differences (…, queries, keys)."""
        by_rank = query @ self.key_table.to(query.dtype).T
        column = difference.clamp(-self.reach, self.reach) + self.reach
        return by_rank.gather(-1, column.expand(*query.shape[:-1], column.shape[-1]))

    def _near(self, queries: int, keys: int, before: int, device: torch.device) -> tuple[slice, Tensor]:
        """The rows of a table that a group needs, and the one among them for each pair (queries, keys)."""
        low, high = max(-self.reach, 1 - queries - before), min(self.reach, keys - 1 - before)
        difference = torch.arange(keys, device=device) - torch.arange(queries, device=device)[:, None] - before
        return slice(self.reach + low, self.reach + high + 1), difference.clamp(low, high) - low
