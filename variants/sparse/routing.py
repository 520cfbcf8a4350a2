"""Routing attention: tokens attend within clusters of their content."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from ..contract import (
    AttentionShape,
    Count,
    KeyValueCache,
    Mask,
    Range,
    SelectionError,
    Unsupported,
    Variant,
    Width,
    repeat_heads,
)
from ..kernels.dispatch import choose_implementation, refusal
from ..mask import picked_range
from ..ops.bands import Band, attend, group_weights, scaled
from ..ops.centroids import Centroids, ClusterOrder, Groups, normalised
from ..ops.dropout import WeightDropout
from ..ops.patterns import pairs, whole
from ..ops.relative_positions import RankPositions


@dataclass(slots=True)
class RoutingState:
    """Keys, values and clusters (batch, heads, length) of the tokens so far."""

    cache: KeyValueCache
    cluster: Tensor


class Routing(Variant):
    """Attention within k-means clusters of layer-normed queries and keys.

    `form=paper`: each cluster takes the `window` tokens nearest to its centroid; they attend to one another; a token in
    several clusters takes the mean, one in none gets zeros. Causal, values come from the past only, but the tokens of a
    cluster are chosen over the whole sequence: causality 'selection', no decoding. `form=strict`: token i is in the one
    cluster nearest to its query, and sees the last `window` tokens j <= i of it (without a causal mask also the next
    ones): strictly causal, decodes.

    `window`: near the square root of max_length; `clusters`: max_length / window. `share_qk` takes the queries as keys,
    as the paper's causal models do. `scale` of the scores is 1 as in the authors' code, whose vectors have norm
    sqrt(head_dim); with `share_qk` a token then sees almost only itself at first, which `suppress_self` forbids where
    it has another choice. Centroids move after each step (`decay`); `beta` weighs the pull of tokens to their centroid.
    `relative` adds vectors by rank within the cluster; `max_relative` may not be below `window`. `impl`: for
    form=strict auto takes Triton's kernels on a GPU that can run them, and C++ on a CPU where neither weights are
    dropped nor a token hidden from itself; eager otherwise, which is the definition. With form=strict it and Triton
    drop weights by one mask, over places in the sorted order.

    Other than the authors' code: the causal mask compares positions and not ranks, which leaked values where queries
    and keys are not shared; the mean is over the clusters in which a query sees a key, not over their number + 0.01.
    """

    causality: ClassVar = "selection"
    crosses: ClassVar = False
    decodes: ClassVar = False
    equation: ClassVar = "P^c = softmax(scale norm(Q_c) norm(K_c)^T), c: top-w of Q mu, K mu; o_i = mean_c P^c_i V_c"
    paper: ClassVar = "Roy et al. 2021, Efficient Content-Based Sparse Attention with Routing Transformers, alg. 1"
    time: ClassVar = "O(N (clusters + window) d)"
    memory: ClassVar = "O(N (clusters + window))"
    drops_inside: ClassVar = frozenset({"triton"})

    def __init__(
        self,
        shape: AttentionShape,
        *,
        clusters: Width | None = None,
        window: Count | None = None,
        form: Literal["paper", "strict"] = "paper",
        share_qk: bool = False,
        suppress_self: bool = False,
        scale: Annotated[float, Range(-1e3, 1e3)] = 1.0,
        decay: Annotated[float, Range(0, 0.999_999)] = 0.999,
        beta: Annotated[float, Range(0, 1e3)] = 1e-4,
        relative: bool = True,
        max_relative: Width | None = None,
        impl: Literal["auto", "eager", "cpp", "triton"] = "auto",
    ):
        super().__init__(shape)
        self.impl = impl
        # clusters times window near the length: each token is then in about one cluster, and the cost is least at its
        # root
        near_root = math.sqrt(shape.max_length) if clusters is None else shape.max_length / max(1, clusters)
        self.window = whole("window", window, round(near_root))
        self.clusters = whole("clusters", clusters, round(shape.max_length / self.window))
        if not 0.0 <= decay < 1.0:
            raise SelectionError(f"expected decay in [0, 1), got {decay}")
        self.form, self.share_qk, self.suppress_self = form, share_qk, suppress_self
        self.scale, self.beta = scale, beta
        # these two depend on the form, so the instance has its own
        self.causality = "selection" if form == "paper" else "strict"  # type: ignore[misc, assignment]
        self.decodes = form == "strict"  # type: ignore[misc]
        self.ignores = frozenset({"key"}) if share_qk else frozenset()
        self.centroids = Centroids(shape.heads, self.clusters, shape.head_dim, decay)
        needed, because = self.window, f"the cluster window of {self.window}"
        self.positions = RankPositions.wanted(relative, max_relative, shape.head_dim, needed=needed, because=because)
        # of the last forward; with its graph, so it lives until `after_step` and no longer
        self._loss: Tensor | None = None

    def supports(self, shape: AttentionShape) -> str | None:
        if self.impl in ("cpp", "triton") and self.form == "paper":
            return f"impl={self.impl} computes form=strict only"
        if self.impl == "cpp" and self.suppress_self:
            return "impl=cpp hides no token from itself: use impl=eager, or suppress_self=false"
        return super().supports(shape) or refusal(self.impl, shape, dropping=self.drops_inside)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        # the paper's clusters overlap, so no order makes what a token sees an interval
        impl = self.impl if self.form == "strict" else "eager"
        # of the values: queries and keys are normalised to float32 whatever their dtype
        self.implementation = choose_implementation(
            *(impl, value, value),
            dropout=self.weight_dropout,
            dropping=self.drops_inside,
            kernels=frozenset({"triton"} if self.suppress_self else {"cpp", "triton"}),
        )
        query, key = self._routed(query, key)
        self._loss = None
        form = self._paper if self.form == "paper" else self._strict
        return form(query, key, value, mask).to(value.dtype)

    def _routed(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        if query.shape[2] != key.shape[2]:
            raise Unsupported(
                f"routing needs queries and keys of one sequence: expected {key.shape[2]} queries, got "
                f"{query.shape[2]}; to decode with form=strict, use step"
            )
        # layer norm without scale and bias, as the paper routes: nearness is then the angle
        query = normalised(query)
        return query, query if self.share_qk else normalised(key)

    def _scores(self, tokens: Tensor, valid: Tensor | None) -> Tensor:
        """Scores of tokens and centroids; in training also records the tokens and adds their part of the loss."""
        scores = self.centroids.scores(tokens)
        # evaluation must leave the centroids alone, or an output would depend on what was evaluated before
        if self.training:
            assigned = scores.argmax(-1)
            self.centroids.record(tokens, assigned, valid)
            loss = self.beta * self.centroids.commitment(tokens, assigned, valid)
            self._loss = loss if self._loss is None else self._loss + loss
        return scores

    def _groups(self, query: Tensor, key: Tensor, mask: Mask) -> tuple[Groups, Groups]:
        groups = Groups.nearest(self._scores(query, mask.valid), mask.valid, self.window)
        # one set of tokens, one choice: the second would be the same work and count every token twice
        if self.share_qk:
            return groups, groups
        return groups, Groups.nearest(self._scores(key, mask.valid), mask.valid, self.window)

    def _paper(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        of_query, of_key = self._groups(query, key, mask)
        allowed = self._within(of_query, of_key, mask.causal)
        output = attend(
            of_query.gather(query),
            of_key.gather(key),
            of_key.gather(value),
            allowed,
            scale=self.scale,
            dropout=self.weight_dropout,
            positions=self.positions,
        )
        # a mean over clusters, not a sum: a token in three clusters is not three times as loud
        share = self._share(of_query, allowed, query.shape[2], query.dtype)
        return of_query.scatter(output.to(query.dtype) * share, query.shape[2])

    def _within(self, of_query: Groups, of_key: Groups, causal: bool) -> Tensor:
        """(batch, heads, clusters, window, window), True = the query may see the key."""
        query_at, key_at = of_query.index[..., :, None], of_key.index[..., None, :]
        # fillers stand where a sequence has fewer real tokens than a cluster has places; they neither see nor are
        # seen
        allowed = of_query.real[..., :, None] & of_key.real[..., None, :]
        if causal:
            allowed = allowed & (key_at <= query_at)
        return self._without_self(allowed, key_at == query_at)

    def _without_self(self, allowed: Tensor, is_self: Tensor) -> Tensor:
        """`allowed` less a token's view of itself where that is suppressed and there is another."""
        if not self.suppress_self:
            return allowed
        # a token that would be left with nothing keeps the view of itself
        others = allowed & ~is_self
        return torch.where(others.any(-1, keepdim=True), others, allowed)

    def _share(self, of_query: Groups, allowed: Tensor, length: int, dtype: torch.dtype) -> Tensor:
        """One over the number of clusters in which a token sees a key, (batch, heads, clusters, window, 1)."""
        # counted are the clusters in which the query sees a key: scatter adds them up, gather hands the sum to each
        # place
        live = allowed.any(-1, keepdim=True).to(dtype)
        return live / of_query.gather(of_query.scatter(live, length)).clamp(min=1.0)

    def _strict(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        order = ClusterOrder.of(self._scores(query, mask.valid).argmax(-1), self.clusters, mask.valid)
        drop = WeightDropout.drawn(self.weight_dropout, query.device)
        if self.implementation != "eager":
            return self._fused(query, key, value, order, mask.causal, drop)
        # the own token is one of the window
        back = self.window - 1
        band = Band.fit(query.shape[2], max(16, self.window), back, 0 if mask.causal else back)
        query_at, key_at = band.at(query.device)
        # sorted by (cluster, position), a window along the sequence is a window within the cluster, cut at its border
        cluster = order.sort(order.cluster[..., None])
        # the cluster number one past the last is that of the pads
        same = (band.split(cluster) == band.spans(cluster).transpose(-2, -1)) & (band.split(cluster) < self.clusters)
        near = (key_at - query_at).abs() <= back
        allowed = band.allowed(None, mask.causal, query.device) & near & same
        output = attend(
            band.split(order.sort(query)),
            band.spans(order.sort(key)),
            band.spans(order.sort(value)),
            self._without_self(allowed, key_at == query_at),
            scale=self.scale,
            # of places in the sorted order
            kept=band.kept(drop, query.shape[0], query.shape[1]),
            positions=self.positions,
            before=band.before,
        )
        return order.restore(band.merge(output))

    def _fused(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        order: ClusterOrder,
        causal: bool,
        drop: WeightDropout | None,
    ) -> Tensor:
        """Sorted by cluster, what a token sees is an interval, and so is the whole form one kernel."""
        back = min(self.window, query.shape[2]) - 1
        ahead = 0 if causal else back
        # each (batch, head) has bounds of its own, since each sorts its own tokens
        lower, upper = order.bounds(back, ahead)
        if self.implementation == "cpp":
            from ..kernels.cpu import tiles

            # there bounds are those of a sequence, so that each head is one; and the scale is 1 / sqrt(head_dim)
            wide = query * (self.scale * math.sqrt(query.shape[-1]))
            query, key, own = (order.sort(x).flatten(0, 1)[:, None] for x in (wide, key, value))
            seen = Mask(bounds=torch.stack([lower, upper], -1).flatten(0, 1))
            found = tiles.rank_attention(query, key, own, seen, self.positions, back=back, ahead=ahead)
            return order.restore(found.view(value.shape))
        from ..kernels.gpu import Intervals, rank_attention

        output = rank_attention(
            order.sort(query),
            order.sort(key),
            order.sort(value.to(query.dtype)),
            Intervals(lower=lower.flatten(0, 1), upper=upper.flatten(0, 1), hide_self=self.suppress_self),
            scale=self.scale,
            positions=self.positions,
            back=back,
            ahead=ahead,
            drop=drop,
            # normalised tokens are float32, and bfloat16 values need no more digits than one product of TF32 keeps
            precision="tf32" if value.dtype == torch.bfloat16 else "tf32x3",
        )
        return order.restore(output)

    def weights(self, query: Tensor, key: Tensor, mask: Mask, rows: slice | None = None) -> Tensor:
        query, key = self._routed(query, repeat_heads(key, query.shape[1]))
        rows = slice(*picked_range(rows, query.shape[2]))
        return (self._paper_rows if self.form == "paper" else self._strict_rows)(query, key, mask, rows)

    def _paper_rows(self, query: Tensor, key: Tensor, mask: Mask, rows: slice) -> Tensor:
        batch, heads, length, _ = query.shape
        # by the scores alone: looking at weights must record no token and add no loss
        of_query = Groups.nearest(self.centroids.scores(query), mask.valid, self.window)
        of_key = of_query if self.share_qk else Groups.nearest(self.centroids.scores(key), mask.valid, self.window)
        allowed = self._within(of_query, of_key, mask.causal)
        queries, keys = of_query.gather(query), of_key.gather(key)
        bias = None if self.positions is None else self.positions.scores(scaled(queries, self.scale), keys.shape[-2], 0)
        weights = group_weights(queries, keys, allowed, scale=self.scale, bias=bias)
        weights = weights * self._share(of_query, allowed, length, weights.dtype)
        # queries of other rows go to one row past the end
        count = rows.stop - rows.start
        row = of_query.index - rows.start
        row = row.masked_fill((row < 0) | (row >= count), count)
        at = row[..., :, None] * length + of_key.index[..., None, :]
        # a pair that meets in several clusters has its shares added
        dense = weights.new_zeros(batch, heads, (count + 1) * length)
        dense = dense.scatter_add(-1, at.flatten(2), weights.flatten(2))
        return dense[..., : count * length].view(batch, heads, count, length)

    def _strict_rows(self, query: Tensor, key: Tensor, mask: Mask, rows: slice) -> Tensor:
        order = ClusterOrder.of(self.centroids.scores(query).argmax(-1), self.clusters, mask.valid)
        # difference of the places in sorted order: within a cluster it is the difference of ranks
        rank = order.place[..., None, :] - order.place[..., rows, None]
        own = order.cluster[..., rows, None]
        allowed = (own == order.cluster[..., None, :]) & (own < self.clusters)
        allowed = allowed & (rank.abs() < self.window)
        if mask.causal:
            allowed = allowed & (rank <= 0)
        bias = None
        if self.positions is not None:
            bias = self.positions.pair_scores(scaled(query[:, :, rows], self.scale), rank)
        allowed = self._without_self(allowed, rank == 0)
        return group_weights(query[:, :, rows], key, allowed, scale=self.scale, bias=bias)

    def step(self, query: Tensor, key: Tensor, value: Tensor, state: Any = None) -> tuple[Tensor, RoutingState]:
        if self.form == "paper":
            raise Unsupported("routing[form=paper] chooses by the whole sequence and cannot decode; use form=strict")
        # clusters are those of each query head, so each keeps its own keys
        key, value = repeat_heads(key, query.shape[1]), repeat_heads(value, query.shape[1])
        # the cache holds keys in the dtype of the model; the few that are picked are normalised anew
        key = query if self.share_qk else key
        state = state or RoutingState(KeyValueCache.empty(key, value), key.new_zeros(*key.shape[:2], 0).long())
        keys, values = state.cache.append(key, value)
        # the own cluster depends on the query alone: that is what makes the strict form causal
        own = self.centroids.scores(normalised(query)).argmax(-1)
        state.cluster = torch.cat([state.cluster, own], -1)
        at = torch.arange(state.cluster.shape[-1], device=key.device).expand_as(state.cluster)
        # newest last, so that ranks are those of the parallel form; tokens of other clusters come first
        seen = at.masked_fill(state.cluster != own, -1).topk(min(self.window, at.shape[-1]), -1).values.flip(-1)
        picked = seen.clamp(min=0)[..., None]
        count = picked.shape[2]
        output = attend(
            normalised(query),
            normalised(keys.take_along_dim(picked, 2)),
            values.take_along_dim(picked, 2),
            self._without_self((seen >= 0)[:, :, None], torch.arange(count, device=key.device) == count - 1),
            scale=self.scale,
            dropout=self.weight_dropout,
            positions=self.positions,
            before=count - 1,
        )
        return output, state

    def density(self, shape: AttentionShape) -> float:
        """An upper bound: clusters overlap (paper form), or hold fewer tokens than the window (strict form)."""
        length, window = shape.max_length, min(self.window, shape.max_length)
        if self.form == "paper":
            entries = self.clusters * pairs(window, shape.causal)
        else:
            entries = length * window - pairs(window - 1, True)
            entries = entries if shape.causal else 2 * entries - length
        return min(1.0, entries / pairs(length, shape.causal))

    def state_bytes(self, shape: AttentionShape) -> int | None:
        # the number of the cluster of every token so far
        clusters = shape.heads * shape.max_length * torch.long.itemsize
        cached = super().state_bytes(replace(shape, kv_heads=shape.heads))
        return None if cached is None else cached + clusters

    def auxiliary_loss(self) -> Tensor | None:
        return self._loss

    def after_step(self) -> None:
        self._loss = None
        self.centroids.update()

    def __getstate__(self) -> dict[str, Any]:
        # a loss with its graph can be neither copied nor pickled
        return {**self.__dict__, "_loss": None}
