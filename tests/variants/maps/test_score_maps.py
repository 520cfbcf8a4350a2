"""The other maps from scores to weights: squared ReLU, sigmoid, top-k, scalable softmax and ASEntmax."""

import math

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from attnbench.bench.core.errors import SelectionError
from attnbench.variants import build
from attnbench.variants.contract import AttentionShape, Mask
from attnbench.variants.ops.entmax import entmax, entmax15

NAMES = [
    "relu-squared",
    "relu-squared[power=0]",
    "sigmoid",
    "sigmoid[bias=-2.0]",
    "topk[k=3]",
    "scalable-softmax",
    "asentmax",
    "asentmax[form=head]",
    "asentmax[alpha=2,delta=0.5]",
]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def variant(name: str, causal: bool = True):
    torch.manual_seed(0)
    return build(name, AttentionShape(heads=2, head_dim=4, max_length=16, causal=causal)).double()


def inputs(queries: int = 7, keys: int = 7) -> tuple[Tensor, Tensor, Tensor]:
    return draw(3, 2, queries, 4), draw(3, 2, keys, 4, seed=1), draw(3, 2, keys, 4, seed=2)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("causal", [False, True])
def test_weights_are_zero_outside_the_mask_and_rows_without_keys_are_dead(name: str, causal: bool) -> None:
    model = variant(name, causal)
    query, key, value = (t.requires_grad_() for t in inputs())
    mask = Mask(keep=torch.arange(7) < torch.tensor([7, 4, 0])[:, None], causal=causal)
    weights = model.weights(query, key, mask)
    assert not weights[~mask.allowed(7, 7, query.device).expand_as(weights)].any()
    assert (weights >= 0).all() and weights[:2].any()
    output = model(query, key, value, mask)
    assert not output[2].any()
    gradients = torch.autograd.grad(output.square().sum(), [query, key, value, *model.parameters()])
    assert all(g.isfinite().all() for g in gradients)
    assert not any(g[2].any() for g in gradients[:3])


@pytest.mark.parametrize("name", NAMES)
def test_steps_equal_the_whole_and_the_future_changes_nothing(name: str) -> None:
    model = variant(name)
    query, key, value = inputs()
    whole = model(query, key, value, Mask(causal=True))
    state, steps = None, []
    for i in range(7):
        output, state = model.step(*(t[:, :, i : i + 1] for t in (query, key, value)), state)
        steps.append(output)
    torch.testing.assert_close(torch.cat(steps, 2), whole)
    torch.testing.assert_close(model(*(t[:, :, :4] for t in (query, key, value)), Mask(causal=True)), whole[:, :, :4])
    torch.testing.assert_close(model(query[:, :, 5:], key, value, Mask(causal=True)), whole[:, :, 5:])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_changes_nothing(name: str, causal: bool, side: str) -> None:
    model = variant(name, causal)
    query, key, value = inputs()
    short = model(query, key, value, Mask(causal=causal))
    ends = (0, 0, 0, 5) if side == "right" else (0, 0, 5, 0)
    real = slice(0, 7) if side == "right" else slice(5, 12)
    padded = [torch.nn.functional.pad(t, ends, value=9.0) for t in (query, key, value)]
    keep = torch.zeros(3, 12, dtype=torch.bool)
    keep[:, real] = True
    torch.testing.assert_close(model(*padded, Mask(keep=keep, causal=causal))[:, :, real], short)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_the_derivatives(name: str) -> None:
    model = variant(name)
    query, key, value = (t[:1].requires_grad_() for t in inputs(4, 4))
    parameters = list(model.parameters())
    assert gradcheck(lambda *_: model(query, key, value, Mask(causal=True)), (query, key, value, *parameters))


def test_relu_squared_divides_by_the_keys_it_may_see() -> None:
    query, key, _ = inputs()
    scores = query @ key.transpose(-2, -1) / 2
    squares = scores.clamp(min=0) ** 2
    torch.testing.assert_close(variant("relu-squared", False).weights(query, key, Mask()), squares / 7)
    torch.testing.assert_close(variant("relu-squared[power=0]", False).weights(query, key, Mask()), squares)
    seen = torch.arange(1, 8, dtype=torch.float64)[:, None]
    halved = variant("relu-squared[power=0.5]").weights(query, key, Mask(causal=True))
    torch.testing.assert_close(halved, squares.tril() / seen.sqrt())


def test_sigmoid_biases_by_minus_log_of_the_keys() -> None:
    query, key, _ = inputs()
    scores = query @ key.transpose(-2, -1) / 2
    found = variant("sigmoid").weights(query, key, Mask(causal=True))
    for i in range(7):
        expected = 1 / (1 + (i + 1) * torch.exp(-scores[:, :, i, : i + 1]))
        torch.testing.assert_close(found[:, :, i, : i + 1], expected)
    zero = torch.zeros(1, 2, 500, 4)
    start = variant("sigmoid", False).float().weights(zero, zero, Mask())
    assert start.sum(-1).sub(1).abs().max() < 0.01, "equal scores start with sums near one"
    fixed = variant("sigmoid[bias=-2.0]", False).weights(query, key, Mask())
    torch.testing.assert_close(fixed, torch.sigmoid(scores - 2))


def test_topk_is_softmax_over_the_highest() -> None:
    scores = draw(2, 2, 6, 9)
    found = variant("topk[k=3]").weigh(scores, None)
    for row, weights in zip(scores.flatten(0, -2).tolist(), found.flatten(0, -2).tolist(), strict=True):
        best = sorted(range(9), key=lambda j: -row[j])[:3]
        total = sum(math.exp(row[j]) for j in best)
        expected = [math.exp(row[j]) / total if j in best else 0.0 for j in range(9)]
        assert weights == pytest.approx(expected, abs=1e-12)


def test_topk_keeps_ties_and_is_softmax_for_few_keys() -> None:
    tied = torch.tensor([[[[2.0, 1.0, 1.0, 1.0, 0.0]]]])
    assert (variant("topk[k=2]").weigh(tied, None) > 0).tolist() == [[[[True, True, True, True, False]]]]
    scores = draw(2, 2, 6, 9)
    allowed = (torch.arange(9) % 2 == 0)[None, None, None]
    expected = scores.masked_fill(~allowed, -math.inf).softmax(-1)
    torch.testing.assert_close(variant("topk[k=5]").weigh(scores, allowed), expected)
    torch.testing.assert_close(variant("topk").weigh(scores, allowed), expected)
    with pytest.raises(SelectionError, match="k of 1 or more, got 0"):
        variant("topk[k=0]").weigh(scores, None)


@pytest.mark.parametrize("causal", [False, True])
def test_scalable_softmax_raises_the_number_of_keys_to_the_scores(causal: bool) -> None:
    model = variant("scalable-softmax", causal)
    assert model.slope.shape == (2,) and (model.slope - 1).abs().max() < 0.1
    query, key, _ = inputs()
    keep = torch.arange(7) < torch.tensor([7, 4, 2])[:, None]
    found = model.weights(query, key, Mask(keep=keep, causal=causal))
    for b, length in enumerate((7, 4, 2)):
        for h in range(2):
            for i in range(length):
                last, n = (i + 1, i + 2) if causal else (length, length)
                scores = (query[b, h, i] @ key[b, h, :last].T / 2).tolist()
                powers = [n ** (model.slope[h].item() * s) for s in scores]
                assert found[b, h, i, :last].tolist() == pytest.approx([p / sum(powers) for p in powers])


def test_asentmax_scales_by_query_and_length() -> None:
    query, key, _ = inputs()
    scores = query @ key.transpose(-2, -1) / 2
    logs = torch.log(torch.arange(2, 9, dtype=torch.float64))[:, None]
    past = torch.ones(7, 7, dtype=torch.bool).tril()

    free = variant("asentmax[form=head]")
    assert (free.beta >= 0.1).all() and (free.beta <= 1).all() and free.gamma.shape == (2,)
    factor = 1 + free.beta[:, None, None] * logs ** free.gamma[:, None, None]
    expected = entmax15((scores * factor).masked_fill(~past, -math.inf))
    torch.testing.assert_close(free.weights(query, key, Mask(causal=True)), expected)

    own = variant("asentmax[alpha=2,delta=0.5,gamma_range=3]")
    beta = torch.log1p(torch.einsum("bhqd,hd->bhq", query, own.beta).exp())[..., None]
    gamma = 3 * torch.einsum("bhqd,hd->bhq", query, own.gamma).tanh()[..., None]
    expected = entmax((scores * (0.5 + beta * logs**gamma)).masked_fill(~past, -math.inf), 2.0)
    torch.testing.assert_close(own.weights(query, key, Mask(causal=True)), expected)
    torch.testing.assert_close(own.weights(query, key, Mask(causal=True), slice(2, 4)), expected[:, :, 2:4])


@pytest.mark.parametrize("name", ["topk[k=3]", "scalable-softmax", "asentmax"])
def test_maps_onto_the_simplex_do_not_see_a_constant(name: str) -> None:
    model, scores = variant(name), draw(2, 2, 5, 7)
    torch.testing.assert_close(model.weigh(scores + 3.0, None), model.weigh(scores, None))
    torch.testing.assert_close(model.weigh(scores, None).sum(-1), torch.ones(2, 2, 5, dtype=torch.float64))


@pytest.mark.parametrize("name", ["relu-squared", "sigmoid"])
def test_maps_off_the_simplex_do_see_a_constant(name: str) -> None:
    model, scores = variant(name), draw(2, 2, 5, 7)
    assert (model.weigh(scores + 3.0, None) - model.weigh(scores, None)).abs().amax(-1).min() > 0.1
    assert (model.weigh(scores, None).sum(-1) - 1).abs().max() > 1e-2


def test_a_wrong_alpha_is_refused() -> None:
    for name in ("asentmax[alpha=0.5]", "entmax[alpha=0.5]"):
        with pytest.raises(SelectionError, match=r"alpha of 1 or more.* got 0.5"):
            variant(name)
