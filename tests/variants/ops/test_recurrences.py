"""The recurrence of a family: by token against explicit transitions, in chunks against both, and its members."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from seeds import seed
from torch import Tensor
from torch.nn import functional as F

from attnbench.variants.contract import SelectionError
from attnbench.variants.ops.recurrences import Terms, recurrence, recurrence_by_token

WIDTH, WIDE = 5, 3
DECAYS = ("none", "head", "channel")
forms = pytest.mark.parametrize(("decay", "erases"), list(itertools.product(DECAYS, (False, True))))


def draw(length: int, decay: str, erases: bool, per_token: int = 1, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Terms and a state, as leaves; None where the form has no decay or erases nothing."""
    generator = torch.Generator().manual_seed(seed(length + per_token))

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype)

    steps = per_token * length
    key = F.normalize(normal(2, 2, steps, WIDTH), dim=-1)
    log_decay = -normal(2, 2, steps, WIDTH).square()
    rate = 2 * normal(2, 2, steps, 1).sigmoid()
    given = [normal(2, 2, length, WIDTH), key, normal(2, 2, steps, WIDE)]
    given += [{"none": None, "head": log_decay[..., 0], "channel": log_decay}[decay], rate * key if erases else None]
    return [None if x is None else x.clone().requires_grad_() for x in (*given, normal(2, 2, WIDTH, WIDE))]


def by_matrices(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor | None, erase: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """S -> T S + k^T v with the transition T = (I - k^T e) D written out, one head of one sequence at a time."""
    per_token = key.shape[2] // query.shape[2]
    heads = []
    for b, h in itertools.product(range(key.shape[0]), range(key.shape[1])):
        own, read = state[b, h], []
        for t in range(key.shape[2]):
            turn = torch.eye(WIDTH, dtype=key.dtype)
            if erase is not None:
                turn = turn - torch.outer(key[b, h, t], erase[b, h, t])
            if log_decay is not None:
                turn = turn @ torch.diag(log_decay[b, h, t].exp().expand(WIDTH))
            own = turn @ own + torch.outer(key[b, h, t], value[b, h, t])
            if (t + 1) % per_token == 0:
                read.append(query[b, h, t // per_token] @ own)
        heads.append((torch.stack(read), own))
    outputs, states = (torch.stack(x).unflatten(0, key.shape[:2]) for x in zip(*heads, strict=True))
    return outputs, states


@forms
@pytest.mark.parametrize(("length", "per_token"), [(1, 1), (1, 3), (33, 1), (32, 2), (70, 1), (31, 3)])
def test_chunks_and_steps_are_the_equation_with_all_gradients(
    decay: str, erases: bool, length: int, per_token: int
) -> None:
    given = draw(length, decay, erases, per_token)
    leaves = [x for x in given if x is not None]
    upstream = [torch.ones(2, 2, length, WIDE).double().cumsum(2).sin(), torch.ones(2, 2, WIDTH, WIDE).double()]
    expected = by_matrices(*given)
    gradients = torch.autograd.grad(expected, leaves, upstream)
    for form in (recurrence, recurrence_by_token):
        found = form(*given)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-11)
        torch.testing.assert_close(torch.autograd.grad(found, leaves, upstream), gradients, rtol=1e-9, atol=1e-10)


@forms
@pytest.mark.parametrize("cut", [1, 32, 45])
def test_a_sequence_may_be_cut_anywhere(decay: str, erases: bool, cut: int) -> None:
    *given, state = draw(70, decay, erases)
    whole, last = recurrence(*given, state)
    first, between = recurrence(*(x if x is None else x[:, :, :cut] for x in given), state)
    second, end = recurrence(*(x if x is None else x[:, :, cut:] for x in given), between)
    torch.testing.assert_close(torch.cat([first, second], 2), whole, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(end, last, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("decay", ["head", "channel"])
@pytest.mark.parametrize("erases", [False, True])
def test_a_decay_to_zero_clears_and_blurs_no_weak_one(decay: str, erases: bool) -> None:
    """In float32 a difference of sums with exp(-1e4) among them would leave three digits of the decays behind it."""
    *given, state = draw(64, decay, erases, dtype=torch.float32)
    log_decay = given[3].detach() * 0.01
    for at, strength in ((3, -1e4), (20, -torch.inf), (21, -1e30), (50, -torch.inf)):
        log_decay[:, :, at] = strength
    given[3] = log_decay.requires_grad_()
    exact = [None if x is None else x.detach().double() for x in given]
    found, last = recurrence(*given, state)
    expected, expected_last = recurrence_by_token(*exact, state.double())
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(last.double(), expected_last, rtol=1e-5, atol=1e-5)
    gradients = torch.autograd.grad(found.sum() + last.sum(), [x for x in given if x is not None])
    assert all(x.isfinite().all() for x in gradients)
    # nothing of the tokens before comes through
    alone, _ = recurrence(*(x if x is None else x[:, :, 50:] for x in given))
    torch.testing.assert_close(found[:, :, 50:], alone, rtol=1e-4, atol=1e-5)


def test_absent_tokens_leave_the_state_as_it_is() -> None:
    *given, state = draw(9, "channel", True, 2)
    absent = torch.arange(9).expand(2, -1) % 3 == 1
    found, last = recurrence(*Terms(*given).without(absent), state)
    kept = torch.arange(9) % 3 != 1
    of_steps = kept.repeat_interleave(2)
    short = [x[:, :, kept if x.shape[2] == 9 else of_steps] for x in given]
    expected, expected_last = recurrence(*short, state)
    torch.testing.assert_close(found[:, :, kept], expected)
    torch.testing.assert_close(last, expected_last)


def test_several_steps_a_token_are_delta_product_and_the_transition_of_rwkv_7() -> None:
    """DeltaProduct: 2502.10297, section 3; RWKV-7: 2503.14456, eq. 17, transposed."""
    draw_one = torch.Generator().manual_seed(seed(3))
    query, key, value, unit = (torch.randn(1, 1, 6, WIDTH, generator=draw_one, dtype=torch.float64) for _ in range(4))
    unit, learning = F.normalize(unit, dim=-1), torch.rand(1, 1, 6, WIDTH, generator=draw_one, dtype=torch.float64)
    log_decay = -0.6 * torch.rand(1, 1, 6, WIDTH, generator=draw_one, dtype=torch.float64)

    def interleaved(*each: Tensor) -> Tensor:
        return torch.stack(each, 3).flatten(2, 3)

    nothing = torch.zeros_like(key)
    found, _ = recurrence(
        *(query, interleaved(learning * unit, key), interleaved(nothing, value)),
        *(interleaved(log_decay, nothing), interleaved(unit / log_decay.exp(), nothing)),
    )
    state = torch.zeros(WIDTH, WIDTH, dtype=torch.float64)
    for t in range(6):
        q, k, v, c, a, w = (x[0, 0, t] for x in (query, key, value, unit, learning, log_decay.exp()))
        # as the paper has it, values by keys
        state = state @ (torch.diag(w) - torch.outer(c, a * c)) + torch.outer(v, k)
        torch.testing.assert_close(found[0, 0, t], state @ q, rtol=1e-10, atol=1e-12)
    keys, rates = F.normalize(torch.stack([key, unit], 3), dim=-1), 2 * learning[..., :2]
    found, _ = recurrence(
        query, keys.flatten(2, 3), interleaved(value, 2 * value), None, (rates[..., None] * keys).flatten(2, 3)
    )
    state = torch.zeros(WIDTH, WIDTH, dtype=torch.float64)
    for t in range(6):
        for j in range(2):
            k, rate, v = keys[0, 0, t, j], rates[0, 0, t, j], (1 + j) * value[0, 0, t]
            state = (torch.eye(WIDTH).double() - rate * torch.outer(k, k)) @ state + torch.outer(k, v)
        torch.testing.assert_close(found[0, 0, t], query[0, 0, t] @ state, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("wrong", "made"),
    [
        (0, lambda x: x[:, :, :0]),
        (1, lambda x: x[:, :, :3]),
        (2, lambda x: x[:, :, :3]),
        (2, lambda x: x.float()),
        (3, lambda x: x[..., :1]),
        (4, lambda x: x[:, :1]),
        (5, lambda x: x.mT),
    ],
)
def test_terms_that_do_not_fit_are_named(wrong: int, made: Callable[[Tensor], Tensor]) -> None:
    given = draw(4, "channel", True)
    given[wrong] = made(given[wrong])
    for form in (recurrence, recurrence_by_token):
        with pytest.raises(SelectionError, match=r"expected one dtype and query .* got query \(2, 2, "):
            form(*given)
