"""softmax1 against sums of exponentials."""

import math

import pytest
import torch
from map_cases import inputs

from attnbench.variants.contract import AttentionShape, Mask
from attnbench.variants.maps.softmax1 import Softmax1


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sink", ["zero", "learned"])
def test_the_sink_is_one_more_term_of_each_sum(sink: str, causal: bool) -> None:
    query, key, _ = inputs()
    shape = AttentionShape(heads=2, head_dim=query.shape[-1], max_length=7, causal=causal)
    model = Softmax1(shape, sink=sink).double()  # type: ignore[arg-type]
    scores_of_sink = [0.0, 0.0]
    if model.sink is not None:
        scores_of_sink = [-1.5, 2.0]
        model.sink.data.copy_(torch.tensor(scores_of_sink))
    valid = torch.arange(7) < torch.tensor([7, 4, 2])[:, None]
    found = model.weights(query.double(), key.double(), Mask(valid=valid, causal=causal))
    for b, length in enumerate((7, 4, 2)):
        for h in range(2):
            for i in range(length):
                last = i + 1 if causal else length
                scores = (query[b, h, i] @ key[b, h, :last].T / query.shape[-1] ** 0.5).tolist()
                total = sum(math.exp(s) for s in scores) + math.exp(scores_of_sink[h])
                assert found[b, h, i, :last].tolist() == pytest.approx([math.exp(s) / total for s in scores], rel=1e-5)
    assert (found[~valid[:, None, None, :].expand_as(found)] == 0).all()


def test_scores_of_any_size_keep_finite_weights_and_gradients() -> None:
    model = Softmax1(AttentionShape(heads=1, head_dim=4, max_length=3))
    scores = torch.tensor([[1e4, 0.0, 1e4], [-1e4, -1e4, -1e4], [-1e4, 90.0, 0.0]], requires_grad=True)
    weights = model.weigh(scores, None)
    expected = torch.tensor([[0.5, 0, 0.5], [0, 0, 0], [0, 1, 0]])
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-6)
    assert torch.autograd.grad(weights.square().sum(), scores)[0].isfinite().all()
    # a row without a key
    assert (model.weigh(scores, torch.zeros(3, 3, dtype=torch.bool)) == 0).all()
