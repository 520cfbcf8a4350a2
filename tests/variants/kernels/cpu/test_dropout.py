"""Dropout inside the CPU kernels: the mask of `ops/dropout`, and gradients through it, as the eager definition has."""

import pytest
import torch
from error_budget import over_budget, runs
from seeds import seed
from torch import Tensor

from attnbench.variants import build
from attnbench.variants.contract import AttentionShape, Mask
from attnbench.variants.kernels.cpu import build as cpu_build
from attnbench.variants.ops.dropout import draw_seed, keep_mask, kept_scale

NAMES = ("rela", "sparsemax", "entmax15", "entmax[alpha=1.2]", "entmax[alpha=learned]", "asentmax")
# short supports, supports too long to be kept, dense products
SPREADS = (1.0, 0.3, 0.02)
DRAW = 77
MASKS = ("none", "causal", "padding at the end", "holes", "holes, causal")


@pytest.fixture(params=["cpp", "blocked"])
def impl(request: pytest.FixtureRequest) -> str:
    if request.param == "cpp" and cpu_build.failure():
        pytest.skip(f"no C++ kernels here: {cpu_build.failure()}")
    return request.param


def draw(*shape: int, salt: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed(salt)))


def make(name: str, impl: str, heads: int, head_dim: int, rate: float):
    torch.manual_seed(seed(5))
    selection = f"{name[:-1]},impl={impl}]" if name.endswith("]") else f"{name}[impl={impl}]"
    variant = build(selection, AttentionShape(heads=heads, head_dim=head_dim, max_length=512, dropout=rate))
    return variant.train()


def passes(variant, inputs, upstream: Tensor, mask: Mask) -> list[Tensor]:
    """Output, and gradients of inputs and parameters, by the mask of one and the same seed."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    torch.manual_seed(DRAW)
    output = variant(*leaves, mask)
    return [output.detach(), *torch.autograd.grad(output, [*leaves, *variant.parameters()], upstream)]


def assert_equals_eager(name: str, impl: str, inputs, upstream: Tensor, mask: Mask, rate: float = 0.2) -> None:
    heads, head_dim = inputs[0].shape[1], inputs[0].shape[3]
    variant, definition = make(name, impl, heads, head_dim, rate), make(name, "eager", heads, head_dim, rate)
    found = passes(variant, inputs, upstream, mask)
    assert variant.implementation == impl
    single = runs(lambda x: passes(definition, x, upstream, mask), inputs)
    exact = passes(definition.double(), [x.double() for x in inputs], upstream.double(), mask)
    assert not over_budget(found, single, exact)


def mask_of(kind: str, batch: int, keys: int) -> Mask:
    valid = draw(batch, keys, salt=9) > -0.5
    valid[0], valid[1], valid[1, -1] = True, False, True
    if kind == "padding at the end":
        return Mask(valid=valid.cummin(1).values)
    return Mask(valid=valid if "holes" in kind else None, causal="causal" in kind)


def triple(queries: int, keys: int, head_dim: int, batch: int, heads: int, kv_heads: int, spread: float = 1.0):
    sizes = ((heads, queries), (kv_heads, keys), (kv_heads, keys), (heads, queries))
    q, k, v, upstream = (draw(batch, h, n, head_dim, salt=at) for at, (h, n) in enumerate(sizes))
    return (spread * q, k, v), upstream


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("name", ["rela", "entmax15"])
def test_the_weights_that_fall_are_those_of_the_definition(name: str, kind: str, impl: str) -> None:
    """Weights are read off with values that are unit vectors; equal scores give each key some weight."""
    batch, heads, queries, keys = 3, 2, 90, 140
    query, key = torch.ones(batch, heads, queries, keys), torch.ones(batch, heads, keys, keys)
    value = torch.eye(keys).expand(batch, heads, keys, keys)
    mask, rate = mask_of(kind, batch, keys), 0.3
    variant, plain = make(name, impl, heads, keys, rate), make(name, impl, heads, keys, 0.0)
    # ReLA's norm would mix the entries of a row
    call = (lambda v: v.sums(query, key, value, mask)) if name == "rela" else (lambda v: v(query, key, value, mask))
    torch.manual_seed(DRAW)
    found, weights = call(variant), call(plain)
    torch.manual_seed(DRAW)
    kept = keep_mask(draw_seed(query.device), rate, batch, heads, queries, keys)
    assert weights.count_nonzero() > 0.1 * weights.numel()
    assert torch.equal(found != 0, (weights != 0) & kept)
    torch.testing.assert_close(found, weights * kept * kept_scale(rate), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("name", "spread"),
    [
        pytest.param(name, spread, marks=[pytest.mark.slow] if "alpha" in name and spread != 0.3 else [])
        for name in NAMES
        for spread in SPREADS
        # ReLA's way does not depend on how many weights are positive
        if name != "rela" or spread == 1.0
    ],
)
def test_forward_and_backward_equal_the_eager_definition(name: str, spread: float, impl: str) -> None:
    """300 queries and keys: three blocks, the last of them short, and no multiple of 64."""
    inputs, upstream = triple(300, 300, 40, 1, 2, 2, spread)
    assert_equals_eager(name, impl, inputs, upstream, Mask())


@pytest.mark.parametrize("kind", MASKS[1:])
@pytest.mark.parametrize(("name", "spread"), [("rela", 1.0), ("entmax15", 1.0), ("entmax15", 0.02)])
def test_masks_and_shared_heads_move_no_draw(name: str, spread: float, kind: str, impl: str) -> None:
    inputs, upstream = triple(129, 131, 20, 3, 4, 2, spread)
    assert_equals_eager(name, impl, inputs, upstream, mask_of(kind, 3, 131), 0.5)


@pytest.mark.parametrize("rate", [1e-3, 0.9, 1.0])
@pytest.mark.parametrize("name", ["rela", "entmax15"])
def test_rates_near_the_ends(name: str, rate: float, impl: str) -> None:
    inputs, upstream = triple(70, 90, 16, 2, 2, 2)
    if rate < 1.0:
        assert_equals_eager(name, impl, inputs, upstream, Mask(), rate)
    else:
        assert not any(x.any() for x in passes(make(name, impl, 2, 16, rate), inputs, upstream, Mask())[:4])


def test_packed_sequences_equal_the_eager_definition(impl: str) -> None:
    inputs, upstream = triple(70, 70, 16, 1, 2, 1)
    assert_equals_eager("rela", impl, inputs, upstream, Mask(lengths=(30, 10, 30)))
    assert_equals_eager("entmax15", impl, inputs, upstream, Mask(lengths=(30, 10, 30), causal=True))


@pytest.mark.parametrize("name", ["rela", "entmax15"])
def test_threads_move_no_draw_and_give_the_same_bits_twice(name: str, impl: str) -> None:
    inputs, upstream = triple(300, 300, 32, 1, 1, 1, 0.5)
    variant, before, results = make(name, impl, 1, 32, 0.2), torch.get_num_threads(), []
    try:
        for threads in (1, 2, 2):
            torch.set_num_threads(threads)
            results.append(passes(variant, inputs, upstream, Mask(causal=True)))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(results[1], results[2], strict=True))
    for a, b in zip(results[0], results[1], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_evaluation_drops_nothing_and_draws_nothing(impl: str) -> None:
    inputs, _ = triple(70, 70, 16, 2, 2, 2)
    variant = make("entmax15", impl, 2, 16, 0.5).eval()
    before = torch.get_rng_state()
    expected = make("entmax15", impl, 2, 16, 0.0)(*inputs, Mask())
    torch.set_rng_state(before)
    assert torch.equal(variant(*inputs, Mask()), expected)
    assert torch.equal(torch.get_rng_state(), before)


def test_no_number_stays_no_number_where_its_key_was_dropped(impl: str) -> None:
    for name in ("rela", "entmax15"):
        inputs, _ = triple(40, 40, 16, 1, 1, 1)
        inputs[1][0, 0, 7, 3] = float("nan")
        assert make(name, impl, 1, 16, 0.9)(*inputs, Mask()).isnan().all()


def test_training_with_dropout_goes_through_the_kernels() -> None:
    inputs, _ = triple(256, 256, 16, 1, 2, 2)
    expected = "blocked" if cpu_build.failure() else "cpp"
    for name in ("rela", "sparsemax", "entmax15", "entmax[alpha=learned]"):
        variant = build(name, AttentionShape(heads=2, head_dim=16, max_length=256, dropout=0.1)).train()
        variant(*inputs, Mask())
        assert variant.implementation == expected
