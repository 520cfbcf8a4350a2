"""Prefix and window softmax, Fastformer and additive-lm against explicit loops in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from attnbench.bench.core.errors import SelectionError, Unsupported
from attnbench.variants import AttentionShape, Mask, build
from attnbench.variants.ops.prefix_scan import Remembered, extend, prefix_softmax, window_softmax, without
from attnbench.variants.pooling.additive_lm import CausalConvolution

HEADS, DIM = 2, 4


def make(selection: str, **shape: Any) -> Any:
    """A float64 variant with every parameter drawn anew, so that no zero of the start hides a mistake."""
    torch.manual_seed(5)
    shape = {"max_length": 8, "dtype": "float64", **shape}
    variant = build(selection, AttentionShape(heads=HEADS, head_dim=DIM, **shape)).double()
    with torch.no_grad():
        for parameter in variant.parameters():
            parameter.normal_()
    return variant


def heads(length: int, batch: int = 2, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(batch, HEADS, length, DIM, generator=generator, dtype=torch.float64) for _ in range(3))
    return q, k, v


def average_by_loops(logits: Tensor, values: Tensor, window: int | None, keep: Tensor | None = None) -> Tensor:
    """Softmax average of each window of a float64 sequence: logits (length), values (length, d)."""
    means = torch.zeros_like(values)
    for t in range(len(logits)):
        start = 0 if window is None else max(0, t - window + 1)
        seen = [j for j in range(start, t + 1) if keep is None or keep[j]]
        if seen:
            top = max(float(logits[j]) for j in seen)
            powers = [math.exp(float(logits[j]) - top) for j in seen]
            means[t] = sum(p * values[j] for p, j in zip(powers, seen, strict=True)) / sum(powers)
    return means


# ---- the scan


@given(
    length=st.integers(1, 100),
    window=st.one_of(st.none(), st.integers(1, 110)),
    scale=st.sampled_from([0.1, 5.0, 400.0]),
    share=st.sampled_from([0.0, 0.3, 1.0]),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=60, deadline=None)
def test_averages_and_masses_equal_explicit_sums_for_any_length_window_and_mask(
    length: int, window: int | None, scale: float, share: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(length, generator=generator, dtype=torch.float64) * scale
    values = torch.randn(length, 2, generator=generator, dtype=torch.float64)
    keep = torch.rand(length, generator=generator) >= share
    entries = without(logits, values, keep)
    masses, means = prefix_softmax(*entries) if window is None else window_softmax(*entries, window)
    torch.testing.assert_close(means, average_by_loops(logits, values, window, keep), rtol=1e-10, atol=1e-12)
    for t in range(length):
        start = 0 if window is None else max(0, t - window + 1)
        kept = logits[start : t + 1][keep[start : t + 1]]
        if len(kept):
            torch.testing.assert_close(masses[t], kept.logsumexp(0), rtol=1e-10, atol=1e-10)


def test_three_levels_of_chunks_agree_with_the_softmax_of_each_prefix() -> None:
    length = 2500  # chunks of chunks of chunks
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(length, generator=generator) * 3
    values = torch.randn(length, 3, generator=generator)
    _, means = prefix_softmax(logits, values)
    for t in (0, 31, 32, 1023, 1024, 1055, 1056, 2047, 2499):
        expected = logits[: t + 1].double().softmax(0) @ values[: t + 1].double()
        torch.testing.assert_close(means[t].double(), expected, rtol=1e-5, atol=1e-6)


def test_a_window_behind_a_large_past_keeps_its_digits_where_running_sums_lose_them() -> None:
    logits = torch.cat([torch.full((50,), 30.0), torch.full((200,), -30.0)])
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(250, 2, generator=generator)
    window = 16
    expected = average_by_loops(logits.double(), values.double(), window)
    sums, norms = (logits.exp()[:, None] * values).cumsum(0), logits.exp().cumsum(0)
    subtracted = (sums[100:] - sums[100 - window : -window]) / (norms[100:] - norms[100 - window : -window])[:, None]
    assert not torch.isfinite(subtracted).all()
    _, means = window_softmax(logits, values, window)
    torch.testing.assert_close(means.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("window", [None, 1, 3, 40])
def test_nothing_later_enters_an_average_not_even_by_rounding(window: int | None) -> None:
    logits, values = torch.randn(2, 90), torch.randn(2, 90, 3)
    scan = prefix_softmax if window is None else lambda x, y: window_softmax(x, y, window)
    before = scan(logits, values)
    logits[:, 70:], values[:, 70:] = 1e30, -1e30
    for old, new in zip(before, scan(logits, values), strict=True):
        assert torch.equal(old[:, :70], new[:, :70])


@pytest.mark.parametrize("window", [None, 2, 3, 5])
def test_gradients_of_the_scan_agree_with_finite_differences(
    window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnbench.variants.ops.prefix_scan._CHUNK", 2)  # so that seven entries make three levels
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(7, generator=generator, dtype=torch.float64, requires_grad=True)
    values = torch.randn(7, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    keep = torch.tensor([False, False, True, True, False, True, True])

    def means(logits: Tensor, values: Tensor) -> Tensor:
        entries = without(logits, values, keep)
        return (prefix_softmax(*entries) if window is None else window_softmax(*entries, window))[1]

    assert torch.autograd.gradcheck(means, (logits, values))


@pytest.mark.parametrize("window", [None, 1, 4])
def test_one_entry_at_a_time_gives_the_averages_of_the_scan(window: int | None) -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(1, 1, 50, generator=generator, dtype=torch.float64) * 20
    values = torch.randn(1, 1, 50, 3, generator=generator, dtype=torch.float64)
    state: Remembered | None = None
    means = []
    for t in range(50):
        mean, state = extend(state, logits[:, :, t : t + 1], values[:, :, t : t + 1], window)
        means.append(mean)
    expected = average_by_loops(logits[0, 0], values[0, 0], window)
    torch.testing.assert_close(torch.cat(means, 2)[0, 0], expected, rtol=1e-10, atol=1e-12)


# ---- Fastformer


def fastformer_by_loops(variant: Any, q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """One sequence (heads, length, d), token by token, in the order of the authors' code."""
    length, width = q.shape[1], HEADS * DIM
    real = [j for j in range(length) if keep[j]]

    def pool(tokens: list[Tensor], linear: nn.Linear) -> Tensor:
        joined = torch.zeros(width, dtype=torch.float64)
        for h in range(HEADS):
            logits = [linear.weight[h] @ tokens[j] / math.sqrt(DIM) for j in real]
            total = sum(x.exp() for x in logits)
            for x, j in zip(logits, real, strict=True):
                joined[h * DIM : (h + 1) * DIM] += x.exp() / total * tokens[j][h * DIM : (h + 1) * DIM]
        return joined

    if not real:
        return torch.zeros_like(q)
    queries = [q[:, j].flatten() for j in range(length)]
    keys = [k[:, j].flatten() for j in range(length)]
    values = queries if variant.value == "query" else [v[:, j].flatten() for j in range(length)]
    first = pool(queries, variant.query_logits)
    second = pool([first * x for x in keys], variant.key_logits)
    linear = variant.transform
    tokens = [linear.weight @ (second * values[j]) + linear.bias + queries[j] for j in range(length)]
    return torch.stack(tokens, 1).view(HEADS, DIM, length).transpose(1, 2)


@pytest.mark.parametrize("length", [1, 5, 7])
@pytest.mark.parametrize("selection", ["fastformer", "fastformer[value=value]"])
@torch.no_grad()
def test_fastformer_equals_explicit_loops(selection: str, length: int) -> None:
    variant = make(selection)
    q, k, v = heads(length, batch=4)
    keep = torch.ones(4, length, dtype=torch.bool)
    keep[1, -2:] = False
    keep[2, :1] = False
    keep[3] = False
    expected = torch.stack([fastformer_by_loops(variant, q[b], k[b], v[b], keep[b]) for b in range(4)])
    torch.testing.assert_close(variant(q, k, v, Mask(keep)), expected, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(variant(q, k, v, Mask())[0], expected[0], rtol=1e-11, atol=1e-11)
    assert (expected[3] == 0).all()
    assert variant.weights(q, k, Mask()) is None


@pytest.mark.parametrize("selection", ["fastformer", "fastformer[value=value]"])
def test_fastformer_gradients_agree_with_finite_differences_and_ignore_what_it_declares(selection: str) -> None:
    variant = make(selection)
    q, k, v = (x.requires_grad_() for x in heads(3))
    mask = Mask(torch.tensor([[True, True, False], [False] * 3]))
    names = [name for name, _ in variant.named_parameters()]

    def forward(q: Tensor, k: Tensor, v: Tensor, *parameters: Tensor) -> Tensor:
        return torch.func.functional_call(variant, dict(zip(names, parameters, strict=True)), (q, k, v, mask))

    inputs = (q, k, v, *variant.parameters())
    assert torch.autograd.gradcheck(forward, inputs)
    reached = torch.autograd.grad(forward(*inputs).square().sum(), (q, k, v), allow_unused=True)
    assert [name for name, g in zip(("query", "key", "value"), reached, strict=True) if g is None] == sorted(
        variant.ignores
    )


@torch.no_grad()
def test_fastformer_pools_logits_that_would_overflow() -> None:
    variant = make("fastformer", dtype="float32").float()
    q, k, v = (x.float() for x in heads(6))
    assert torch.isfinite(variant(q * 1e4, k, v, Mask())).all()


@torch.no_grad()
def test_fastformer_of_lucidrains_lacks_one_factor_of_the_global_query() -> None:
    """fast-transformer-pytorch pools the keys and not the keys times the global query, per head and without bias.

    The missing factor is the same for all tokens: put into the transform it makes one sequence agree.
    """
    package = pytest.importorskip("fast_transformer_pytorch", reason="the oracle fast-transformer-pytorch is missing")
    torch.manual_seed(0)
    width, length = HEADS * DIM, 9
    theirs = package.fast_transformer_pytorch.FastAttention(dim=width, heads=HEADS, dim_head=DIM).double()
    theirs.to_out = nn.Identity()
    x = torch.randn(1, length, width, dtype=torch.float64)
    keep = torch.tensor([[True] * 7 + [False] * 2])
    q, k, v = (part.view(1, length, HEADS, DIM).transpose(1, 2) for part in theirs.to_qkv(x).chunk(3, -1))

    ours = make("fastformer[value=value]", max_length=length)
    scores = (q @ theirs.to_q_attn_logits.weight[0] * DIM**-0.5).masked_fill(~keep[:, None], -math.inf)
    pooled = (scores.softmax(-1)[..., None] * q).sum(2)[0]
    for linear, source in (
        (ours.query_logits, theirs.to_q_attn_logits.weight),
        (ours.key_logits, theirs.to_k_attn_logits.weight),
    ):
        linear.weight.copy_(torch.block_diag(*[source] * HEADS))
    ours.transform.weight.copy_(torch.block_diag(*[theirs.to_r.weight / pooled[h] for h in range(HEADS)]))
    ours.transform.bias.copy_(theirs.to_r.bias.repeat(HEADS))
    output = ours(q, k, v, Mask(keep)).transpose(1, 2).reshape(1, length, width)
    torch.testing.assert_close(output, theirs(x, mask=keep))


def test_fastformer_refuses_what_it_has_no_form_for() -> None:
    variant = make("fastformer")
    q, k, v = heads(4)
    causal = AttentionShape(heads=HEADS, head_dim=DIM, max_length=8, causal=True)
    cross = AttentionShape(heads=HEADS, head_dim=DIM, max_length=8, cross=True)
    assert variant.supports(causal) == "it has no causal form"
    assert variant.supports(cross) == "queries and keys must be one sequence"
    assert variant.state_bytes(causal) is None
    with pytest.raises(Unsupported, match="without a causal mask"):
        variant(q, k, v, Mask(causal=True))
    with pytest.raises(Unsupported, match="one sequence"):
        variant(q[:, :, :2], k, v, Mask())


# ---- additive-lm


def additive_lm_by_loops(variant: Any, q: Tensor, k: Tensor, v: Tensor, keep: Tensor, causal: bool) -> Tensor:
    """One head (length, d), token by token: the two rounds with sums of exponentials."""

    def standardise(x: Tensor) -> Tensor:
        mean = sum(x) / len(x)
        deviation = math.sqrt(float(sum((e - mean) ** 2 for e in x)) / (len(x) - 1))
        return (x - mean) / (deviation + 1e-5)

    def pool(x: Tensor, vector: Tensor) -> Tensor:
        x = torch.stack([standardise(row) for row in x])
        logits = torch.stack([variant.rescale / DIM * (row @ standardise(vector)) for row in x])
        if causal:
            return average_by_loops(logits, x, variant.window, keep)
        return average_by_loops(logits, x, None, keep)[-1:].expand_as(x)

    first = pool(q, variant.head_query_vector)
    return pool(first * k, variant.head_key_vector) * v


def additive_lm_of_a_batch(variant: Any, q: Tensor, k: Tensor, v: Tensor, keep: Tensor, causal: bool) -> Tensor:
    output = torch.zeros_like(q)
    for b in range(q.shape[0]):
        for h in range(HEADS):
            variant.head_query_vector, variant.head_key_vector = variant.query_vector[h], variant.key_vector[h]
            output[b, h] = additive_lm_by_loops(variant, q[b, h], k[b, h], v[b, h], keep[b], causal)
    return output


WINDOWED = {"layer": 1, "layers": 3, "causal": True}


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
    keep = torch.ones(4, length, dtype=torch.bool)
    keep[1, length // 2 + 1 :] = False  # padded on the right
    keep[2, : length // 2] = False  # and on the left
    keep[3] = False
    mask = Mask(keep, causal=bool(shape))
    expected = additive_lm_of_a_batch(variant, q, k, v, keep, mask.causal)
    torch.testing.assert_close(variant(q, k, v, mask), expected, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(variant(q, k, v, Mask(causal=mask.causal))[0], expected[0], rtol=1e-9, atol=1e-10)
    assert (expected[3] == 0).all()
    assert variant.weights(q, k, mask) is None


@pytest.mark.parametrize(
    ("selection", "shape"),
    [("additive-lm", {"causal": True}), ("additive-lm[window=2]", WINDOWED), ("additive-lm", {})],
)
def test_additive_lm_gradients_agree_with_finite_differences(selection: str, shape: dict[str, Any]) -> None:
    variant = make(selection, **shape)
    q, k, v = (x.requires_grad_() for x in heads(6))
    mask = Mask(torch.tensor([[True] * 5 + [False], [False] + [True] * 5]), causal=bool(shape))
    names = [name for name, _ in variant.named_parameters()]

    def forward(q: Tensor, k: Tensor, v: Tensor, *parameters: Tensor) -> Tensor:
        output = torch.func.functional_call(variant, dict(zip(names, parameters, strict=True)), (q, k, v, mask))
        return output[0]

    assert torch.autograd.gradcheck(forward, (q, k, v, *variant.parameters()))


@pytest.mark.parametrize("causal", [False, True])
def test_additive_lm_gradients_stay_finite_on_padding_and_on_vectors_without_deviation(causal: bool) -> None:
    variant = make("additive-lm", causal=causal)
    q, k, v = heads(5)
    q[:, :, 2], k[:, :, 3] = 1.0, 0.0
    for x in (q, k, v):
        x.requires_grad_()
    keep = torch.tensor([[False, True, True, True, True], [False] * 5])
    output = variant(q, k, v, Mask(keep, causal))
    assert (output[1] == 0).all()
    output.square().sum().backward()
    for x in (q, k, v):
        assert torch.isfinite(x.grad).all() and (x.grad[1] == 0).all()


@pytest.mark.parametrize("pad", [1, 5, 40])
@torch.no_grad()
def test_padding_on_either_side_changes_no_real_output(pad: int) -> None:
    for selection, shape in (
        ("additive-lm", {"causal": True}),
        ("additive-lm[window=2]", WINDOWED),
        ("fastformer", {}),
    ):
        variant = make(selection, **shape)
        q, k, v = heads(9, batch=1)
        rubbish = [torch.cat([torch.full_like(x[:, :, :1], 77.0).expand(-1, -1, pad, -1), x], 2) for x in (q, k, v)]
        after = [torch.cat([x, torch.full_like(x[:, :, :1], -9.0).expand(-1, -1, pad, -1)], 2) for x in (q, k, v)]
        expected = variant(q, k, v, Mask(causal=bool(shape)))
        keep = torch.tensor([[False] * pad + [True] * 9])
        torch.testing.assert_close(variant(*rubbish, Mask(keep, bool(shape)))[:, :, pad:], expected)
        torch.testing.assert_close(variant(*after, Mask(keep.flip(1), bool(shape)))[:, :, :9], expected)


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


@pytest.mark.parametrize(
    ("selection", "shape"), [("additive-lm", {"causal": True}), ("additive-lm[window=8]", WINDOWED)]
)
@torch.no_grad()
def test_half_precision_inputs_cost_one_rounding_of_the_output(selection: str, shape: dict[str, Any]) -> None:
    variant = make(selection, **shape)
    q, k, v = (x.bfloat16() for x in heads(1500, batch=1))
    exact = variant(q.double(), k.double(), v.double(), Mask(causal=True))
    rounded = variant.float()(q, k, v, Mask(causal=True))
    assert rounded.dtype == torch.bfloat16
    assert ((rounded.double() - exact).abs() <= 2**-8 * exact.abs() + 1e-3).all()


@torch.no_grad()
def test_the_logits_of_additive_lm_stay_within_its_rescale() -> None:
    variant = make("additive-lm")
    logits, x = variant._scored(heads(200)[0] * 1e3, variant.query_vector)
    assert logits.abs().max() <= 15.0
    torch.testing.assert_close(x.std(-1), torch.ones_like(x[..., 0]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("layer", "window"), [(0, None), (1, 6), (2, 12), (3, 24), (4, None)])
def test_windows_double_with_the_layer_and_the_first_and_last_layer_see_all(layer: int, window: int | None) -> None:
    assert make("additive-lm[window=3]", layer=layer, layers=5, causal=True).window == window


@pytest.mark.parametrize(
    ("shape", "reason"),
    [({"layers": 3}, "causal form"), ({"layers": 2, "causal": True}, "at least 3 layers")],
)
def test_a_window_that_would_have_no_effect_is_refused(shape: dict[str, Any], reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        make("additive-lm[window=2]", **shape)


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ("additive-lm[groups=3]", "groups to divide the width 8, got 3"),
        ("additive-lm[kernel_size=0]", "kernel_size to be at least 1, got 0"),
        ("additive-lm[window=-1]", "window to be at least 1, got -1"),
    ],
)
def test_wrong_sizes_are_refused_with_what_was_expected(selection: str, expected: str) -> None:
    with pytest.raises(SelectionError, match=expected):
        make(selection, causal=True)


def test_queries_of_another_sequence_are_refused() -> None:
    q, k, v = heads(4)
    with pytest.raises(Unsupported, match="got 2 queries and 4 keys"):
        make("additive-lm", causal=True)(q[:, :, :2], k, v, Mask(causal=True))


@pytest.mark.parametrize(("kernel_size", "groups"), [(1, 1), (4, 1), (4, 2), (3, 8)])
@torch.no_grad()
def test_the_convolution_equals_explicit_sums_over_the_past(kernel_size: int, groups: int) -> None:
    variant = make(f"additive-lm[kernel_size={kernel_size},groups={groups}]", causal=True)
    width, length = 8, 6
    layer: Any = variant.pre_layer(width).double()
    x = torch.randn(2, length, width, dtype=torch.float64)
    keep = torch.tensor([[True] * 6, [False, False, True, True, True, True]])
    normed = nn.functional.layer_norm(x, (width,)) * keep[..., None]
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
    torch.testing.assert_close(layer(x, keep), expected)
    torch.testing.assert_close(layer(x, keep)[1:, 2:], layer(x[1:, 2:], None))
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


def test_two_logits_a_token_are_declared_of_all_pairs() -> None:
    shape = AttentionShape(heads=1, head_dim=4, max_length=10)
    causal = AttentionShape(heads=1, head_dim=4, max_length=10, causal=True)
    assert make("fastformer").density(shape) == make("additive-lm").density(shape) == 20 / 100
    assert make("additive-lm").density(causal) == pytest.approx(20 / 55)
    assert make("additive-lm").density(AttentionShape(heads=1, head_dim=4, max_length=1)) == 1.0
