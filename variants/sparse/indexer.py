"""A learned indexer (DeepSeek sparse attention): a small attention chooses the keys that each query sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..contract import (
    AttentionShape,
    Count,
    KeyValueCache,
    Mask,
    Range,
    ScoredVariant,
    SelectionError,
    Unsupported,
    Width,
    accumulator,
)
from ..ops.nearest_first import highest
from ..ops.patterns import pairs, whole
from ..ops.projection import projected


@dataclass(slots=True)
class IndexedCache:
    """Keys and values seen so far, and their index keys, (batch, length, index_dim)."""

    seen: KeyValueCache
    index: Tensor


class Indexer(ScoredVariant):
    """Softmax attention over the k keys of each query that a learned indexer scores highest, alike for all heads.

    The indexer is a small attention of its own over the hidden state x: ReLU of products of `index_heads` queries with
    one key, weighed by a number of each head and query. It learns by an auxiliary loss alone, `loss` times the KL
    divergence of its distribution from that of the attention, summed over heads, both over the keys it chose; no
    gradient of the choice reaches the model, nor one of the loss. The paper first trains it beside full attention; here
    it starts at once. Among equal scores the nearest keys are taken: ReLU gives many zeros. `k`: 2,048 as in the paper,
    or an eighth of max_length where that is less. The index has no positions, rotary ones in the paper. This code
    computes all scores and hides the others; density counts the chosen ones and the products of the indexer.
    """

    takes_hidden = True
    ignores = frozenset({"hidden"})
    crosses: ClassVar = False
    grouped: ClassVar = True
    takes_bounds: ClassVar = True
    simplex: ClassVar = True
    maps_products = True
    equation: ClassVar = (
        "P = softmax of Q K^T / sqrt(d) over the k highest I_ij, 0 elsewhere; "
        "I_ij = sum_h (w x_i)_h ReLU(q^I_ih·k^I_j); O = P V"
    )
    paper: ClassVar = "DeepSeek-AI 2025, DeepSeek-V3.2 (arXiv 2512.02556), section 2.1"
    time: ClassVar = "O(N k d + N^2 index_heads index_dim)"

    def __init__(
        self,
        shape: AttentionShape,
        *,
        k: Count | None = None,
        index_heads: Width = 4,
        index_dim: Width = 32,
        loss: Annotated[float, Range(0, 1e6)] = 1.0,
    ):
        super().__init__(shape)
        self.k = whole("k", k, min(2048, shape.max_length // 8))
        self.index_heads, self.index_dim, self.factor = index_heads, index_dim, loss
        self.index_query = nn.Linear(shape.hidden_width, index_heads * index_dim, bias=False)
        self.index_key = nn.Linear(shape.hidden_width, index_dim, bias=False)
        self.index_norm = nn.LayerNorm(index_dim, eps=1e-6)
        self.index_weight = nn.Linear(shape.hidden_width, index_heads, bias=False)
        self._loss: Tensor | None = None

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, hidden: Tensor) -> Tensor:  # type: ignore[override]
        weights, index, kept = self._chosen(query, key, mask, None, hidden)
        # where nothing learns nothing is to be kept
        if torch.is_grad_enabled():
            self._loss = self.factor * _divergence(weights.detach(), index, kept, mask.real(key))
        return self.average(F.dropout(weights, self.weight_dropout).to(value.dtype), value)

    def weights(
        self, query: Tensor, key: Tensor, mask: Mask, rows: slice | None = None, *, hidden: Tensor | None = None
    ) -> Tensor:
        return self._chosen(query, key, mask, rows, hidden)[0]

    def auxiliary_loss(self) -> Tensor | None:
        return self._loss

    def after_step(self) -> None:
        self._loss = None

    def density(self, shape: AttentionShape) -> float:
        length, all_pairs = shape.max_length, pairs(shape.max_length, shape.causal)
        few = min(self.k, length)
        chosen = few * length - (few * (few - 1) // 2 if shape.causal else 0)
        # an entry of a head is a score and its share of the output, two products of head_dim
        return min(1.0, chosen / all_pairs + self.index_heads * self.index_dim / (2 * shape.width))

    def state_bytes(self, shape: AttentionShape) -> int:
        itemsize = accumulator(getattr(torch, shape.dtype)).itemsize
        return shape.max_length * (2 * shape.kv_width * shape.bytes_per_value + self.index_dim * itemsize)

    def step(
        self, query: Tensor, key: Tensor, value: Tensor, state: IndexedCache | None = None, hidden: Tensor | None = None
    ) -> tuple[Tensor, IndexedCache]:
        if hidden is None:
            raise SelectionError("indexer takes the hidden state: expected hidden, got None")
        own = self._index_keys(hidden)
        if state is None:
            state = IndexedCache(KeyValueCache.empty(key, value), own[:, :0])
        keys, values = state.seen.append(key, value)
        state.index = torch.cat([state.index, own], 1)
        kept = highest(self._scores(hidden, state.index), None, self.k)
        weights = self.weigh(self.score(query, keys), kept[:, None])
        return self.average(F.dropout(weights, self.weight_dropout).to(values.dtype), values), state

    def __getstate__(self) -> dict[str, Any]:
        # a loss with its graph can be neither copied nor pickled
        return {**self.__dict__, "_loss": None}

    def _chosen(
        self, query: Tensor, key: Tensor, mask: Mask, rows: slice | None, hidden: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Weights (batch, heads, rows, keys), scores of the indexer and which are kept, both (batch, rows, keys)."""
        queries, keys = query.shape[2], key.shape[2]
        if hidden is None or queries != keys:
            raise Unsupported(
                f"indexer: expected one sequence with its hidden state, got {queries} queries, {keys} keys"
            )
        picked = rows or slice(None)
        index = self._scores(hidden[:, picked], self._index_keys(hidden))
        allowed = mask.allowed(queries, keys, query.device, rows)
        kept = highest(index, None if allowed is None else allowed[:, 0], self.k)
        return self.weigh(self.score(query[:, :, picked], key), kept[:, None]), index, kept

    def _index_keys(self, hidden: Tensor) -> Tensor:
        """(batch, length, index_dim), float32 or more."""
        wide = hidden.detach().to(accumulator(hidden.dtype))
        norm = self.index_norm
        weight, bias = norm.weight.to(wide.dtype), norm.bias.to(wide.dtype)
        return F.layer_norm(projected(self.index_key, wide), (self.index_dim,), weight, bias, norm.eps)

    def _scores(self, hidden: Tensor, index_key: Tensor) -> Tensor:
        """I, (batch, queries, keys), of the hidden state of the queries."""
        # detached: the indexer learns from the model, and the model not from the indexer
        wide = hidden.detach().to(index_key.dtype)
        queries = torch.unflatten(projected(self.index_query, wide), -1, (self.index_heads, -1)).transpose(1, 2)
        products = (queries @ index_key[:, None].transpose(-2, -1)).relu() * self.index_dim**-0.5
        by_head = projected(self.index_weight, wide) * self.index_heads**-0.5
        return torch.einsum("bqh,bhqk->bqk", by_head, products)


def _divergence(weights: Tensor, index: Tensor, kept: Tensor, real: Tensor) -> Tensor:
    """KL of the weights, averaged over heads, from softmax(index), both over the kept keys: the mean over real queries.

    weights: (batch, heads, length, length); index, kept: (batch, length, length); real: (batch, length).
    """
    target = weights.mean(1)
    # not -inf: on a row without a key that is NaN, in the gradient too
    expected = index.masked_fill(~kept, torch.finfo(index.dtype).min).log_softmax(-1)
    # a weight of zero has no logarithm, and adds nothing
    terms = target * (target.clamp(min=torch.finfo(target.dtype).tiny).log() - expected)
    return terms.masked_fill(~(kept & real[:, :, None]), 0.0).sum() / real.sum().clamp(min=1)
