"""Centroids of routing attention, and the groups of tokens that they make."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..contract import accumulator

_SMOOTHING = 1e-5


class Centroids(nn.Module):
    """Centroids of each head, moved by exponential moving averages and not by gradients.

    mean (heads, clusters, head_dim) = total / count, where total and count are averages, per optimiser step, of the
    sum and number of the tokens nearest to each centroid; count is smoothed (Laplace). Start: layer-normed Gaussian
    means with a count of one each. The authors' code starts counts at zero, which blows up the centroids that the first
    batch leaves empty.
    """

    mean: Tensor
    total: Tensor
    count: Tensor

    def __init__(self, heads: int, clusters: int, head_dim: int, decay: float):
        super().__init__()
        self.clusters, self.decay = clusters, decay
        mean = normalised(torch.randn(heads, clusters, head_dim))
        self.register_buffer("mean", mean)
        self.register_buffer("total", mean.clone())
        self.register_buffer("count", torch.ones(heads, clusters))
        # sums of this step; not a buffer, since they are gone before a checkpoint is written
        self._seen: tuple[Tensor, Tensor] | None = None

    def scores(self, tokens: Tensor) -> Tensor:
        """Inner products (batch, heads, length, clusters) of (batch, heads, length, head_dim), without gradient."""
        # the choice of a cluster passes no gradient; `commitment` is what pulls tokens to their centroid
        return tokens.detach() @ self.mean.to(tokens.dtype).transpose(-2, -1)

    def commitment(self, tokens: Tensor, assigned: Tensor, valid: Tensor | None) -> Tensor:
        """Mean over real tokens and dimensions of (x - mu)^2, with gradient to `tokens` only.

        `assigned`: the centroid of each token, (batch, heads, length).
        """
        head = torch.arange(tokens.shape[1], device=tokens.device)[:, None]
        away = (tokens - self.mean.to(tokens.dtype)[head, assigned]).square().mean(-1)
        if valid is None:
            return away.mean()
        real = valid[:, None].expand_as(away)
        return away.masked_fill(~real, 0.0).sum() / real.sum().clamp(min=1)

    @torch.no_grad()
    def record(self, tokens: Tensor, assigned: Tensor, valid: Tensor | None) -> None:
        """Remembers the real tokens of one forward for the next `update`."""
        # a product with one-hot rows adds in a fixed order, where a scatter on a GPU does not
        hot = F.one_hot(assigned, self.clusters).to(tokens.dtype)
        if valid is not None:
            hot = hot * valid[:, None, :, None]
        total, count = torch.einsum("bhnc,bhnd->hcd", hot, tokens), hot.sum((0, 2))
        if self._seen is not None:
            total, count = total + self._seen[0], count + self._seen[1]
        self._seen = (total, count)

    @torch.no_grad()
    def update(self) -> None:
        """Moves the averages by what was recorded since the last update."""
        if self._seen is None:
            return
        total, count = self._seen
        self._seen = None
        self.total.lerp_(total.to(self.total.dtype), 1 - self.decay)
        self.count.lerp_(count.to(self.count.dtype), 1 - self.decay)
        # Laplace smoothing: an empty cluster gets a small count and not zero, and the counts keep their sum
        everything = self.count.sum(-1, keepdim=True)
        smooth = (self.count + _SMOOTHING) / (everything + self.clusters * _SMOOTHING) * everything
        self.mean.copy_(self.total / smooth[..., None])


def normalised(x: Tensor) -> Tensor:
    """Layer norm over the last dimension without scale and bias, at least float32."""
    return F.layer_norm(x.to(accumulator(x.dtype)), x.shape[-1:], eps=1e-6)


@dataclass(frozen=True, slots=True)
class Groups:
    """Positions of the tokens of each cluster in order, (batch, heads, clusters, window), and which are real."""

    index: Tensor
    real: Tensor

    @classmethod
    def nearest(cls, scores: Tensor, valid: Tensor | None, window: int) -> Groups:
        """The `window` real tokens nearest to each centroid: balanced groups; a token is in any number of them.

        `scores`: (batch, heads, length, clusters).
        """
        batch, _, length, _ = scores.shape
        valid = torch.ones(batch, length, dtype=torch.bool, device=scores.device) if valid is None else valid
        # padded tokens are nearest to nothing; they fill a group only where real ones are too few
        scores = scores.masked_fill(~valid[:, None, :, None], -torch.inf)
        index = scores.transpose(-2, -1).topk(min(window, length), -1).indices
        row = torch.arange(batch, device=scores.device)[:, None, None, None]
        # fillers go last, so that they do not count in the ranks of the others
        last = (~valid[row, index]).long() * length
        index = (index + last).sort(-1).values
        return cls(index % length, index < length)

    # By gather and scatter, not by an index in brackets: the gradient of that, as index_put, adds up in whatever order
    # two threads come, so that a training would not repeat.

    def gather(self, x: Tensor) -> Tensor:
        """(batch, heads, length, d) -> (batch, heads, clusters, window, d)."""
        return x.gather(2, self._places(x.shape[-1])).view(*self.index.shape, x.shape[-1])

    def scatter(self, x: Tensor, length: int) -> Tensor:
        """(batch, heads, clusters, window, d) -> sums (batch, heads, length, d), in one order, always."""
        batch, heads, _, _, dim = x.shape
        return x.new_zeros(batch, heads, length, dim).scatter_add(2, self._places(dim), x.flatten(2, 3))

    def _places(self, dim: int) -> Tensor:
        """The positions of all groups, (batch, heads, clusters · window, dim)."""
        return self.index.flatten(2)[..., None].expand(-1, -1, -1, dim)


@dataclass(frozen=True, slots=True)
class ClusterOrder:
    """Tokens sorted by (cluster, position), pads last as one more cluster.

    `order`, its inverse `place`, and the `cluster` of each token: (batch, heads, length).
    """

    order: Tensor
    place: Tensor
    cluster: Tensor
    clusters: int

    @classmethod
    def of(cls, cluster: Tensor, clusters: int, valid: Tensor | None) -> ClusterOrder:
        """The order by `cluster`, (batch, heads, length), each below `clusters`; valid: (batch, length) or None."""
        length = cluster.shape[-1]
        if valid is not None:
            cluster = cluster.masked_fill(~valid[:, None], clusters)
        # cluster and position in one number, so the sort needs not be stable
        order = (cluster * length + torch.arange(length, device=cluster.device)).argsort(-1)
        return cls(order, order.argsort(-1), cluster, clusters)

    def bounds(self, back: int, ahead: int) -> tuple[Tensor, Tensor]:
        """The places in sorted order that a token may see, `back` and `ahead` in its cluster; empty for pads.

        The first, and the one after the last: (batch, heads, length) int32.
        """
        cluster = self.cluster.take_along_dim(self.order, -1)
        # the first place of a token's cluster and the one after its last, by two searches
        start, end = (torch.searchsorted(cluster, cluster, right=right) for right in (False, True))
        at = torch.arange(cluster.shape[-1], device=cluster.device)
        lower, upper = torch.maximum(start, at - back), torch.minimum(end, at + ahead + 1)
        pads = cluster == self.clusters
        return torch.where(pads, start, lower).int(), torch.where(pads, start, upper).int()

    def sort(self, x: Tensor) -> Tensor:
        """(batch, heads, length, d) by cluster and position."""
        return x.take_along_dim(self.order[..., None], 2)

    def restore(self, x: Tensor) -> Tensor:
        """The inverse of `sort`."""
        return x.take_along_dim(self.place[..., None], 2)
