"""Sparsemax and entmax attention in Triton against float64, our eager map and the `entmax` package; interpreted."""

import pytest
import torch
from error_budget import FACTOR, over_budget, runs
from seeds import seed
from soaked import soaked
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")
from attnbench.bench.core.errors import SelectionError
from attnbench.variants.contract import Mask
from attnbench.variants.kernels.triton import launch as triton_launch
from attnbench.variants.kernels.triton.entmax import entmax_attention, reason
from attnbench.variants.kernels.triton.support import SupportMap, find_support
from attnbench.variants.kernels.triton.tiles import Tiles, list_tiles
from attnbench.variants.ops.entmax import entmax

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and not triton_launch.interpreted():
    pytest.skip("needs a CUDA device, or TRITON_INTERPRET=1", allow_module_level=True)

SMALL = Tiles(rows=32, columns=32)


def inputs(queries: int, keys: int, head_dim: int, dtype: torch.dtype = torch.float32, heads: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed())
    shapes = [(1, heads, length, head_dim) for length in (queries, keys, keys)]
    return [torch.randn(shape, generator=generator).to(DEVICE, dtype).requires_grad_() for shape in shapes]


def scores_of(query: Tensor, key: Tensor) -> Tensor:
    return query @ key.mT * query.shape[-1] ** -0.5


def definition(inputs: list[Tensor], alpha: float | None, mask: Mask, upstream: Tensor) -> list[Tensor]:
    """Output and the gradients of `inputs`, in their dtype; where alpha is None it is the fourth input."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    allowed = mask.allowed(inputs[0].shape[2], inputs[1].shape[2], inputs[0].device)
    power = leaves[3][:, None, None] if alpha is None else alpha
    output = entmax(scores_of(leaves[0], leaves[1]), power, allowed=allowed) @ leaves[2]
    return [output, *torch.autograd.grad(output, leaves, upstream.to(output.dtype))]


def assert_equals_definition(
    found: list[Tensor],
    inputs: list[Tensor],
    alpha: float | None,
    mask: Mask,
    upstream: Tensor,
    factor: float = FACTOR,
) -> None:
    exact = definition([x.double() for x in inputs], alpha, mask, upstream)
    single = runs(lambda x: definition(x, alpha, mask, upstream), inputs)
    assert not over_budget(found, single, exact, ("output", "query", "key", "value", "alpha")[: len(found)], factor)


@pytest.mark.parametrize(
    ("alpha", "queries", "keys", "head_dim", "dtype", "causal", "padded", "tiles"),
    # alpha of 1.5 and of each head, and float16
    soaked(
        [
            (1.5, 40, 45, 32, torch.float32, False, False, SMALL),
            (2.0, 33, 70, 24, torch.float32, True, False, SMALL),
            ((1.2, 1.7), 50, 33, 16, torch.float32, True, True, SMALL),
            ((1.01, 2.0), 33, 40, 16, torch.float32, False, False, SMALL),
            (1.5, 50, 50, 64, torch.float16, True, True, SMALL),
            (1.25, 1, 40, 16, torch.float32, True, False, None),
            (2.0, 131, 131, 16, torch.float32, True, True, None),
            # the pass over columns takes listed tiles in two pieces
            (1.5, 150, 170, 16, torch.float16, True, True, None),
        ],
        quick=(0, 2, 4),
    ),
)
def test_output_and_gradients_are_those_of_the_float64_definition(
    alpha: float | tuple[float, float],
    queries: int,
    keys: int,
    head_dim: int,
    dtype: torch.dtype,
    causal: bool,
    padded: bool,
    tiles: Tiles | None,
) -> None:
    ours = inputs(queries, keys, head_dim, dtype)
    valid = torch.arange(keys, device=DEVICE)[None] < keys * 2 // 3 if padded else None
    learned = torch.tensor(alpha, device=DEVICE, requires_grad=True) if isinstance(alpha, tuple) else None
    output = entmax_attention(*ours, alpha if learned is None else learned, valid, causal, tiles=tiles)
    if learned is not None:
        ours.append(learned)
    upstream = torch.randn(output.shape, device=DEVICE).to(dtype)
    gradients = torch.autograd.grad(output, ours, upstream)
    assert output.dtype == dtype
    fixed = None if isinstance(alpha, tuple) else alpha
    # at alpha 1.01 the kernel takes a power of 100 of what float32 knows of a score, the definition a logarithm
    factor = 16.0 if alpha == (1.01, 2.0) else FACTOR
    assert_equals_definition([output, *gradients], ours, fixed, Mask(valid=valid, causal=causal), upstream, factor)


@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0])
def test_weights_are_those_of_the_entmax_package(alpha: float) -> None:
    package = pytest.importorskip("entmax")
    query, key, _ = (x.detach() for x in inputs(40, 64, 16))
    # values that hand the weights through
    value = torch.eye(64, device=DEVICE).expand(1, 2, 64, 64).contiguous()
    valid = torch.arange(64, device=DEVICE)[None] != 5
    # the same head_dim in all, as the kernels have it, and the scale of the one that was widened
    query, key = (torch.nn.functional.pad(x, (0, 48)) for x in (2.0 * query, key))
    weights = entmax_attention(query, key, value, alpha, valid, tiles=SMALL)
    scores = scores_of(query.double(), key.double()).masked_fill(~valid[:, None, None], -torch.inf)
    single = runs(lambda x: [entmax(scores_of(*x), alpha, allowed=valid[:, None, None])], [query, key])
    assert not over_budget([weights], single, [package.entmax_bisect(scores, alpha, n_iter=80)])
    assert ((weights == 0).double().mean() > 0.3).item()
    ones = torch.ones(1, 2, 40, dtype=torch.float64)
    assert not over_budget([weights.sum(-1)], [[run[0].sum(-1)] for run in single], [ones])


def clustered(clusters: int = 3, length: int = 32) -> list[Tensor]:
    """Sequences whose queries find keys in their own block of `length` only."""
    query, key, value = inputs(clusters * length, clusters * length, 16, heads=1)
    block = torch.eye(clusters, 16, device=DEVICE).repeat_interleave(length, 0) * 20
    with torch.no_grad():
        query.mul_(0.1).add_(block)
        key.mul_(0.1).add_(block)
    return [query, key, value]


@pytest.mark.parametrize("alpha", [1.5, 2.0])
def test_lists_end_with_exactly_the_tiles_that_hold_weights(alpha: float) -> None:
    query, key, _ = (x.detach() for x in clustered())
    support = find_support(query, key, None, False, SupportMap(alpha=alpha, excess=None), SMALL)
    weights = entmax(scores_of(query.double(), key.double()), alpha)
    used = (weights > 0).unflatten(2, (3, 32)).unflatten(4, (3, 32)).any(5).any(3).flatten(0, 1)
    assert used.sum() == 3
    listed = torch.zeros_like(used)
    for row in range(3):
        listed[0, row, support.lists.indices[0, row, : support.lists.counts[0, row, 1]].long()] = True
    assert torch.equal(listed, used)


def test_no_tile_with_a_weight_is_ever_dropped() -> None:
    tiles = Tiles(rows=16, columns=16)
    query, key, _ = (x.detach() * 3 for x in inputs(30, 90, 16, heads=1))
    support = find_support(query, key, None, True, SupportMap(alpha=2.0, excess=None), tiles)
    allowed = Mask(causal=True).allowed(30, 90, query.device)
    weights = entmax(scores_of(query.double(), key.double()), 2.0, allowed=allowed)[0, 0]
    for row, some in enumerate(weights.split(16)):
        count = int(support.lists.counts[0, row, 1])
        used = {column for column, part in enumerate(some.split(16, 1)) if (part > 0).any()}
        assert used <= set(support.lists.indices[0, row, :count].tolist())
        assert len(used) < 6


def test_lists_name_the_used_row_tiles_of_each_column_with_those_that_need_a_mask_apart() -> None:
    tiles, queries, keys = Tiles(rows=32, columns=16), 150, 200
    used = torch.randint(0, 2, (3, 5, 13), generator=torch.Generator().manual_seed(1), dtype=torch.uint8).to(DEVICE)
    # causal: query i sees keys up to i + 50
    last_key = torch.arange(5) * 32 + 50
    columns = list_tiles(used, queries, keys, tiles, True)
    for head in range(3):
        for column in range(13):
            expected = used[head, :, column].nonzero().flatten().tolist()
            before, total = columns.counts[head, column].tolist()
            assert columns.indices[head, column, :total].tolist() == expected
            assert before == sum((column + 1) * 16 - 1 > int(last_key[tile]) for tile in expected)


def test_skipped_tiles_change_nothing() -> None:
    ours = clustered()
    output = entmax_attention(*ours, 1.5, None, True, tiles=SMALL)
    used = output.grad_fn.saved_tensors[9]
    assert used.sum() == 3
    upstream = torch.randn(output.shape, device=DEVICE)
    found = [output, *torch.autograd.grad(output, ours, upstream)]
    assert_equals_definition(found, ours, 1.5, Mask(causal=True), upstream)


def test_alphas_that_newton_cannot_solve_are_refused_with_the_range() -> None:
    ours = inputs(4, 4, 16)
    for alpha in (1.0, 2.5):
        assert "1.01 to 2" in str(reason("cuda", torch.float32, 64, alpha=alpha))
        with pytest.raises(SelectionError, match=r"from 1\.01 to 2"):
            entmax_attention(*ours, alpha)
    with pytest.raises(SelectionError, match=r"shape \(2,\)"):
        entmax_attention(*ours, torch.full((3,), 1.5))
