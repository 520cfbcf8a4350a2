"""Fastformer: additive attention in two rounds, each pooling the whole sequence to one vector per head."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor, nn

from ..contract import AttentionShape, Causality, Mask, Unsupported, Variant, accumulator, masked_softmax


class Fastformer(Variant):
    """Fastformer: pools the queries, pools the keys times that, and multiplies each value by the result.

    As in the authors' code: the logits of a head are read from the full width (heads mix), all three maps start at
    N(0, 0.02), the query is added at the end, and nothing inside is dropped. Its biases of the logits are left out: a
    softmax cancels them, so that they never learn. That code has no values of its own: `value=query`, the default,
    multiplies the query, and the projected value goes unused; `value=value` multiplies the projected value, as the
    paper's equations do. There is no matrix of weights.
    """

    uses_dropout = False
    causality: ClassVar[Causality | None] = None
    crosses: ClassVar = False
    equation: ClassVar = (
        "a = softmax(W_a q / sqrt(d)); g = sum_j a_j q_j; p_j = g*k_j; b = softmax(W_b p / sqrt(d)); "
        "h = sum_j b_j p_j; o_i = W_t (h*v_i) + q_i"
    )
    paper: ClassVar = "Wu et al. 2021, Fastformer: Additive Attention Can Be All You Need, eq. 3-6"
    time: ClassVar = "O(N width^2)"
    memory: ClassVar = "O(N width)"

    def __init__(self, shape: AttentionShape, *, value: Literal["query", "value"] = "query"):
        super().__init__(shape)
        self.value = value
        if value == "query":
            self.ignores = frozenset({"value"})
        self.query_logits = nn.Linear(shape.width, shape.heads, bias=False)
        self.key_logits = nn.Linear(shape.width, shape.heads, bias=False)
        self.transform = nn.Linear(shape.width, shape.width)
        for linear in (self.query_logits, self.key_logits, self.transform):
            nn.init.normal_(linear.weight, std=0.02)
        nn.init.zeros_(self.transform.bias)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        if mask.causal or query.shape[2] != key.shape[2]:
            raise Unsupported("fastformer: expected one sequence without a causal mask; use additive-lm for causal")
        dtype = accumulator(query.dtype)
        wide = query.to(dtype)
        valid = None if mask.valid is None else mask.valid[:, None]
        # first round: one global query for each head
        pooled = _pool(wide, self.query_logits, valid)
        # second round: one global key, of the keys times the global query
        pooled = _pool(pooled * key.to(dtype), self.key_logits, valid)
        # the map at the end mixes the heads, so they are joined before it and parted after it
        mixed = _apply(self.transform, _join(pooled * (wide if self.value == "query" else value.to(dtype))))
        output: Tensor = mixed.view(*mixed.shape[:2], self.shape.heads, self.shape.head_dim).transpose(1, 2) + wide
        if valid is not None:
            # a sequence without a real token gives zeros, not the query that is added
            output = output * valid.any(-1)[..., None, None]
        return output.to(value.dtype)

    def density(self, shape: AttentionShape) -> float:
        """Two logits for each token, of all pairs."""
        return min(1.0, 2 / shape.max_length)


def _pool(x: Tensor, logits: nn.Linear, valid: Tensor | None) -> Tensor:
    """(batch, heads, 1, head_dim): `x` averaged over its length, each head's weights read from the full width."""
    scores = _apply(logits, _join(x)).transpose(1, 2) * x.shape[-1] ** -0.5
    return masked_softmax(scores, valid)[:, :, None] @ x


def _join(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


def _apply(linear: nn.Linear, x: Tensor) -> Tensor:
    """The map in the dtype of `x`, in which sums are kept."""
    bias = None if linear.bias is None else linear.bias.to(x.dtype)
    return nn.functional.linear(x, linear.weight.to(x.dtype), bias)
