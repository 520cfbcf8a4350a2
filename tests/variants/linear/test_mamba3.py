"""mamba3 against its recurrence token by token in float64, as the released reference steps, and its state."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from recurrent_cases import HEADS, WIDTH, check_gradients, check_sequences, drawn, made
from torch import Tensor
from torch.nn import functional as F

from attnbench.variants.contract import AttentionShape, Mask, SelectionError
from attnbench.variants.linear.mamba3 import Mamba3

PAIRS = WIDTH // 4


def turned(x: Tensor, angle: Tensor) -> Tensor:
    """Pairs of dimensions as complex numbers."""
    turning = torch.view_as_complex(x[: 2 * PAIRS].view(-1, 2)) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([torch.view_as_real(turning).view(-1), x[2 * PAIRS :]])


class Steps:
    """One head of one sequence after another: what a token leaves to the next beside the state."""

    def __init__(self) -> None:
        self.left: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

    def __call__(
        self, variant: Mamba3, q: Tensor, k: Tensor, v: Tensor, x: Tensor, h: int, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        if not state.any():
            zero = torch.zeros(WIDTH, dtype=q.dtype)
            self.left[h] = (zero, zero, zero[:PAIRS])
        key, value, angle = self.left[h]
        step, slope, share = variant.rates(x).view(3, HEADS)[:, h]
        step = torch.log1p((step + variant.step_bias[h, 0]).exp())
        slope, share = torch.log1p(slope.exp()), torch.sigmoid(share)
        angle = angle + step * math.pi * torch.tanh(variant.angles(x))
        q, k = (
            turned(y / (y.square().mean() + 1e-5).sqrt() * scale + bias[h, 0], angle)
            for y, scale, bias in zip((q, k), variant.scales, variant.biases, strict=True)
        )
        decay = torch.exp(-slope * step)
        state = decay * state + (1 - share) * step * decay * torch.outer(key, value) + share * step * torch.outer(k, v)
        self.left[h] = (k, v, angle)
        return state, q @ state


def finish(variant: Mamba3, read: Tensor, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
    output = read + variant.skip[:, 0] * v
    if variant.output_gate is None:
        return output
    return output * F.silu(variant.output_gate(x)).view(HEADS, WIDTH)


@pytest.mark.parametrize("parameters", [{}, {"output_gate": False}])
def test_it_is_its_recurrence(parameters: dict[str, Any]) -> None:
    variant = made(Mamba3, **parameters)
    check_sequences(variant, Steps(), finish)
    check_gradients(variant, Steps(), finish)


def test_steps_keep_the_last_key_and_value_and_the_angle() -> None:
    variant, inputs = made(Mamba3), drawn(41)
    expected, state = variant(*inputs[:3], Mask(causal=True), inputs[3]), None
    for t in range(41):
        now = [x[:, :, t : t + 1] for x in inputs[:3]]
        output, state = variant.step(*now, state, inputs[3][:, t : t + 1])
        torch.testing.assert_close(output, expected[:, :, t : t + 1], rtol=1e-9, atol=1e-10)
    held = sum(x.nbytes for x in (state.written, state.key, state.value, state.angle))
    # two sequences in float64, one in float32 as declared
    assert variant.state_bytes(variant.shape) == HEADS * (WIDTH**2 + 2 * WIDTH + PAIRS) * 4 == held // 4
    with pytest.raises(SelectionError, match="expected hidden"):
        variant.step(*now)


def test_a_token_turns_the_state_by_half_a_circle() -> None:
    """Parity without a negative eigenvalue: a step of 1 and an angle of pi make a 1 change the sign of what is read."""
    shape = AttentionShape(heads=1, head_dim=4, hidden_width=1, max_length=8, causal=True)
    variant = Mamba3(shape, output_gate=False).double()
    with torch.no_grad():
        # a step of 1, a decay of 0.5, and a share of 0.5
        for parameter in (variant.rates.weight, variant.biases, variant.skip):
            parameter.zero_()
        variant.step_bias.fill_(math.log(math.e - 1))
        variant.angles.weight.fill_(40.0)
    bits = torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 1.0], dtype=torch.float64)
    query = torch.zeros(1, 1, 7, 4, dtype=torch.float64)
    query[..., 0] = 1.0
    key, value = torch.zeros_like(query), torch.zeros_like(query)
    key[0, 0, 0, 0], value[0, 0, 0, 0] = 1.0, 1.0
    found = variant(query, key, value, Mask(causal=True), bits.view(1, 7, 1))[0, 0, :, 0]
    assert found.sign().tolist() == [1.0 if bits[: t + 1].sum() % 2 == 0 else -1.0 for t in range(7)]
