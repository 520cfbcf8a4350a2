"""FLOPs against counts by hand; one unit is one product of queries with keys."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from attnbench.bench.measure import flops
from attnbench.bench.measure.flops import FlopCounter, dense_flops
from attnbench.variants import build
from attnbench.variants.contract import AttentionShape, Mask

BATCH, HEADS, LENGTH, WIDTH = 2, 3, 64, 16
UNIT = 2 * BATCH * HEADS * LENGTH * LENGTH * WIDTH
CAUSAL = (LENGTH + 1) / (2 * LENGTH)


def heads(grad: bool = True) -> list[torch.Tensor]:
    return [torch.randn(BATCH, HEADS, LENGTH, WIDTH, requires_grad=grad) for _ in range(3)]


def naive(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return (query @ key.transpose(-1, -2)).softmax(-1) @ value


@pytest.mark.parametrize(
    ("attention", "forward", "step"),
    [
        (naive, 2, 6),
        # the fused backward pass makes the scores once more
        (F.scaled_dot_product_attention, 2, 7),
        (lambda *x: F.scaled_dot_product_attention(*x, is_causal=True), 2 * CAUSAL, 7 * CAUSAL),
    ],
)
def test_attention_by_hand(attention, forward: float, step: float) -> None:
    with torch.no_grad(), FlopCounter() as without:
        attention(*heads())
    with FlopCounter() as whole:
        attention(*heads()).sum().backward()
    assert without.flops == pytest.approx(forward * UNIT)
    assert whole.flops == pytest.approx(step * UNIT)


def test_every_fused_attention_of_this_pytorch_names_its_arguments_as_we_read_them() -> None:
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::_scaled_dot_product_")]
    assert any("flash_attention_backward" in name for name in names) and len(names) >= 8
    for name in names:
        operator = name.removeprefix("aten::").partition(".")[0]
        for overload in getattr(torch.ops.aten, operator).overloads():
            func = getattr(getattr(torch.ops.aten, operator), overload)
            arguments = {argument.name for argument in func._schema.arguments}
            assert {"query", "key", "value"} <= arguments and flops.is_fused(func), name
            assert "is_causal" in arguments, name


def test_a_linear_layer_by_hand_whether_or_not_gradients_are_kept() -> None:
    layer, x = torch.nn.Linear(8, 4), torch.randn(5, 8)
    expected = 2 * 5 * 8 * 4
    for context in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with context(), FlopCounter() as count:
            layer(x)
        assert count.flops == expected


def test_operators_of_other_libraries_are_named_and_not_counted() -> None:
    x, weight = torch.randn(5, 8), torch.randn(4, 8)
    with torch.no_grad(), FlopCounter() as count:
        torch.nn.functional.linear(x, weight).relu().softmax(-1)
        assert not count.unknown
        torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
    assert count.unknown == {"mkldnn::_linear_pointwise"} and count.flops == 2 * 5 * 8 * 4


@pytest.mark.parametrize(
    ("product", "expected"),
    [
        (lambda: torch.randn(5, 8) @ torch.randn(8), 2 * 5 * 8),
        (lambda: torch.addmv(torch.zeros(5), torch.randn(5, 8), torch.randn(8)), 2 * 5 * 8),
        (lambda: torch.randn(8) @ torch.randn(8), 2 * 8),
        (lambda: torch.addr(torch.zeros(5, 8), torch.randn(5), torch.randn(8)), 2 * 5 * 8),
        (lambda: torch.addbmm(torch.zeros(4, 6), torch.randn(3, 4, 5), torch.randn(3, 5, 6)), 2 * 3 * 4 * 5 * 6),
        (lambda: torch.zeros(4, 6).addbmm_(torch.randn(3, 4, 5), torch.randn(3, 5, 6)), 2 * 3 * 4 * 5 * 6),
    ],
)
def test_products_that_the_table_of_pytorch_lacks_by_hand(product: Callable[[], Any], expected: float) -> None:
    with torch.no_grad(), FlopCounter() as count:
        product()
    assert count.flops == expected and not count.unknown


def test_products_that_nobody_counts_are_named_and_norms_and_marks_are_none() -> None:
    x = torch.randn(6, 8)
    with torch.no_grad(), FlopCounter() as count:
        torch.nn.functional.normalize(x)
        with torch.profiler.record_function("a step"):
            x.softmax(-1)
        assert not count.unknown
        torch.fft.irfft(torch.fft.rfft(x))
        torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")
        torch.linalg.inv(x @ x.mT + torch.eye(6))
    assert {name.partition(".")[0] for name in count.unknown} == {
        "aten::_fft_r2c", "aten::_fft_c2r", "aten::_cdist_forward", "aten::linalg_inv_ex",
    }  # fmt: skip


def test_linear_attention_grows_with_length_and_dense_with_its_square() -> None:
    def counted(name: str, length: int) -> float:
        shape = AttentionShape(heads=2, head_dim=16, max_length=length)
        with torch.no_grad(), FlopCounter() as count:
            build(name, shape).eval()(*(torch.randn(1, 2, length, 16) for _ in range(3)), Mask())
        return count.flops

    eager = "softmax[impl=eager]"
    assert counted("linear", 512) == pytest.approx(2 * counted("linear", 256), rel=0.02)
    assert counted(eager, 512) == pytest.approx(4 * counted(eager, 256), rel=0.02)
    assert counted(eager, 256) == pytest.approx(
        dense_flops([AttentionShape(heads=2, head_dim=16, max_length=256)], 1, "forward"), rel=0.02
    )


def test_traffic_is_what_operators_read_and_write() -> None:
    x, y = torch.randn(1000), torch.randn(1000)
    with FlopCounter() as count:
        (x + y).view(10, 100).t()
    assert count.traffic_bytes == 3 * 4000


def test_a_decoding_step_sees_all_keys_once() -> None:
    shape = AttentionShape(heads=2, head_dim=8, max_length=100, causal=True)
    assert dense_flops([shape, shape], 3, "decode") == 2 * 3 * 4 * 2 * 8 * 100
