"""Whether the maps from scores to weights see a constant."""

import pytest
import torch
from map_cases import draw, variant

from attnbench.bench.core.errors import SelectionError


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
        with pytest.raises(SelectionError, match=r"alpha to be float from 1 to .* got 0.5"):
            variant(name)
