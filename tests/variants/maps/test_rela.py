"""ReLA, against an implementation in NumPy and the properties that set it apart from softmax."""

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnbench.variants import build
from attnbench.variants.contract import AttentionShape, Mask

SHAPE = AttentionShape(heads=3, head_dim=4, max_length=16)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rela(selection: str = "rela", shape: AttentionShape = SHAPE):
    """A variant in float64 with parameters away from their start."""
    torch.manual_seed(0)
    variant = build(selection, shape).double()
    with torch.no_grad():
        for seed, parameter in enumerate(variant.parameters()):
            parameter.copy_(draw(*parameter.shape, seed=10 + seed))
    return variant


def by_hand(variant, query: Tensor, key: Tensor, value: Tensor, valid: Tensor, causal: bool) -> NDArray[np.float64]:
    """One query at a time, one head after the other, the norm over the concatenated heads."""
    q, k, v, kept = (t.numpy() for t in (query, key, value, valid))
    scale = variant.scale.detach().numpy()
    gate = None if variant.gate is None else variant.gate.detach().numpy()
    batch, heads, queries, head_dim = q.shape
    keys = k.shape[2]
    output = np.zeros((batch, heads, queries, head_dim))
    for b in range(batch):
        for i in range(queries):
            summed = []
            for h in range(heads):
                total = np.zeros(head_dim)
                for j in range(keys):
                    if kept[b, j] and (not causal or j <= i + keys - queries):
                        total += max(0.0, float(q[b, h, i] @ k[b, h, j]) / math.sqrt(head_dim)) * v[b, h, j]
                summed.append(total)
            o = np.concatenate(summed)
            if variant.norm == "concat":
                normed = o / np.sqrt(np.mean(o * o) + variant.epsilon)
            else:
                normed = np.concatenate([s / np.sqrt(np.mean(s * s) + variant.epsilon) for s in summed])
            y = scale * normed
            if gate is not None:
                y = y / (1.0 + np.exp(-gate * o))
            output[b, :, i] = y.reshape(heads, head_dim)
    return output


@pytest.mark.parametrize("selection", ["rela", "rela[gated=false]", "rela[norm=head]", "rela[epsilon=0.1]"])
@pytest.mark.parametrize(("queries", "keys", "causal"), [(9, 9, False), (9, 9, True), (3, 9, True), (5, 11, False)])
def test_equals_numpy(selection: str, queries: int, keys: int, causal: bool) -> None:
    variant = rela(selection)
    query, key, value = draw(2, 3, queries, 4), draw(2, 3, keys, 4, seed=1), draw(2, 3, keys, 4, seed=2)
    valid = torch.arange(keys) < torch.tensor([keys, keys - 3])[:, None]
    expected = by_hand(variant, query, key, value, valid, causal)
    found = variant(query, key, value, Mask(valid=valid, causal=causal))
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-12, atol=1e-13)


def test_starts_as_the_paper_does() -> None:
    """Unit scales; gates uniform within sqrt(3 / width), so that they open to about one half."""
    variant = build("rela", AttentionShape(heads=8, head_dim=64, max_length=16))
    assert variant.scale.tolist() == [1.0] * 512
    assert 0.07 < variant.gate.abs().max() < math.sqrt(3 / 512)
    assert variant.gate.std().item() == pytest.approx(1 / math.sqrt(512), rel=0.1)
    assert sum(p.numel() for p in variant.parameters()) == 2 * 512
    assert [n for n, _ in build("rela[gated=false]", SHAPE).named_parameters()] == ["scale"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_null_row_is_exactly_zero_with_a_finite_gradient(dtype: torch.dtype) -> None:
    """Of query 0 all scores are negative; query 1 may see no key; both sit beside a row that is alive."""
    variant = build("rela", SHAPE).to(dtype)
    key = torch.ones(2, 3, 5, 4, dtype=dtype)
    query = torch.stack([torch.full((2, 3, 4), -1.0), torch.full((2, 3, 4), 1.0)], 2).to(dtype)
    value = draw(2, 3, 5, 4).to(dtype)
    inputs = [t.requires_grad_() for t in (query, key, value)]
    valid = torch.tensor([[True] * 5, [False] * 5])
    output = variant(*inputs, Mask(valid=valid))
    assert not output[:, :, 0].any() and not output[1].any() and output[0, :, 1].all()
    upstream = torch.full_like(output, 100.0)
    gradients = torch.autograd.grad(output, [*inputs, *variant.parameters()], upstream)
    assert all(g.isfinite().all() for g in gradients)
    assert not gradients[0][:, :, 0].any() and not any(g[1].any() for g in gradients[:3])
    assert gradients[2][0].any(), "the row that is alive has a gradient"


def test_float16_survives_sums_beyond_its_range() -> None:
    variant = build("rela", AttentionShape(heads=1, head_dim=4, max_length=4096)).half()
    ones = torch.full((1, 1, 4096, 4), 8.0, dtype=torch.float16)
    output = variant(ones[:, :, :1], ones, ones, Mask())
    assert torch.finfo(torch.float16).max < 4096 * 8.0 * (8 * 8 * 4 / 2)
    opened = torch.sigmoid(variant.gate.float() * 4096 * 8.0 * 128)
    torch.testing.assert_close(output[0, 0, 0].float(), opened, rtol=1e-3, atol=1e-3)


def test_weights_are_rectified_scores_without_dropout_or_norm() -> None:
    variant = rela(shape=AttentionShape(heads=3, head_dim=4, max_length=16, dropout=0.5)).train()
    query, key = draw(2, 3, 9, 4), draw(2, 3, 9, 4, seed=1)
    weights = variant.weights(query, key, Mask(causal=True))
    expected = (query @ key.transpose(-2, -1) / 2).clamp(min=0).tril()
    torch.testing.assert_close(weights, expected)
    torch.testing.assert_close(variant.weights(query, key, Mask(causal=True), slice(2, 5)), expected[:, :, 2:5])
