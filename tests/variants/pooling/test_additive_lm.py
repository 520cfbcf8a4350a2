"""additive-lm against explicit loops in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from pooling_cases import DIM, HEADS, WINDOWED, average_by_loops, heads, make
from torch import Tensor, nn

from attnbench.bench.core.errors import SelectionError, Unsupported
from attnbench.variants import Mask
from attnbench.variants.pooling.additive_lm import CausalConvolution


def additive_lm_by_loops(variant: Any, q: Tensor, k: Tensor, v: Tensor, valid: Tensor, causal: bool) -> Tensor:
    """One head (length, d), token by token: the two rounds with sums of exponentials."""

    def standardise(x: Tensor) -> Tensor:
        mean = sum(x) / len(x)
        deviation = math.sqrt(float(sum((e - mean) ** 2 for e in x)) / (len(x) - 1))
        return (x - mean) / (deviation + 1e-5)

    def pool(x: Tensor, vector: Tensor) -> Tensor:
        x = torch.stack([standardise(row) for row in x])
        logits = torch.stack([variant.rescale / DIM * (row @ standardise(vector)) for row in x])
        if causal:
            return average_by_loops(logits, x, variant.window, valid)
        return average_by_loops(logits, x, None, valid)[-1:].expand_as(x)

    first = pool(q, variant.head_query_vector)
    return pool(first * k, variant.head_key_vector) * v


def additive_lm_of_a_batch(variant: Any, q: Tensor, k: Tensor, v: Tensor, valid: Tensor, causal: bool) -> Tensor:
    output = torch.zeros_like(q)
    for b in range(q.shape[0]):
        for h in range(HEADS):
            variant.head_query_vector, variant.head_key_vector = variant.query_vector[h], variant.key_vector[h]
            output[b, h] = additive_lm_by_loops(variant, q[b, h], k[b, h], v[b, h], valid[b], causal)
    return output


@pytest.mark.parametrize("length", [1, 7, 37])
@pytest.mark.parametrize(
    ("selection", "shape"),
    [
        ("additive-lm", {"causal": True}),
        ("additive-lm[rescale=7]", {"causal": True}),
        ("additive-lm[window=2]", WINDOWED),
        ("additive-lm[window=1]", WINDOWED),
        ("additive-lm", {}),
    ],
)
@torch.no_grad()
def test_additive_lm_equals_explicit_loops(selection: str, shape: dict[str, Any], length: int) -> None:
    variant = make(selection, **shape)
    q, k, v = heads(length, batch=4)
    valid = torch.ones(4, length, dtype=torch.bool)
    valid[1, length // 2 + 1 :] = False  # padded on the right
    valid[2, : length // 2] = False  # and on the left
    valid[3] = False
    mask = Mask(valid, causal=bool(shape))
    expected = additive_lm_of_a_batch(variant, q, k, v, valid, mask.causal)
    torch.testing.assert_close(variant(q, k, v, mask), expected, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(variant(q, k, v, Mask(causal=mask.causal))[0], expected[0], rtol=1e-9, atol=1e-10)
    assert (expected[3] == 0).all()
    assert variant.weights(q, k, mask) is None


@pytest.mark.parametrize("causal", [False, True])
def test_additive_lm_gradients_stay_finite_on_padding_and_on_vectors_without_deviation(causal: bool) -> None:
    variant = make("additive-lm", causal=causal)
    q, k, v = heads(5)
    q[:, :, 2], k[:, :, 3] = 1.0, 0.0
    for x in (q, k, v):
        x.requires_grad_()
    valid = torch.tensor([[False, True, True, True, True], [False] * 5])
    output = variant(q, k, v, Mask(valid, causal))
    assert (output[1] == 0).all()
    output.square().sum().backward()
    for x in (q, k, v):
        assert torch.isfinite(x.grad).all() and (x.grad[1] == 0).all()


@pytest.mark.parametrize(
    ("selection", "shape", "entries"),
    [
        ("additive-lm", {"causal": True}, 1),
        ("additive-lm[window=2]", WINDOWED, 3),
        ("additive-lm[window=64]", WINDOWED, 20),
    ],
)
@torch.no_grad()
def test_additive_lm_decodes_to_the_parallel_outputs_from_a_state_of_the_declared_size(
    selection: str, shape: dict[str, Any], entries: int
) -> None:
    variant = make(selection, max_length=20, **shape)
    q, k, v = heads(20, batch=1)
    state: Any = None
    outputs = []
    for t in range(20):
        output, state = variant.step(q[:, :, t : t + 1], k[:, :, t : t + 1], v[:, :, t : t + 1], state)
        outputs.append(output)
    torch.testing.assert_close(torch.cat(outputs, 2), variant(q, k, v, Mask(causal=True)), rtol=1e-10, atol=1e-11)
    held = sum(x.numel() * x.element_size() for r in state for x in (r.logits, r.values))
    assert variant.state_bytes(variant.shape) == held == 2 * HEADS * entries * (DIM + 1) * 8


@pytest.mark.parametrize(("layer", "window"), [(0, None), (1, 6), (2, 12), (3, 24), (4, None)])
def test_windows_double_with_the_layer_and_the_first_and_last_layer_see_all(layer: int, window: int | None) -> None:
    assert make("additive-lm[window=3]", layer=layer, layers=5, causal=True).window == window


@pytest.mark.parametrize(
    ("shape", "reason"),
    [({"layers": 3}, "causal form"), ({"layers": 2, "causal": True}, "at least 3 layers")],
)
def test_a_window_without_effect_and_other_queries_are_refused(shape: dict[str, Any], reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        make("additive-lm[window=2]", **shape)
    q, k, v = heads(4)
    with pytest.raises(Unsupported, match="got 2 queries and 4 keys"):
        make("additive-lm", causal=True)(q[:, :, :2], k, v, Mask(causal=True))


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ("additive-lm[groups=3]", "groups to divide the width 8, got 3"),
        ("additive-lm[kernel_size=0]", "kernel_size to be int from 1 to .* got 0"),
        ("additive-lm[window=-1]", "window to be int from 1 to .* got -1"),
    ],
)
def test_wrong_sizes_are_refused_with_what_was_expected(selection: str, expected: str) -> None:
    with pytest.raises(SelectionError, match=expected):
        make(selection, causal=True)


@pytest.mark.parametrize(("kernel_size", "groups"), [(1, 1), (4, 1), (4, 2), (3, 8)])
@torch.no_grad()
def test_the_convolution_equals_explicit_sums_over_the_past(kernel_size: int, groups: int) -> None:
    variant = make(f"additive-lm[kernel_size={kernel_size},groups={groups}]", causal=True)
    width, length = 8, 6
    layer: Any = variant.pre_layer(width).double()
    x = torch.randn(2, length, width, dtype=torch.float64)
    valid = torch.tensor([[True] * 6, [False, False, True, True, True, True]])
    normed = nn.functional.layer_norm(x, (width,)) * valid[..., None]
    per_group = width // groups
    expected = torch.zeros_like(x)
    for t in range(length):
        for out in range(width):
            start = out // per_group * per_group
            for tap in range(kernel_size):
                at = t - (kernel_size - 1) + tap
                if at >= 0:
                    w = layer.convolution.weight[out, :, tap]
                    expected[:, t, out] += (normed[:, at, start : start + per_group] * w).sum(-1)
    torch.testing.assert_close(layer(x, valid), expected)
    torch.testing.assert_close(layer(x, valid)[1:, 2:], layer(x[1:, 2:], None))
    changed = x.clone()
    changed[:, 4:] += 5
    assert torch.equal(layer(changed, None)[:, :4], layer(x, None)[:, :4])


def test_there_is_no_convolution_unless_it_is_asked_for() -> None:
    assert make("additive-lm").pre_layer(8) is None
    assert isinstance(make("additive-lm[kernel_size=4,groups=2]").pre_layer(8), CausalConvolution)


@torch.no_grad()
def test_dropout_of_additive_lm_falls_on_both_averages_and_on_nothing_in_evaluation() -> None:
    variant = make("additive-lm", causal=True, dropout=0.5)
    q, k, v = heads(30)
    plain = variant.eval()(q, k, v, Mask(causal=True))
    assert torch.equal(plain, variant(q, k, v, Mask(causal=True)))
    dropped = variant.train()(q, k, v, Mask(causal=True))
    assert 0.4 < (dropped == 0).double().mean() < 0.6
    torch.manual_seed(9)
    first = nn.functional.dropout(variant._pool(q, variant.query_vector, Mask(causal=True)), 0.5)
    expected = nn.functional.dropout(variant._pool(first * k, variant.key_vector, Mask(causal=True)), 0.5) * v
    torch.manual_seed(9)
    torch.testing.assert_close(variant(q, k, v, Mask(causal=True)), expected)
    one = [x[:, :, :1] for x in (q, k, v)]
    torch.manual_seed(9)
    stepped, _ = variant.step(*one)
    torch.manual_seed(9)
    torch.testing.assert_close(stepped, variant(*one, Mask(causal=True)))
