"""Dot, general, additive, relative, feedforward and location against explicit loops in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from attnbench.bench.core.errors import SelectionError, Unsupported
from attnbench.variants import AttentionShape, Mask, Variant, build
from attnbench.variants.contract import KeyValueCache
from attnbench.variants.scores import additive
from attnbench.variants.scores.relative import collect, spread

HEADS, DIM = 2, 3
SELECTIONS = [
    "dot",
    "general",
    "additive",
    "additive[hidden=5,bias=true]",
    "additive[hidden=4,normalized=true]",
    "relative[clip=1]",
    "relative[clip=2]",
    "relative[clip=9,values=false]",
    "feedforward",
    "feedforward[hidden=4]",
    "location",
]
Scorer = Callable[[Variant, Tensor, Tensor, int, int, int], float]


def make(selection: str, max_length: int = 8, **shape: Any) -> Any:
    """A float64 variant with every parameter drawn anew, so that no zero or identity of the start hides a mistake."""
    torch.manual_seed(3)
    shape = {"causal": True, "dtype": "float64", **shape}
    variant = build(selection, AttentionShape(heads=HEADS, head_dim=DIM, max_length=max_length, **shape)).double()
    with torch.no_grad():
        for parameter in variant.parameters():
            parameter.normal_()
    return variant


def heads(queries: int, keys: int, batch: int = 2, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    sizes = (queries, keys, keys)
    q, k, v = (torch.randn(batch, HEADS, n, DIM, generator=generator, dtype=torch.float64) for n in sizes)
    return q, k, v


def score_dot(variant: Any, q: Tensor, k: Tensor, h: int, i: int, j: int) -> float:
    return sum(float(a) * float(b) for a, b in zip(q, k, strict=True))


def score_general(variant: Any, q: Tensor, k: Tensor, h: int, i: int, j: int) -> float:
    w = variant.weight[h]
    return sum(float(q[a] * w[a, b] * k[b]) for a in range(DIM) for b in range(DIM))


def score_additive(variant: Any, q: Tensor, k: Tensor, h: int, i: int, j: int) -> float:
    direction = variant.direction[h].tolist()
    if variant.gain is not None:
        norm = math.sqrt(sum(x * x for x in direction))
        direction = [float(variant.gain[h]) * x / norm for x in direction]
    total = 0.0
    for unit, weight in enumerate(direction):
        inner = score_dot(variant, variant.query_weight[h, unit], q, h, i, j)
        inner += score_dot(variant, variant.key_weight[h, unit], k, h, i, j)
        inner += 0.0 if variant.bias is None else float(variant.bias[h, 0, unit])
        total += weight * math.tanh(inner)
    return total


def score_relative(variant: Any, q: Tensor, k: Tensor, h: int, i: int, j: int) -> float:
    row = max(-variant.clip, min(variant.clip, j - i)) + variant.clip
    return score_dot(variant, q, k + variant.key_table[row], h, i, j) / math.sqrt(DIM)


def score_feedforward(variant: Any, q: Tensor, k: Tensor, h: int, i: int, j: int) -> float:
    return sum(
        float(variant.direction[h, unit, 0])
        * math.tanh(score_dot(variant, variant.weight[h, unit], k, h, i, j) + float(variant.bias[h, 0, unit]))
        for unit in range(variant.weight.shape[1])
    )


def score_location(variant: Any, q: Tensor, k: Tensor, h: int, i: int, j: int) -> float:
    return score_dot(variant, variant.positions[h, j], q, h, i, j)


SCORERS: dict[str, Scorer] = {
    "dot": score_dot,
    "general": score_general,
    "additive": score_additive,
    "relative": score_relative,
    "feedforward": score_feedforward,
    "location": score_location,
}


def attend_by_loops(selection: str, variant: Any, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
    """Output and weights, one pair at a time."""
    name = selection.partition("[")[0]
    queries, keys = q.shape[2], k.shape[2]
    output, weights = torch.zeros_like(q), q.new_zeros(*q.shape[:3], keys)
    for b in range(q.shape[0]):
        for h in range(HEADS):
            for row in range(queries):
                i = row + (keys - queries if mask.causal else 0)
                seen = [
                    j for j in range(keys) if (mask.keep is None or mask.keep[b, j]) and (not mask.causal or j <= i)
                ]
                if not seen:
                    continue
                powers = [math.exp(SCORERS[name](variant, q[b, h, row], k[b, h, j], h, i, j)) for j in seen]
                for j, power in zip(seen, powers, strict=True):
                    share = power / sum(powers)
                    added = v[b, h, j]
                    if name == "relative" and variant.value_table is not None:
                        added = added + variant.value_table[max(-variant.clip, min(variant.clip, j - i)) + variant.clip]
                    weights[b, h, row, j] = share
                    output[b, h, row] += share * added
    return output, weights


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (1, 1), (3, 7), (7, 4)])
@pytest.mark.parametrize("selection", SELECTIONS)
@torch.no_grad()
def test_output_and_weights_equal_explicit_loops(
    selection: str, queries: int, keys: int, causal: bool, padded: bool
) -> None:
    variant = make(selection)
    q, k, v = heads(queries, keys)
    keep = torch.ones(2, keys, dtype=torch.bool)
    keep[0, -1] = False  # one sequence ends early, the other begins late
    keep[1, : keys // 2] = False
    mask = Mask(keep if padded else None, causal)
    output, weights = attend_by_loops(selection, variant, q, k, v, mask)
    torch.testing.assert_close(variant(q, k, v, mask), output, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(variant.weights(q, k, mask), weights, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("selection", SELECTIONS)
@torch.no_grad()
def test_weights_of_some_rows_are_those_rows_of_all_weights(selection: str) -> None:
    variant = make(selection)
    q, k, _ = heads(4, 7)
    mask = Mask(torch.tensor([[True] * 6 + [False], [False] * 2 + [True] * 5]), causal=True)
    whole = variant.weights(q, k, mask)
    for rows in (slice(0, 1), slice(1, 3), slice(3, 4), slice(2, None)):
        torch.testing.assert_close(variant.weights(q, k, mask, rows), whole[:, :, rows], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("selection", SELECTIONS)
def test_gradients_of_inputs_and_of_every_parameter_agree_with_finite_differences(selection: str) -> None:
    variant = make(selection, max_length=4)
    q, k, v = (x.requires_grad_() for x in heads(3, 4))
    mask = Mask(torch.tensor([[True, True, True, False], [False] * 4]), causal=True)
    names = [name for name, _ in variant.named_parameters()]

    def forward(q: Tensor, k: Tensor, v: Tensor, *parameters: Tensor) -> Tensor:
        own = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(variant, own, (q, k, v, mask))

    assert torch.autograd.gradcheck(forward, (q, k, v, *variant.parameters()))


@pytest.mark.parametrize("selection", SELECTIONS)
def test_what_a_variant_ignores_gets_no_gradient_and_all_else_gets_some(selection: str) -> None:
    variant = make(selection)
    inputs = dict(zip(("query", "key", "value"), (x.requires_grad_() for x in heads(4, 4)), strict=True))
    output = variant(*inputs.values(), Mask())
    loss = (output * torch.randn_like(output)).sum()
    gradients = torch.autograd.grad(loss, list(inputs.values()), allow_unused=True)
    reached = {name for name, g in zip(inputs, gradients, strict=True) if g is not None and g.abs().max() > 0}
    assert reached == set(inputs) - variant.ignores


@pytest.mark.parametrize("selection", SELECTIONS)
@torch.no_grad()
def test_decoded_outputs_equal_the_parallel_ones_and_the_state_has_the_declared_bytes(selection: str) -> None:
    length = 8
    variant = make(selection, max_length=length)
    q, k, v = heads(length, length, batch=1)
    state: Any = None
    outputs = []
    for t in range(length):
        output, state = variant.step(q[:, :, t : t + 1], k[:, :, t : t + 1], v[:, :, t : t + 1], state)
        outputs.append(output)
    torch.testing.assert_close(torch.cat(outputs, 2), variant(q, k, v, Mask(causal=True)), rtol=1e-12, atol=1e-12)
    if isinstance(state, KeyValueCache):
        held = [state.key[:, :, : state.length], state.value[:, :, : state.length]]
    else:
        held = [state.logits, state.values]
    assert variant.state_bytes(variant.shape) == sum(x.numel() * x.element_size() for x in held)


@pytest.mark.parametrize("selection", SELECTIONS)
@torch.no_grad()
def test_a_decoded_token_drops_as_the_parallel_one_does(selection: str) -> None:
    variant = make(selection, dropout=0.5)
    q, k, v = heads(1, 1, batch=20)
    torch.manual_seed(1)
    stepped, _ = variant.step(q, k, v)
    torch.manual_seed(1)
    torch.testing.assert_close(stepped, variant(q, k, v, Mask(causal=True)))
    assert not torch.equal(stepped, variant.eval()(q, k, v, Mask(causal=True)))


@pytest.mark.parametrize("selection", SELECTIONS)
@torch.no_grad()
def test_the_future_changes_nothing_before_it(selection: str) -> None:
    variant = make(selection, max_length=40)
    q, k, v = heads(40, 40)
    before = variant(q, k, v, Mask(causal=True))
    k[:, :, 35:], v[:, :, 35:], q[:, :, 35:] = 50.0, -1e6, 9.0
    after = variant(q, k, v, Mask(causal=True))
    assert torch.equal(before[:, :, :35], after[:, :, :35])
    assert not torch.equal(before[:, :, 35:], after[:, :, 35:])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("selection", SELECTIONS)
def test_a_sequence_of_padding_gives_zeros_and_zero_gradients(selection: str, causal: bool) -> None:
    variant = make(selection)
    q, k, v = (x.requires_grad_() for x in heads(4, 4))
    keep = torch.tensor([[True] * 4, [False] * 4])
    output = variant(q, k, v, Mask(keep, causal))
    assert (output[1] == 0).all()
    output.square().sum().backward()
    for x in (q, k, v):
        assert x.grad is None or (x.grad[1] == 0).all()
    assert all(torch.isfinite(p.grad).all() for p in variant.parameters())


@pytest.mark.parametrize("selection", SELECTIONS)
@torch.no_grad()
def test_half_precision_inputs_cost_one_rounding_of_weights_and_outputs(selection: str) -> None:
    exact = make(selection, max_length=64)
    q, k, v = (x.bfloat16() for x in heads(64, 64))
    output = exact(q.double(), k.double(), v.double(), Mask(causal=True))
    rounded = exact.float()(q, k, v, Mask(causal=True))
    assert rounded.dtype == torch.bfloat16
    weights = exact.weights(q, k, Mask(causal=True))
    assert weights.dtype == torch.float32
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, HEADS, 64), rtol=1e-5, atol=1e-5)
    bound = 2**-8 * (v.double().abs().amax() + output.abs().amax())
    assert (rounded.double() - output).abs().max() < bound


@torch.no_grad()
def test_dot_is_the_softmax_of_pytorch_without_its_scale() -> None:
    q, k, v = heads(6, 6)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)
    torch.testing.assert_close(make("dot")(q, k, v, Mask(causal=True)), expected)


@torch.no_grad()
def test_general_starts_at_scaled_dot_product_softmax() -> None:
    q, k, v = (x.float() for x in heads(6, 6))
    variant = build("general", AttentionShape(heads=HEADS, head_dim=DIM, max_length=6))
    torch.testing.assert_close(variant(q, k, v, Mask()), F.scaled_dot_product_attention(q, k, v))


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 5), st.integers(1, 200), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_additive_scores_and_gradients_do_not_depend_on_the_tiles(
    queries: int, keys: int, hidden: int, room: int, seed: int
) -> None:
    torch.manual_seed(seed)
    a = torch.randn(2, 3, queries, hidden, dtype=torch.float64, requires_grad=True)
    b = torch.randn(2, 3, keys, hidden, dtype=torch.float64, requires_grad=True)
    w = torch.randn(3, hidden, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(2, 3, queries, keys, dtype=torch.float64)
    expected = ((a[:, :, :, None] + b[:, :, None]).tanh() * w[:, None, None]).sum(-1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(additive, "_TILE_ON_CPU", room)
        scores = additive.AdditiveScores.apply(a, b, w)
        gradients = torch.autograd.grad(scores, (a, b, w), upstream)
    torch.testing.assert_close(scores, expected)
    torch.testing.assert_close(gradients, torch.autograd.grad(expected, (a, b, w), upstream))


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, operation: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        result = operation(*arguments, **(keywords or {}))
        made = result if isinstance(result, tuple | list) else [result]
        for tensor in made:
            if isinstance(tensor, Tensor):
                # a view that repeats one number a thousand times holds one number
                held = tensor.untyped_storage().nbytes() // tensor.element_size()
                self.elements = max(self.elements, held)
        return result


def largest_of_a_training_step(variant: Variant, length: int) -> int:
    shape = variant.shape
    q, k, v = (torch.randn(1, shape.heads, length, shape.head_dim, requires_grad=True) for _ in range(3))
    with Largest() as largest:
        variant(q, k, v, Mask(causal=True)).sum().backward()
    assert all(p.grad is not None for p in variant.parameters())
    return largest.elements


def test_additive_never_holds_all_pairs_times_the_hidden_size() -> None:
    length, hidden = 600, 16
    variant = build("additive[hidden=16]", AttentionShape(heads=1, head_dim=8, max_length=length, causal=True))
    largest = largest_of_a_training_step(variant, length)
    assert largest == length * length  # the scores themselves, and 16 times less than the naive tensor
    assert additive._TILE_ON_CPU < length * length < length * length * hidden


@pytest.mark.parametrize(("selection", "elements"), [("relative", 600 * 600), ("feedforward", 608 * 33)])
def test_no_tensor_is_larger_than_the_mechanism_needs(selection: str, elements: int) -> None:
    variant = build(selection, AttentionShape(heads=1, head_dim=32, max_length=600, causal=True))
    assert largest_of_a_training_step(variant, 600) <= elements + 64 * 600


@given(st.floats(0.01, 100))
@settings(max_examples=20, deadline=None)
@torch.no_grad()
def test_normalized_additive_scores_do_not_depend_on_the_length_of_w(scale: float) -> None:
    variant = make("additive[normalized=true]")
    assert variant.bias is not None  # part of that form
    q, k, _ = heads(4, 4)
    before = variant.score(q, k)
    variant.direction *= scale
    torch.testing.assert_close(variant.score(q, k), before)


@pytest.mark.parametrize(("row", "wanted"), [(0, "far past"), (3, "next"), (2, "own")])
@torch.no_grad()
def test_rows_of_the_relative_tables_run_from_the_far_past_to_the_far_future(row: int, wanted: str) -> None:
    variant = make("relative[clip=2]", causal=False)
    variant.key_table.zero_()
    variant.key_table[row] = 1e3
    q, k = torch.ones(1, HEADS, 6, DIM, dtype=torch.float64), torch.zeros(1, HEADS, 6, DIM, dtype=torch.float64)
    seen = variant.weights(q, k, Mask())[0, 0, 3]
    expected = {"far past": [0.5, 0.5, 0, 0, 0, 0], "next": [0, 0, 0, 0, 1, 0], "own": [0, 0, 0, 1, 0, 0]}[wanted]
    torch.testing.assert_close(seen, torch.tensor(expected, dtype=torch.float64))


@given(st.integers(1, 9), st.integers(1, 9), st.integers(-9, 12), st.integers(1, 12))
@settings(max_examples=80, deadline=None)
def test_spread_and_collect_are_adjoint_and_sum_each_pair_once(queries: int, keys: int, first: int, clip: int) -> None:
    generator = torch.Generator().manual_seed(queries * 100 + keys)
    buckets = torch.randn(1, 1, queries, 2 * clip + 1, generator=generator, dtype=torch.float64)
    pairs = torch.randn(1, 1, queries, keys, generator=generator, dtype=torch.float64)
    expected_pairs, expected_buckets = torch.zeros_like(pairs), torch.zeros_like(buckets)
    for i in range(queries):
        for j in range(keys):
            row = max(-clip, min(clip, j - i - first)) + clip
            expected_pairs[..., i, j] = buckets[..., i, row]
            expected_buckets[..., i, row] += pairs[..., i, j]
    assert torch.equal(spread(buckets, first, keys), expected_pairs)
    torch.testing.assert_close(collect(pairs, first, clip), expected_buckets)
    torch.testing.assert_close((spread(buckets, first, keys) * pairs).sum(), (buckets * expected_buckets).sum())


def test_dropout_of_relative_falls_on_the_weights_of_both_sums() -> None:
    variant = make("relative[clip=2]", dropout=0.5)
    q, k, v = heads(6, 6)
    torch.manual_seed(11)
    dropped = F.dropout(variant.weights(q, k, Mask()), 0.5)
    expected = torch.zeros_like(q)
    for i in range(6):
        for j in range(6):
            added = v[:, :, j] + variant.value_table[max(-2, min(2, j - i)) + 2]
            expected[:, :, i] += dropped[:, :, i, j, None] * added
    torch.manual_seed(11)
    torch.testing.assert_close(variant(q, k, v, Mask()), expected)


@pytest.mark.parametrize("causal", [False, True])
@torch.no_grad()
def test_dropout_of_feedforward_keeps_the_mean(causal: bool) -> None:
    variant = make("feedforward", dropout=0.4)
    q, k, v = heads(6, 6)
    plain = variant.eval()(q, k, v, Mask(causal=causal))
    variant.train()
    draws = torch.stack([variant(q, k, v, Mask(causal=causal)) for _ in range(4000)])
    assert (draws.mean(0) - plain).abs().max() < 6 * (draws.std(0).max() / 4000**0.5)


@torch.no_grad()
def test_dropout_of_feedforward_drops_a_key_whole_and_for_all_queries() -> None:
    variant = make("feedforward", dropout=0.4)
    q, k, v = heads(6, 6)
    pooled = variant(q, k, v, Mask())
    assert torch.equal(pooled, pooled[:, :, :1].expand_as(pooled))
    assert not torch.equal(pooled, variant(q, k, v, Mask()))
    # the first query sees one key, with weight 1: dropped, or scaled by 1 / 0.6
    first = torch.stack([variant(q, k, v, Mask(causal=True))[:, :, 0] / v[:, :, 0] for _ in range(50)])
    torch.testing.assert_close(first.unique().sort().values[[0, -1]], torch.tensor([0.0, 1 / 0.6]).double())
    assert torch.equal(first == 0, (first == 0).all(-1, keepdim=True).expand_as(first))


def test_location_refuses_positions_that_it_has_no_weights_for() -> None:
    variant = make("location", max_length=5)
    assert variant.supports(AttentionShape(heads=HEADS, head_dim=DIM, max_length=5)) is None
    assert "5 positions, not for 6" in variant.supports(AttentionShape(heads=HEADS, head_dim=DIM, max_length=6))
    with pytest.raises(Unsupported, match="at most 5 keys, got 6"):
        variant(*heads(6, 6), Mask())


@pytest.mark.parametrize("selection", ["additive[hidden=0]", "feedforward[hidden=-1]", "relative[clip=0]"])
def test_sizes_below_one_are_refused_with_what_was_expected(selection: str) -> None:
    with pytest.raises(SelectionError, match="at least 1, got"):
        build(selection, AttentionShape(heads=1, head_dim=4, max_length=4))


def test_feedforward_declares_that_it_scores_each_key_once() -> None:
    shape = AttentionShape(heads=1, head_dim=4, max_length=9)
    causal = AttentionShape(heads=1, head_dim=4, max_length=9, causal=True)
    variant = build("feedforward", shape)
    assert variant.density(shape) == 9 / 81
    assert variant.density(causal) == 9 / 45
