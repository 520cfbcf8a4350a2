"""rwkv7 against its equation token by token, and against flash-linear-attention."""

from __future__ import annotations

import math

import pytest
import torch
from fla_naive import naive
from recurrent_cases import HEADS, WIDTH, check_gradients, check_sequences, check_steps, drawn, made
from torch import Tensor
from torch.nn import functional as F

from attnbench.variants.contract import AttentionShape, Mask
from attnbench.variants.linear.rwkv7 import RWKV7


def advance(variant: RWKV7, q: Tensor, k: Tensor, v: Tensor, x: Tensor, h: int, state: Tensor) -> tuple[Tensor, Tensor]:
    own = slice(h * WIDTH, (h + 1) * WIDTH)
    decay = torch.exp(-math.exp(-0.5) * torch.sigmoid(variant.decay_up(torch.tanh(variant.decay_down(x)))[own]))
    rate = torch.sigmoid(variant.rate_up(variant.rate_down(x)))[own]
    removed = k * variant.removal[h, 0]
    removed = removed / removed.norm()
    written = k * (1 + (rate - 1) * variant.mixture[h, 0])
    state = (torch.diag(decay) - torch.outer(rate * removed, removed)) @ state + torch.outer(written, v)
    return state, q @ state


def finish(variant: RWKV7, read: Tensor, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
    centred = read - read.mean(1, keepdim=True)
    normed = centred / (centred.square().mean(1, keepdim=True) + 1e-5 * WIDTH).sqrt()
    rate = torch.sigmoid(variant.rate_up(variant.rate_down(x))).view(HEADS, WIDTH)
    written = k * (1 + (rate - 1) * variant.mixture[:, 0])
    own = (q * written * variant.bonus[:, 0]).sum(1, keepdim=True) * v
    gate = variant.gate_up(torch.sigmoid(variant.gate_down(x))).view(HEADS, WIDTH)
    return (normed * variant.norm[:, 0] + variant.shift[:, 0] + own) * gate


def test_it_is_its_recurrence() -> None:
    variant = made(RWKV7, rank=4)
    check_sequences(variant, advance, finish)
    check_gradients(variant, advance, finish)
    check_steps(variant)


def test_it_is_that_of_flash_linear_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    oracle = naive("ops/generalized_delta_rule/dplr/naive.py", "dplr_recurrence", monkeypatch)
    variant, (query, key, value, hidden) = made(RWKV7, rank=4), drawn(75)
    rate = variant._rate(hidden)
    removed = F.normalize(key * variant.removal, dim=-1)
    logits = variant.decay_up(variant.decay_down(hidden).tanh()).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)
    written = key * (1 + (rate - 1) * variant.mixture)
    # it divides queries by sqrt(head_dim)
    read, _ = oracle(query * WIDTH**0.5, written, value, -removed, rate * removed, -math.exp(-0.5) * logits.sigmoid())
    centred = F.layer_norm(read, (WIDTH,), eps=1e-5 * WIDTH) * variant.norm + variant.shift
    own = (query * written * variant.bonus).sum(-1, keepdim=True) * value
    gate = variant.gate_up(variant.gate_down(hidden).sigmoid()).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)
    found = variant(query, key, value, Mask(causal=True), hidden)
    torch.testing.assert_close(found, (centred + own) * gate, rtol=1e-9, atol=1e-11)


def test_decays_start_where_the_released_code_starts_a_first_layer() -> None:
    variant = RWKV7(AttentionShape(heads=2, head_dim=64, max_length=8, causal=True))
    bias = variant.decay_up.bias
    # -6 + 6 n / 127 + 0.5, and 2.5 times a signed square over the channels of each head
    assert bias[0] == -5.5 - 2.5 and bias[-1] == 0.5 + 2.5
    torch.testing.assert_close(bias[64], torch.tensor(-5.5 + 6 * 64 / 127 - 2.5))
    assert (variant.decay_down.weight == 0).all() and (variant.rate_down.weight == 0).all()
