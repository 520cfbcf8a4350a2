"""Calls that every variant has to take: one row of a mask for all sequences, and a call inside autocast."""

import pytest
import torch
from seeds import seed

from attnbench.bench.core.registry import VARIANTS
from attnbench.variants import AttentionShape, Mask, build
from attnbench.variants.contract import Unsupported

LENGTH, HEADS, HEAD_DIM = 20, 2, 8
NAMES = [entry.name for entry in VARIANTS.entries()]


def of(name, causal):
    """The variant, drawn alike each time; skips where it cannot do the shape."""
    torch.manual_seed(seed(3))
    try:
        return build(name, AttentionShape(heads=HEADS, head_dim=HEAD_DIM, max_length=LENGTH, causal=causal)).eval()
    except Unsupported as error:
        pytest.skip(str(error))


def inputs(dtype=torch.float32):
    draw = torch.Generator().manual_seed(seed(5))
    return [torch.randn(3, HEADS, LENGTH, HEAD_DIM, generator=draw).to(dtype).requires_grad_() for _ in range(3)]


def passes(variant, given, mask, lowered=None):
    """Output and gradients; zeros for an input that it ignores. `lowered`: dtype of an autocast around the call."""
    width = variant.shape.hidden_width
    # numbers of bfloat16 in any dtype: keys that are chosen by them are the same
    hidden = torch.randn(3, LENGTH, width, generator=torch.Generator().manual_seed(seed(6))).bfloat16()
    hidden = hidden.to(given[0].dtype)
    with torch.autocast("cpu", lowered or torch.bfloat16, enabled=lowered is not None):
        output = variant(*given, mask, hidden)
    gradients = torch.autograd.grad(output.sum(), given, allow_unused=True, materialize_grads=True)
    return [output.detach(), *gradients]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_one_row_of_a_mask_counts_for_every_sequence(name, causal):
    variant = of(name, causal)
    row = torch.arange(LENGTH)[None] < 15
    found, expected = (passes(variant, inputs(), Mask(valid, causal)) for valid in (row, row.expand(3, -1).clone()))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", [*NAMES, "rela[impl=eager]", "softmax[impl=eager]"])
def test_autocast_changes_no_number(name):
    variant = of(name, False)
    # large products leave the range of float16, which autocast would compute them in
    for factor in (1.0, 300.0):
        given = [(x.detach() * factor).requires_grad_() for x in inputs()]
        expected = passes(variant, given, Mask())
        for lowered in (torch.bfloat16, torch.float16):
            found = passes(variant, given, Mask(), lowered)
            for a, b in zip(found, expected, strict=True):
                torch.testing.assert_close(a, b, equal_nan=True)


@pytest.mark.parametrize("name", NAMES)
def test_inputs_that_autocast_lowered_meet_parameters_that_it_did_not(name):
    variant = of(name, False)
    given = inputs(torch.bfloat16)
    output, *gradients = passes(variant, given, Mask(), torch.bfloat16)
    exact, *_ = passes(variant, [x.detach().float().requires_grad_() for x in given], Mask())
    assert output.dtype == torch.bfloat16 and all(g.isfinite().all() for g in gradients)
    assert (output.float() - exact).abs().max() <= 0.1 * exact.abs().max()
