"""gated-linear and delta against their recurrences token by token, in float64, as the papers write them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from seeds import seed
from torch import Tensor
from torch.nn import functional as F

from attnbench.variants.contract import AttentionShape, Mask, Unsupported
from attnbench.variants.linear.delta import Delta
from attnbench.variants.linear.gated_linear import GatedLinear
from attnbench.variants.ops.recurrences import RecurrentVariant, delta_rule, gated_linear

HEADS, WIDTH = 2, 8
SELECTIONS: dict[str, tuple[type[RecurrentVariant], dict[str, Any]]] = {
    "gated-linear": (GatedLinear, {"rank": 4}),
    "gated-linear, no output gate": (GatedLinear, {"rank": 4, "output_gate": False, "temperature": 2.0}),
    "delta": (Delta, {}),
    "delta, gated": (Delta, {"decay": "scalar"}),
}
every = pytest.mark.parametrize("name", SELECTIONS)


def build(name: str, length: int = 200, dtype: torch.dtype = torch.float64) -> RecurrentVariant:
    kind, parameters = SELECTIONS[name]
    torch.manual_seed(seed(7))
    variant = kind(AttentionShape(heads=HEADS, head_dim=WIDTH, max_length=length, causal=True), **parameters).to(dtype)
    with torch.no_grad():
        # not where it starts: a scale that is forgotten would not be seen at one
        variant.norm.uniform_(0.5, 2.0)
    return variant


def draw(length: int, count: int = 3, batch: int = 2, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed(length))
    return [torch.randn(batch, HEADS, length, WIDTH, generator=generator, dtype=dtype) for _ in range(count)]


def token_by_token(variant: RecurrentVariant, query: Tensor, key: Tensor, value: Tensor, valid: Tensor) -> Tensor:
    """One head of one sequence at a time, one token after the other."""
    output = torch.zeros_like(value)
    for b in range(len(query)):
        # values of all heads side by side, head after head, stand for the hidden state
        tokens = torch.cat([value[b, h] for h in range(HEADS)], -1)
        for h in range(HEADS):
            own = slice(h * WIDTH, (h + 1) * WIDTH)
            state = torch.zeros(WIDTH, WIDTH, dtype=query.dtype)
            for t in torch.nonzero(valid[b]).flatten().tolist():
                q, k, v, x = query[b, h, t], key[b, h, t], value[b, h, t], tokens[t]
                if isinstance(variant, GatedLinear):
                    logits = variant.decay_up(variant.decay_down(x))[own]
                    gate = torch.sigmoid(logits) ** (1 / variant.temperature)
                    state = gate[:, None] * state + torch.outer(k, v)
                else:
                    assert isinstance(variant, Delta)
                    q, k = (y * torch.sigmoid(y) for y in (q, k))
                    q, k = (y / (y.square().sum() + 1e-6).sqrt() for y in (q, k))
                    rate = torch.sigmoid(variant.rate(x)[h])
                    if variant.decay is not None:
                        steps = torch.log1p(variant.decay(x)[h].exp())
                        state = torch.exp(-variant.log_slope[h].exp() * steps) * state
                    # S (I - b k k^T) + b v k^T of the papers, whose states are transposed
                    state = (torch.eye(WIDTH, dtype=q.dtype) - rate * torch.outer(k, k)) @ state
                    state = state + rate * torch.outer(k, v)
                read = q @ state
                read = read / (read.square().mean() + 1e-5).sqrt() * variant.norm
                if isinstance(variant, GatedLinear) and variant.output_gate is not None:
                    gate = variant.output_gate(x)[own]
                    read = read * gate * torch.sigmoid(gate)
                output[b, h, t] = read
    return output


@every
@pytest.mark.parametrize("length", [1, 5, 32, 33, 100])
def test_chunks_equal_the_recurrence_token_by_token(name: str, length: int) -> None:
    variant, inputs = build(name), draw(length)
    valid = torch.rand(2, length, generator=torch.Generator().manual_seed(length)) > 0.3
    for mask in (Mask(causal=True), Mask(valid, True)):
        real = mask.real(inputs[1])
        expected = token_by_token(variant, *inputs, real)
        found = variant(*inputs, mask)
        torch.testing.assert_close(found.where(real[:, None, :, None], 0.0), expected, rtol=1e-9, atol=1e-10)


@every
def test_gradients_equal_those_of_the_recurrence(name: str) -> None:
    variant = build(name)
    inputs = [x.requires_grad_() for x in draw(40, batch=1)]
    leaves = [*inputs, *variant.parameters()]
    upstream = draw(40, batch=1)[0]
    valid = torch.ones(1, 40, dtype=torch.bool)
    ours = torch.autograd.grad(variant(*inputs, Mask(causal=True)), leaves, upstream)
    theirs = torch.autograd.grad(token_by_token(variant, *inputs, valid), leaves, upstream)
    for mine, oracle in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, oracle, rtol=1e-8, atol=1e-9)


@every
def test_both_sides_and_more_queries_than_keys_are_refused(name: str) -> None:
    variant, (query, key, value) = build(name), draw(9)
    assert "past" in str(variant.supports(AttentionShape(heads=HEADS, head_dim=WIDTH, max_length=9)))
    for keys, causal in ((9, False), (5, True)):
        with pytest.raises(Unsupported, match="expected a causal mask"):
            variant(query, key[:, :, :keys], value[:, :, :keys], Mask(causal=causal))


def test_decays_of_any_strength_neither_overflow_nor_let_the_past_through() -> None:
    """Written as q exp(G) and k exp(-G), as the formula suggests, 32 steps of exp(-50) overflow float32."""
    query, key, value = draw(96, dtype=torch.float32)
    strong = torch.full_like(key, -50.0).requires_grad_()
    own = (query * key).sum(-1, keepdim=True) * value
    output = gated_linear(query, key, value, strong)
    torch.testing.assert_close(output, own, rtol=1e-5, atol=1e-5)
    assert torch.autograd.grad(output.sum(), strong)[0].isfinite().all()
    rate, unit = torch.ones(2, HEADS, 96), F.normalize(key, dim=-1)
    output = delta_rule(query, unit, value, rate, strong[..., 0])
    torch.testing.assert_close(output, (query * unit).sum(-1, keepdim=True) * value, rtol=1e-5, atol=1e-5)


def test_the_decay_of_delta_starts_where_its_description_says() -> None:
    torch.manual_seed(seed(7))
    variant = Delta(AttentionShape(heads=64, head_dim=2, max_length=8, causal=True), decay="scalar")
    steps = F.softplus(variant.decay.bias)
    assert 0.00099 < steps.min() < 0.01 < steps.max() < 0.101


def test_the_delta_rule_replaces_what_a_key_held_and_a_sum_adds_to_it() -> None:
    """Two values under one key: the last one is read with a rate of 1, their sum without the rule."""
    key = torch.zeros(1, 1, 3, 4)
    key[..., 0] = 1.0
    value = torch.tensor([[1.0, 0, 0, 0], [0, 2.0, 0, 0], [0, 0, 3.0, 0]])[None, None]
    rate = torch.ones(1, 1, 3)
    assert torch.equal(delta_rule(key, key, value, rate), value)
    assert torch.equal(gated_linear(key, key, value, torch.zeros_like(key)), value.cumsum(2))
