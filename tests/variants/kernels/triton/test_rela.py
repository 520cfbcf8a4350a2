"""Rectified linear attention and its norm in Triton against their float64 definitions; without a GPU, interpreted."""

from copy import deepcopy

import pytest
import torch
from error_budget import over_budget, runs
from seeds import seed
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")
from attnbench.variants.contract import AttentionShape, Mask
from attnbench.variants.kernels.triton import launch as triton_launch
from attnbench.variants.kernels.triton.norm import gated_rms_norm
from attnbench.variants.kernels.triton.rela import reason, rela_attention
from attnbench.variants.kernels.triton.tiles import Tiles, list_tiles
from attnbench.variants.maps.rela import ReLA

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and not triton_launch.interpreted():
    pytest.skip("needs a CUDA device, or TRITON_INTERPRET=1", allow_module_level=True)

SMALL = Tiles(rows=32, columns=32)


def inputs(queries: int, keys: int, head_dim: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """query, key, value of batch 2 with one head."""
    generator = torch.Generator().manual_seed(seed())
    shapes = [(2, 1, length, head_dim) for length in (queries, keys, keys)]
    return [torch.randn(shape, generator=generator).to(DEVICE, dtype).requires_grad_() for shape in shapes]


def padding(keys: int) -> Tensor:
    """The second sequence is half as long."""
    return (torch.arange(keys) < torch.tensor([[keys], [keys // 2]])).to(DEVICE)


def weights_of(query: Tensor, key: Tensor, mask: Mask) -> Tensor:
    scores = (query @ key.mT * query.shape[-1] ** -0.5).relu()
    allowed = mask.allowed(query.shape[2], key.shape[2], query.device)
    return scores if allowed is None else scores * allowed


def definition(inputs: list[Tensor], mask: Mask, upstream: Tensor) -> list[Tensor]:
    """Sums and the gradients of query, key and value, in the dtype of the inputs."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    sums = weights_of(leaves[0], leaves[1], mask) @ leaves[2]
    return [sums, *torch.autograd.grad(sums, leaves, upstream.to(sums.dtype))]


def assert_equals_definition(found: list[Tensor], inputs: list[Tensor], mask: Mask, upstream: Tensor) -> None:
    exact = definition([x.double() for x in inputs], mask, upstream)
    assert not over_budget(found, runs(lambda x: definition(x, mask, upstream), inputs), exact)


@pytest.mark.parametrize(
    ("queries", "keys", "head_dim", "dtype", "causal", "padded", "tiles"),
    [
        (45, 45, 32, torch.float32, False, False, SMALL),
        (70, 70, 64, torch.float16, True, True, SMALL),
        (33, 75, 24, torch.float32, True, False, SMALL),
        (75, 33, 16, torch.float32, True, True, SMALL),
        (1, 40, 16, torch.float16, True, False, None),
        (131, 131, 16, torch.float32, True, True, None),
    ],
)
def test_sums_and_gradients_are_those_of_the_float64_definition(
    queries: int, keys: int, head_dim: int, dtype: torch.dtype, causal: bool, padded: bool, tiles: Tiles | None
) -> None:
    ours = inputs(queries, keys, head_dim, dtype)
    keep = padding(keys) if padded else None
    sums = rela_attention(*ours, keep, causal, tiles=tiles)
    upstream = torch.randn_like(sums)
    gradients = torch.autograd.grad(sums, ours, upstream)
    assert sums.dtype == torch.float32
    assert all(gradient.dtype == dtype for gradient in gradients)
    assert_equals_definition([sums, *gradients], ours, Mask(keep=keep, causal=causal), upstream)


def test_queries_without_keys_give_zeros_and_no_gradient() -> None:
    ours = inputs(40, 40, 16)
    keep = torch.tensor([[True], [False]], device=DEVICE).expand(2, 40)
    sums = rela_attention(*ours, keep, tiles=SMALL)
    gradients = torch.autograd.grad(sums, ours, torch.full_like(sums, 1e4))
    assert sums[0].abs().max() > 0
    for tensor in (sums, *gradients):
        assert (tensor[1] == 0).all()


def test_a_tile_is_left_out_exactly_where_no_score_is_positive() -> None:
    query, key, value = inputs(96, 96, 16)
    # blocks of 32 that look at themselves and away from the block before
    signs = torch.tensor([[1.0, -1.0, 0.0], [0.0, 1.0, -1.0], [-1.0, 0.0, 1.0]], device=DEVICE)
    direction = torch.eye(3, 16, device=DEVICE)
    with torch.no_grad():
        query.copy_(query.abs() * 0.01 + direction.repeat_interleave(32, 0))
        key.copy_(0.001 * key + (signs.T @ direction).repeat_interleave(32, 0))
    sums = rela_attention(query, key, value, tiles=SMALL)
    weights = weights_of(query.double(), key.double(), Mask())
    blocks = (weights > 0).unflatten(2, (3, 32)).unflatten(4, (3, 32)).any(5).any(3).flatten(0, 1)
    assert 0 < blocks.sum() < blocks.numel()
    assert torch.equal(sums.grad_fn.saved_tensors[4].bool(), blocks)
    upstream = torch.randn_like(sums)
    found = [sums, *torch.autograd.grad(sums, (query, key, value), upstream)]
    assert_equals_definition(found, [query, key, value], Mask(), upstream)


def test_lists_name_the_used_tiles_in_both_directions_with_those_that_need_a_mask_apart() -> None:
    tiles, queries, keys = Tiles(rows=32, columns=16), 150, 200
    used = torch.randint(0, 2, (3, 5, 13), generator=torch.Generator().manual_seed(1), dtype=torch.uint8).to(DEVICE)
    # causal: query i sees keys up to i + 50
    last_key = torch.arange(5) * 32 + 50
    rows = list_tiles(used, queries, keys, tiles, True, by_rows=True)
    columns = list_tiles(used, queries, keys, tiles, True, by_rows=False)
    for head in range(3):
        for row in range(5):
            expected = used[head, row].nonzero().flatten().tolist()
            before, total = rows.counts[head, row].tolist()
            assert rows.indices[head, row, :total].tolist() == expected
            assert before == sum((tile + 1) * 16 - 1 <= min(int(last_key[row]), keys - 1) for tile in expected)
        for column in range(13):
            expected = used[head, :, column].nonzero().flatten().tolist()
            before, total = columns.counts[head, column].tolist()
            assert columns.indices[head, column, :total].tolist() == expected
            assert before == sum((column + 1) * 16 - 1 > int(last_key[tile]) for tile in expected)


def test_a_second_run_gives_the_same_bits_from_heads_that_lie_side_by_side_in_memory() -> None:
    projected = torch.randn(1, 40, 3, 2, 16, generator=torch.Generator().manual_seed(2)).to(DEVICE).requires_grad_()
    results = []
    for contiguous in (True, False):
        query, key, value = projected.permute(2, 0, 3, 1, 4)
        if contiguous:
            query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
        sums = rela_attention(query, key, value, None, True, tiles=SMALL)
        results.append((sums, *torch.autograd.grad(sums.square().sum(), projected)))
    for first, second in zip(*results, strict=True):
        assert torch.equal(first, second)


def test_gradients_beyond_float16_stay_finite() -> None:
    ours = inputs(20, 20, 16, torch.float16)
    sums = rela_attention(*ours, tiles=SMALL)
    for gradient in torch.autograd.grad(sums, ours, torch.full_like(sums, 1e6)):
        assert gradient.isfinite().all()


@pytest.mark.parametrize(("norm", "gated"), [("concat", True), ("head", True), ("concat", False)])
def test_norm_and_its_gradients_are_those_of_the_eager_path(norm: str, gated: bool) -> None:
    torch.manual_seed(seed(3))
    shape = AttentionShape(heads=3, head_dim=10, max_length=37)
    variant = ReLA(shape, norm=norm, gated=gated)
    with torch.no_grad():
        variant.scale.normal_()
    sums = torch.randn(2, 3, 37, 10).mul_(5)
    # nearly null rows and a null row
    sums[0, :, 3] *= 1e-5
    sums[0, :, 4] = 0.0
    ours = [x.detach().to(DEVICE).requires_grad_() for x in (sums, *variant.parameters())]
    named = dict(zip(("sums", *(name for name, _ in variant.named_parameters())), ours, strict=True))
    output = gated_rms_norm(ours[0], named["scale"], named["gate"] if gated else None, 1e-8, norm)
    upstream = torch.randn(output.shape)
    found = [output, *torch.autograd.grad(output, ours, upstream.to(DEVICE))]

    def definition(module: ReLA, given: Tensor) -> list[Tensor]:
        given = given.clone().requires_grad_()
        expected = module.normalise(given)
        gradients = torch.autograd.grad(expected, [given, *module.parameters()], upstream.to(expected.dtype))
        return [expected, *gradients]

    single = runs(lambda x: definition(variant, x[0]), [sums])
    exact = definition(deepcopy(variant).double(), sums.double())
    assert not over_budget(found, single, exact, names=("output", *named))
    # the rows that are nearly null, apart from those whose gradient is so much larger
    assert not over_budget([found[1][1]], [[run[1][1]] for run in single], [exact[1][1]])


def test_norm_writes_the_dtype_that_was_asked_for() -> None:
    sums = torch.randn(1, 2, 5, 16, device=DEVICE)
    ones = torch.ones(32, device=DEVICE)
    output = gated_rms_norm(sums, ones, None, 1e-8, dtype=torch.float16)
    assert output.dtype == torch.float16
    assert torch.equal(output, gated_rms_norm(sums, ones, None, 1e-8).half())


@pytest.mark.parametrize(
    ("device", "dtype", "head_dim", "expected"),
    [
        ("cuda", torch.float64, 64, "not float64"),
        ("cuda", torch.float32, 300, "not 300"),
    ],
)
def test_reasons_say_what_cannot_be_done(device: str, dtype: torch.dtype, head_dim: int, expected: str) -> None:
    assert expected in str(reason(device, dtype, head_dim))


def test_on_cpu_only_the_interpreter_runs_kernels_and_not_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert reason("cpu", torch.float32, 64) is None
    assert "bfloat16" in str(reason("cpu", torch.bfloat16, 64))
    monkeypatch.delenv("TRITON_INTERPRET")
    assert "CUDA" in str(reason("cpu", torch.float32, 64))
