"""Sparsemax and entmax, against the `entmax` package, brute force and closed forms."""

import itertools
import math

import pytest
import torch
from error_budget import over_budget, runs
from hypothesis import given, settings
from hypothesis import strategies as st
from seeds import seed as shifted
from torch import Tensor
from torch.autograd import grad, gradcheck

from attnbench.bench.core.errors import SelectionError, Unsupported
from attnbench.variants import build
from attnbench.variants.contract import AttentionShape, Mask
from attnbench.variants.ops import sparse_autograd as simplex
from attnbench.variants.ops import thresholds
from attnbench.variants.ops.entmax import _weights, entmax, entmax15, sparsemax

ALPHAS = (1.0, 1.0005, 1.05, 1.25, 1.5, 1.99, 2.0, 2.5, 3.0)
FEW_ALPHAS = (1.0, 1.0005, 1.25, 1.5, 2.0, 2.5)
"""One for each way of solving: softmax, next to it, Newton's method, both closed forms, and bisection."""
INF = float("inf")


def scores(*shape: int, spread: float = 2.0, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return (
        torch.randn(*shape, generator=torch.Generator().manual_seed(shifted(seed)), dtype=torch.float64)
        .mul(spread)
        .to(dtype)
    )


def brute_force(row: list[float], alpha: float) -> list[float]:
    """Two hundred halvings of the threshold, in plain Python."""
    if alpha == 1.0:
        powers = [math.exp(x - max(row)) for x in row]
        return [p / sum(powers) for p in powers]
    e = alpha - 1.0

    def weights(tau: float) -> list[float]:
        return [max(e * (x - max(row)) - tau, 0.0) ** (1.0 / e) for x in row]

    low, high = -1.0, 0.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(weights(middle)) > 1.0 else (low, middle)
    return weights(low)


def weights_and_gradient(function, x: Tensor, upstream: Tensor) -> tuple[Tensor, Tensor]:
    x = x.detach().requires_grad_()
    p = function(x)
    return p.detach(), grad(p, x, upstream)[0]


@pytest.mark.parametrize("alpha", ALPHAS)
def test_equals_brute_force(alpha: float) -> None:
    x = scores(20, 7)
    expected = torch.tensor([brute_force(row, alpha) for row in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(entmax(x, alpha), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(entmax(x, torch.tensor(alpha, dtype=torch.float64)), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("spread", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("alpha", [1.05, 1.25, 1.5, 1.75, 1.99, 2.0, 2.5, 3.0])
def test_equals_the_entmax_package_in_float64(alpha: float, spread: float) -> None:
    package = pytest.importorskip("entmax", reason="the entmax package is the oracle here")
    x, upstream = scores(3, 8, 65, spread=spread), scores(3, 8, 65, seed=1)
    expected = weights_and_gradient(lambda x: package.entmax_bisect(x, alpha, n_iter=100), x, upstream)
    for given_alpha in (alpha, torch.tensor(alpha, dtype=torch.float64)):
        found = weights_and_gradient(lambda x, a=given_alpha: entmax(x, a), x, upstream)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_float32_is_right_to_its_own_precision(alpha: float) -> None:
    x, upstream = scores(16, 300, dtype=torch.float32), scores(16, 300, dtype=torch.float32, seed=1)

    def rounded(inputs: list[Tensor]) -> list[Tensor]:
        """Exact values of what float32 holds: the error that the rounding of scores alone makes."""
        both = weights_and_gradient(lambda y: entmax(y, alpha), inputs[0].double(), upstream.double())
        return [tensor.float() for tensor in both]

    found = weights_and_gradient(lambda y: entmax(y, alpha), x, upstream)
    exact = weights_and_gradient(lambda y: entmax(y, alpha), x.double(), upstream.double())
    assert not over_budget(found, runs(rounded, [x]), exact, ("weights", "gradient"))


@pytest.mark.parametrize("alpha", ALPHAS)
def test_gradient_in_scores_is_the_derivative(alpha: float) -> None:
    x = scores(3, 6).requires_grad_()
    assert gradcheck(lambda x: entmax(x, alpha), (x,))


@pytest.mark.parametrize("alpha", ALPHAS[1:])
def test_gradient_in_alpha_is_the_derivative(alpha: float) -> None:
    x = scores(3, 6)
    per_row = torch.full((3, 1), alpha, dtype=torch.float64, requires_grad=True)
    shared = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda a: entmax(x, a), (per_row,))
    assert gradcheck(lambda a: entmax(x, a), (shared,))


def test_gradient_in_alpha_at_one_is_the_limit() -> None:
    x, upstream = scores(5, 9), scores(5, 9, seed=1)
    alpha = torch.ones(5, 1, dtype=torch.float64, requires_grad=True)
    found = grad(entmax(x, alpha), alpha, upstream)[0]
    p = x.softmax(-1)
    log_squared = p.log() ** 2
    limit = -p * (log_squared - (p * log_squared).sum(-1, keepdim=True)) / 2
    torch.testing.assert_close(found, (limit * upstream).sum(-1, keepdim=True), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_meets_softmax_smoothly(dtype: torch.dtype) -> None:
    """Value and both gradients move in proportion to alpha - 1, down to the last bits: no switch, no cancellation."""
    x, upstream = scores(4, 50, dtype=dtype), scores(4, 50, dtype=dtype, seed=1)

    def at(excess: float) -> list[Tensor]:
        alpha = torch.full((4, 1), 1.0 + excess, dtype=torch.float64).to(dtype).requires_grad_()
        y = x.clone().requires_grad_()
        p = entmax(y, alpha)
        return [p.detach(), *grad(p, (y, alpha), upstream)]

    limit = at(0.0)
    torch.testing.assert_close(limit[0], x.softmax(-1), rtol=1e-5 if dtype == torch.float32 else 1e-13, atol=0)
    for excess in (1e-15, 1e-12, 1e-9, 1e-7, 1e-5, 1e-4, 5e-4, 1e-3, 2e-3, 1e-2):
        for found, wanted in zip(at(excess), limit, strict=True):
            allowed = 30 * excess + 100 * torch.finfo(dtype).eps
            assert (found - wanted).abs().max() <= allowed * wanted.abs().max(), excess


def test_alpha_gradient_keeps_its_digits_in_float32() -> None:
    x, upstream = scores(64, 200, dtype=torch.float32), scores(64, 200, dtype=torch.float32, seed=1)
    for value in (1.0, 1.0005, 1.01, 1.05, 1.25, 1.5, 1.9, 2.0):
        alpha = torch.full((64, 1), value, requires_grad=True)
        exact_alpha = alpha.detach().double().requires_grad_()
        found = grad(entmax(x, alpha), alpha, upstream)[0]
        exact = grad(entmax(x.double(), exact_alpha), exact_alpha, upstream.double())[0]
        torch.testing.assert_close(found.double(), exact, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("alpha", FEW_ALPHAS)
def test_equal_scores_share_evenly(alpha: float) -> None:
    for keys, level in itertools.product((1, 2, 7, 1000), (-1e30, 0.0, 123.456, 1e30)):
        p = entmax(torch.full((2, keys), level), alpha)
        torch.testing.assert_close(p, torch.full((2, keys), 1 / keys), rtol=2e-6, atol=0)


@pytest.mark.parametrize("alpha", FEW_ALPHAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_row_of_minus_infinity_yields_zeros(alpha: float, dtype: torch.dtype) -> None:
    x = scores(3, 5, dtype=dtype)
    x[1] = -INF
    x.requires_grad_()
    slope = torch.full((3, 1), alpha, dtype=dtype, requires_grad=True)
    for p in (entmax(x, alpha), entmax(x, slope)):
        assert p[1].tolist() == [0.0] * 5
        torch.testing.assert_close(p[::2].sum(-1), torch.ones(2, dtype=dtype))
    to_x, to_alpha = grad(p, (x, slope), scores(3, 5, dtype=dtype, seed=1))
    assert to_x[1].tolist() == [0.0] * 5 and to_alpha[1] == 0
    assert to_x.isfinite().all() and to_alpha.isfinite().all()


@pytest.mark.parametrize("alpha", FEW_ALPHAS)
def test_masked_entries_are_as_if_absent(alpha: float) -> None:
    x, upstream = scores(6, 12), scores(6, 12, seed=1)
    tail = x.clone()
    tail[:, 8:] = -INF
    allowed = torch.arange(12) < 8
    short, short_gradient = weights_and_gradient(lambda x: entmax(x, alpha), x[:, :8], upstream[:, :8])
    for found, gradient in (
        weights_and_gradient(lambda x: entmax(x, alpha), tail, upstream),
        weights_and_gradient(lambda x: entmax(x, alpha, allowed=allowed), x, upstream),
    ):
        torch.testing.assert_close(found[:, :8], short, rtol=0, atol=1e-13)
        torch.testing.assert_close(gradient[:, :8], short_gradient, rtol=1e-10, atol=1e-13)
        assert not found[:, 8:].any() and not gradient[:, 8:].any()


@pytest.mark.parametrize("alpha", FEW_ALPHAS)
def test_huge_scores_are_no_trouble(alpha: float) -> None:
    top = torch.finfo(torch.float32).max
    x = torch.tensor([[top, -top, 0.0], [-top, -top, -INF], [1e20, 1e20, 1.0], [1e-38, 0.0, -1e-38], [0.0, -top, top]])
    x.requires_grad_()
    slope = torch.full((5, 1), alpha, requires_grad=True)
    p = entmax(x, slope)
    to_x, to_alpha = grad(p, (x, slope), torch.randn(5, 3, generator=torch.Generator().manual_seed(0)))
    assert p[:3].tolist() == [[1, 0, 0], [0.5, 0.5, 0], [0.5, 0.5, 0]] and p[4].tolist() == [0, 0, 1]
    assert to_x.isfinite().all() and to_alpha.isfinite().all()


@pytest.mark.parametrize("alpha", FEW_ALPHAS)
def test_a_number_that_is_none_stays_in_its_row(alpha: float) -> None:
    x = scores(5, 9)
    x[2, 3] = float("nan")
    p = entmax(x, alpha)
    assert p[2].isnan().any()
    others = [0, 1, 3, 4]
    torch.testing.assert_close(p[others], entmax(x[others], alpha), rtol=0, atol=1e-14)


@pytest.mark.parametrize("dim", [0, 1, 2, -3, -2, -1])
def test_any_dimension_and_any_strides(dim: int) -> None:
    x, upstream = scores(4, 5, 6).transpose(0, 2), scores(6, 5, 4, seed=1)
    expected = weights_and_gradient(lambda x: entmax15(x.movedim(dim, -1).contiguous()).movedim(-1, dim), x, upstream)
    torch.testing.assert_close(weights_and_gradient(lambda x: entmax15(x, dim), x, upstream), expected)
    alpha = torch.rand([1 if i == dim % 3 else n for i, n in enumerate(x.shape)], dtype=torch.float64) + 1
    rows = entmax(x, alpha, dim).movedim(dim, -1).reshape(-1, x.shape[dim])
    wanted = zip(x.movedim(dim, -1).reshape(-1, x.shape[dim]), alpha.flatten().tolist(), strict=True)
    torch.testing.assert_close(rows, torch.stack([entmax(row, a) for row, a in wanted]), rtol=0, atol=1e-12)


def test_alpha_broadcasts_over_the_other_dimensions() -> None:
    x, upstream = scores(2, 3, 4, 5), scores(2, 3, 4, 5, seed=1)
    alpha = torch.tensor([1.0, 1.3, 2.4], dtype=torch.float64).view(3, 1, 1).requires_grad_()
    expanded = alpha.detach().expand(2, 3, 4, 1).clone().requires_grad_()
    found = grad(entmax(x, alpha), alpha, upstream)[0]
    wanted = grad(entmax(x, expanded), expanded, upstream)[0].sum((0, 2, 3), keepdim=True)[0]
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("function", [sparsemax, entmax15, lambda x, **k: entmax(x, 1.3, **k)])
def test_half_precision_is_computed_in_float32(function) -> None:
    x = scores(8, 200).to(torch.bfloat16).requires_grad_()
    upstream = scores(8, 200, seed=1).to(torch.bfloat16)
    wide, wide_gradient = weights_and_gradient(function, x.detach().float(), upstream.float())
    p, gradient = weights_and_gradient(function, x, upstream)
    assert p.dtype == gradient.dtype == torch.bfloat16
    assert torch.equal(p, wide.bfloat16()) and torch.equal(gradient, wide_gradient.bfloat16())


@pytest.mark.parametrize("masked", ["nothing", "tail", "causal", "rows", "all"])
@pytest.mark.parametrize("alpha", [1.25, 1.5, 2.0, 2.5])
def test_pieces_make_the_whole(alpha: float, masked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, upstream = scores(3, 2, 10, 12), scores(3, 2, 10, 12, seed=1)
    valid = torch.arange(12) < torch.tensor([3, 9, 12])[:, None]
    allowed = {
        "nothing": None,
        "tail": valid[:, None, None],
        "causal": valid[:, None, None] & torch.ones(10, 12, dtype=torch.bool).tril(2),
        "rows": (torch.arange(10) > 4)[:, None],
        "all": torch.zeros(1, 1, 1, 1, dtype=torch.bool),
    }[masked]
    filled = x if allowed is None else x.masked_fill(~allowed, -INF)
    whole = weights_and_gradient(lambda x: entmax(x, alpha), filled, upstream)
    for limit in (8, 12 * 8 * 3, 12 * 8 * 25, 12 * 8 * 1000):
        monkeypatch.setattr(simplex, "_BYTES_PER_THREAD", limit)
        found = weights_and_gradient(lambda x: entmax(x, alpha, allowed=allowed), x, upstream)
        torch.testing.assert_close(found, whole, rtol=1e-11, atol=1e-13)


def test_the_fixed_number_of_steps_on_accelerators_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that drop few keys at each step are the hardest for Newton's method.

    In float32 the cascade is off by 1.02e-6 at alpha = 1.9 with any number of steps: its keys all lie on the edge.
    """
    rank = torch.arange(512, dtype=torch.float64)
    hard = [-((rank / 512) ** power) * size for power in (0.1, 0.5, 1, 2, 8) for size in (0.5, 2, 4)]
    hard += [-torch.log1p(rank * c) * size for c in (0.01, 1, 10) for size in (0.1, 1)]
    cascade = [1.0, 0.5]
    while len(cascade) < 132:
        cascade.append((sum(cascade) - 1) / len(cascade) - 1e-6 * 1.1 ** len(cascade))
    hard += [torch.tensor(cascade + [-9.0] * 380, dtype=torch.float64), scores(512, spread=1.0)]
    x = torch.stack(hard)
    for dtype in (torch.float32, torch.float64):
        for alpha in (1.0, 1.1, 1.5, 1.9, 2.0):
            exact = entmax(x.to(dtype).double(), alpha)
            with monkeypatch.context() as patch:
                patch.setattr(thresholds, "_ended", lambda step, tolerance: False)
                patch.setattr(thresholds, "_steps", lambda z: range(thresholds._DEVICE_STEPS[z.dtype]))
                found = entmax(x.to(dtype), alpha)
            if dtype == torch.float64:
                torch.testing.assert_close(found, exact, rtol=0, atol=1e-13)
            else:
                # what the rounding of scores alone makes of exact weights
                rounded = runs(lambda y, a=alpha: [entmax(y[0].double(), a).float()], [x.float()])
                assert not over_budget([found], rounded, [exact])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own tracing
@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0, "learned"])
def test_a_compiled_graph_has_the_weights_and_the_gradients_of_the_eager_form(alpha: float | str) -> None:
    """One graph: no look at values decides what is done next. NaN that a mask hides, rows without keys and -inf."""
    allowed = scores(2, 6, 24, seed=1) > -1.0
    allowed[0, 0], allowed[0, 1] = False, True
    x = scores(2, 6, 24, dtype=torch.float32)
    x[0, 1, 3:], x[1, 2, ~allowed[1, 2]] = -INF, float("nan")
    of_heads = torch.tensor([1.2, 1.9])[:, None, None].requires_grad_()
    x.requires_grad_()
    upstream = scores(2, 6, 24, dtype=torch.float32, seed=2)

    def weights(x: Tensor, of_heads: Tensor) -> Tensor:
        if alpha == "learned":
            return _weights(x, of_heads, -1, allowed)
        return entmax(x, alpha, allowed=allowed)

    found, expected = (
        (p, *grad(p, (x, of_heads), upstream, allow_unused=True))
        for p in (form(x, of_heads) for form in (torch.compile(weights, backend="eager", fullgraph=True), weights))
    )
    assert (found[2] is None) == (alpha != "learned")
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    assert not found[0][0, 0].any() and found[0].isfinite().all()


rows = st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=12)
alphas = st.sampled_from(ALPHAS) | st.floats(1.0, 4.0)


@settings(max_examples=150, deadline=None)
@given(rows, alphas, st.randoms(use_true_random=False))
def test_rows_are_distributions_that_follow_the_scores(row: list[float], alpha: float, random) -> None:
    x = torch.tensor(row, dtype=torch.float64)
    p = entmax(x, alpha)
    assert (p >= 0).all() and abs(p.sum() - 1) < 1e-12
    order = x.argsort()
    # powers at the end of a row may round otherwise than those in a vector register, by some last bits
    assert (p[order].diff() >= -1e-14 * p[order][1:]).all(), "a higher score has at least the weight of a lower one"
    shuffle = random.sample(range(len(row)), len(row))
    torch.testing.assert_close(entmax(x[shuffle], alpha), p[shuffle], rtol=1e-6, atol=1e-12)


def test_wrong_arguments_say_what_is_right() -> None:
    x = torch.zeros(2, 3)
    for alpha in (0.99, -1.0, INF, float("nan"), torch.tensor(0.5), torch.tensor([[1.5], [float("nan")]])):
        with pytest.raises(SelectionError, match="alpha of 1 or more"):
            entmax(x, alpha)
    with pytest.raises(SelectionError, match=r"broadcast to \(2, 1\), size 1 on dimension -1, got \(3,\)"):
        entmax(x, torch.full((3,), 1.5))
    with pytest.raises(SelectionError, match="floating dtype"):
        sparsemax(torch.zeros(2, 3, dtype=torch.long))
    for shape, dim in (((), -1), ((2, 3), 2)):
        with pytest.raises(SelectionError, match="with a dimension"):
            entmax15(torch.zeros(shape), dim)
    assert entmax15(torch.zeros(0, 3)).shape == (0, 3)


def test_a_second_derivative_is_refused() -> None:
    x = scores(2, 3).requires_grad_()
    for upstream in (torch.ones(2), scores(2).requires_grad_()):
        first = grad((entmax15(x)[:, 0] * upstream).sum(), x, create_graph=True)[0]
        torch.testing.assert_close(first, grad((entmax15(x)[:, 0] * upstream).sum(), x)[0])
        with pytest.raises(Unsupported, match="first derivative only"):
            grad(first.square().sum(), x)


def test_learned_alpha_is_one_per_head_within_bounds_and_has_the_derivative() -> None:
    torch.manual_seed(0)
    variant = build("entmax[alpha=learned]", AttentionShape(heads=3, head_dim=4, max_length=6)).double()
    assert [p.shape for p in variant.parameters()] == [(3,)]
    with torch.no_grad():
        variant.raw_alpha.copy_(torch.tensor([-50.0, 0.3, 50.0]))
    torch.testing.assert_close(
        variant.learned_alpha(), torch.tensor([1.01, 1 + 1 / (1 + math.exp(-0.3)), 2.0]).double()
    )
    q, k, v = (scores(2, 3, 6, 4, seed=s) for s in range(3))
    upstream = scores(2, 3, 6, 4, seed=3)

    def loss(raw: float) -> float:
        with torch.no_grad():
            variant.raw_alpha[1] = raw
            return float((variant(q, k, v, Mask(causal=True)) * upstream).sum())

    slope = (loss(0.3 + 1e-5) - loss(0.3 - 1e-5)) / 2e-5
    loss(0.3)
    (variant(q, k, v, Mask(causal=True)) * upstream).sum().backward()
    assert variant.raw_alpha.grad[1].item() == pytest.approx(slope, rel=1e-6)
    assert variant.raw_alpha.grad[::2].tolist() == [0.0, 0.0], "beyond the bounds the clamp stops the gradient"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("alpha", [1.0, 1.25, 1.5, 2.0, 2.5])
def test_cuda_agrees_without_waiting_for_the_device(alpha: float) -> None:
    x, upstream = scores(4, 2, 70, 300, dtype=torch.float32), scores(4, 2, 70, 300, dtype=torch.float32, seed=1)
    allowed = torch.ones(70, 300, dtype=torch.bool).tril(100)
    expected = weights_and_gradient(lambda x: entmax(x, alpha, allowed=allowed), x, upstream)
    there = [t.cuda() for t in (x, upstream, allowed)]
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = weights_and_gradient(lambda x: entmax(x, alpha, allowed=there[2]), there[0], there[1])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close([t.cpu() for t in found], list(expected), rtol=1e-5, atol=1e-5)


def test_an_alpha_that_no_kernel_of_the_device_does_is_eager() -> None:
    paths = {}
    for alpha in (1.0, 1.005, 1.01, 2.0, 2.5):
        variant = build(f"entmax[alpha={alpha}]", AttentionShape(heads=2, head_dim=8, max_length=16))
        paths[alpha] = (variant._impl("cpu"), variant._impl("cuda"))
    assert paths == {
        1.0: ("auto", "eager"),
        1.005: ("auto", "eager"),
        1.01: ("auto", "auto"),
        2.0: ("auto", "auto"),
        2.5: ("eager", "eager"),
    }
    with pytest.raises(Unsupported, match=r"alpha from 1.01 to 2, not 1.005"):
        build("entmax[alpha=1.005,impl=triton]", AttentionShape(heads=2, head_dim=8, max_length=16))
