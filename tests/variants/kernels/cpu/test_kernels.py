"""Fused CPU attention: every path against the eager definition in float64 and the `entmax` package.

Allowed is four times the error of the eager definition in float32: see `error_budget`.
"""

import os
import subprocess
import sys

import pytest
import torch
from cpu_kernels import (
    NAMES,
    SPREADS,
    assert_equals_eager,
    eager_passes,
    inputs_of,
    make,
    masks_of,
    passes,
    require_kernels,
)
from error_budget import over_budget
from torch import Tensor

from attnbench.bench.core.errors import Unsupported
from attnbench.bench.measure.memory import peak_bytes
from attnbench.variants import build
from attnbench.variants.contract import AttentionShape, Mask
from attnbench.variants.kernels import dispatch
from attnbench.variants.maps.rela import ReLA


@pytest.fixture
def _kernels() -> None:
    require_kernels()


needs_kernels = pytest.mark.usefixtures("_kernels")


@needs_kernels
@pytest.mark.parametrize("name", NAMES)
def test_equals_the_eager_definition(name: str) -> None:
    """Forward and backward, alpha's gradient among them; 300 queries are three tiles, the last of them short."""
    for spread in SPREADS:
        inputs, upstream = inputs_of(300, 300, 40, batch=1, spread=spread)
        assert_equals_eager(name, inputs, upstream, Mask())


def test_the_spreads_reach_short_long_and_dense_supports() -> None:
    shares = []
    for spread in SPREADS:
        inputs, _ = inputs_of(300, 300, 40, batch=1, spread=spread)
        weights = make("entmax15", "eager", 40).weights(*inputs[:2], Mask())
        shares.append((weights > 0).float().mean().item())
    assert shares[0] < 0.08 < shares[1] < 0.9 < shares[2]


@needs_kernels
@pytest.mark.parametrize(
    ("queries", "keys", "head_dim"), [(70, 70, 8), (1, 50, 16), (40, 70, 128), (129, 131, 20), (5, 3, 64), (1, 1, 8)]
)
def test_masks_lengths_and_widths(queries: int, keys: int, head_dim: int) -> None:
    """Keys with holes, one sequence with a single key, queries fewer and more than keys."""
    inputs, upstream = inputs_of(queries, keys, head_dim, batch=3)
    for name in ("rela", "entmax15", "entmax[alpha=1.2]", "topk[k=5]"):
        for mask in masks_of(3, keys).values():
            assert_equals_eager(name, inputs, upstream, mask)


@needs_kernels
@pytest.mark.parametrize("head_dim", [8, 20, 24])
@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_rela_gives_exact_zeros_where_all_scores_cancel(head_dim: int, rate: float) -> None:
    """Of whole numbers every product is exact; one scaled before its sum would round, and the norm enlarge that."""
    draw = torch.Generator().manual_seed(0)
    query, key, value = (torch.randint(-3, 4, (1, 2, 300, head_dim), generator=draw).float() for _ in range(3))
    half = head_dim // 2
    query[..., half:], key[..., half:] = query[..., :half], -key[..., :half]
    shape = AttentionShape(heads=2, head_dim=head_dim, max_length=300, dropout=rate)
    output, *gradients = passes(build("rela[impl=cpp]", shape), (query, key, value), torch.ones_like(value), Mask())
    assert not output.any() and not any(gradient.any() for gradient in gradients)


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["rela", "entmax15", "entmax[alpha=learned]", "topk"])
def test_half_precision_is_computed_in_float32_and_rounded_once(name: str, dtype: torch.dtype) -> None:
    inputs, upstream = inputs_of(70, 90, 24)
    half = [x.to(dtype) for x in inputs]
    variant = make(name, "cpp", 24)
    found = passes(variant, half, upstream.to(dtype), Mask(causal=True))
    expected = passes(variant, [x.float() for x in half], upstream.to(dtype).float(), Mask(causal=True))
    assert found[0].dtype == dtype and torch.equal(found[0], expected[0].to(dtype))
    for a, b in zip(found[1:4], expected[1:4], strict=True):
        torch.testing.assert_close(a.float(), b, rtol=2 * torch.finfo(dtype).eps, atol=1e-3)


@needs_kernels
@pytest.mark.parametrize("heads", [1, 8])
@pytest.mark.parametrize("name", ["rela", "entmax15", "entmax[alpha=learned]", "topk"])
def test_the_same_bits_twice_and_the_same_numbers_with_another_thread(name: str, heads: int) -> None:
    """With one head the backward shares out queries or keys; each thread then has sums of its own."""
    inputs, upstream = inputs_of(300, 300, 32, batch=1, heads=heads, spread=0.5)
    variant, before = make(name, "cpp", 32, heads), torch.get_num_threads()
    results = []
    try:
        for threads in (1, 1, 2, 2):
            torch.set_num_threads(threads)
            results.append(passes(variant, inputs, upstream, Mask(causal=True)))
    finally:
        torch.set_num_threads(before)
    for first, second in ((results[0], results[1]), (results[2], results[3])):
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    definition = eager_passes(name, inputs, upstream, Mask(causal=True))
    assert not over_budget(results[0], *definition)
    assert not over_budget(results[2], *definition)


@needs_kernels
@pytest.mark.parametrize("name", ["rela", "entmax15", "topk[k=5]", "softmax1"])
@pytest.mark.parametrize("spread", [1.0, 0.02])
def test_values_may_have_another_width_than_keys(name: str, spread: float) -> None:
    """Narrower and wider, under a mask that moves keys; short supports and dense products."""
    for width in (8, 40):
        (query, key, _), _ = inputs_of(150, 170, 20, heads=4, kv_heads=2, spread=spread)
        value, upstream = (inputs_of(150, 170, width, heads=4, kv_heads=2)[at] for at in (0, 1))
        inputs = (query, key, value[2])
        if name == "rela":
            # its norm has parameters of one width
            found, right = (_sums(make(name, impl, 20, 4), inputs, upstream) for impl in ("cpp", "eager"))
            for a, b in zip(found, right, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
        else:
            assert_equals_eager(name, inputs, upstream, masks_of(2, 170)["holes, causal"], 0.2)


def _sums(variant: ReLA, inputs: tuple[Tensor, ...], upstream: Tensor) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in inputs]
    sums = variant.sums(leaves[0], leaves[1], leaves[2], masks_of(2, 170)["holes, causal"])
    return [sums.detach(), *torch.autograd.grad(sums, leaves, upstream)]


@pytest.mark.slow
@needs_kernels
@pytest.mark.parametrize("name", ["rela", "sparsemax", "entmax15", "topk"])
def test_memory_grows_with_the_length_and_not_with_its_square(name: str) -> None:
    peaks = []
    for length in (1024, 4096):
        inputs, upstream = inputs_of(length, length, 16, batch=1, heads=2)
        variant = make(name, "cpp", 16, heads=2)
        peaks.append(peak_bytes(lambda v=variant, i=inputs, u=upstream: passes(v, i, u, Mask()), torch.device("cpu")))
    assert peaks[1] < 6 * peaks[0]
    assert peaks[1] < 2 * 4096 * 4096 * 4 / 2, "half of one matrix of scores"


@needs_kernels
def test_auto_goes_where_it_is_worth_it_and_says_so() -> None:
    variant = build("entmax15", AttentionShape(heads=3, head_dim=16, max_length=512))
    inputs, _ = inputs_of(256, 256, 16)
    for ready, size, path in (
        (inputs, 256, "cpp"),
        (inputs, 8, "eager"),
        ([x.double() for x in inputs], 256, "eager"),
    ):
        variant(*(x[:, :, :size] for x in ready), Mask())
        assert variant.implementation == path
    assert build("entmax[alpha=2.5]", variant.shape).eval()(*inputs, Mask()).isfinite().all()


@pytest.mark.parametrize(
    ("selection", "change", "reason"),
    [
        ("rela[impl=cpp]", {"device": "cuda"}, "CPU"),
        ("entmax[alpha=2.5,impl=cpp]", {}, "alpha from 1 to 2"),
        ("sparsemax[impl=cpp]", {"dtype": "float64"}, "float32"),
    ],
)
def test_a_forced_path_says_why_it_cannot(selection: str, change: dict[str, object], reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        build(selection, AttentionShape(**{"heads": 2, "head_dim": 16, "max_length": 64, **change}))


@pytest.mark.slow
def test_a_failed_build_is_said_once_and_the_eager_path_runs(tmp_path) -> None:
    """A compiler that always fails, in a process and a cache of its own."""
    program = """
import torch
from attnbench.bench.core.errors import Unsupported
from attnbench.variants import build
from attnbench.variants.contract import AttentionShape, Mask
shape = AttentionShape(heads=2, head_dim=16, max_length=256)
x = torch.randn(2, 2, 256, 16)
for name in ("rela", "sparsemax"):
    variant = build(name, shape)
    variant(x, x, x, Mask())
    print(variant.implementation)
try:
    build("rela[impl=cpp]", shape)
except Unsupported as refusal:
    print(refusal)
"""
    false = next(p for p in ("/bin/false", "/usr/bin/false") if os.path.exists(p))  # noqa: PTH110
    environment = os.environ | {"CXX": false, "ATTNBENCH_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["eager", "eager"]
    assert "impl=cpp: " in done.stdout.split("\n")[2]
    assert done.stderr.count("no C++ attention kernels, so sparse maps run eager") == 1
    assert not list(tmp_path.rglob("*.so"))


@pytest.mark.parametrize(("queries", "keys"), [(16, 16), (1, 2**20)])
def test_small_problems_and_single_queries_stay_eager_and_build_nothing(queries: int, keys: int) -> None:
    query, key = torch.empty(1, 1, queries, 8), torch.empty(1, 1, keys, 8)
    assert dispatch.choose_implementation("auto", query, key, kernels=dispatch.DROPPING) == "eager"
