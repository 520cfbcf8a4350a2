"""The room of a comparison where a score is nearly zero: that of its own rows, and no more."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from attnbench.bench.gate import masks, numerics, quick_gate
from attnbench.bench.gate.case import Case, Inputs, RunSetting
from attnbench.bench.gate.twins import differences
from attnbench.variants import AttentionShape

SHAPE = AttentionShape(heads=2, head_dim=8, max_length=17, causal=True)
ALLOWED = [1e-6] * 4


def test_a_row_whose_only_weight_is_nearly_zero_is_no_fault() -> None:
    """Its gradients err by what its score is rounded by; those of the eager definition in float32 by luck by less."""
    assert quick_gate("rela[norm=head]", SHAPE, 44, batch=11) is None


@pytest.mark.parametrize(("name", "seed"), [("gate+gated-linear", 4), ("gate+gated-linear", 1)])
def test_a_first_step_whose_product_is_nearly_zero_is_no_fault_of_decoding(name: str, seed: int) -> None:
    """The norm of a recurrence divides by it, in steps and in the forward pass alike."""
    shape = AttentionShape(heads=2, head_dim=32, max_length=64, causal=True)
    case = Case(name, shape, seed=seed)
    answers = [answer for each in case.cases for answer in masks.steps_equal_forward(each)]
    assert answers and all(answer.value <= answer.allowed for answer in answers)


def test_a_step_that_chose_another_key_of_the_same_score_is_no_fault_of_decoding() -> None:
    """One row of 2,400 is; a wrong step of all heads and sequences, and one that is no number, are faults."""
    case = Case("topk", AttentionShape(heads=2, head_dim=8, max_length=400, causal=True), RunSetting(400))
    expected = case.run(case.inputs(400, batch=3))
    found = expected.clone()
    found[0, 1, 300] += 0.01
    assert masks._decoding_error(case, found, expected) <= case.tolerance
    found[:, :, 301] += 0.01
    assert masks._decoding_error(case, found, expected) > case.tolerance
    found[:, :, 301] = expected[:, :, 301]
    found[0, 1, 300] = torch.nan
    assert masks._decoding_error(case, found, expected) == math.inf


@pytest.mark.parametrize(("name", "seed", "dtype"), [
    ("scalable-softmax", 9, "bfloat16"), ("scalable-softmax", 4, "float16"),
])  # fmt: skip
def test_scores_that_a_temperature_makes_larger_may_be_rounded_once_more(name: str, seed: int, dtype: str) -> None:
    """ln 512 times the score is as many times as sensitive; the scaled query is rounded before the fused softmax."""
    for padding in (True, False):
        shape = AttentionShape(heads=2, head_dim=64, max_length=512, padding=padding)
        case = Case(name, shape, RunSetting(512, 1, "own"), seed, thorough=True, measured=10)
        [answer] = numerics.half(dtype, case)
        assert answer.value <= answer.allowed


@pytest.fixture
def at_kink() -> tuple[Case, Inputs, list[Tensor], list[Tensor]]:
    """ReLA in float64, inputs with one score of 1e-9, its passes, and those with that score on the other side of 0."""
    shape = AttentionShape(heads=2, head_dim=8, max_length=17, dtype="float64")
    twin = Case("rela[impl=eager]", shape, RunSetting(17))
    single = Inputs(*(x.float() for x in twin.inputs()))

    def scored(score: float) -> Inputs:
        query, key = single.query.double(), single.key[0, 0, 3].double()
        query[0, 0, 5] += (score - query[0, 0, 5] @ key) * key / key.square().sum()
        return Inputs(query, single.key.double(), single.value.double())

    inputs = scored(1e-9)
    return twin, Inputs(*(x.float() for x in inputs)), twin.passes(scored(-1e-9)), twin.passes(inputs)


def test_a_kink_gives_room_to_the_rows_that_it_moves(at_kink: tuple[Case, Inputs, list[Tensor], list[Tensor]]) -> None:
    twin, inputs, found, expected = at_kink
    assert (found[1] - expected[1]).abs().max() > 1e-3 * expected[1].abs().max()
    for answer in differences(twin, inputs, None, found, expected, ALLOWED, "a kink"):
        assert answer.value <= answer.allowed


def test_a_fault_beside_a_kink_stays_red(at_kink: tuple[Case, Inputs, list[Tensor], list[Tensor]]) -> None:
    twin, inputs, found, expected = at_kink
    found[1][0, 0, 6] *= 1.001
    answers = list(differences(twin, inputs, None, found, expected, ALLOWED, "a fault"))
    assert [answer.value > answer.allowed for answer in answers] == [False, True, False, False]
