"""hgrn2 against its equation token by token, and against flash-linear-attention."""

from __future__ import annotations

import pytest
import torch
from fla_naive import naive
from recurrent_cases import WIDTH, check_gradients, check_sequences, check_steps, drawn, made
from torch import Tensor
from torch.nn import functional as F

from attnbench.variants.contract import Mask
from attnbench.variants.linear.hierarchically_gated import HierarchicallyGated


def advance(
    variant: HierarchicallyGated, q: Tensor, k: Tensor, v: Tensor, x: Tensor, h: int, state: Tensor
) -> tuple[Tensor, Tensor]:
    forget = variant.lower_bound + (1 - variant.lower_bound) * torch.sigmoid(k)
    state = torch.diag(forget) @ state + torch.outer(1 - forget, v)
    return state, (q * torch.sigmoid(q)) @ state


def finish(variant: HierarchicallyGated, read: Tensor, *_: Tensor) -> Tensor:
    return read / (read.square().mean() + 1e-5).sqrt() * variant.norm[:, 0]


@pytest.mark.parametrize("lower_bound", [0.0, 0.75])
def test_it_is_its_recurrence(lower_bound: float) -> None:
    variant = made(HierarchicallyGated, lower_bound=lower_bound)
    check_sequences(variant, advance, finish)
    check_gradients(variant, advance, finish)
    check_steps(variant)


def test_it_is_that_of_flash_linear_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    oracle = naive("ops/gla/naive.py", "naive_recurrent_gla", monkeypatch)
    variant, (query, key, value, _) = made(HierarchicallyGated), drawn(75)
    forget = F.logsigmoid(key)
    given = [x.transpose(1, 2) for x in (F.silu(query), 1 - forget.exp(), value, forget)]
    # it divides queries by sqrt(head_dim), which the norm takes out again, but for its epsilon
    read = oracle(*given)[0].transpose(1, 2) * WIDTH**0.5
    expected = read * torch.rsqrt(read.square().mean((1, 3), keepdim=True) + 1e-5) * variant.norm
    torch.testing.assert_close(variant(query, key, value, Mask(causal=True)), expected, rtol=1e-9, atol=1e-11)
