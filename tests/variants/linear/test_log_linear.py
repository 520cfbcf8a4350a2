"""log-linear against its definition, pair by pair in float64, and against flash-linear-attention."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fla_naive import naive
from seeds import seed
from torch import Tensor
from torch.nn import functional as F

from attnbench.variants.contract import AttentionShape, Mask, SelectionError
from attnbench.variants.linear.log_linear import LogLinear

HEADS, WIDTH, HIDDEN = 2, 5, 7
both = pytest.mark.parametrize("of", ["ssd", "delta"])


def build(of: Any, max_length: int) -> LogLinear:
    torch.manual_seed(seed(3))
    shape = AttentionShape(heads=HEADS, head_dim=WIDTH, hidden_width=HIDDEN, max_length=max_length, causal=True)
    variant = LogLinear(shape, of=of).double()
    with torch.no_grad():
        for parameter in variant.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return variant


def draw(length: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed(length))
    sizes = [*3 * [(1, HEADS, length, WIDTH)], (1, length, HIDDEN)]
    return [torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes]


def spans(position: int) -> list[range]:
    """Level 0 is the position itself; the rest is cut as a Fenwick tree cuts a prefix, the lowest digit first."""
    found, end = {0: range(position, position + 1)}, position
    while end:
        size = end & -end
        found[size.bit_length()] = range(end - size, end)
        end -= size
    return [found.get(level, range(0)) for level in range(position.bit_length() + 1)]


def pair_by_pair(variant: LogLinear, inputs: list[Tensor], real: Tensor) -> Tensor:
    query, key, value, decay, erase = variant.terms(*inputs)
    weights = F.softplus(variant.slope * variant.weight(inputs[3]).unflatten(-1, (HEADS, -1)).transpose(1, 2))
    output = torch.zeros_like(value)
    for h in range(HEADS):
        states: list[Tensor] = []
        for t in range(query.shape[2]):
            if real[t]:
                turn = torch.eye(WIDTH, dtype=key.dtype)
                if erase is not None:
                    turn = turn - torch.outer(key[0, h, t], erase[0, h, t])
                states = [turn @ state * decay[0, h, t].exp() for state in states]
            states.append(torch.outer(key[0, h, t], value[0, h, t]) * real[t])
            for level, span in enumerate(spans(t)):
                weight = weights[0, h, t, min(level, variant.levels - 1)]
                for s in span:
                    output[0, h, t] += weight * (query[0, h, t] @ states[s])
    return variant.inner.finish(output, inputs[3])


@both
@pytest.mark.parametrize(("length", "max_length"), [(1, 1), (31, 40), (100, 100), (100, 40), (75, 9)])
def test_each_span_of_the_past_has_its_weight(of: str, length: int, max_length: int) -> None:
    variant, inputs = build(of, max_length), draw(length)
    assert variant.levels == {1: 1, 40: 7, 100: 8, 9: 5}[max_length]
    for padded in (False, True):
        real = torch.ones(length, dtype=torch.bool)
        if padded:
            real[length // 2 : 2 * length // 3] = False
        mask = Mask(real[None] if padded else None, True)
        with torch.no_grad():
            expected = pair_by_pair(variant, inputs, real)[:, :, real]
        found = variant(*inputs[:3], mask, inputs[3])[:, :, real]
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


@both
def test_gradients_equal_those_of_the_definition(of: str) -> None:
    variant, inputs = build(of, 70), [x.requires_grad_() for x in draw(70)]
    leaves, upstream = [*inputs, *variant.parameters()], draw(70)[0]
    ours = torch.autograd.grad(variant(*inputs[:3], Mask(causal=True), inputs[3]), leaves, upstream)
    expected = pair_by_pair(variant, inputs, torch.ones(70, dtype=torch.bool))
    for mine, oracle in zip(ours, torch.autograd.grad(expected, leaves, upstream), strict=True):
        torch.testing.assert_close(mine, oracle, rtol=1e-8, atol=1e-10)


@both
def test_steps_join_spans_as_in_counting(of: str) -> None:
    variant, inputs = build(of, 40), draw(75)
    expected, state = variant(*inputs[:3], Mask(causal=True), inputs[3]), None
    for t in range(75):
        now = [x[:, :, t : t + 1] for x in inputs[:3]]
        output, state = variant.step(*now, state, inputs[3][:, t : t + 1])
        torch.testing.assert_close(output, expected[:, :, t : t + 1], rtol=1e-9, atol=1e-10)
    # a state for the token itself and for each of the six digits of 39, in float32 as declared
    assert variant.state_bytes(variant.shape) == 7 * HEADS * WIDTH**2 * 4 == state.states.nbytes // 2
    with pytest.raises(SelectionError, match="expected hidden"):
        variant.step(*now)


def test_mamba_2_by_levels_is_that_of_flash_linear_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    oracle = naive("ops/log_linear_attn/naive.py", "naive_log_linear_attn", monkeypatch)
    variant, inputs = build("ssd", 100), draw(100)
    query, key, value, decay, _ = (None if x is None else x.transpose(1, 2) for x in variant.terms(*inputs))
    read = oracle(query, key, value, decay, variant._weights(inputs[3]).transpose(1, 2)).transpose(1, 2)
    expected = variant.inner.finish(read, inputs[3])
    torch.testing.assert_close(variant(*inputs[:3], Mask(causal=True), inputs[3]), expected, rtol=1e-9, atol=1e-11)
