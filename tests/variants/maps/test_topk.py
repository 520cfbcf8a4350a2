"""topk against sorted rows."""

import math

import pytest
import torch
from cpu_kernels import make, passes, require_kernels
from map_cases import draw, variant

from attnbench.bench.core.errors import SelectionError
from attnbench.variants.contract import Mask


def test_topk_keeps_ties_and_is_softmax_for_few_keys() -> None:
    tied = torch.tensor([[[[2.0, 1.0, 1.0, 1.0, 0.0]]]])
    assert (variant("topk[k=2]").weigh(tied, None) > 0).tolist() == [[[[True, True, True, True, False]]]]
    scores = draw(2, 2, 6, 9)
    allowed = (torch.arange(9) % 2 == 0)[None, None, None]
    expected = scores.masked_fill(~allowed, -math.inf).softmax(-1)
    torch.testing.assert_close(variant("topk[k=5]").weigh(scores, allowed), expected)
    torch.testing.assert_close(variant("topk").weigh(scores, allowed), expected)
    with pytest.raises(SelectionError, match="k to be int from 1 to 1,048,576, got 0"):
        variant("topk[k=0]")


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("k", [1, 7, 32, 200])
def test_fused_topk_keeps_the_ties_of_whole_numbers(k: int, dropout: float) -> None:
    """Products of whole numbers are exact, and many tie; a scale of 1 / sqrt(20) inside the product would part them."""
    require_kernels()
    generator = torch.Generator().manual_seed(3)
    inputs = [torch.randint(-2, 3, (2, 2, 150, 20), generator=generator).float() for _ in range(3)]
    upstream = draw(2, 2, 150, 20).float()
    found = passes(make(f"topk[k={k}]", "cpp", 20, 2, dropout), inputs, upstream, Mask(causal=True))
    wide = [x.double() for x in inputs]
    definition = make(f"topk[k={k}]", "eager", 20, 2, dropout).double()
    for a, b in zip(found, passes(definition, wide, upstream.double(), Mask(causal=True)), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=0, atol=2e-6 * float(b.abs().max()))
