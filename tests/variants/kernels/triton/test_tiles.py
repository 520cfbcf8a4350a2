"""Tiles in Triton's interpreter: rows far from the beginning, and how often a kernel is compiled."""

import os

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs TRITON_INTERPRET=1", allow_module_level=True)
from attnbench.variants.kernels.triton import (
    additive,
    entmax,
    entmax_backward,
    interval,
    linear,
    maps,
    maps_backward,
    norm,
    prefix,
    states,
    support,
    tiles,
)
from attnbench.variants.kernels.triton import interval_backward as interval_back
from attnbench.variants.kernels.triton.launch import SIZES, prepared


def test_rows_that_int32_does_not_reach_are_brought_near_and_others_left_where_they_lie() -> None:
    """The first head of a joined projection of 3 times 1,024 columns: a kernel counts the numbers to its rows."""
    for length, moved in ((699_050, False), (699_051, True)):
        joined = torch.empty(1, length, 3, 16, 64, device="meta").permute(2, 0, 3, 1, 4)
        found = prepared(*joined.unbind(0), None)[:3]
        for given, taken in zip(joined.unbind(0), found, strict=True):
            assert (taken.stride() != given.stride()) == moved
            assert length * taken.stride(2) < 2**31


@pytest.mark.parametrize(
    "kernel",
    [
        maps._forward, maps_backward._backward_queries, maps_backward._backward_keys, entmax._forward,
        entmax_backward._backward_queries, entmax_backward._backward_keys, interval._forward,
        interval_back.backward_queries, interval_back.backward_keys, norm._norm_forward, norm._norm_backward,
        additive._forward, additive._backward_queries, additive._backward_keys, support._find_support,
        tiles._list_tiles, states.fold, states.accumulate, linear._mix, linear._turn, prefix._fold, prefix._expand,
        prefix._fold_back, prefix._expand_back,
    ],
)  # fmt: skip
def test_no_kernel_is_compiled_anew_for_another_length(kernel: object) -> None:
    """`1` and multiples of 16 would each be a kernel of its own, of which a gate made some thirty."""
    assert kernel.kwargs["do_not_specialize"] == SIZES
    # strides, widths and floating-point numbers are what is left; a size among them would cost aligned memory its
    # wide loads wherever it is no multiple of 16
    known = {*SIZES, "width", "size", "hidden", "head_dim", "scale", "plain_scale", "rescale", "epsilon", "tolerance"}
    ends = ("_batch", "_head", "_row", "_query", "_ptr")
    named = {name for name in kernel.arg_names if name.islower() and not name.endswith(ends)}
    assert named - known <= POINTERS


POINTERS = {
    "numbers", "bias", "output", "masses", "collected", "gradients", "deltas", "of_collected", "of_query", "of_bias",
    "of_key", "of_value", "of_direction", "source", "value", "values", "total", "inner", "state", "mass", "parts",
    "sums", "own", "other", "result", "other_value", "own_value", "logits", "means", "before_masses", "before_means",
    "borders", "extras", "extra_sums", "later_sums", "later_extras", "of_logits", "of_values",
}  # fmt: skip
