"""Recurrent variants, their inputs, and comparison with the equation of a paper token by token, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from seeds import seed
from torch import Tensor

from attnbench.variants.contract import AttentionShape, Mask, Unsupported

HEADS, WIDTH, HIDDEN = 2, 8, 12

Advance = Callable[[Any, Tensor, Tensor, Tensor, Tensor, int, Tensor], tuple[Tensor, Tensor]]
"""Of a variant, a token's q, k, v of one head and its hidden state, the head and its state (key, value) before: the
state after, and what the query reads."""

Finish = Callable[[Any, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""Of a variant, what the queries of a token read (heads, head_dim), and its q, k, v and hidden state: the output."""


def made(kind: type[Any], **parameters: Any) -> Any:
    """In float64, with parameters that are not where they start: a scale or a map at one or zero would not be seen."""
    torch.manual_seed(seed(7))
    shape = AttentionShape(heads=HEADS, head_dim=WIDTH, hidden_width=HIDDEN, max_length=200, causal=True)
    variant = kind(shape, **parameters).double()
    with torch.no_grad():
        for parameter in variant.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return variant


def drawn(length: int, batch: int = 2) -> list[Tensor]:
    """Query, key, value and hidden state."""
    generator = torch.Generator().manual_seed(seed(length))
    sizes = [*3 * [(batch, HEADS, length, WIDTH)], (batch, length, HIDDEN)]
    return [torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes]


def unit(x: Tensor) -> Tensor:
    """SiLU, of length 1, as delta rules have keys."""
    x = x * torch.sigmoid(x)
    return x / (x.square().sum() + 1e-6).sqrt()


def normed(variant: Any, read: Tensor, *_: Tensor) -> Tensor:
    """The root mean square of each head by itself, as most members end."""
    output: Tensor = read / (read.square().mean(1, keepdim=True) + 1e-5).sqrt() * variant.norm
    return output


def token_by_token(variant: Any, inputs: list[Tensor], valid: Tensor, advance: Advance, finish: Finish) -> Tensor:
    query, key, value, hidden = inputs
    output = torch.zeros_like(value)
    for b in range(len(query)):
        states = [torch.zeros(WIDTH, WIDTH, dtype=query.dtype) for _ in range(HEADS)]
        for t in torch.nonzero(valid[b]).flatten().tolist():
            given, read = (query[b, :, t], key[b, :, t], value[b, :, t]), []
            for h in range(HEADS):
                states[h], found = advance(variant, *(x[h] for x in given), hidden[b, t], h, states[h])
                read.append(found)
            output[b, :, t] = finish(variant, torch.stack(read), *given, hidden[b, t])
    return output


def check_sequences(variant: Any, advance: Advance, finish: Finish = normed) -> None:
    """Whole sequences, padded or not, give what the equation gives; other masks are refused."""
    for length in (1, 33, 70):
        inputs = drawn(length)
        valid = torch.rand(2, length, generator=torch.Generator().manual_seed(length)) > 0.3
        for mask in (Mask(causal=True), Mask(valid, True)):
            real = mask.real(inputs[1])
            with torch.no_grad():
                expected = token_by_token(variant, inputs, real, advance, finish)
            found = variant(*inputs[:3], mask, inputs[3]).where(real[:, None, :, None], 0.0)
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)
    assert "past" in str(variant.supports(AttentionShape(heads=HEADS, head_dim=WIDTH, max_length=9)))
    with pytest.raises(Unsupported, match="expected a causal mask"):
        variant(*inputs[:3], Mask(causal=False), inputs[3])


def check_gradients(variant: Any, advance: Advance, finish: Finish = normed) -> None:
    """Gradients of inputs and parameters are those of the equation."""
    inputs = [x.requires_grad_() for x in drawn(37, batch=1)]
    leaves = [*inputs[: 4 if variant.takes_hidden else 3], *variant.parameters()]
    upstream, valid = drawn(37, batch=1)[1], torch.ones(1, 37, dtype=torch.bool)
    ours = torch.autograd.grad(variant(*inputs[:3], Mask(causal=True), inputs[3]), leaves, upstream)
    theirs = torch.autograd.grad(token_by_token(variant, inputs, valid, advance, finish), leaves, upstream)
    for mine, oracle in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, oracle, rtol=1e-8, atol=1e-9)


def check_steps(variant: Any) -> None:
    """Decoding gives the same, from a state as large as declared, in float64 here and in float32 as declared."""
    inputs = drawn(41)
    expected, state = variant(*inputs[:3], Mask(causal=True), inputs[3]), None
    for t in range(41):
        now = [x[:, :, t : t + 1] for x in inputs[:3]]
        output, state = variant.step_with(*now, state, inputs[3][:, t : t + 1])
        torch.testing.assert_close(output, expected[:, :, t : t + 1], rtol=1e-9, atol=1e-10)
    assert variant.state_bytes(variant.shape) == HEADS * WIDTH**2 * 4 == state.nbytes // 4
