"""The compiled path of the CPU kernels, against the eager definition in float64; compilation is kept on disk."""

import pytest
import torch
from error_budget import over_budget, runs
from seeds import seed
from torch import Tensor

from attnbench.variants import build
from attnbench.variants.contract import AttentionShape, Mask
from attnbench.variants.kernels.cpu import build as cpu_build


@pytest.mark.skipif(len(cpu_build.compiler()) != 1, reason="torch.compile needs a C++ compiler here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.soak
@pytest.mark.parametrize("name", ["rela", "entmax15"])
def test_equals_the_eager_definition_forward_and_backward(name: str) -> None:
    """Causal, with keys masked and one sequence without a key; 300 queries are two blocks."""
    shape = AttentionShape(heads=2, head_dim=24, max_length=310, causal=True)
    torch.manual_seed(seed())
    variant, definition = build(f"{name}[impl=compiled]", shape), build(f"{name}[impl=eager]", shape)
    definition.load_state_dict(variant.state_dict())
    valid = torch.rand(3, 310) > 0.3
    valid[1] = False
    drawn = [torch.randn(3, 2, n, 24) for n in (300, 310, 310, 300)]

    def passes(module, inputs: list[Tensor], upstream: Tensor) -> list[Tensor]:
        leaves = [x.detach().requires_grad_() for x in inputs]
        output = module(*leaves, Mask(valid=valid, causal=True))
        return [output, *torch.autograd.grad(output, leaves, upstream)]

    found = passes(variant, drawn[:3], drawn[3])
    assert variant.implementation == "compiled"
    single = runs(lambda x: passes(definition, x, drawn[3]), drawn[:3])
    assert not over_budget(
        found, single, passes(definition.double(), [x.double() for x in drawn[:3]], drawn[3].double())
    )
    assert not found[0][1].any()
