"""retention against its equation token by token, flash-linear-attention, and MiniMax's lightning attention."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from fla_naive import naive
from recurrent_cases import HEADS, WIDTH, check_gradients, check_sequences, check_steps, drawn, made, normed
from torch import Tensor
from torch.nn import functional as F

from attnbench.variants.contract import AttentionShape, Mask
from attnbench.variants.linear.retention import Retention


def advance(
    variant: Retention, q: Tensor, k: Tensor, v: Tensor, x: Tensor, h: int, state: Tensor
) -> tuple[Tensor, Tensor]:
    decay = 1 - 2.0 ** (-5 - h) if variant.output_gate is not None else math.exp(-(2.0 ** (-8 * (h + 1) / HEADS)))
    state = decay * state + torch.outer(k, v)
    return state, q @ state / WIDTH**0.5


def finish(variant: Retention, read: Tensor, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
    output = normed(variant, read)
    if variant.output_gate is None:
        return output
    gate = variant.output_gate(x).view(HEADS, WIDTH)
    return output * gate * torch.sigmoid(gate)


@pytest.mark.parametrize("parameters", [{}, {"decays": "lightning", "output_gate": False}])
def test_it_is_its_recurrence(parameters: dict[str, Any]) -> None:
    variant = made(Retention, **parameters)
    check_sequences(variant, advance, finish)
    check_gradients(variant, advance, finish)
    check_steps(variant)


def test_it_is_that_of_flash_linear_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    oracle = naive("ops/retention/naive.py", "naive_retention", monkeypatch)
    variant, (query, key, value, hidden) = made(Retention), drawn(75)
    gate = variant.output_gate(hidden).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)
    expected = F.rms_norm(oracle(query, key, value), (WIDTH,), variant.norm, eps=1e-5) * F.silu(gate)
    torch.testing.assert_close(variant(query, key, value, Mask(causal=True), hidden), expected, rtol=1e-9, atol=1e-11)


def test_lightning_attention_is_that_of_minimax() -> None:
    """The slopes of MiniMax-Text-01 in transformers, but for the factor of a layer above the first."""
    minimax = pytest.importorskip("transformers.models.minimax.modeling_minimax")
    config = minimax.MiniMaxConfig(hidden_size=32, num_attention_heads=4, head_dim=8, num_hidden_layers=80)
    layer = minimax.MiniMaxLightningAttention(config, layer_idx=0)
    shape = AttentionShape(heads=4, head_dim=8, max_length=9, causal=True)
    ours = Retention(shape, decays="lightning", output_gate=False).log_decay
    # it adds 1e-5 to the factor
    torch.testing.assert_close(-ours.float(), layer.slope_rate.flatten(), rtol=2e-5, atol=0.0)
