"""Fastformer against explicit loops in float64, and against released code."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from pooling_cases import DIM, HEADS, heads, make
from torch import Tensor, nn

from attnbench.bench.core.errors import Unsupported
from attnbench.variants import AttentionShape, Mask


def fastformer_by_loops(variant: Any, q: Tensor, k: Tensor, v: Tensor, valid: Tensor) -> Tensor:
    """One sequence (heads, length, d), token by token, in the order of the authors' code."""
    length, width = q.shape[1], HEADS * DIM
    real = [j for j in range(length) if valid[j]]

    def pool(tokens: list[Tensor], linear: nn.Linear) -> Tensor:
        joined = torch.zeros(width, dtype=torch.float64)
        for h in range(HEADS):
            logits = [linear.weight[h] @ tokens[j] / math.sqrt(DIM) for j in real]
            total = sum(x.exp() for x in logits)
            for x, j in zip(logits, real, strict=True):
                joined[h * DIM : (h + 1) * DIM] += x.exp() / total * tokens[j][h * DIM : (h + 1) * DIM]
        return joined

    if not real:
        return torch.zeros_like(q)
    queries = [q[:, j].flatten() for j in range(length)]
    keys = [k[:, j].flatten() for j in range(length)]
    values = queries if variant.value == "query" else [v[:, j].flatten() for j in range(length)]
    first = pool(queries, variant.query_logits)
    second = pool([first * x for x in keys], variant.key_logits)
    linear = variant.transform
    tokens = [linear.weight @ (second * values[j]) + linear.bias + queries[j] for j in range(length)]
    return torch.stack(tokens, 1).view(HEADS, DIM, length).transpose(1, 2)


@pytest.mark.parametrize("length", [1, 5, 7])
@pytest.mark.parametrize("selection", ["fastformer", "fastformer[value=value]"])
@torch.no_grad()
def test_fastformer_equals_explicit_loops(selection: str, length: int) -> None:
    variant = make(selection)
    q, k, v = heads(length, batch=4)
    valid = torch.ones(4, length, dtype=torch.bool)
    valid[1, -2:] = False
    valid[2, :1] = False
    valid[3] = False
    expected = torch.stack([fastformer_by_loops(variant, q[b], k[b], v[b], valid[b]) for b in range(4)])
    torch.testing.assert_close(variant(q, k, v, Mask(valid)), expected, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(variant(q, k, v, Mask())[0], expected[0], rtol=1e-11, atol=1e-11)
    assert (expected[3] == 0).all()
    assert variant.weights(q, k, Mask()) is None


@torch.no_grad()
def test_fastformer_pools_logits_that_would_overflow() -> None:
    variant = make("fastformer", dtype="float32").float()
    q, k, v = (x.float() for x in heads(6))
    assert torch.isfinite(variant(q * 1e4, k, v, Mask())).all()


def test_fastformer_refuses_what_it_has_no_form_for() -> None:
    variant = make("fastformer")
    q, k, v = heads(4)
    causal = AttentionShape(heads=HEADS, head_dim=DIM, max_length=8, causal=True)
    cross = AttentionShape(heads=HEADS, head_dim=DIM, max_length=8, cross=True)
    assert variant.supports(causal) == "it has no causal form"
    assert variant.supports(cross) == "queries and keys must be one sequence"
    assert variant.state_bytes(causal) is None
    with pytest.raises(Unsupported, match="without a causal mask"):
        variant(q, k, v, Mask(causal=True))
    with pytest.raises(Unsupported, match="one sequence"):
        variant(q[:, :, :2], k, v, Mask())
