"""path against products of its factors, pair by pair in float64, and against flash-linear-attention."""

from __future__ import annotations

import math

import pytest
import torch
from fla_naive import naive
from seeds import seed
from torch import Tensor
from torch.nn import functional as F

from attnbench.variants.contract import AttentionShape, Mask, SelectionError, Unsupported
from attnbench.variants.scores.householder import PaTH

HEADS, WIDTH, HIDDEN, LENGTH = 4, 6, 10, 71


def made(kv_heads: int = HEADS, forget: bool = False, size: int = 3) -> PaTH:
    torch.manual_seed(seed(1))
    sizes = {"heads": HEADS, "head_dim": WIDTH, "kv_heads": kv_heads, "hidden_width": HIDDEN}
    variant = PaTH(AttentionShape(**sizes, max_length=LENGTH, causal=True), forget=forget, rank=5, size=size).double()
    assert (variant.strength.bias == 0).all()
    variant.strength.bias.data.normal_()
    return variant


def drawn(kv_heads: int = HEADS, length: int = LENGTH) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed(2))
    sizes = [(2, HEADS, length, WIDTH), *2 * [(2, kv_heads, length, WIDTH)], (2, length, HIDDEN)]
    return [torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes]


def pair_by_pair(variant: PaTH, query: Tensor, key: Tensor, hidden: Tensor, valid: Tensor) -> Tensor:
    """The weights, each score from a product of matrices."""
    kv_heads, length = variant.shape.kv_heads, query.shape[2]
    weights = torch.zeros(2, HEADS, length, length, dtype=torch.float64)
    for b in range(2):
        inputs = variant.up(variant.down(hidden[b])) * valid[b, :, None]
        for h in range(HEADS):
            g = h * kv_heads // HEADS
            factors = []
            for t in range(length):
                own = slice(h * WIDTH, (h + 1) * WIDTH)
                w = sum(inputs[t - u, own] * variant.taps[u, own] for u in range(len(variant.taps)) if t >= u)
                w = w * torch.sigmoid(w)
                w = w / (w.square().sum() + 1e-6).sqrt()
                rate = 2 * torch.sigmoid(variant.strength(hidden[b, t])[h]) * valid[b, t]
                factors.append(torch.eye(WIDTH, dtype=w.dtype) - rate * torch.outer(w, w))
            for i in range(length):
                turned, kept, scores = query[b, h, i] / math.sqrt(WIDTH), 0.0, {}
                for j in range(i, -1, -1):
                    if valid[b, j]:
                        scores[j] = turned @ key[b, g, j] + kept
                    turned = turned @ factors[j]
                    if variant.gate is not None and valid[b, j]:
                        kept = kept + F.logsigmoid(variant.gate(hidden[b, j]))[h]
                if scores:
                    weights[b, h, i, list(scores)] = torch.stack(list(scores.values())).softmax(0)
    return weights


@pytest.mark.parametrize(("kv_heads", "forget", "size"), [(4, False, 3), (2, True, 3), (4, True, 1)])
@pytest.mark.parametrize("padded", [False, True])
def test_each_key_is_turned_by_every_token_behind_it(kv_heads: int, forget: bool, size: int, padded: bool) -> None:
    variant, (query, key, value, hidden) = made(kv_heads, forget, size), drawn(kv_heads)
    valid = torch.ones(2, LENGTH, dtype=torch.bool)
    if padded:
        valid[0, 30:36], valid[1, :4], valid[1, -2:] = False, False, False
    with torch.no_grad():
        expected = pair_by_pair(variant, query, key, hidden, valid)
        mask = Mask(valid if padded else None, True)
        for rows in (None, slice(3, 9), slice(30, 66), slice(32, 64), slice(64, 65)):
            found = variant.weights(query, key, mask, rows, hidden=hidden)
            torch.testing.assert_close(found, expected[:, :, rows or slice(None)], rtol=1e-9, atol=1e-12)
        output = expected @ value.repeat_interleave(HEADS // kv_heads, 1)
        real = valid[:, None, :, None]
        found = variant(query, key, value, mask, hidden).where(real, 0)
    torch.testing.assert_close(found, output.where(real, 0), rtol=1e-9, atol=1e-12)


def test_gradients_equal_those_of_the_products() -> None:
    variant, (query, key, value, hidden) = made(2, forget=True), drawn(2, 37)
    leaves = [x.requires_grad_() for x in (query, key, hidden)] + list(variant.parameters())
    valid, upstream = torch.ones(2, 37, dtype=torch.bool), drawn(4, 37)[0]
    ours = torch.autograd.grad(variant(query, key, value, Mask(causal=True), hidden), leaves, upstream)
    output = pair_by_pair(variant, query, key, hidden, valid) @ value.repeat_interleave(2, 1)
    for mine, oracle in zip(ours, torch.autograd.grad(output, leaves, upstream), strict=True):
        torch.testing.assert_close(mine, oracle, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("forget", [False, True])
def test_it_is_what_flash_linear_attention_computes(forget: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    oracle = naive("ops/path_attn/naive.py", "naive_path_attn", monkeypatch)
    variant, (query, key, value, hidden) = made(4, forget), drawn(4)
    inputs = F.pad(variant.up(variant.down(hidden)), (0, 0, 2, 0))
    w, b = variant._factors(inputs, hidden)
    gates = torch.zeros(2, LENGTH, HEADS, dtype=torch.float64)
    if variant.gate is not None:
        gates = F.logsigmoid(variant.gate(hidden))
    scale = WIDTH**-0.5
    # it multiplies gates by the scale too, which its kernels and the paper do not
    given = [x.transpose(1, 2) for x in (query, key, value, w)]
    found = oracle(*given, b.transpose(1, 2), gates / scale, scale, 16).transpose(1, 2)
    torch.testing.assert_close(variant(query, key, value, Mask(causal=True), hidden), found, rtol=1e-9, atol=1e-11)


def test_steps_keep_turned_keys_and_count_them() -> None:
    variant, (query, key, value, hidden) = made(2, forget=True), drawn(2)
    expected, state = variant(query, key, value, Mask(causal=True), hidden), None
    with torch.no_grad():
        for t in range(LENGTH):
            now = slice(t, t + 1)
            output, state = variant.step(query[:, :, now], key[:, :, now], value[:, :, now], state, hidden[:, now])
            torch.testing.assert_close(output, expected[:, :, now], rtol=1e-9, atol=1e-11)
    assert state is not None
    shape = AttentionShape(heads=4, head_dim=6, kv_heads=2, max_length=LENGTH, dtype="bfloat16", causal=True)
    # keys of each head and sums of gates in float32, values in bfloat16, and two inputs of the convolution
    assert variant.state_bytes(shape) == LENGTH * (24 * 4 + 12 * 2 + 4 * 4) + 2 * 24 * 4


def test_what_lies_outside_its_definition_is_refused() -> None:
    variant, (query, key, value, hidden) = made(), drawn()
    assert "turns" in str(variant.supports(AttentionShape(heads=HEADS, head_dim=WIDTH, max_length=9)))
    with pytest.raises(Unsupported, match="one sequence"):
        variant(query[:, :, 5:], key, value, Mask(causal=True), hidden[:, 5:])
    with pytest.raises(SelectionError, match="expected hidden"):
        variant.step(query[:, :, :1], key[:, :, :1], value[:, :, :1])
