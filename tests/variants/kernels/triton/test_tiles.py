"""Tiles in Triton's interpreter: rows far from the beginning, and how often a kernel is compiled."""

import os

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs TRITON_INTERPRET=1", allow_module_level=True)
import triton
import triton.language as tl

from attnbench.variants.kernels.triton import additive, entmax, entmax_backward, interval, norm, rela, rela_backward
from attnbench.variants.kernels.triton import interval_backward as interval_back
from attnbench.variants.kernels.triton.launch import SIZES, launch
from attnbench.variants.kernels.triton.tiles import load_rows

ROW, STRIDE = 700_000, 3072
"""A row of a joined projection of 1,024 columns each, which begins beyond 2^31 numbers."""


@triton.jit
def _copy(ptr, out, stride, first, length):
    tile = tl.program_id(0) + first
    rows = load_rows(ptr, stride, tile, length, True, 4, 4, 16)
    tl.store(out + tl.arange(0, 16)[:, None] * 4 + tl.arange(0, 4)[None, :], rows)


def test_rows_beyond_two_to_the_31_numbers_are_read_where_they_lie() -> None:
    # memory that nobody touches is none
    far = torch.empty((ROW + 16) * STRIDE, dtype=torch.int8).view(ROW + 16, STRIDE)[:, :4]
    assert ROW * STRIDE > 2**31
    far[ROW:] = torch.arange(64, dtype=torch.int8).view(16, 4)
    found = torch.zeros(16, 4, dtype=torch.int8)
    launch(_copy, (1,), far, found, STRIDE, ROW, ROW + 16)
    assert torch.equal(found, far[ROW:])


@pytest.mark.parametrize(
    "kernel",
    [
        rela._forward, rela_backward._backward_queries, rela_backward._backward_keys, entmax._forward,
        entmax_backward._backward_queries, entmax_backward._backward_keys, interval._forward,
        interval_back.backward_queries, interval_back.backward_keys, norm._norm_forward, norm._norm_backward,
        additive._forward, additive._backward_queries, additive._backward_keys,
    ],
)  # fmt: skip
def test_no_kernel_is_compiled_anew_for_another_length(kernel: object) -> None:
    """`1` and multiples of 16 would each be a kernel of its own, of which a gate made some thirty."""
    assert kernel.kwargs["do_not_specialize"] == SIZES
    assert {"queries", "heads"} & set(kernel.arg_names)
