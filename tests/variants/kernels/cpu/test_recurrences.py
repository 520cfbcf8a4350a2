"""The recurrences in C++: against the equation step by step in float64, gradients too, on every edge of a chunk."""

from __future__ import annotations

import itertools

import pytest
import torch
from cpu_kernels import require_kernels
from error_budget import relative_error
from seeds import seed
from torch import Tensor
from torch.nn import functional as F

from attnbench.variants.contract import SelectionError, Unsupported
from attnbench.variants.kernels.cpu.recurrences import recurrence
from attnbench.variants.ops.recurrences import recurrence_by_token

FORMS = list(itertools.product(("none", "head", "channel"), (False, True)))
forms = pytest.mark.parametrize(("decay", "erases"), FORMS)
# of float32 beside float64, relative to the largest entry: a few hundred roundings
CLOSE = 1e-5
Terms = list[Tensor | None]


@pytest.fixture(autouse=True)
def _kernels() -> None:
    require_kernels()


def draw(
    length: int,
    decay: str,
    erases: bool,
    *,
    heads: int = 2,
    width: int = 16,
    wide: int = 16,
    per_token: int = 1,
    strength: float = 1.0,
    most: float = 2.0,
) -> Terms:
    """Terms and a state. strength: about the size of log decays; most: twice the mean rate of erasures."""
    generator = torch.Generator().manual_seed(seed(length + width))

    def normal(*shape: int) -> Tensor:
        return torch.randn(1, heads, *shape, generator=generator)

    steps = per_token * length
    key = F.normalize(normal(steps, width), dim=-1)
    log_decay = -strength * normal(steps, width).square()
    erase = most * normal(steps, 1).sigmoid() * key
    by_form = {"none": None, "head": log_decay[..., 0], "channel": log_decay}[decay]
    return [normal(length, width), key, normal(steps, wide), by_form, erase if erases else None, normal(width, wide)]


def passes(form: object, terms: Terms, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Outputs, the last state, and the gradients of all that was given."""
    given = [None if x is None else x.detach().to(dtype).requires_grad_() for x in terms]
    found = form(*given)  # type: ignore[operator]
    upstream = [torch.ones_like(x).cumsum(2).sin() for x in found]
    return [*found, *torch.autograd.grad(found, [x for x in given if x is not None], upstream)]


def worst(terms: Terms) -> float:
    """The largest error of any of what `passes` gives."""
    exact = passes(recurrence_by_token, terms, torch.float64)
    return max(map(relative_error, passes(recurrence, terms), exact))


@forms
@pytest.mark.parametrize("strength", [0.01, 1.0, 30.0])
def test_output_state_and_gradients_are_those_of_float64(decay: str, erases: bool, strength: float) -> None:
    """Lengths at both sides of a chunk of 16 and of a block of 64 steps; widths that end inside a vector."""
    for length, width, wide, per_token in (
        (1, 16, 16, 1),
        (16, 8, 5, 1),
        (17, 20, 48, 1),
        (65, 16, 16, 1),
        (43, 16, 16, 3),
    ):
        terms = draw(length, decay, erases, width=width, wide=wide, per_token=per_token, strength=strength)
        assert worst(terms) < CLOSE, (length, width, wide, per_token)


@pytest.mark.parametrize(
    ("decay", "erases", "strength"), [("channel", False, 0.01), ("none", True, 1.0), ("channel", True, 0.3)]
)
def test_gradients_at_4096_tokens_are_those_of_float64(decay: str, erases: bool, strength: float) -> None:
    """Eigenvalues of the erasure down to -1, and states that remember everything: errors have the longest way."""
    assert worst(draw(4096, decay, erases, heads=1, strength=strength)) < CLOSE


@pytest.mark.parametrize("erases", [False, True])
@pytest.mark.parametrize("decay", ["head", "channel"])
def test_a_decay_to_zero_clears_and_blurs_no_weak_one(decay: str, erases: bool) -> None:
    terms = draw(80, decay, erases, strength=0.01)
    log_decay = terms[3]
    assert log_decay is not None
    log_decay[:, :, [5, 21, 22, 63, 64]] = -1e4
    assert worst(terms) < CLOSE
    log_decay[:, :, [6, 40]] = -torch.inf
    found = passes(recurrence, terms)
    assert all(x.isfinite().all() for x in found)
    assert relative_error(found[0], recurrence_by_token(*terms)[0].double()) < CLOSE


@forms
def test_nothing_later_changes_a_bit_of_an_output(decay: str, erases: bool) -> None:
    """A later decay without products among the steps of its chunk, too."""
    terms = draw(60, decay, erases)
    changed = [None if x is None else x.clone() for x in terms]
    for at, x in enumerate(changed[:5]):
        if x is not None:
            x[:, :, 37:] = -1e3 if at == 3 else 3.0
    assert torch.equal(recurrence(*terms)[0][:, :, :37], recurrence(*changed)[0][:, :, :37])


@forms
def test_a_sequence_may_be_cut_anywhere(decay: str, erases: bool) -> None:
    *terms, state = draw(90, decay, erases)
    whole, last = recurrence(*terms, state)
    first, between = recurrence(*(x if x is None else x[:, :, :37] for x in terms), state)
    second, end = recurrence(*(x if x is None else x[:, :, 37:] for x in terms), between)
    assert relative_error(torch.cat([first, second], 2), whole.double()) < CLOSE
    assert relative_error(end, last.double()) < CLOSE


@pytest.mark.parametrize("heads", [1, 8])
def test_threads_share_heads_and_the_value_columns_of_few_heads(heads: int) -> None:
    terms, before, results = draw(70, "channel", True, heads=heads, wide=48), torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(passes(recurrence, terms))
            assert all(map(torch.equal, results[-1], passes(recurrence, terms)))
    finally:
        torch.set_num_threads(before)
    for more in results[1:]:
        # outputs by column; gradients of queries, keys and decays are then sums over parts of the columns
        assert torch.equal(more[0], results[0][0])
        assert max(map(relative_error, more, [x.double() for x in results[0]])) < CLOSE
        assert heads == 1 or all(map(torch.equal, more, results[0]))


def test_inputs_of_any_strides_and_losses_of_one_result_alone() -> None:
    terms = [x for x in draw(50, "channel", True, heads=3) if x is not None]
    strided = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in terms[:5]]
    strided[0] = strided[0].mT.contiguous().mT
    assert all(map(torch.equal, recurrence(*strided, terms[5]), recurrence(*terms)))
    leaves = [x.requires_grad_() for x in terms]
    for at in (0, 1):
        found = recurrence(*leaves)[at]
        gradients = torch.autograd.grad(found.sum(), leaves, allow_unused=True)
        wide = [x.detach().double().requires_grad_() for x in terms]
        exact = torch.autograd.grad(recurrence_by_token(*wide)[at].sum(), wide, allow_unused=True)
        for mine, true in zip(gradients, exact, strict=True):
            assert mine is not None
            assert relative_error(mine, torch.zeros_like(mine).double() if true is None else true) < CLOSE


def test_float64_second_derivatives_and_shapes_that_do_not_fit_are_refused() -> None:
    *terms, state = draw(20, "head", True)
    with pytest.raises(SelectionError, match=r"expected float32, got torch\.float64"):
        recurrence(*(x.double() for x in terms if x is not None))
    with pytest.raises(SelectionError, match="expected one dtype and query"):
        recurrence(*terms, state.mT[..., 1:])
    leaf = terms[1].requires_grad_()
    (gradient,) = torch.autograd.grad(recurrence(*terms)[0].square().sum(), leaf, create_graph=True)
    with pytest.raises(Unsupported, match="first derivative only"):
        gradient.sum().backward()
