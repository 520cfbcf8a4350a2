"""Dropout inside the Triton kernels against the eager definition with the same mask; without a GPU, interpreted."""

import pytest
import torch
from error_budget import over_budget, runs
from seeds import seed
from soaked import soaked
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")
import triton
import triton.language as tl

from attnbench.variants.contract import Mask
from attnbench.variants.kernels.triton import launch as triton_launch
from attnbench.variants.kernels.triton.dropout import _decided, kept_along_keys, kept_along_queries
from attnbench.variants.kernels.triton.entmax import entmax_attention
from attnbench.variants.kernels.triton.launch import launch
from attnbench.variants.kernels.triton.maps import map_attention
from attnbench.variants.kernels.triton.tiles import Tiles
from attnbench.variants.ops.dropout import WeightDropout, draw_seed, keep_mask, threshold
from attnbench.variants.ops.entmax import entmax
from attnbench.variants.ops.written import write

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and not triton_launch.interpreted():
    pytest.skip("needs a CUDA device, or TRITON_INTERPRET=1", allow_module_level=True)

SMALL = Tiles(rows=32, columns=32)


@triton.jit
def _mask(seed_ptr, out_ptr, other_ptr, least, batch, head, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows, keys = tl.arange(0, ROWS) + 3, tl.arange(0, COLUMNS)
    place = tl.arange(0, ROWS)[:, None] * COLUMNS + keys[None, :]
    kept = kept_along_keys(tl.load(seed_ptr), least, rows, 8, batch, head, COLUMNS)
    tl.store(out_ptr + place, kept.to(tl.uint8))
    turned = kept_along_queries(tl.load(seed_ptr), least, rows, 8, batch, head, COLUMNS)
    tl.store(other_ptr + tl.trans(place), turned.to(tl.uint8))


@pytest.mark.parametrize(("columns", "rate"), [(128, 0.9), (64, 0.1), (32, 0.5), (16, 1.0)])
def test_the_mask_of_a_tile_is_that_of_eager_code_both_ways_round(columns: int, rate: float) -> None:
    torch.manual_seed(seed())
    drawn = draw_seed(torch.device(DEVICE))
    found = [torch.empty(16, columns, dtype=torch.uint8, device=DEVICE) for _ in range(2)]
    launch(_mask, (1,), drawn, *found, threshold(rate), 1, 2, ROWS=16, COLUMNS=columns)
    expected = keep_mask(drawn, rate, 2, 3, 19, columns + 8)[1, 2, 3:, 8:]
    for mask in found:
        assert torch.equal(mask.bool(), expected)


@triton.jit
def _decide(word_ptr, out_ptr, least, place, COUNT: tl.constexpr):
    at = tl.program_id(0) * COUNT + tl.arange(0, COUNT)
    tl.store(out_ptr + at, _decided(tl.load(word_ptr + at), least, place))


@pytest.mark.parametrize("least", [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x10000])
def test_both_halves_of_a_word_are_compared_as_numbers_of_16_bits(least: int) -> None:
    # each of the 65,536 numbers in both halves, so that a borrow from the low half would show
    low = torch.arange(2**16)
    word = ((low * 40503 % 2**16 << 16) + low).to(torch.int32).to(DEVICE)
    out = torch.empty_like(word)
    launch(_decide, (16,), word, out, least, 5, COUNT=4096)
    word = word.cpu()
    expected = ((word & 0xFFFF) >= least).int() << 5 | ((word >> 16 & 0xFFFF) >= least).int() << 21
    assert torch.equal(out.cpu(), expected)


def definition(leaves: list[Tensor], alpha: float | None, mask: Mask, drop: WeightDropout) -> Tensor:
    """ReLA's sums where alpha is None, and entmax attention; the heads of the keys are repeated."""
    query, key, value = leaves[:3]
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    scores = query @ key.mT * query.shape[-1] ** -0.5
    allowed = mask.allowed(query.shape[2], key.shape[2], query.device)
    if alpha is None:
        weights = scores.relu() if allowed is None else scores.relu() * allowed
    else:
        weights = entmax(scores, leaves[3][:, None, None] if len(leaves) == 4 else alpha, allowed=allowed)
    return drop.apply(weights) @ value


@pytest.mark.slow
@pytest.mark.parametrize(
    ("alpha", "causal", "padded", "kv_heads", "dtype", "tiles"),
    # each kernel, and a dtype of half precision
    soaked(
        [
            (None, True, False, 1, torch.float32, SMALL),
            (None, False, True, 2, torch.float16, SMALL),
            (None, True, False, 2, torch.float16, None),
            (1.5, True, True, 1, torch.float32, SMALL),
            (1.5, True, False, 2, torch.float16, None),
            (2.0, False, False, 2, torch.float32, SMALL),
            (1.3, True, False, 2, torch.float32, SMALL),
        ],
        quick=(0, 1, 3),
    ),
)
def test_outputs_and_gradients_with_dropout_are_those_of_eager_code_in_float64(
    alpha: float | None, causal: bool, padded: bool, kv_heads: int, dtype: torch.dtype, tiles: Tiles | None
) -> None:
    generator = torch.Generator().manual_seed(seed())
    shapes = [(2, 2, 45, 16), (2, kv_heads, 70, 16), (2, kv_heads, 70, 16)]
    ours = [torch.randn(shape, generator=generator).to(DEVICE, dtype).requires_grad_() for shape in shapes]
    valid = (torch.arange(70) < torch.tensor([[70], [40]])).to(DEVICE) if padded else None
    mask = Mask(valid=valid, causal=causal)
    drop = WeightDropout.drawn(0.3, torch.device(DEVICE))
    if alpha is None:
        output = map_attention(*ours, valid, causal, write(torch.relu), drop, homogeneous=True, tiles=tiles)
    else:
        learned = torch.full((2,), alpha, device=DEVICE, requires_grad=True) if alpha == 1.3 else None
        output = entmax_attention(*ours, alpha if learned is None else learned, valid, causal, drop, tiles=tiles)
        ours += [] if learned is None else [learned]
    upstream = torch.randn_like(output)
    found = [output, *torch.autograd.grad(output, ours, upstream)]

    def passes(given: list[Tensor]) -> list[Tensor]:
        leaves = [x.detach().requires_grad_() for x in given]
        result = definition(leaves, alpha, mask, drop)
        return [result, *torch.autograd.grad(result, leaves, upstream.to(result.dtype))]

    names = ("output", "query", "key", "value", "alpha")[: len(found)]
    assert not over_budget(found, runs(passes, ours), passes([x.double() for x in ours]), names)
