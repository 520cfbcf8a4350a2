"""Hostile inputs on every path of the variants with CPU kernels: nothing, NaN, wrong shapes, a second derivative.

Padded keys change no real output and get no gradient, whatever they hold; what is no number in a real slot comes out as
none.
"""

import pytest
import torch
from cpu_kernels import forced
from implementations import require
from seeds import seed
from torch import Tensor

from attnbench.bench.core.errors import SelectionError, Unsupported
from attnbench.variants import build
from attnbench.variants.contract import AttentionShape, Mask
from attnbench.variants.ops.entmax import entmax

NAMES = ("rela", "sparsemax", "entmax15", "entmax[alpha=1.25]")
HEADS, HEAD_DIM = 2, 16
NAN, INF = float("nan"), float("inf")
PATHS = [
    # the interpreter takes a second for each pass
    pytest.param(name, impl, marks=pytest.mark.soak if impl == "triton" else (), id=f"{name}-{impl}")
    for name in NAMES
    for impl in ("eager", "cpp", "triton")
]
every_path = pytest.mark.parametrize(("name", "impl"), PATHS)
fused_path = pytest.mark.parametrize(("name", "impl"), [path for path in PATHS if path.values[1] != "eager"])
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def make(name: str, impl: str, causal: bool = False):
    require(impl)
    torch.manual_seed(seed(3))
    shape = AttentionShape(heads=HEADS, head_dim=HEAD_DIM, max_length=300, causal=causal, cross=not causal)
    return build(forced(name, impl), shape)


def draw(batch: int, *lengths: int, width: int = HEAD_DIM) -> list[Tensor]:
    """Leaves (batch, HEADS, length, width) for each of the lengths."""
    generator = torch.Generator().manual_seed(seed())
    return [torch.randn(batch, HEADS, n, width, generator=generator).requires_grad_() for n in lengths]


@every_path
@pytest.mark.parametrize("masked", [False, True])
def test_of_nothing_comes_nothing(name: str, impl: str, masked: bool) -> None:
    """Forward and backward: an empty batch, no keys, no queries."""
    variant = make(name, impl)
    for batch, queries, keys in ((0, 5, 7), (2, 5, 0), (2, 0, 7), (2, 0, 0)):
        query, key, value = draw(batch, queries, keys, keys)
        valid = torch.ones(batch, keys, dtype=torch.bool) if masked else None
        # the call of a variant answers by itself; the kernels have to know it too, as functions of their own
        output = variant.forward(query, key, value, Mask(valid=valid))
        assert variant.implementation == impl
        assert output.shape == (batch, HEADS, queries, HEAD_DIM) and not output.any()
        leaves = [query, key, value, *variant.parameters()]
        for leaf, gradient in zip(leaves, torch.autograd.grad(output.sum(), leaves), strict=True):
            assert gradient.shape == leaf.shape and not gradient.any()


@every_path
@pytest.mark.parametrize(("side", "causal"), [("right", False), ("left", True)])
def test_padding_may_hold_anything(name: str, impl: str, side: str, causal: bool) -> None:
    """NaN and infinity in padded keys and values: the bits of real outputs and gradients are those with zeros there."""
    variant = make(name, impl, causal)
    query, key, value = draw(2, 20, 20, 20)
    valid = torch.ones(2, 20, dtype=torch.bool)
    valid[0, slice(13, 20) if side == "right" else slice(7)] = False
    upstream = torch.randn(2, HEADS, 20, HEAD_DIM, generator=torch.Generator().manual_seed(seed(1)))
    found = []
    for filler in (0.0, NAN, -INF):
        given = [query.detach(), *(x.detach().masked_fill(~valid[:, None, :, None], filler) for x in (key, value))]
        leaves = [x.requires_grad_() for x in given]
        output = variant(*leaves, Mask(valid=valid, causal=causal))
        gradients = torch.autograd.grad(output, [*leaves, *variant.parameters()], upstream)
        assert all(not g.masked_select(~valid[:, None, :, None]).any() for g in gradients[1:3])
        found.append([output.detach(), *gradients])
    for held in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(held, found[0], strict=True))
    assert all(x.isfinite().all() for x in found[0])


@every_path
@pytest.mark.parametrize("number", [NAN, INF])
def test_no_number_in_a_query_makes_its_row_none(name: str, impl: str, number: float) -> None:
    """That query alone, whatever masks: a loss that diverged must not look like one that is finite."""
    variant = make(name, impl, causal=True)
    query, key, value = draw(1, 20, 20, 20)
    with torch.no_grad():
        query[0, 0, 12, 3] = number
        if number == INF:
            # all scores +inf, none the difference of two
            key[0, 0, :, 3] = 1.0
    output = variant(query, key, value, Mask(causal=True))
    # the norm of ReLA is over all heads of a query
    rows = output[0].isnan().any(-1)
    assert rows[0, 12] and not rows[:, [*range(12), *range(13, 20)]].any()
    assert output[0, 0, 12].isnan().all()
    (to_query,) = torch.autograd.grad(output.sum(), [query])
    # ReLA's derivative is 1 above zero, whatever the score: NaN comes with the gradient of its norm
    assert to_query[0, 0, 12].isnan().any()


@every_path
def test_nan_in_a_key_makes_the_rows_that_see_it_none(name: str, impl: str) -> None:
    variant = make(name, impl, causal=True)
    query, key, value = draw(1, 20, 20, 20)
    with torch.no_grad():
        key[0, 0, 12, 3] = NAN
    output = variant(query, key, value, Mask(causal=True))
    assert output[0, 0, 12:].isnan().all()
    assert output[0, :, :12].isfinite().all()


@pytest.mark.parametrize("alpha", [1.25, 1.5, 2.0])
def test_a_masked_score_may_be_anything(alpha: float) -> None:
    scores = torch.randn(3, 5, generator=torch.Generator().manual_seed(seed()))
    allowed = torch.tensor([True, True, False, True, True])
    expected = entmax(scores, alpha, allowed=allowed)
    for number in (NAN, INF):
        assert torch.equal(entmax(scores.masked_fill(~allowed, number), alpha, allowed=allowed), expected)


@fused_path
@pytest.mark.parametrize("width", [8, 20, 40])
def test_values_of_another_width(name: str, impl: str, width: int) -> None:
    """Kernels of the CPU take them as the eager form does; ReLA's norm is of one width, and Triton has one for both."""
    variant = make(name, impl)
    query, key, _ = draw(2, 20, 30, 30)
    (value,) = draw(2, 30, width=width)
    if name == "rela":
        with pytest.raises(SelectionError, match=rf"a value \(2, 2, 30, 16\) .* got \(2, 2, 30, {width}\)"):
            variant(query, key, value, Mask())
        return
    if impl == "triton":
        with pytest.raises(Unsupported, match=rf"one head_dim, not 16, 16, {width}; use impl=eager"):
            variant(query, key, value, Mask())
        return
    output, expected = (module(query, key, value, Mask()) for module in (variant, make(name, "eager")))
    upstream = torch.randn(output.shape, generator=torch.Generator().manual_seed(seed(1)))
    torch.testing.assert_close(output, expected)
    leaves = [query, key, value]
    for a, b in zip(*(torch.autograd.grad(x, leaves, upstream) for x in (output, expected)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@fused_path
def test_shapes_that_do_not_fit_are_refused_with_what_was_expected(name: str, impl: str) -> None:
    variant = make(name, impl)
    query, key, value = draw(2, 20, 30, 30)
    (narrow,) = draw(2, 30, width=8)
    many = torch.ones(2, 40, dtype=torch.bool)
    for given, valid, message in (
        ((query, key, value), many, r"a mask bool \(2, 30\), .* got bool \(2, 40\)"),
        ((query, key, value), torch.ones(2, 30), r"a mask bool \(2, 30\), .* got float32 \(2, 30\)"),
        ((query, key, value[:, :, :-1]), None, r"a value \(2, 2, 30, .*\) beside the key, got \(2, 2, 29, 16\)"),
        ((query, key[:, [0, 1, 1]], value), None, r"a key \(2, 2, keys, 16\) beside the query, got \(2, 3, 30, 16\)"),
        # one head of keys for both of the query is right, but not beside two of values
        ((query, key[:, :1], value), None, r"a value \(2, 1, 30, .*\) beside the key, got \(2, 2, 30, 16\)"),
        ((query, key[:1], value), None, r"a key \(2, 2, keys, 16\) beside the query, got \(1, 2, 30, 16\)"),
    ):
        with pytest.raises(SelectionError, match=message):
            variant(*given, Mask(valid=valid))
    with pytest.raises((SelectionError, Unsupported), match=r"\(2, 2, keys, 16\).*got \(2, 2, 30, 8\)|one head_dim"):
        variant(query, narrow, value, Mask())


@fused_path
def test_a_second_derivative_is_refused_whatever_comes_in(name: str, impl: str) -> None:
    """A gradient penalty and a product with the Hessian: the gradient that comes in is a constant there."""
    variant = make(name, impl)
    inputs = draw(1, 20, 20, 20)
    reason = "impl=eager" if name == "rela" else "first derivative only; .* softmax"
    for wanted in (*inputs, *variant.parameters()):
        output = variant(*inputs, Mask())
        (gradient,) = torch.autograd.grad(output.sum(), wanted, create_graph=True)
        with pytest.raises(Unsupported, match=reason):
            gradient.square().sum().backward()
        # as with any gradient, it may be looked at, and others may be taken through it that do not need its own
        assert torch.equal(gradient, torch.autograd.grad(variant(*inputs, Mask()).sum(), wanted)[0])


@fused_path
def test_as_a_permuted_half_of_a_projection_it_is_refused_too(name: str, impl: str) -> None:
    """Inputs as models pass them: what a kernel saves may be a copy, which no derivative reaches."""
    variant = make(name, impl)
    projected = torch.randn(1, 20, 3, HEADS, HEAD_DIM).requires_grad_()
    valid = torch.arange(20)[None] < 13
    query, key, value = projected.permute(2, 0, 3, 1, 4)
    output = variant(query, key, value, Mask(valid=valid))
    (gradient,) = torch.autograd.grad(output.sum(), projected, create_graph=True)
    with pytest.raises(Unsupported, match="first derivative only"):
        torch.autograd.grad(gradient.square().sum(), projected)
