"""Attention with a map, and ReLA's norm, in Triton against float64 definitions; without a GPU, interpreted."""

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from error_budget import over_budget, runs
from seeds import seed
from soaked import soaked
from torch import Tensor
from written_maps import FUNCTIONS, MAPS, assert_is_its_map, passes_of, worst

pytest.importorskip("triton", reason="Triton is not installed")
from attnbench.variants.contract import AttentionShape, Mask, Unsupported
from attnbench.variants.kernels.triton import launch as triton_launch
from attnbench.variants.kernels.triton.maps import map_attention, reason
from attnbench.variants.kernels.triton.norm import gated_rms_norm
from attnbench.variants.kernels.triton.tiles import Tiles
from attnbench.variants.maps.elementwise import ElementwiseMap
from attnbench.variants.maps.rela import ReLA
from attnbench.variants.ops.written import write

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and not triton_launch.interpreted():
    pytest.skip("needs a CUDA device, or TRITON_INTERPRET=1", allow_module_level=True)

SMALL = Tiles(rows=32, columns=32)


def inputs(queries: int, keys: int, head_dim: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """query, key, value of batch 2 with one head."""
    generator = torch.Generator().manual_seed(seed())
    shapes = [(2, 1, length, head_dim) for length in (queries, keys, keys)]
    return [torch.randn(shape, generator=generator).to(DEVICE, dtype).requires_grad_() for shape in shapes]


def rectified(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    valid: Tensor | None = None,
    causal: bool = False,
    tiles: Tiles | None = SMALL,
) -> Tensor:
    """As ReLA calls it."""
    return map_attention(query, key, value, valid, causal, write(torch.relu), homogeneous=True, tiles=tiles)


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
    # one of each dtype
    soaked(
        [
            (45, 45, 32, torch.float32, False, False, SMALL),
            (70, 70, 64, torch.float16, True, True, SMALL),
            (33, 75, 24, torch.float32, True, False, SMALL),
            (75, 33, 16, torch.float32, True, True, SMALL),
            (1, 40, 16, torch.float16, True, False, None),
            (131, 131, 16, torch.float32, True, True, None),
        ],
        quick=(1, 3),
    ),
)
def test_sums_and_gradients_are_those_of_the_float64_definition(
    queries: int, keys: int, head_dim: int, dtype: torch.dtype, causal: bool, padded: bool, tiles: Tiles | None
) -> None:
    ours = inputs(queries, keys, head_dim, dtype)
    valid = padding(keys) if padded else None
    sums = rectified(*ours, valid, causal, tiles)
    upstream = torch.randn_like(sums)
    gradients = torch.autograd.grad(sums, ours, upstream)
    assert sums.dtype == torch.float32
    assert all(gradient.dtype == dtype for gradient in gradients)
    assert_equals_definition([sums, *gradients], ours, Mask(valid=valid, causal=causal), upstream)


def test_queries_without_keys_give_zeros_and_no_gradient() -> None:
    ours = inputs(40, 40, 16)
    valid = torch.tensor([[True], [False]], device=DEVICE).expand(2, 40)
    sums = rectified(*ours, valid)
    gradients = torch.autograd.grad(sums, ours, torch.full_like(sums, 1e4))
    assert sums[0].abs().max() > 0
    for tensor in (sums, *gradients):
        assert (tensor[1] == 0).all()


def test_tiles_of_padding_alone_are_not_visited() -> None:
    """What nobody reads may be anything: NaN there would stay NaN times a weight of zero."""
    for causal in (False, True):
        query, key, value = inputs(130, 130, 16)
        valid = (torch.arange(130) < torch.tensor([[60], [0]])).to(DEVICE)
        spoiled = value.detach().clone()
        spoiled[0, 0, 64:] = torch.nan
        spoiled[1] = torch.nan
        leaves = [x.detach().requires_grad_() for x in (query, key, spoiled)]
        sums = rectified(*leaves, valid, causal)
        found = [sums, *torch.autograd.grad(sums, leaves, torch.ones_like(sums))]
        plain = rectified(query, key, value, valid, causal)
        expected = [plain, *torch.autograd.grad(plain, [query, key, value], torch.ones_like(plain))]
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_divergence_is_seen_in_the_rows_and_keys_that_it_touches() -> None:
    """NaN of a query or a key is no weight of zero, in sums and in gradients."""
    for causal in (False, True):
        query, key, value = inputs(40, 40, 16)
        with torch.no_grad():
            query[0, 0, 7, 3] = torch.nan
            key[1, 0, 20, 5] = torch.nan
        sums = rectified(query, key, value, None, causal)
        gradients = torch.autograd.grad(sums, (query, key, value), torch.ones_like(sums))
        found = sums.isnan().any(-1)[:, 0]
        rows = torch.arange(40, device=DEVICE)
        assert torch.equal(found[0], rows == 7)
        assert torch.equal(found[1], (rows >= 20) | torch.tensor(not causal, device=DEVICE))
        # zero times NaN spreads inside a tile, but what the row sees is never a number
        assert gradients[1].isnan().any(-1)[0, 0, :8].all()
        assert gradients[2].isnan().any(-1)[1, 0, 20]


def test_a_second_run_gives_the_same_bits_from_heads_that_lie_side_by_side_in_memory() -> None:
    projected = torch.randn(1, 40, 3, 2, 16, generator=torch.Generator().manual_seed(2)).to(DEVICE).requires_grad_()
    results = []
    for contiguous in (True, False):
        query, key, value = projected.permute(2, 0, 3, 1, 4)
        if contiguous:
            query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
        sums = rectified(query, key, value, None, True)
        results.append((sums, *torch.autograd.grad(sums.square().sum(), projected)))
    for first, second in zip(*results, strict=True):
        assert torch.equal(first, second)


def test_gradients_beyond_float16_stay_finite() -> None:
    ours = inputs(20, 20, 16, torch.float16)
    sums = rectified(*ours)
    for gradient in torch.autograd.grad(sums, ours, torch.full_like(sums, 1e6)):
        assert gradient.isfinite().all()


@pytest.mark.parametrize(
    ("masked", "rate"),
    [
        ("causal and padded", 0.0),
        pytest.param("all", 0.0, marks=pytest.mark.slow),
        pytest.param("causal and padded", 0.2, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("kind", MAPS)
def test_each_map_and_what_it_learns_are_those_of_float64(kind: type[ElementwiseMap], masked: str, rate: float) -> None:
    """Shared heads of keys, tiles left over at both ends, rows that see no key."""
    generator = torch.Generator().manual_seed(seed())
    shapes = [(2, 2, 70, 20), (2, 1, 150, 20), (2, 1, 150, 20), (2, 2, 70, 20)]
    *drawn, upstream = (torch.randn(shape, generator=generator).to(DEVICE) for shape in shapes)
    valid = torch.rand(2, 150, generator=generator).to(DEVICE) > 0.4 if "padded" in masked else None
    if valid is not None:
        valid[1] = False
    mask = Mask(valid=valid, causal="causal" in masked)
    found = passes_of(kind, "triton", tuple(drawn), upstream, mask, rate)
    expected = passes_of(kind, "eager", tuple(x.double() for x in drawn), upstream.double(), mask, rate)
    assert worst(found, expected) < 1e-5


@pytest.mark.parametrize(
    "function",
    [
        torch.log1p, torch.expm1, torch.tanh, torch.sinh, torch.cosh, torch.erf, torch.sigmoid, torch.sign,
        torch.trunc, torch.log10, torch.rsqrt, torch.reciprocal, torch.nn.functional.gelu, torch.nn.functional.elu,
        lambda s: s.abs() ** 1.7, lambda s: s**5, lambda s: s**-3, lambda s: 1.3**s, torch.nn.functional.leaky_relu,
        *FUNCTIONS,
    ],
)  # fmt: skip
def test_functions_are_those_of_pytorch(function: Callable[[Tensor], Tensor]) -> None:
    assert_is_its_map(lambda q, k, v: map_attention(q, k, v, None, False, write(function)), function, DEVICE)


def test_undivided_weights_beyond_float16_are_divided_all_the_same() -> None:
    """Weights of 3e4 and more over their sum are below 1."""
    generator = torch.Generator().manual_seed(seed())
    query, key, value = (torch.randn(1, 1, 33, 16, generator=generator).to(DEVICE, torch.float16) for _ in range(3))
    written = write(lambda s: 3e4 * (1 + s.square()), (), (), True)
    found = map_attention(query, key, value, None, False, written)
    weights = 1 + (query.double() @ key.double().mT / 4).square()
    expected = weights / weights.sum(-1, keepdim=True) @ value.double()
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-3)


def test_what_triton_lacks_is_refused_with_its_name() -> None:
    ones = torch.ones(1, 1, 16, 16, device=DEVICE)
    with pytest.raises(Unsupported, match="Triton has no asin"):
        map_attention(ones, ones, ones, None, False, write(torch.asin))


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
