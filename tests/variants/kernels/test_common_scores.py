"""Rows of weights sum to one, and gradients are right, whatever size the scores of a row have in common."""

import pytest
import torch
from common_scores import COUNTS, HEAD_DIM, HEADS, KINDS, MAPS, SIZES, Rows, errors, make, passes, rows
from implementations import require
from torch import Tensor

from attnbench.variants.contract import Mask

# of one, and of the largest entry of a gradient: about a hundred roundings of float32, since equal weights of 9,000
# keys are added with errors to the same side; the defect that this found was 0.02 to 1
ALLOWED = 1e-5
IMPLS = ("cpp", "eager")


def over(name: str, impl: str, keys: int, size: float, kind: Rows, queries: int = 16) -> list[str]:
    of_sum, of_gradient = errors(name, impl, rows(name, keys, size, kind, queries))
    where = f"{name}, {impl}, {kind}, {keys} keys, scores near {size:g}"
    found = {"sum of a row": of_sum, "gradient": of_gradient}
    return [f"{where}: {what} is off by {error:.0e}" for what, error in found.items() if not error <= ALLOWED]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("name", MAPS)
def test_a_size_in_common_costs_no_digits(name: str, impl: str) -> None:
    require(impl)
    cases = [(1000, 1e4), (3000, 10.3), (3000, 1e6)]
    assert not [line for kind in KINDS for keys, size in cases for line in over(name, impl, keys, size, kind)]


@pytest.mark.soak
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("name", MAPS)
def test_no_count_of_keys_and_no_size_costs_digits(name: str, impl: str) -> None:
    require(impl)
    found = [line for kind in KINDS for keys in COUNTS for size in SIZES for line in over(name, impl, keys, size, kind)]
    assert not found


@pytest.mark.parametrize(
    ("name", "keys", "size"),
    [
        ("sparsemax", 50, 1e4),
        pytest.param("sparsemax", 1000, 1e6, marks=pytest.mark.soak),
        pytest.param("entmax15", 1000, 1e6, marks=pytest.mark.soak),
        # the interpreter's kernels take alpha from 1.01
        pytest.param("entmax[alpha=1.25]", 1000, 1e6, marks=pytest.mark.soak),
    ],
)
def test_nor_does_it_in_triton(name: str, keys: int, size: float) -> None:
    require("triton")
    assert not [line for kind in KINDS for line in over(name, "triton", keys, size, kind, queries=2)]


def equal(keys: int, size: float) -> list[Tensor]:
    inputs = rows("sparsemax", keys, 0.0, "dense")
    inputs[1][..., 0] = size
    return inputs


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize(
    ("name", "keys", "size"),
    [
        ("sparsemax", 3000, 10.3),
        ("sparsemax", 3000, 10_000.3),
        ("entmax15", 9000, 1e4),
        ("entmax15", 3000, 1e6),
        ("entmax[alpha=1.25]", 3000, 1e8),
    ],
)
def test_equal_scores_share_the_weight_whatever_their_size(name: str, keys: int, size: float, impl: str) -> None:
    """Values of one come out as one, and each gets an even share of the gradient."""
    require(impl)
    inputs = equal(keys, size)
    output, _, _, to_value = passes(make(name, impl, keys), inputs)
    torch.testing.assert_close(output[..., 0], torch.ones_like(output[..., 0]), rtol=0, atol=ALLOWED)
    even = inputs[3].sum(2, keepdim=True) / keys
    torch.testing.assert_close(to_value, even.expand_as(to_value), rtol=0, atol=ALLOWED / 100)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("name", MAPS)
def test_a_dominant_key_takes_all_from_others_of_a_large_size(name: str, impl: str) -> None:
    """Scores of 2e7 are two apart in float32, so that a bound of one below the largest is rounded up to it."""
    require(impl)
    inputs = equal(3000, 2e7)
    # alpha of 1 never lets go: there the lead has to be of some logarithms
    inputs[1][:, :, 7, 0] += 64.0
    output = make(name, impl, 3000)(*inputs[:3], Mask())
    expected = inputs[2][:, :, 7:8].expand(1, HEADS, 16, HEAD_DIM)
    torch.testing.assert_close(output, expected, rtol=1e-6, atol=1e-6)
