"""gated-delta-2 against its equation token by token, flash-linear-attention, and KDA where its channels are equal."""

from __future__ import annotations

import pytest
import torch
from fla_naive import naive
from recurrent_cases import HEADS, WIDTH, check_gradients, check_sequences, check_steps, drawn, made, unit
from torch import Tensor
from torch.nn import functional as F

from attnbench.variants.contract import Mask
from attnbench.variants.linear.delta import Delta
from attnbench.variants.linear.gated_delta_2 import GatedDelta2


def advance(
    variant: GatedDelta2, q: Tensor, k: Tensor, v: Tensor, x: Tensor, h: int, state: Tensor
) -> tuple[Tensor, Tensor]:
    own = slice(h * WIDTH, (h + 1) * WIDTH)
    steps = torch.log1p(variant.decay(variant.decay_down(x)).exp())[own]
    state = torch.diag(torch.exp(-variant.log_slope[h].exp() * steps)) @ state
    erase, write = variant.most * torch.sigmoid(variant.rate(x)[own]), torch.sigmoid(variant.write(x)[own])
    k = unit(k)
    state = state - torch.outer(k, erase * k) @ state + torch.outer(k, write * v)
    return state, unit(q) @ state


@pytest.mark.parametrize("eigenvalues", ["positive", "signed"])
def test_it_is_its_recurrence(eigenvalues: str) -> None:
    variant = made(GatedDelta2, eigenvalues=eigenvalues)
    check_sequences(variant, advance)
    check_gradients(variant, advance)
    check_steps(variant)


def test_it_is_that_of_flash_linear_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    oracle = naive("ops/gdn2/naive.py", "naive_recurrent_gdn2", monkeypatch)
    variant, (query, key, value, hidden) = made(GatedDelta2), drawn(75)
    terms = variant.terms(query, key, value, hidden)
    write = variant.write(hidden).sigmoid().unflatten(-1, (HEADS, WIDTH))
    erase = variant.rate(hidden).sigmoid().unflatten(-1, (HEADS, WIDTH))
    given = [x.transpose(1, 2) for x in (terms.query, terms.key, value, terms.log_decay)]
    read, _ = oracle(*given, erase, write, scale=1.0)
    expected = F.rms_norm(read.transpose(1, 2), (WIDTH,), variant.norm, eps=1e-5)
    torch.testing.assert_close(variant(query, key, value, Mask(causal=True), hidden), expected, rtol=1e-9, atol=1e-11)


def test_with_equal_channels_it_is_kimi_delta_attention() -> None:
    variant, (query, key, value, hidden) = made(GatedDelta2), drawn(50)
    kimi = Delta(variant.shape, decay="channel").double()
    with torch.no_grad():
        rate = kimi.rate.weight.repeat_interleave(WIDTH, 0)
        variant.rate.weight.copy_(rate)
        variant.write.weight.copy_(rate)
    state = variant.state_dict()
    kimi.load_state_dict({name: state[name] for name in kimi.state_dict()} | {"rate.weight": kimi.rate.weight})
    given = (query, key, value, Mask(causal=True), hidden)
    torch.testing.assert_close(variant(*given), kimi(*given), rtol=1e-9, atol=1e-11)
