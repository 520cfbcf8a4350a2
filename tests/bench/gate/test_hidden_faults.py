"""Faults that show in one setting only, such as a large batch, are red under the property that finds them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hidden_faults import ALSO, CAUSAL, HIDDEN, SELF, AtKink, HalfIgnoresPadding, Honest

from attnbench.bench.gate import examine, quick_gate
from attnbench.variants.contract import AttentionShape, Variant


@cache
def red(variant: type[Variant], shape: AttentionShape) -> dict[str, str]:
    found = examine(variant, shape, thorough=False)
    return {result.property: result.detail for result in found if result.held is False}


@pytest.mark.slow
@pytest.mark.parametrize(("variant", "shape", "name"), HIDDEN, ids=lambda x: getattr(x, "__name__", x))
def test_a_fault_of_one_setting_is_red_under_the_property_that_finds_it(
    variant: type[Variant], shape: AttentionShape, name: str
) -> None:
    assert name in red(variant, shape)


@pytest.mark.parametrize(
    ("variant", "shape"), {(v, s): None for v, s, _ in HIDDEN}, ids=lambda x: getattr(x, "__name__", "")
)
def test_the_quick_gate_finds_a_fault_of_one_setting(variant: type[Variant], shape: AttentionShape) -> None:
    finding = quick_gate(variant, shape, batch=3)
    assert finding is not None
    assert finding.property in {name for v, _, name in HIDDEN if v is variant} | ALSO.get(variant, set())


def test_half_precision_is_examined_where_it_is_measured() -> None:
    assert quick_gate(HalfIgnoresPadding, SELF) is None
    for dtype in ("bfloat16", "float16"):
        finding = quick_gate(HalfIgnoresPadding, replace(SELF, dtype=dtype, max_length=96))
        assert finding is not None
        assert finding.property == "padding content"
    found = {result.property: result.held for result in examine(HalfIgnoresPadding, replace(SELF, max_length=96))}
    assert (found["bfloat16"], found["float16"]) == (False, False)


@pytest.mark.parametrize("shape", [SELF, CAUSAL], ids=["self", "causal"])
def test_the_variant_that_these_faults_start_from_is_green(shape: AttentionShape) -> None:
    assert quick_gate(Honest, shape, batch=3) is None


def test_a_weight_at_a_kink_is_no_wrong_gradient_though_all_keys_differ() -> None:
    """In float32 it lies on the other side, and the gradients of all keys that its query sees move."""
    assert quick_gate(AtKink, SELF, batch=3) is None
