"""performer: its random features, and released code."""

from __future__ import annotations

import importlib
import itertools
import warnings
from types import ModuleType

import pytest
import torch
from feature_cases import HEADS, WIDTH, brute, build, draw
from torch import Tensor

from attnbench.variants.contract import AttentionShape, Mask
from attnbench.variants.linear.performer import Performer, orthogonal_features


def softmax(query: Tensor, key: Tensor) -> Tensor:
    return (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1)


def drawn_from(start: int, shape: AttentionShape, **parameters: int) -> Performer:
    torch.manual_seed(start)
    return Performer(shape, **parameters)


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
    first, again = (drawn_from(0, shape) for _ in range(2))
    assert torch.equal(first.projection, again.projection)
    assert not torch.equal(first.projection, drawn_from(1, shape).projection)
    for _ in range(3):
        first.after_step()
    assert torch.equal(first.projection, again.projection)

    redrawn = drawn_from(0, shape, redraw=2)
    assert torch.equal(first.projection, redrawn.projection)
    seen = [redrawn.projection.clone()]
    for _ in range(4):
        before = torch.get_rng_state()
        redrawn.after_step()
        # dropout is paired over variants: drawing features anew must leave it as it is
        assert torch.equal(torch.get_rng_state(), before)
        seen.append(redrawn.projection.clone())
    assert [torch.equal(a, b) for a, b in itertools.pairwise(seen)] == [True, False, True, False]
    resumed = drawn_from(7, shape, redraw=2)
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
    left, right = (
        theirs.generalized_kernel(x, projection_matrix=variant.projection, normalize_data=False) for x in (query, key)
    )
    expected = theirs.linear_attention(left, right, value)
    torch.testing.assert_close(variant(query, key, value, Mask()), expected, rtol=1e-5, atol=1e-5)
