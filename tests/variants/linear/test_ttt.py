"""ttt against gradient descent by autograd, token by token in float64, and the states of flash-linear-attention."""

from __future__ import annotations

import pytest
import torch
from fla_naive import naive
from recurrent_cases import HEADS, HIDDEN, WIDTH, drawn, made
from torch import Tensor
from torch.nn import functional as F

from attnbench.variants.contract import AttentionShape, Mask, SelectionError, Unsupported
from attnbench.variants.linear.ttt import TTTLinear


def inner(variant: TTTLinear, x: Tensor, model: Tensor, h: int) -> Tensor:
    """f(x) of one head: the model (key_dim + 1, value_dim) holds weights, and biases below."""
    z = torch.cat([x, x.new_ones(1)]) @ model
    return x + F.layer_norm(z, (WIDTH,), variant.inner_scale[h, 0], variant.inner_shift[h, 0], eps=1e-6)


def by_descent(variant: TTTLinear, inputs: list[Tensor], valid: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs, and the models after the last token, (batch, heads, key_dim + 1, value_dim)."""
    query, key, value, hidden = inputs
    output, models = torch.zeros_like(value), []
    for b in range(len(query)):
        begin = [variant.begin[h] for h in range(HEADS)]
        now = list(begin)
        for t in range(query.shape[2]):
            if t % variant.batch == 0:
                begin = list(now)
            for h in range(HEADS):
                rate = torch.sigmoid(variant.rate(hidden[b, t]))[h] / WIDTH * valid[b, t]
                # with a graph, since outputs are trained through the descent
                start = begin[h] if begin[h].requires_grad else begin[h].requires_grad_()
                loss = (inner(variant, key[b, h, t], start, h) - value[b, h, t]).square().sum() / 2
                now[h] = now[h] - rate * torch.autograd.grad(loss, start, create_graph=True)[0]
            read = torch.stack([inner(variant, query[b, h, t], now[h], h) for h in range(HEADS)])
            found = F.layer_norm(read, read.shape, eps=1e-6)
            output[b, :, t] = found * variant.norm[:, 0] + variant.shift[:, 0]
        models.append(torch.stack(now))
    return output, torch.stack(models)


@pytest.mark.parametrize(("length", "batch"), [(1, 16), (21, 8), (16, 8), (9, 1)])
def test_each_token_moves_the_model_against_its_gradient(length: int, batch: int) -> None:
    variant, inputs = made(TTTLinear, batch=batch), drawn(length)
    valid = torch.rand(2, length, generator=torch.Generator().manual_seed(length)) > 0.3
    for mask in (Mask(causal=True), Mask(valid, True)):
        real = mask.real(inputs[1])
        expected, _ = by_descent(variant, inputs, real)
        found = variant(*inputs[:3], mask, inputs[3])
        torch.testing.assert_close(found, expected.where(real[:, None, :, None], 0.0), rtol=1e-9, atol=1e-10)


def test_gradients_go_through_the_descent() -> None:
    variant, inputs = made(TTTLinear, batch=4), [x.requires_grad_() for x in drawn(10, batch=1)]
    leaves, upstream = [*inputs, *variant.parameters()], drawn(10, batch=1)[1]
    ours = torch.autograd.grad(variant(*inputs[:3], Mask(causal=True), inputs[3]), leaves, upstream)
    expected, _ = by_descent(variant, inputs, torch.ones(1, 10, dtype=torch.bool))
    for mine, oracle in zip(ours, torch.autograd.grad(expected, leaves, upstream), strict=True):
        torch.testing.assert_close(mine, oracle, rtol=1e-8, atol=1e-10)


def test_steps_keep_a_model_and_its_movement() -> None:
    variant, inputs = made(TTTLinear, batch=8), drawn(21)
    expected, state = variant(*inputs[:3], Mask(causal=True), inputs[3]), None
    with torch.no_grad():
        for t in range(21):
            now = [x[:, :, t : t + 1] for x in inputs[:3]]
            output, state = variant.step(*now, state, inputs[3][:, t : t + 1])
            torch.testing.assert_close(output, expected[:, :, t : t + 1], rtol=1e-9, atol=1e-10)
    # two sequences in float64, one in float32 as declared
    held = state.begin.nbytes + state.moved.nbytes
    assert variant.state_bytes(variant.shape) == 2 * HEADS * (WIDTH + 1) * WIDTH * 4 == held // 4
    with pytest.raises(SelectionError, match="expected hidden"):
        variant.step(*now)


def test_its_models_are_those_of_flash_linear_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models at equal rates: the naive code adds the model's own output to its norm, where paper and release add the
    query, and gives all tokens of a mini-batch the rate of the last."""
    oracle = naive("ops/ttt/naive.py", "chunk_ttt_linear_ref", monkeypatch)
    variant, inputs, state = made(TTTLinear), drawn(48), None
    variant.rate.weight.data.zero_()
    begin = variant.begin.detach().expand(2, -1, -1, -1)
    for t in range(48):
        _, state = variant.step(*(x[:, :, t : t + 1] for x in inputs[:3]), state, inputs[3][:, t : t + 1])
    given = [x.transpose(1, 2) for x in inputs[:3]]
    norms = (variant.inner_scale.flatten(1), variant.inner_shift.flatten(1))
    rate = variant._rate(inputs[3]).transpose(1, 2)
    _, weights, biases = oracle(
        *given, *norms, rate, 1.0, 1e-6, 16, begin[..., :-1, :], begin[..., -1:, :], output_final_state=True
    )
    assert state is not None
    torch.testing.assert_close(state.begin, torch.cat([weights, biases], 2), rtol=1e-9, atol=1e-11)


def test_both_sides_are_refused() -> None:
    variant, inputs = made(TTTLinear), drawn(9)
    assert "past" in str(
        variant.supports(AttentionShape(heads=HEADS, head_dim=WIDTH, hidden_width=HIDDEN, max_length=9))
    )
    with pytest.raises(Unsupported, match="expected a causal mask"):
        variant(*inputs[:3], Mask(causal=False), inputs[3])
