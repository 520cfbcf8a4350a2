"""linear, performer and cosformer against explicit N x N matrices in float64, and against a released Performer."""

from __future__ import annotations

import importlib
import itertools
import math
import warnings
from types import ModuleType

import pytest
import torch
from torch import Tensor

from attnbench.bench.core.errors import Unsupported
from attnbench.variants.contract import AttentionShape, Mask
from attnbench.variants.linear.cosformer import Cosformer
from attnbench.variants.linear.linear import Linear
from attnbench.variants.linear.performer import Performer, orthogonal_features
from attnbench.variants.ops.features import FeatureVariant, KeyFeatures, attend_past, chunk_for

HEADS, WIDTH, LONGEST = 2, 8, 256
VARIANTS = {
    "linear": lambda shape: Linear(shape),
    "performer": lambda shape: Performer(shape, features=24),
    "performer-relu": lambda shape: Performer(shape, features=24, kernel="relu"),
    "cosformer": lambda shape: Cosformer(shape),
}
every = pytest.mark.parametrize("name", VARIANTS)


def build(name: str, *, causal: bool = False, dtype: torch.dtype = torch.float64) -> FeatureVariant:
    shape = AttentionShape(heads=HEADS, head_dim=WIDTH, max_length=LONGEST, causal=causal)
    return VARIANTS[name](shape).to(dtype)


def draw(*lengths: int, batch: int = 2, scale: float = 1.0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(sum(lengths))
    return [scale * torch.randn(batch, HEADS, n, WIDTH, generator=generator, dtype=dtype) for n in lengths]


def kernel(name: str, variant: FeatureVariant, query: Tensor, key: Tensor, offset: int) -> Tensor:
    """The unnormalised N x N weights, from each paper's formula."""
    if name == "linear":
        plus = [torch.where(x > 0, x + 1, x.exp()) for x in (query, key)]
        return plus[0] @ plus[1].mT
    if name == "cosformer":
        rows = torch.arange(query.shape[2])[:, None] + offset
        distance = rows - torch.arange(key.shape[2])[None, :]
        return (query.relu() @ key.relu().mT) * (math.pi / 2 * distance.double() / LONGEST).cos()
    assert isinstance(variant, Performer)
    w = variant.projection
    q, k = query / WIDTH**0.25, key / WIDTH**0.25
    if name == "performer-relu":
        return ((q @ w.T).relu() + 1e-3) @ ((k @ w.T).relu() + 1e-3).mT
    left, right = ((x @ w.T - x.square().sum(-1, keepdim=True) / 2).exp() / len(w) ** 0.5 for x in (q, k))
    return left @ right.mT


def brute(
    name: str, variant: FeatureVariant, query: Tensor, key: Tensor, value: Tensor, mask: Mask
) -> tuple[Tensor, Tensor]:
    """Output and weights."""
    queries, keys = query.shape[2], key.shape[2]
    scores = kernel(name, variant, query, key, keys - queries if mask.causal else 0)
    if mask.keep is not None:
        scores = scores * mask.keep[:, None, None, :]
    if mask.causal:
        scores = scores * torch.ones(queries, keys, dtype=scores.dtype).tril(keys - queries)
    total = scores.sum(-1, keepdim=True)
    total = total.clamp(min=1e-6) if name == "cosformer" else torch.where(total > 0, total, 1.0)
    return scores / total @ value, scores / total


@every
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1, 7, 64, 131])
def test_output_and_weights_equal_the_explicit_matrix(name: str, causal: bool, length: int) -> None:
    variant = build(name, causal=causal)
    query, key, value = draw(length, length, length)
    keep = torch.rand(2, length, generator=torch.Generator().manual_seed(1)) > 0.3
    for mask in (Mask(causal=causal), Mask(keep, causal)):
        output, weights = brute(name, variant, query, key, value, mask)
        torch.testing.assert_close(variant(query, key, value, mask), output, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(variant.weights(query, key, mask), weights, rtol=1e-9, atol=1e-10)
        rows = slice(length // 2, length)
        torch.testing.assert_close(variant.weights(query, key, mask, rows), weights[:, :, rows], rtol=1e-9, atol=1e-10)


@every
@pytest.mark.parametrize(("queries", "keys", "causal"), [(5, 70, True), (70, 5, True), (9, 30, False), (30, 9, False)])
def test_queries_and_keys_may_differ_in_number(name: str, queries: int, keys: int, causal: bool) -> None:
    variant = build(name, causal=causal)
    query, key, value = draw(queries, keys, keys)
    mask = Mask(causal=causal)
    expected, _ = brute(name, variant, query, key, value, mask)
    output = variant(query, key, value, mask)
    torch.testing.assert_close(output, expected, rtol=1e-9, atol=1e-10)
    if causal and queries > keys:
        assert (output[:, :, : queries - keys] == 0).all()


@every
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_equal_those_of_the_explicit_matrix(name: str, causal: bool) -> None:
    variant = build(name, causal=causal)
    inputs = [x.requires_grad_() for x in draw(70, 70, 70)]
    keep = torch.ones(2, 70, dtype=torch.bool)
    keep[1, 50:] = False
    mask = Mask(keep, causal)
    grad_output = draw(70, batch=2)[0]
    ours = torch.autograd.grad(variant(*inputs, mask), inputs, grad_output)
    theirs = torch.autograd.grad(brute(name, variant, *inputs, mask)[0], inputs, grad_output)
    for mine, oracle in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, oracle, rtol=1e-8, atol=1e-9)


@every
def test_nothing_after_a_query_touches_it_even_by_rounding(name: str) -> None:
    """Keys a thousand times larger would ruin any maximum taken over the whole sequence."""
    variant = build(name, causal=True, dtype=torch.float32)
    inputs = draw(150, 150, 150, dtype=torch.float32)
    before = variant(*inputs, Mask(causal=True))
    for cut in (0, 40, 63, 64, 100, 148):
        changed = [torch.cat([x[:, :, : cut + 1], 1e3 * x[:, :, cut + 1 :]], 2) for x in inputs]
        assert torch.equal(variant(*changed, Mask(causal=True))[:, :, : cut + 1], before[:, :, : cut + 1])


@every
def test_a_prefix_has_the_outputs_of_the_whole(name: str) -> None:
    variant = build(name, causal=True)
    inputs = draw(150, 150, 150)
    whole = variant(*inputs, Mask(causal=True))
    for length in (1, 63, 64, 65, 149):
        part = variant(*(x[:, :, :length] for x in inputs), Mask(causal=True))
        torch.testing.assert_close(part, whole[:, :, :length], rtol=1e-9, atol=1e-10)


@every
@pytest.mark.parametrize("causal", [False, True])
def test_padding_and_the_rest_of_the_batch_change_nothing(name: str, causal: bool) -> None:
    variant = build(name, causal=causal, dtype=torch.float32)
    query, key, value = draw(90, 90, 90, batch=3, dtype=torch.float32)
    keep = torch.ones(3, 90, dtype=torch.bool)
    keep[1, 61:] = False
    output = variant(query, key, value, Mask(keep, causal))
    wild = [torch.where(keep[:, None, :, None], x, 1e4 * x) for x in (query, key, value)]
    assert torch.equal(variant(*wild, Mask(keep, causal))[1, :, :61], output[1, :, :61])
    alone = variant(*(x[1:2, :, :61] for x in (query, key, value)), Mask(causal=causal))
    torch.testing.assert_close(output[1:2, :, :61], alone, rtol=1e-4, atol=1e-5)
    others = [torch.cat([100 * x[:1], x[1:2], -x[2:]]) for x in (query, key, value)]
    assert torch.equal(variant(*others, Mask(keep, causal))[1, :, :61], output[1, :, :61])


@every
def test_steps_equal_the_parallel_form_and_their_state_has_the_stated_bytes(name: str) -> None:
    variant = build(name, causal=True, dtype=torch.float32)
    inputs = draw(80, 80, 80, batch=1, dtype=torch.float32)
    expected = variant(*inputs, Mask(causal=True))
    state, outputs = None, []
    for t in range(80):
        output, state = variant.step(*(x[:, :, t : t + 1] for x in inputs), state)
        outputs.append(output)
    torch.testing.assert_close(torch.cat(outputs, 2), expected, rtol=1e-4, atol=1e-5)
    held = [state.sums] if state.log_scale is None else [state.sums, state.log_scale]
    assert variant.state_bytes(variant.shape) == sum(x.nbytes for x in held)


@every
@pytest.mark.parametrize("causal", [False, True])
def test_rows_without_a_key_are_zero_with_zero_gradient(name: str, causal: bool) -> None:
    variant = build(name, causal=causal, dtype=torch.float32)
    inputs = [x.requires_grad_() for x in draw(10, 10, 10, dtype=torch.float32)]
    keep = torch.zeros(2, 10, dtype=torch.bool)
    keep[0, 4:] = True
    output = variant(*inputs, Mask(keep, causal))
    assert (output[1] == 0).all()
    assert (variant.weights(*inputs[:2], Mask(keep, causal))[1] == 0).all()
    if causal:
        assert (output[0, :, :4] == 0).all()
    for gradient in torch.autograd.grad(output.sum() * 1e3, inputs):
        assert gradient.isfinite().all()
        assert (gradient[1] == 0).all()


@every
@pytest.mark.parametrize("causal", [False, True])
def test_half_precision_accumulates_in_single(name: str, causal: bool) -> None:
    shape = AttentionShape(heads=HEADS, head_dim=WIDTH, max_length=2048, causal=causal)
    variant = VARIANTS[name](shape)
    generator = torch.Generator().manual_seed(3)
    inputs = [torch.randn(1, HEADS, 2048, WIDTH, generator=generator).bfloat16() for _ in range(3)]
    output = variant(*inputs, Mask(causal=causal))
    assert output.dtype == torch.bfloat16
    exact = variant.double()(*(x.double() for x in inputs), Mask(causal=causal))
    # one rounding of the output, and no more: sums of 2,048 terms in bfloat16 would be off by far
    assert (output.double() - exact).abs().le(exact.abs() * 2**-8 + 1e-5).all()


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("chunk", [1, 3, 8, 50])
def test_chunks_of_any_size_give_the_same_sums(chunk: int, scaled: bool) -> None:
    query, key, value = (x.abs() for x in draw(23, 23, 23))
    log_scale = draw(23, scale=30.0)[0][..., 0] if scaled else None
    sums = attend_past(query, KeyFeatures(key, log_scale), value, chunk)
    relative = torch.ones(23, 23).tril().to(query.dtype)
    if log_scale is not None:
        gap = log_scale[..., None, :].expand(-1, -1, 23, -1).masked_fill(relative == 0, -math.inf)
        relative = (gap - gap.amax(-1, keepdim=True)).exp()
    torch.testing.assert_close(sums, (query @ key.mT * relative) @ value, rtol=1e-9, atol=1e-12)


def test_chunks_grow_with_the_root_of_the_length() -> None:
    assert [chunk_for(n) for n in (1, 63, 64, 4096, 4097, 16384)] == [1, 63, 64, 64, 128, 128]


def test_density_counts_feature_entries_against_allowed_scores() -> None:
    plain = AttentionShape(heads=2, head_dim=32, max_length=4096)
    causal = AttentionShape(heads=2, head_dim=32, max_length=4096, causal=True)
    assert Linear(plain).density(plain) == 2 * 32 / 4096
    assert Cosformer(plain).density(plain) == 2 * 64 / 4096
    assert Performer(plain).features == int(32 * math.log(32)) == 110
    assert Performer(plain).density(plain) == 2 * 110 / 4096
    assert Linear(causal).density(causal) == pytest.approx((2 * 32 + 64) * 4096 / (4096 * 4097 / 2))


def test_cosformer_keeps_rectified_rows_finite_and_refuses_positions_beyond_its_range() -> None:
    shape = AttentionShape(heads=HEADS, head_dim=WIDTH, max_length=16)
    variant = Cosformer(shape)
    query, key, value = draw(16, 16, 16, dtype=torch.float32)
    assert (variant(-query.abs(), key, value, Mask()) == 0).all()
    with pytest.raises(Unsupported, match="at most 16 positions, got 17"):
        variant(*draw(17, 17, 17), Mask())


def softmax(query: Tensor, key: Tensor) -> Tensor:
    return (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1)


def test_performer_approaches_softmax_as_features_grow() -> None:
    shape = AttentionShape(heads=HEADS, head_dim=WIDTH, max_length=64)
    query, key = draw(64, 64, scale=0.5)
    errors = []
    for features in (16, 64, 256, 1024):
        seeds = [
            (
                Performer(shape, features=features, seed=s).double().weights(query, key, Mask()) - softmax(query, key)
            ).norm()
            for s in range(8)
        ]
        errors.append(float(torch.stack(seeds).mean() / softmax(query, key).norm()))
    assert all(later < 0.7 * earlier for earlier, later in itertools.pairwise(errors)), errors
    # fourfold features halve the error of an unbiased estimate
    assert errors[-2] / errors[-1] == pytest.approx(2.0, rel=0.25)
    assert errors[-1] < 0.08


def test_performer_features_estimate_the_softmax_kernel_without_bias() -> None:
    query, key = (0.3 * x[0, 0] for x in draw(4, 4))
    w = orthogonal_features(160_000, WIDTH, torch.Generator().manual_seed(0))
    left, right = ((x @ w.T - x.square().sum(-1, keepdim=True) / 2).exp() for x in (query, key))
    torch.testing.assert_close(left @ right.mT / len(w), (query @ key.mT).exp(), rtol=0.03, atol=0)


def test_performer_features_are_orthogonal_in_blocks_with_the_norms_of_gaussian_vectors() -> None:
    w = orthogonal_features(20, WIDTH, torch.Generator().manual_seed(0))
    assert w.shape == (20, WIDTH)
    for block in w.split(WIDTH):
        product = block @ block.T
        torch.testing.assert_close(product, product.diagonal().diag(), rtol=0, atol=1e-12)
    many = orthogonal_features(8000, WIDTH, torch.Generator().manual_seed(0))
    assert float(many.square().sum(1).mean()) == pytest.approx(WIDTH, rel=0.03)
    # uniform over rotations: no coordinate, and no sign, is preferred
    assert float(many.mean(0).abs().max()) < 0.05
    torch.testing.assert_close(many.T @ many / 8000, torch.eye(WIDTH).double(), rtol=0, atol=0.06)


def test_performer_draws_at_construction_saves_and_redraws_only_when_asked() -> None:
    shape = AttentionShape(heads=HEADS, head_dim=WIDTH, max_length=16)
    first = Performer(shape)
    assert torch.equal(first.projection, Performer(shape).projection)
    assert not torch.equal(first.projection, Performer(shape, seed=1).projection)
    other_layer = AttentionShape(heads=HEADS, head_dim=WIDTH, max_length=16, layer=1, layers=2)
    assert not torch.equal(first.projection, Performer(other_layer).projection)
    assert "projection" in first.state_dict()
    for _ in range(3):
        first.after_step()
    assert torch.equal(first.projection, Performer(shape).projection)

    redrawn = Performer(shape, redraw=2)
    seen = [redrawn.projection.clone()]
    for _ in range(4):
        redrawn.after_step()
        seen.append(redrawn.projection.clone())
    assert [torch.equal(a, b) for a, b in itertools.pairwise(seen)] == [True, False, True, False]
    resumed = Performer(shape, redraw=2)
    resumed.load_state_dict(redrawn.state_dict())
    for variant in (redrawn, resumed):
        variant.after_step()
        variant.after_step()
    assert torch.equal(redrawn.projection, resumed.projection)


@pytest.mark.parametrize("causal", [False, True])
def test_performer_stays_exact_for_keys_of_very_different_size(causal: bool) -> None:
    """Keys of norm 0 to 25: exponents down to -300, beyond float32 for any scale common to the sequence's features."""
    variant = build("performer", causal=causal, dtype=torch.float32)
    query, key, value = draw(120, 120, 120, dtype=torch.float32)
    key = key * torch.linspace(0, 9, 120)[torch.randperm(120, generator=torch.Generator().manual_seed(0))][:, None]
    output = variant(query, key, value, Mask(causal=causal))
    expected, _ = brute(
        "performer", variant.double(), query.double(), key.double(), value.double(), Mask(causal=causal)
    )
    torch.testing.assert_close(output.double(), expected, rtol=1e-3, atol=1e-4)


def released_performer() -> ModuleType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("performer_pytorch", reason="performer-pytorch, the released port, is not installed")
        return importlib.import_module("performer_pytorch.performer_pytorch")


def test_performer_equals_performer_pytorch_without_its_feature_floor() -> None:
    """Theirs adds 1e-4 to each feature after a maximum over the sequence was taken off: not the paper's estimator."""
    theirs = released_performer()
    variant = build("performer")
    assert isinstance(variant, Performer)
    query, key, value = draw(40, 40, 40)
    w = variant.projection
    left = theirs.softmax_kernel(query, projection_matrix=w, is_query=True, eps=0.0)
    right = theirs.softmax_kernel(key, projection_matrix=w, is_query=False, eps=0.0)
    expected = theirs.linear_attention(left, right, value)
    torch.testing.assert_close(variant(query, key, value, Mask()), expected, rtol=1e-5, atol=1e-5)
    causal = theirs.causal_linear_attention_noncuda(left, right, value, chunk_size=8, eps=0.0)
    torch.testing.assert_close(variant(query, key, value, Mask(causal=True)), causal, rtol=1e-5, atol=1e-5)


def test_performer_relu_kernel_equals_performer_pytorch() -> None:
    theirs = released_performer()
    variant = build("performer-relu")
    assert isinstance(variant, Performer)
    query, key, value = draw(40, 40, 40)
    left, right = (theirs.generalized_kernel(x, projection_matrix=variant.projection) for x in (query, key))
    expected = theirs.linear_attention(left, right, value)
    torch.testing.assert_close(variant(query, key, value, Mask()), expected, rtol=1e-5, atol=1e-5)


def test_performer_pytorch_lets_the_future_in_where_ours_does_not() -> None:
    """Its key maximum runs over the whole sequence and its floor of 1e-4 is relative to it."""
    theirs = released_performer()
    variant = build("performer", causal=True)
    assert isinstance(variant, Performer)
    query, key, value = draw(40, 40, 40)
    louder = torch.cat([key[:, :, :20], 6 * key[:, :, 20:]], 2)

    def released(keys: Tensor) -> Tensor:
        left = theirs.softmax_kernel(query, projection_matrix=variant.projection, is_query=True)
        right = theirs.softmax_kernel(keys, projection_matrix=variant.projection, is_query=False)
        return theirs.causal_linear_attention_noncuda(left, right, value)[:, :, :20]

    assert (released(louder) - released(key)).abs().max() > 1e-2
    ours = [variant(query, keys, value, Mask(causal=True))[:, :, :20] for keys in (key, louder)]
    assert torch.equal(*ours)
