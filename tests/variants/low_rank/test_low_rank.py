"""linformer, nystrom, skyformer and synthesizer against explicit matrices in float64, and against released code."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from attnbench.bench.core.errors import SelectionError, Unsupported
from attnbench.variants.contract import AttentionShape, Mask, Variant
from attnbench.variants.linear.cosformer import Cosformer
from attnbench.variants.linear.linear import Linear
from attnbench.variants.linear.performer import Performer
from attnbench.variants.low_rank.linformer import Linformer
from attnbench.variants.low_rank.nystrom import Nystrom
from attnbench.variants.low_rank.skyformer import Skyformer
from attnbench.variants.low_rank.synthesizer import Synthesizer
from attnbench.variants.ops.landmarks import iterated_inverse, picks, segments
from attnbench.variants.sparse.reformer import Reformer
from attnbench.variants.sparse.sinkhorn import Sinkhorn

HEADS, WIDTH, LONGEST = 2, 8, 48
FORMS = ("dense", "random", "factorised-dense", "factorised-random")


def shape(causal: bool = False, **more: object) -> AttentionShape:
    return AttentionShape(**{"heads": HEADS, "head_dim": WIDTH, "max_length": LONGEST, "causal": causal} | more)


def draw(*lengths: int, batch: int = 2, scale: float = 1.0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(sum(lengths))
    return [scale * torch.randn(batch, HEADS, n, WIDTH, generator=generator, dtype=dtype) for n in lengths]


def keep_of(*real: int, length: int) -> Tensor:
    return torch.arange(length)[None, :] < torch.tensor(real)[:, None]


def built(kind: type[Variant], **parameters: object) -> Variant:
    torch.manual_seed(5)
    return kind(shape(), **parameters).double()


whole_sequence = pytest.mark.parametrize(
    "variant",
    [
        built(Linformer, k=6),
        built(Nystrom, landmarks=6, kernel=5),
        built(Nystrom, landmarks=16, kernel=0),
        built(Skyformer, landmarks=8),
        *(built(Synthesizer, variant=form) for form in FORMS),
    ],
    ids=["linformer", "nystrom-6", "nystrom-16", "skyformer", *FORMS],
)


@whole_sequence
def test_padding_however_long_and_the_rest_of_the_batch_change_nothing(variant: Variant) -> None:
    query, key, value = draw(40, 40, 40, batch=3)
    for real in (1, 6, 7, 17, 40):
        keep = keep_of(40, real, 23, length=40)
        output = variant(query, key, value, Mask(keep))
        assert output.isfinite().all()
        alone = variant(*(x[1:2, :, :real] for x in (query, key, value)), Mask())
        torch.testing.assert_close(output[1:2, :, :real], alone, rtol=1e-9, atol=1e-10)
        wild = [torch.where(keep[:, None, :, None], x, 1e6) for x in (query, key, value)]
        assert torch.equal(variant(*wild, Mask(keep))[1, :, :real], output[1, :, :real])
        louder = [torch.cat([9 * x[:1], x[1:2], -5 * x[2:]]) for x in (query, key, value)]
        assert torch.equal(variant(*louder, Mask(keep))[1, :, :real], output[1, :, :real])


@whole_sequence
def test_a_sequence_without_a_real_key_gives_zeros_and_no_gradient(variant: Variant) -> None:
    inputs = [x.requires_grad_() for x in draw(9, 9, 9)]
    keep = keep_of(9, 0, length=9)
    output = variant(*inputs, Mask(keep))
    assert (output[1] == 0).all()
    assert (output[0] != 0).any()
    for gradient in torch.autograd.grad(1e3 * output.sum(), inputs, allow_unused=True):
        assert gradient is None or (gradient.isfinite().all() and (gradient[1] == 0).all())


@whole_sequence
def test_half_precision_accumulates_in_single(variant: Variant) -> None:
    inputs = [x.bfloat16() for x in draw(45, 45, 45)]
    output = variant(*inputs, Mask())
    assert output.dtype == torch.bfloat16
    exact = variant(*(x.double() for x in inputs), Mask())
    assert (output.double() - exact).abs().le(exact.abs() * 2**-8 + 2e-3 * exact.abs().max()).all()


class LargestTensor(TorchDispatchMode):
    """Entries of the largest tensor that any operation makes."""

    entries = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for x in made if isinstance(made, tuple) else (made,):
            if isinstance(x, Tensor):
                self.entries = max(self.entries, x.numel())
        return made


@pytest.mark.parametrize(
    ("kind", "causal"),
    [
        *((kind, False) for kind in (Linear, Performer, Cosformer, Linformer, Nystrom, Skyformer, Reformer, Sinkhorn)),
        *((kind, True) for kind in (Linear, Performer, Cosformer, Reformer, Sinkhorn)),
    ],
)
def test_no_pass_makes_anything_like_a_score_matrix_forward_or_backward(kind: type[Variant], causal: bool) -> None:
    long = shape(causal, heads=1, max_length=4096)
    variant = kind(long)
    inputs = [torch.randn(1, 1, 4096, WIDTH, requires_grad=True) for _ in range(3)]
    with LargestTensor() as largest:
        variant(*inputs, Mask(causal=causal)).sum().backward()
    assert 4096 < largest.entries <= 4096**2 / 16


# linformer


def test_linformer_drops_weights_in_training_and_keeps_the_mean() -> None:
    torch.manual_seed(1)
    variant = Linformer(shape(dropout=0.4), k=6).double()
    inputs = draw(20, 20, 20)
    with torch.no_grad():
        exact = variant.eval()(*inputs, Mask())
        variant.train()
        runs = torch.stack([variant(*inputs, Mask()) for _ in range(400)])
    assert (runs[0] - runs[1]).abs().max() > 0.1
    error = (runs.mean(0) - exact) / (runs.std(0) / 400**0.5)
    assert float(error.square().mean()) == pytest.approx(1.0, abs=0.5)


@pytest.mark.parametrize("sharing", ["separate", "headwise", "key-value"])
def test_linformer_equals_softmax_over_mixed_keys_masked_before_mixing(sharing: str) -> None:
    variant = built(Linformer, k=5, sharing=sharing)
    query, key, value = draw(11, 30, 30)
    keep = keep_of(30, 19, length=30)
    output = variant(query, key, value, Mask(keep))
    for b, h in itertools.product(range(2), range(HEADS)):
        real = int(keep[b].sum())
        mixes = [m[h if sharing == "separate" else 0, :, :real] for m in (variant.mix_keys, variant.mix_values)]
        scores = query[b, h] @ (mixes[0] @ key[b, h, :real]).T / WIDTH**0.5
        expected = scores.softmax(-1) @ (mixes[1] @ value[b, h, :real])
        torch.testing.assert_close(output[b, h], expected, rtol=1e-10, atol=1e-12)


def test_linformer_counts_its_projections_by_how_they_are_shared() -> None:
    one = 5 * LONGEST
    for sharing, count in (("headwise", 2), ("key-value", 1), ("separate", 2 * HEADS)):
        assert sum(p.numel() for p in Linformer(shape(), k=5, sharing=sharing).parameters()) == count * one


def test_linformer_refuses_more_keys_than_it_has_columns_for() -> None:
    with pytest.raises(Unsupported, match="at most 48 keys, got 49"):
        Linformer(shape())(*draw(3, 49, 49), Mask())
    assert Linformer(shape()).supports(shape(causal=True)) == "it has no causal form"


@pytest.mark.parametrize("length", [LONGEST, 20])
def test_linformer_equals_the_released_port_where_nothing_is_masked(length: int) -> None:
    """The package `linformer` ignores masks, so only unpadded input can be compared."""
    theirs = pytest.importorskip("linformer", reason="the package linformer is not installed")
    width = HEADS * WIDTH
    torch.manual_seed(0)
    layer = theirs.LinformerSelfAttention(width, LONGEST, k=5, heads=HEADS).double()
    with torch.no_grad():
        layer.to_out.weight.copy_(torch.eye(width))
        layer.to_out.bias.zero_()
    variant = built(Linformer, k=5)
    with torch.no_grad():
        variant.mix_keys[0] = layer.proj_k.T
        variant.mix_values[0] = layer.proj_v.T
    x = torch.randn(2, length, width, dtype=torch.float64)
    heads = [m(x).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2) for m in (layer.to_q, layer.to_k, layer.to_v)]
    ours = variant(*heads, Mask()).transpose(1, 2).flatten(2)
    torch.testing.assert_close(ours, layer(x), rtol=1e-5, atol=1e-5)


# nystrom


def softmax(query: Tensor, key: Tensor) -> Tensor:
    return (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1)


def explicit_nystrom(query: Tensor, key: Tensor, landmarks: int) -> Tensor:
    """The implied matrix for one sequence (heads, n, d), segment by segment, with a true pseudo-inverse."""
    n = query.shape[-2]
    edges = [[j for j in range(n) if j * landmarks // n == s] for s in range(landmarks)]
    q_marks, k_marks = (torch.stack([x[..., e, :].mean(-2) for e in edges], -2) for x in (query, key))
    return softmax(query, k_marks) @ torch.linalg.pinv(softmax(q_marks, k_marks)) @ softmax(q_marks, key)


@pytest.mark.parametrize("length", [13, 30, 48])
def test_nystrom_equals_the_explicit_product_with_a_true_inverse(length: int) -> None:
    """Lengths need not be multiples of the landmarks; 30 iterations converge."""
    variant = built(Nystrom, landmarks=6, iterations=30, kernel=0)
    query, key, value = draw(length, length, length, scale=3.0)
    output = variant(query, key, value, Mask())
    for b in range(2):
        expected = explicit_nystrom(query[b], key[b], 6) @ value[b]
        torch.testing.assert_close(output[b], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("length", [1, 5, 12])
def test_nystrom_is_exact_softmax_with_a_landmark_for_each_token_also_when_padded(length: int) -> None:
    variant = built(Nystrom, landmarks=12, kernel=0)
    query, key, value = draw(length, length, length)
    expected = softmax(query, key) @ value
    torch.testing.assert_close(variant(query, key, value, Mask()), expected, rtol=1e-10, atol=1e-12)
    padded = [torch.cat([x, 1 + x[:, :, :1].expand(-1, -1, 33, -1)], 2) for x in (query, key, value)]
    output = variant(*padded, Mask(keep_of(length, length, length=length + 33)))
    torch.testing.assert_close(output[:, :, :length], expected, rtol=1e-10, atol=1e-12)


def test_nystrom_error_falls_with_more_landmarks() -> None:
    query, key, value = draw(48, 48, 48)
    exact = softmax(query, key) @ value
    errors = [
        float((built(Nystrom, landmarks=m, kernel=0)(query, key, value, Mask()) - exact).norm() / exact.norm())
        for m in (2, 12, 36, 48)
    ]
    assert errors[0] > errors[1] > errors[2] > errors[3]
    assert errors[3] < 1e-12


def test_nystrom_adds_a_depthwise_convolution_of_the_real_values() -> None:
    with_filters, without = built(Nystrom, landmarks=6, kernel=5), built(Nystrom, landmarks=6, kernel=0)
    query, key, value = draw(20, 20, 20)
    keep = keep_of(20, 15, length=20)
    extra = with_filters(query, key, value, Mask(keep)) - without(query, key, value, Mask(keep))
    for b, h, i in itertools.product(range(2), range(HEADS), range(15)):
        real = int(keep[b].sum())
        window = [(t, i + t - 2) for t in range(5) if 0 <= i + t - 2 < real]
        expected = sum(with_filters.filters[h, 0, t, 0] * value[b, h, j] for t, j in window)
        torch.testing.assert_close(extra[b, h, i], expected, rtol=1e-9, atol=1e-10)
    with pytest.raises(SelectionError, match="odd width"):
        Nystrom(shape(), kernel=4)


def released_nystrom(landmarks: int) -> torch.nn.Module:
    theirs = pytest.importorskip("nystrom_attention", reason="the package nystrom-attention is not installed")
    width = HEADS * WIDTH
    torch.manual_seed(0)
    layer = theirs.NystromAttention(width, WIDTH, HEADS, num_landmarks=landmarks, residual_conv_kernel=5).double()
    with torch.no_grad():
        layer.to_out[0].weight.copy_(torch.eye(width))
        layer.to_out[0].bias.zero_()
    return layer


def test_nystrom_equals_the_released_port_head_by_head() -> None:
    """nystrom-attention takes one maximum over batch and heads to start its inverse, so it is given one at a time."""
    layer = released_nystrom(8)
    variant = built(Nystrom, landmarks=8, kernel=5)
    with torch.no_grad():
        variant.filters.copy_(layer.res_conv.weight)
    x = torch.randn(2, 40, HEADS * WIDTH, dtype=torch.float64)
    split = [p.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2) for p in layer.to_qkv(x).chunk(3, -1)]
    ours = variant(*split, Mask())
    for b, h in itertools.product(range(2), range(HEADS)):
        theirs = alone(layer, x[b : b + 1], h)
        torch.testing.assert_close(ours[b, h], theirs[0], rtol=1e-5, atol=1e-5)


def alone(layer: torch.nn.Module, x: Tensor, head: int) -> Tensor:
    """The released layer with one head of its own: (1, n, head_dim)."""
    package = pytest.importorskip("nystrom_attention", reason="the package nystrom-attention is not installed")
    one = package.NystromAttention(x.shape[-1], WIDTH, 1, num_landmarks=8, residual_conv_kernel=5).double()
    with torch.no_grad():
        rows = layer.to_qkv.weight.view(3, HEADS, WIDTH, -1)[:, head].reshape(3 * WIDTH, -1)
        one.to_qkv.weight.copy_(rows)
        one.res_conv.weight.copy_(layer.res_conv.weight[head : head + 1])
    one.to_out = torch.nn.Identity()
    output: Tensor = one(x)
    return output


def test_nystrom_attention_lets_the_batch_in_where_ours_does_not() -> None:
    layer = released_nystrom(8)
    x = torch.randn(2, 40, HEADS * WIDTH, dtype=torch.float64)
    other = torch.cat([x[:1], 8 * x[1:]])
    assert (layer(x)[0] - layer(other)[0]).abs().max() > 1e-4
    variant = built(Nystrom, landmarks=8)
    split = [
        [p.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2) for p in layer.to_qkv(y).chunk(3, -1)] for y in (x, other)
    ]
    assert torch.equal(variant(*split[0], Mask())[0], variant(*split[1], Mask())[0])


def test_segments_and_picks_cover_the_real_tokens_evenly() -> None:
    for real, count in itertools.product((0, 1, 3, 7, 8, 20), (1, 4, 7, 12)):
        scattered = torch.zeros(1, 24, dtype=torch.bool)
        scattered[0, torch.randperm(24, generator=torch.Generator().manual_seed(real))[:real]] = True
        mean, used = segments(scattered, count, torch.float64)
        assert int(used.sum()) == min(real, count)
        sizes = (mean[0] > 0).sum(-1)[used[0]]
        assert int(sizes.sum()) == real
        assert real == 0 or sizes.max() - sizes.min() <= 1
        torch.testing.assert_close(mean[0].sum(-1), used[0].double())
        assert (mean[0, :, ~scattered[0]] == 0).all()
        chosen, used = picks(scattered, count, torch.float64)
        assert torch.equal(chosen[0].sum(-1), used[0].double())
        assert float(chosen[0].sum(0).max()) <= 1


def test_the_iterated_inverse_is_that_of_moore_and_penrose_for_each_matrix_by_itself() -> None:
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(3, 2, 6, 6, generator=generator, dtype=torch.float64)
    matrix[0, 0, 2:] = 0
    matrix[0, 0, :, 2:] = 0
    matrix[1] *= 1e6
    matrix[2, 1] = 0
    inverse = iterated_inverse(matrix, 40)
    torch.testing.assert_close(matrix @ inverse @ matrix, matrix, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(inverse[0, 0, :2, :2], torch.linalg.inv(matrix[0, 0, :2, :2]), rtol=1e-8, atol=1e-8)
    assert (inverse[2, 1] == 0).all()
    torch.testing.assert_close(iterated_inverse(matrix[1:2], 5), iterated_inverse(matrix, 5)[1:2], rtol=0, atol=0)


# skyformer


def gaussian(x: Tensor, y: Tensor) -> Tensor:
    distance = (x[..., :, None, :] - y[..., None, :, :]).square().sum(-1)
    return (-distance / (2 * x.shape[-1] ** 0.5)).exp()


@pytest.mark.parametrize("ridge", [0.1, 2.0])
def test_skyformer_equals_the_explicit_product_with_a_true_inverse(ridge: float) -> None:
    variant = built(Skyformer, landmarks=8, ridge=ridge, iterations=30)
    query, key, value = draw(20, 20, 20)
    at = [2, 7, 12, 17]  # the middles of four equal parts of twenty tokens
    marks = torch.cat([query[:, :, at], key[:, :, at]], 2)
    middle = gaussian(marks, marks) + ridge * torch.eye(8, dtype=torch.float64)
    expected = gaussian(query, marks) @ torch.linalg.inv(middle) @ gaussian(marks, key) @ value
    torch.testing.assert_close(variant(query, key, value, Mask()), expected, rtol=1e-8, atol=1e-8)


def test_skyformer_with_every_token_a_landmark_is_gaussian_kernel_attention() -> None:
    variant = built(Skyformer, landmarks=2 * LONGEST, ridge=1e-6, iterations=40)
    query, key, value = draw(24, 24, 24)
    torch.testing.assert_close(variant(query, key, value, Mask()), gaussian(query, key) @ value, rtol=1e-4, atol=1e-4)


def test_skyformer_error_falls_with_more_landmarks() -> None:
    query, key, value = draw(48, 48, 48)
    exact = gaussian(query, key) @ value
    errors = [
        float((built(Skyformer, landmarks=m)(query, key, value, Mask()) - exact).norm() / exact.norm())
        for m in (4, 16, 48, 96)
    ]
    assert errors[0] > errors[1] > errors[2] > errors[3]
    assert errors[3] < 0.15  # what the ridge of 0.1 costs


def test_skyformer_refuses_what_it_cannot_invert() -> None:
    with pytest.raises(SelectionError, match="even number"):
        Skyformer(shape(), landmarks=7)
    with pytest.raises(SelectionError, match="positive ridge"):
        Skyformer(shape(), ridge=0.0)


def test_nystrom_products_count_their_three_matrices_as_density() -> None:
    long = shape(max_length=4096)
    for variant in (Nystrom(long), Skyformer(long)):
        assert variant.density(long) == (2 * 4096 * 128 + 128**2) / 4096**2
    assert Nystrom(shape()).density(shape()) == 1.0
    assert Linformer(long).density(long) == 128 / 4096
    with pytest.raises(Unsupported, match="queries and keys must be its tokens"):
        Nystrom(long)(*draw(5, 6, 6), Mask())


# synthesizer


def explicit_logits(variant: Synthesizer, query: Tensor, keys: int, row: int) -> Tensor:
    """Logits of one query (heads, d) at position `row`."""

    def two_layers(net: torch.nn.Module) -> Tensor:
        hidden = torch.relu(torch.einsum("hd,hde->he", query, net.w1) + net.b1[:, 0])
        return torch.einsum("he,heo->ho", hidden, net.w2) + net.b2[:, 0]

    if variant.variant == "dense":
        return two_layers(variant.logits)[:, :keys]
    if variant.variant == "random":
        return variant.table[:, row, :keys]
    if variant.variant == "factorised-random":
        return torch.einsum("hr,hnr->hn", variant.left[:, row], variant.right)[:, :keys]
    coarse, fine = two_layers(variant.coarse), two_layers(variant.fine)
    return torch.stack([coarse[:, j // fine.shape[1]] * fine[:, j % fine.shape[1]] for j in range(keys)], -1)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [(12, 12), (1, 1), (5, 12), (48, 48)])
def test_synthesizer_equals_the_explicit_logits(form: str, causal: bool, queries: int, keys: int) -> None:
    variant = built(Synthesizer, variant=form)
    query, key, value = draw(queries, keys, keys)
    keep = torch.rand(2, keys, generator=torch.Generator().manual_seed(2)) > 0.3
    mask = Mask(keep, causal)
    output, weights = variant(query, key, value, mask), variant.weights(query, key, mask)
    offset = keys - queries if causal else 0
    for b, i in itertools.product(range(2), range(queries)):
        seen = keep[b] & (torch.arange(keys) <= i + offset) if causal else keep[b]
        logits = explicit_logits(variant, query[b, :, i], keys, i + offset)
        expected = torch.zeros(HEADS, keys, dtype=torch.float64)
        if seen.any():
            expected[:, seen] = logits[:, seen].softmax(-1)
        torch.testing.assert_close(weights[b, :, i], expected, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(output[b, :, i], (expected[:, None] @ value[b])[:, 0], rtol=1e-9, atol=1e-12)
    rows = slice(queries // 2, queries)
    torch.testing.assert_close(variant.weights(query, key, mask, rows), weights[:, :, rows], rtol=1e-12, atol=0)


@pytest.mark.parametrize("form", FORMS)
def test_synthesizer_steps_equal_the_parallel_form(form: str) -> None:
    variant = built(Synthesizer, variant=form)
    inputs = draw(20, 20, 20)
    state, outputs = None, []
    for t in range(20):
        output, state = variant.step(*(x[:, :, t : t + 1] for x in inputs), state)
        outputs.append(output)
    torch.testing.assert_close(torch.cat(outputs, 2), variant(*inputs, Mask(causal=True)), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_synthesizer_declares_the_inputs_that_get_no_gradient(form: str) -> None:
    variant = built(Synthesizer, variant=form)
    inputs = [x.requires_grad_() for x in draw(10, 10, 10)]
    gradients = torch.autograd.grad(variant(*inputs, Mask()).square().sum(), inputs, allow_unused=True)
    silent = {n for n, g in zip(("query", "key", "value"), gradients, strict=True) if g is None or (g == 0).all()}
    assert silent == variant.ignores == ({"key"} if form.endswith("dense") else {"query", "key"})


@pytest.mark.parametrize("form", FORMS)
def test_synthesizer_refuses_positions_beyond_its_logits(form: str) -> None:
    with pytest.raises(Unsupported, match="at most 48 positions, got 49"):
        built(Synthesizer, variant=form)(*draw(49, 49, 49), Mask())
