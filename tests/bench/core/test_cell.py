"""Cells are addressed by their content."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbench.bench.core.cell import Cell
from attnbench.bench.core.decode import convert
from attnbench.bench.core.hashing import axis_seed, content_hash
from attnbench.bench.core.spec import Spec

CELL = Cell(variant=Spec.of("local", window=64), task=Spec("lra-text"), preset=Spec("quick"), seed=1)


def test_the_key_is_the_one_that_published_records_carry():
    # sha256 of the JSON below, computed by `printf '%s' '…' | sha256sum`; a change here orphans every stored record:
    # {"lane":"train","preset":"quick","protocol":1,"seed":1,"selection":"validation","task":"lra-text",
    #  "variant":"local[window=64]"}
    assert replace(CELL, protocol=1).key == "4f208b0adc647dd2"


@pytest.mark.parametrize(
    "change",
    [
        {"variant": Spec.of("local", window=65)},
        {"task": Spec("lra-listops")},
        {"preset": Spec("smoke")},
        {"seed": 2},
        {"lane": "time"},
        {"selection": "test"},
        {"protocol": 99},
    ],
)
def test_every_part_of_a_cell_is_part_of_its_key(change):
    assert replace(CELL, **change).key != CELL.key


def test_a_cell_survives_json():
    assert convert(Cell, CELL.to_json(), "a cell") == CELL
    assert CELL.to_json()["variant"] == "local[window=64]"


def test_a_content_hash_ignores_the_order_of_keys_and_nothing_else():
    assert content_hash({"a": 1, "b": [1, 2]}) == content_hash({"b": [1, 2], "a": 1})
    assert content_hash([1, 2]) != content_hash([2, 1])
    assert content_hash("é") == content_hash("\u00e9") != content_hash("e\u0301")


def test_seeds_are_shared_along_the_axes_that_are_left_out():
    order = axis_seed(use="order", task="lra-text", seed=0)
    assert order == axis_seed(seed=0, task="lra-text", use="order")
    others = {axis_seed(use="weights", task="lra-text", seed=0), axis_seed(use="order", task="lra-text", seed=1)}
    assert order not in others and len(others) == 2


@given(st.integers(0, 10**9), st.text(max_size=10))
def test_every_seed_fits_a_signed_64_bit_number(seed, task):
    assert 0 <= axis_seed(seed=seed, task=task) < 2**63
