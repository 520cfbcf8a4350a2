"""delta-product against its equation token by token, flash-linear-attention, and what it can count."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fla_naive import naive
from recurrent_cases import HEADS, WIDTH, check_gradients, check_sequences, check_steps, drawn, made, unit
from torch import Tensor
from torch.nn import functional as F

from attnbench.variants.contract import AttentionShape, Mask
from attnbench.variants.linear.delta_product import DeltaProduct
from attnbench.variants.ops.recurrences import recurrence


def advance(
    variant: DeltaProduct, q: Tensor, k: Tensor, v: Tensor, x: Tensor, h: int, state: Tensor
) -> tuple[Tensor, Tensor]:
    if variant.decay is not None:
        steps = torch.log1p(variant.decay(x if variant.decay_down is None else variant.decay_down(x)).exp())
        steps = steps[h].expand(WIDTH) if variant.decay_down is None else steps[h * WIDTH : (h + 1) * WIDTH]
        state = torch.diag(torch.exp(-variant.log_slope[h].exp() * steps)) @ state
    rates = (variant.most * torch.sigmoid(variant.rate(x))).view(HEADS, variant.steps)[h]
    more = variant.more(x).view(HEADS, variant.steps - 1, 2, WIDTH)[h]
    for step in range(variant.steps):
        key, value = (k, v) if step == 0 else more[step - 1]
        key = unit(key)
        state = state - rates[step] * torch.outer(key, key) @ state + rates[step] * torch.outer(key, value)
    return state, unit(q) @ state


@pytest.mark.parametrize(
    "parameters", [{}, {"steps": 3, "decay": "scalar", "eigenvalues": "positive"}, {"decay": "channel"}]
)
def test_it_is_its_recurrence(parameters: dict[str, Any]) -> None:
    variant = made(DeltaProduct, **parameters)
    check_sequences(variant, advance)
    check_gradients(variant, advance)
    check_steps(variant)


@pytest.mark.parametrize("parameters", [{}, {"steps": 3, "decay": "scalar"}])
def test_it_is_that_of_flash_linear_attention(parameters: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    oracle = naive("ops/gated_delta_product/naive.py", "naive_recurrent_gated_delta_product", monkeypatch)
    variant, (query, key, value, hidden) = made(DeltaProduct, **parameters), drawn(75)
    terms = variant.terms(query, key, value, hidden)
    rate = (variant.most * variant.rate(hidden).sigmoid()).view(2, 75, HEADS, -1).transpose(2, 3).flatten(1, 2)
    values = (terms.value / rate.transpose(1, 2)[..., None]).transpose(1, 2)
    decay = None if terms.log_decay is None else terms.log_decay[:, :, :: variant.steps].transpose(1, 2)
    keys = terms.key.transpose(1, 2)
    read, _ = oracle(terms.query.transpose(1, 2), keys, values, decay, rate, 1.0, None, num_householder=variant.steps)
    expected = F.rms_norm(read.transpose(1, 2), (WIDTH,), variant.norm, eps=1e-5)
    torch.testing.assert_close(variant(query, key, value, Mask(causal=True), hidden), expected, rtol=1e-9, atol=1e-11)


def test_two_mirrorings_a_token_count_modulo_three() -> None:
    """Keys at an angle of 60 degrees turn the state by 120 degrees a token, so that it comes back after three."""
    shape = AttentionShape(heads=1, head_dim=2, hidden_width=1, max_length=8, causal=True)
    variant = DeltaProduct(shape).double()
    with torch.no_grad():
        # rates of 2; the second key is so long that SiLU leaves it as it is, the second value is zero
        variant.rate.weight.fill_(60.0)
        variant.more.weight[:2, 0] = 60 * torch.tensor([0.25, 0.75], dtype=torch.float64).sqrt()
        variant.more.weight[2:] = 0.0
    key, value, query = torch.zeros(3, 1, 1, 9, 2, dtype=torch.float64)
    key[..., 0], query[..., 0], query[..., 1] = 60.0, 50.0, 20.0
    value[0, 0, 0] = torch.tensor([1.0, 0.5])
    found = recurrence(*variant.terms(query, key, value, torch.ones(1, 9, 1, dtype=torch.float64)))[0][0, 0]
    torch.testing.assert_close(found[3:], found[:-3], rtol=1e-7, atol=0.0)
    # three states that a read tells apart
    assert min((found[i, 0] - found[j, 0]).abs() for i, j in ((0, 1), (1, 2), (0, 2))) > 0.1
