"""Attention by tiles with maps that are written as C++: against the eager form in float64, on every edge of a tile."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from cpu_kernels import draw, inputs_of, make, masks_of, passes, require_kernels
from torch import Tensor
from written_maps import FUNCTIONS, MAPS, assert_is_its_map, passes_of, worst

from attnbench.variants.contract import AttentionShape, Mask, SelectionError, Unsupported
from attnbench.variants.kernels.cpu.lists import SeenTiles
from attnbench.variants.kernels.cpu.tiles import softmax_attention, tiled_attention
from attnbench.variants.kernels.cpu.written import source
from attnbench.variants.maps.elementwise import ElementwiseMap, elementwise_map
from attnbench.variants.maps.softmax1 import Softmax1
from attnbench.variants.ops.dropout import WeightDropout
from attnbench.variants.ops.written import write

# of the second, parts of tiles are left over at every edge
SIZES = ((64, 128), (70, 333), (260, 260))


@pytest.mark.parametrize("rate", [0.0, 0.2])
@pytest.mark.parametrize("masked", ["all", "causal and padded"])
@pytest.mark.parametrize("kind", MAPS)
def test_output_and_gradients_are_those_of_float64(kind: type[ElementwiseMap], masked: str, rate: float) -> None:
    require_kernels()
    for queries, keys in SIZES:
        inputs, upstream = inputs_of(queries, keys, 20, heads=4, kv_heads=2)
        valid = draw(2, keys, salt=7) > -0.5 if "padded" in masked else None
        mask = Mask(valid=valid, causal="causal" in masked)
        found = passes_of(kind, "cpp", inputs, upstream, mask, rate)
        expected = passes_of(kind, "eager", tuple(x.double() for x in inputs), upstream.double(), mask, rate)
        assert worst(found, expected) < 1e-5, (queries, keys)


@pytest.mark.parametrize("rate", [0.0, 0.2])
@pytest.mark.parametrize("size", [2, 40, 100, 300])
def test_windows_are_those_of_the_mask(size: int, rate: float) -> None:
    """Bounds cut tiles on both sides; blocks of 64 and of 128 queries."""
    require_kernels()
    (query, key, value), upstream = inputs_of(390, 390, 16, heads=2)
    at = torch.arange(390)
    bounds = torch.stack([(at - size + 1).clamp(min=0), (at + size // 2 + 1).clamp(max=390)], -1)[None]
    leaves = [x.detach().requires_grad_() for x in (query, key, value)]
    wide = [x.detach().double().requires_grad_() for x in leaves]
    drop = WeightDropout(rate, torch.tensor(5)) if rate else None
    output = softmax_attention(leaves[0], leaves[1], leaves[2], Mask(bounds=bounds), drop)
    allowed = Mask(bounds=bounds).allowed(390, 390, query.device)
    assert allowed is not None
    scores = (wide[0] @ wide[1].transpose(-2, -1) / 4.0).masked_fill(~allowed, -torch.inf)
    weights = scores.softmax(-1)
    expected = (weights if drop is None else drop.apply(weights)) @ wide[2]
    found = [output.detach(), *torch.autograd.grad(output, leaves, upstream)]
    right = [expected.detach(), *torch.autograd.grad(expected, wide, upstream.double())]
    assert worst(found, right) < 1e-5


def both(name: str, inputs: tuple[Tensor, ...], upstream: Tensor, mask: Mask, rate: float = 0.0) -> list[list[Tensor]]:
    """Output and gradients in C++, and eagerly in float64."""
    found, (_, heads, _, head_dim) = [], inputs[0].shape
    for impl, dtype in (("cpp", torch.float32), ("eager", torch.float64)):
        variant = make(name, impl, head_dim, heads, rate).to(dtype)
        found.append(passes(variant, [x.to(dtype) for x in inputs], upstream.to(dtype), mask))
        assert variant.implementation == impl
    return found


@pytest.mark.parametrize("rate", [0.0, 0.2])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        "window[size=30]", "window[size=90,sink=learned]", "local[query_block=24,flange=50]",
        "local[query_block=40,flange=30,relative=true]", "longformer[window=30,global_tokens=3]",
        "longformer[window=5,global_tokens=70]", "bigbird[block=16]", "sparse[stride=24,summary=5]",
    ],
)  # fmt: skip
def test_patterns_are_those_of_float64(name: str, causal: bool, rate: float) -> None:
    """Fewer queries than keys are the last ones; tiles left over at both ends; padding in the middle of tiles."""
    require_kernels()
    if causal and name.startswith("bigbird"):
        pytest.skip("it has no causal form")
    for queries, padded in ((60, True), (390, True), (390, False)):
        inputs, upstream = inputs_of(queries, 390, 20, heads=3)
        mask = Mask(valid=draw(2, 390, salt=7) > -0.5 if padded else None, causal=causal)
        assert worst(*both(name, inputs, upstream, mask, rate)) < 1e-5


@pytest.mark.parametrize("rate", [0.0, 0.2])
@pytest.mark.parametrize("options", ["clip=1", "clip=16", "clip=16,values=false", "clip=500"])
def test_vectors_by_distance_are_those_of_float64(options: str, rate: float) -> None:
    """Padding in the middle moves keys, not their distances; fewer queries than keys, and more."""
    require_kernels()
    for queries, keys in ((300, 300), (70, 390), (150, 90)):
        inputs, upstream = inputs_of(queries, keys, 20, batch=3, heads=2)
        for mask in masks_of(3, keys).values():
            # gradients of the table of keys cancel: the definition in float32 is 1e-5 off in the same places
            assert worst(*both(f"relative[{options}]", inputs, upstream, mask, rate)) < 5e-5, (queries, keys)


@pytest.mark.parametrize("kind", MAPS)
def test_a_run_gives_the_same_bits_again(kind: type[ElementwiseMap]) -> None:
    require_kernels()
    inputs, upstream = inputs_of(260, 333, 16, heads=2)
    first, second = (passes_of(kind, "cpp", inputs, upstream, Mask(causal=True), 0.1) for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))


def relative_passes(inputs: tuple[Tensor, ...], upstream: Tensor, mask: Mask, rate: float) -> list[Tensor]:
    return passes(make("relative[clip=9]", "cpp", 16, 2, rate), list(inputs), upstream, mask)


def test_a_run_by_distance_gives_the_same_bits_again() -> None:
    require_kernels()
    inputs, upstream = inputs_of(260, 333, 16, heads=2)
    first, second = (relative_passes(inputs, upstream, masks_of(2, 333)["holes, causal"], 0.1) for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))


@pytest.mark.parametrize("run", [partial(passes_of, Softmax1, "cpp"), relative_passes])
def test_two_threads_agree_with_one(run: Callable[..., list[Tensor]]) -> None:
    require_kernels()
    inputs, upstream = inputs_of(260, 333, 16, heads=2)
    given = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(run(inputs, upstream, Mask(causal=True), 0.1))
    finally:
        torch.set_num_threads(given)
    assert worst(found[0], [x.double() for x in found[1]]) < 1e-5


def test_a_query_and_a_key_that_are_no_number_are_seen() -> None:
    require_kernels()
    (query, key, value), _ = inputs_of(70, 140, 16, heads=1, batch=1)
    query[0, 0, 3], key[0, 0, 100] = torch.nan, torch.nan
    for kind in MAPS:
        shape = AttentionShape(heads=1, head_dim=16, max_length=140)
        output = kind(shape, impl="cpp")(query, key, value, Mask(causal=True))  # type: ignore[arg-type]
        # queries stand at the last keys: from number 30 on they see key 100
        expected = (torch.arange(70) >= 30) | (torch.arange(70) == 3)
        assert torch.equal(output[0, 0].isnan().any(-1), expected), kind.__name__


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda scores: scores.sort(-1).values, "it computes sort"),
        (lambda scores: scores / scores.shape[-1], "how many scores there are"),
        (lambda scores: scores if scores.max() > 0 else -scores, "it cannot be traced"),
        (lambda scores: scores * torch.linspace(0.0, 1.0, scores.shape[-1]), "it computes arange"),
        (lambda scores: scores.sum(-1), r"it gives \(2,\) for scores \(2, 3\)"),
        (lambda scores: scores > 0, "it gives torch.bool"),
        (lambda scores: scores * torch.div(scores, 0.5, rounding_mode="floor"), "div with rounding_mode=floor"),
        (lambda scores: scores.round(decimals=1), "round with decimals=1"),
        (lambda scores: scores.half().float(), "it computes in torch.float16"),
        (lambda scores: scores * ((scores > 0) + (scores > 1)), "add of conditions"),
    ],
)
def test_what_cannot_be_fused_says_why_and_runs_eagerly(function: object, reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        write(function)  # type: ignore[arg-type]


# each is a unit to compile
@pytest.mark.slow
@pytest.mark.parametrize("function", FUNCTIONS)
def test_conditions_and_whole_numbers_are_those_of_pytorch(function: Callable[[Tensor], Tensor]) -> None:
    require_kernels()
    assert_is_its_map(lambda q, k, v: tiled_attention(q, k, v, Mask(), write(function)), function)


def test_what_is_around_the_first_call_is_no_part_of_the_trace() -> None:
    """Inference, a checkpoint and a search for anomalies once left a map eager for the whole process."""

    def refused(function: Callable[[Tensor], Tensor]) -> None:
        write(function)

    with torch.inference_mode():
        refused(lambda s: s.tanh() * 0.1)
    with pytest.warns(UserWarning), torch.autograd.detect_anomaly(check_nan=False), torch.device("meta"):
        refused(lambda s: s.tanh() * 0.2)
    ones = torch.ones(2, requires_grad=True)

    def layer(x: Tensor) -> Tensor:
        refused(lambda s: s.tanh() * 0.3)
        return x.exp()

    torch.utils.checkpoint.checkpoint(layer, ones, use_reentrant=False).sum().backward()
    assert ones.grad is not None


def test_a_sink_without_weight_and_a_query_without_keys_give_zeros() -> None:
    require_kernels()
    (query, key, value), _ = inputs_of(20, 40, 16, heads=1, batch=1)
    written = write(lambda s, top: (s - top).exp(), ("top",), (), True)
    output = tiled_attention(query, key, value, Mask(valid=torch.zeros(1, 40).bool()), written, sink=-torch.inf)
    assert (output == 0).all()


def test_writing_a_map_draws_nothing() -> None:
    before = torch.get_rng_state()
    written = write(lambda scores: scores.exp())
    assert "exp(" in source(written) and torch.equal(torch.get_rng_state(), before)


def test_a_map_that_cannot_be_fused_refuses_cpp_and_runs_by_itself() -> None:
    require_kernels()

    @elementwise_map()
    def ranked(scores: Tensor) -> Tensor:
        return scores.sort(-1).values

    shape = AttentionShape(heads=2, head_dim=16, max_length=260)
    assert "impl=cpp: it computes sort" in str(ranked(shape, impl="cpp").supports(shape))
    (query, key, value), _ = inputs_of(260, 260, 16, heads=2)
    variant = ranked(shape)
    variant(query, key, value, Mask())
    assert variant.implementation == "eager"


@pytest.mark.parametrize(
    ("function", "got"),
    [
        (lambda scores, widht: scores / widht, "widht"),
        (lambda scores: scores, "scores alone"),
        (lambda scores, width, scale: scores / width * scale, "width, scale"),
    ],
)
def test_a_map_that_takes_what_nothing_gives_is_refused_where_it_is_declared(function: object, got: str) -> None:
    with pytest.raises(SelectionError, match="every module has an attribute float"):
        elementwise_map(learned={"float": 1.5})(lambda scores, float: scores / float)
    with pytest.raises(SelectionError, match=f"expected scores, then any of count, top, width, .* got {got};"):
        elementwise_map(learned={"width": 1.5})(function)  # type: ignore[arg-type]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("options", ["relative=false", "relative=true", "scale=0.3,share_qk=true"])
def test_clusters_sorted_into_intervals_are_those_of_float64(options: str, causal: bool) -> None:
    """Each head of each sequence sorts its own tokens; padding is a cluster that sees nothing."""
    require_kernels()
    inputs, upstream = inputs_of(390, 390, 20, heads=3)
    mask, found = Mask(valid=draw(2, 390, salt=7) > -0.5, causal=causal), []
    for impl, dtype in (("cpp", torch.float32), ("eager", torch.float64)):
        name = f"routing[form=strict,clusters=5,window=30,{options}]"
        variant = make(name, impl, 20, 3).to(dtype)
        leaves = [x.to(dtype).requires_grad_() for x in inputs]
        output = variant(*leaves, mask)
        learned = [*leaves, *variant.parameters()]
        gradients = torch.autograd.grad(output, learned, upstream.to(dtype), allow_unused=True)
        found.append([output.detach(), *(x for x in gradients if x is not None)])
        assert variant.implementation == impl
    assert worst(*found) < 1e-5


@pytest.mark.parametrize("rate", [0.0, 0.2])
def test_any_list_is_its_mask_with_dropout_a_sink_and_fewer_heads_of_keys(rate: float) -> None:
    """Patterns of each head at random, with blocks of queries and of keys that see nothing, and a tile for one pair."""
    require_kernels()
    queries, keys, heads = 200, 333, 4
    inputs, upstream = inputs_of(queries, keys, 16, heads=heads, kv_heads=2)
    seen = draw(heads, queries, keys, salt=11) > 0.8
    seen[:, 64:128], seen[:, :, 128:192] = False, False
    seen[1, 70, 130] = True
    lists = SeenTiles.of(lambda rows: seen[:, rows], queries, keys)
    valid = draw(2, keys, salt=7) > -0.5
    drop = WeightDropout(rate, torch.tensor(5)) if rate else None
    sink = draw(heads, salt=12)
    leaves = [x.detach().requires_grad_() for x in (*inputs, sink)]
    output = softmax_attention(*leaves[:3], Mask(valid=valid), drop, sink=leaves[3], lists=lists)
    found = [output.detach(), *torch.autograd.grad(output, leaves, upstream)]

    wide = [x.detach().double().requires_grad_() for x in leaves]
    key, value = (x.repeat_interleave(2, 1) for x in wide[1:3])
    scores = wide[0] @ key.transpose(-2, -1) / 4.0
    scores = scores.masked_fill(~(seen & valid[:, None, None]), -torch.inf)
    scores = torch.cat([scores, wide[3][:, None, None].expand(2, -1, queries, 1)], -1)
    weights = scores.softmax(-1)[..., :-1]
    expected = (weights if drop is None else drop.apply(weights)) @ value
    right = [expected.detach(), *torch.autograd.grad(expected, wide, upstream.double())]
    assert worst(found, right) < 1e-5
    assert not found[0][:, [0, 2, 3], 64:128].any()


def test_lists_are_made_again_for_another_plan() -> None:
    require_kernels()
    inputs, _ = inputs_of(260, 260, 16, heads=3)
    first, second = (make("bigbird[block=16]", "cpp", 16, heads=3) for _ in range(2))
    second.plan.copy_(second.plan.flip(1))
    expected = second(*inputs, Mask())
    before = first(*inputs, Mask())
    first.load_state_dict(second.state_dict())
    assert torch.equal(first(*inputs, Mask()), expected) and not torch.equal(before, expected)
