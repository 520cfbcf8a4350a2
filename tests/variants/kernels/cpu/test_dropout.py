"""Dropout inside the CPU kernels: the mask of `ops/dropout`, and gradients through it, as the eager definition has."""

import pytest
import torch
from cpu_kernels import DRAW, Inputs, assert_equals_eager, inputs_of, make, masks_of, passes, require_kernels
from torch import Tensor

from attnbench.variants import build
from attnbench.variants.contract import AttentionShape, Mask
from attnbench.variants.maps.differential import Impl, softmax_maps
from attnbench.variants.ops.dropout import draw_seed, keep_mask, kept_scale

NAMES = ("rela", "sparsemax", "entmax15", "entmax[alpha=1.2]", "entmax[alpha=learned]", "asentmax", "topk[k=20]")


@pytest.fixture(autouse=True)
def _kernels() -> None:
    require_kernels()


@pytest.mark.parametrize("kind", ["none", "causal", "padding at the end", "holes", "holes, causal"])
@pytest.mark.parametrize("name", ["rela", "entmax15"])
def test_the_weights_that_fall_are_those_of_the_definition(name: str, kind: str) -> None:
    """Weights are read off with values that are unit vectors; equal scores give each key some weight."""
    batch, heads, queries, keys = 3, 2, 90, 140
    query, key = torch.ones(batch, heads, queries, keys), torch.ones(batch, heads, keys, keys)
    value = torch.eye(keys).expand(batch, heads, keys, keys)
    mask, rate = masks_of(batch, keys)[kind], 0.3
    variant, plain = make(name, "cpp", keys, heads, rate), make(name, "cpp", keys, heads)
    # ReLA's norm would mix the entries of a row
    call = (lambda v: v.sums(query, key, value, mask)) if name == "rela" else (lambda v: v(query, key, value, mask))
    torch.manual_seed(DRAW)
    found, weights = call(variant), call(plain)
    torch.manual_seed(DRAW)
    kept = keep_mask(draw_seed(query.device), rate, batch, heads, queries, keys)
    assert weights.count_nonzero() > 0.1 * weights.numel()
    assert torch.equal(found != 0, (weights != 0) & kept)
    torch.testing.assert_close(found, weights * kept * kept_scale(rate), rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_forward_and_backward_equal_the_eager_definition(name: str) -> None:
    """300 queries and keys: three tiles, the last of them short, and no multiple of 64."""
    # short supports, and supports too long to be kept; ReLA's way does not depend on how many weights are positive
    for spread in (1.0,) if name == "rela" else (1.0, 0.3):
        inputs, upstream = inputs_of(300, 300, 40, batch=1, heads=2, spread=spread)
        assert_equals_eager(name, inputs, upstream, Mask(), 0.2)


@pytest.mark.parametrize(
    ("name", "spread"),
    [(name, 1.0) for name in ("rela", "sparsemax", "entmax15", "entmax[alpha=1.2]")] + [("entmax15", 0.02)],
)
def test_masks_and_shared_heads_move_no_draw(name: str, spread: float) -> None:
    inputs, upstream = inputs_of(129, 131, 20, batch=3, heads=4, kv_heads=2, spread=spread)
    for kind in ("causal", "padding at the end", "holes", "holes, causal"):
        assert_equals_eager(name, inputs, upstream, masks_of(3, 131)[kind], 0.5)


@pytest.mark.parametrize("name", ["rela", "entmax15"])
def test_rates_near_the_ends(name: str) -> None:
    inputs, upstream = inputs_of(70, 90, 16, heads=2)
    for rate in (1e-3, 0.9):
        assert_equals_eager(name, inputs, upstream, Mask(), rate)
    assert not any(x.any() for x in passes(make(name, "cpp", 16, 2, 1.0), inputs, upstream, Mask())[:4])


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_maps_that_are_subtracted_equal_the_eager_definition(rate: float) -> None:
    """`differential`, and the maps of both versions: two heads for one of keys, values of twice the width."""
    for queries, keys in ((150, 150), (70, 131)):
        inputs, upstream = inputs_of(queries, keys, 24, heads=3, batch=3)
        (query, _, _), _ = inputs_of(queries, keys, 12, heads=4, batch=3)
        _, key, _ = inputs_of(queries, keys, 12, heads=4, kv_heads=2, batch=3)[0]
        value, wide = (
            inputs_of(keys, keys, 24, heads=2, batch=3)[0][2],
            inputs_of(queries, keys, 24, heads=4, batch=3)[1],
        )
        for mask in masks_of(3, keys).values():
            assert_equals_eager("differential", inputs, upstream, mask, rate)
            assert_equals_eager("scalable-softmax[bias=true]", inputs, upstream, mask, rate)
            found, right = (_maps(impl, (query, key, value), wide, mask, rate) for impl in ("cpp", "eager"))
            for a, b in zip(found, right, strict=True):
                torch.testing.assert_close(a.double(), b, rtol=0, atol=5e-6 * float(b.abs().max()))


def test_with_dropout_scalable_softmax_is_fused_on_a_cpu_and_by_pytorch_without() -> None:
    inputs, upstream = inputs_of(150, 150, 24)
    for rate, ran in ((0.0, "sdpa"), (0.3, "cpp")):
        variant = make("scalable-softmax", "auto", 24, dropout=rate)
        passes(variant, inputs, upstream, Mask())
        assert variant.implementation == ran


def _maps(impl: Impl, inputs: Inputs, upstream: Tensor, mask: Mask, rate: float) -> list[Tensor]:
    """Output and gradients; eager ones in float64."""
    dtype = torch.float32 if impl == "cpp" else torch.float64
    leaves = [x.to(dtype).requires_grad_() for x in inputs]
    torch.manual_seed(DRAW)
    output, ran = softmax_maps(impl, leaves[0], leaves[1], leaves[2], mask, rate)
    assert ran == impl
    return [output.detach(), *torch.autograd.grad(output, leaves, upstream.to(dtype))]


def test_no_number_stays_no_number_where_its_key_was_dropped() -> None:
    for name in ("rela", "entmax15"):
        inputs, _ = inputs_of(40, 40, 16, batch=1, heads=1)
        inputs[1][0, 0, 7, 3] = float("nan")
        assert make(name, "cpp", 16, 1, 0.9)(*inputs, Mask()).isnan().all()


def test_training_with_dropout_goes_through_the_kernels() -> None:
    inputs, _ = inputs_of(256, 256, 16, batch=1, heads=2)
    for name in ("rela", "sparsemax", "entmax15", "entmax[alpha=learned]"):
        variant = build(name, AttentionShape(heads=2, head_dim=16, max_length=256, dropout=0.1)).train()
        variant(*inputs, Mask())
        assert variant.implementation == "cpp"
