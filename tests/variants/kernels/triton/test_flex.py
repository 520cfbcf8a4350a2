"""FlexAttention against the eager forward."""

from copy import deepcopy

import pytest
import torch
from error_budget import over_budget, runs
from seeds import seed

from attnbench.variants.contract import AttentionShape, Mask
from attnbench.variants.scores.relative import Relative
from attnbench.variants.sparse.local import Local


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "causal"), [("local", False), ("relative", True)])
def test_flex_attention_says_the_same_as_the_eager_forward(name, causal):
    queries = 30
    torch.manual_seed(seed())
    shape = AttentionShape(heads=2, head_dim=16, max_length=32, causal=causal)
    if name == "local":
        variant = Local(shape, query_block=7, flange=5)
    else:
        variant = Relative(shape, clip=3, values=False)
    variant = variant.eval()
    query, key, value = torch.randn(2, 2, queries, 16), torch.randn(2, 2, 40, 16), torch.randn(2, 2, 40, 16)
    valid = torch.ones(2, 40, dtype=torch.bool)
    valid[0, 20:] = valid[1, :22] = False
    with torch.no_grad():
        for mask in (Mask(None, causal), Mask(valid, causal)):
            variant.impl = "flex"
            found = variant(query, key, value, mask)
            assert variant.implementation == "flex"
            variant.impl = "eager"
            single = runs(lambda x, mask=mask: [variant(*x, mask)], [query, key, value])
            double = deepcopy(variant).double()(query.double(), key.double(), value.double(), mask)
            assert not over_budget([found], single, [double])
