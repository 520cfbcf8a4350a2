"""What the call of a variant sees to, on a few of them: one row of a mask, autocast; and scores of zero."""

import sys
from pathlib import Path

import pytest
import torch
from error_budget import relative_error
from seeds import seed

import attnbench
from attnbench.bench.core.registry import VARIANTS
from attnbench.bench.core.spec import Spec
from attnbench.variants import AttentionShape, Mask, build
from attnbench.variants.contract import Unsupported

LENGTH, HEADS, HEAD_DIM = 20, 2, 8
NAMES = [entry.name for entry in VARIANTS.entries()]
# a product of PyTorch's, operators of its own, a recurrence over the hidden state, chunks
FEW = ["softmax", "rela[impl=eager]", "delta", "local"]


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


@pytest.mark.parametrize("name", [*FEW, "reformer", "routing"])
def test_one_row_of_a_mask_counts_for_every_sequence(name):
    variant = of(name, True)
    row = torch.arange(LENGTH)[None] < 15
    found, expected = (passes(variant, inputs(), Mask(valid, True)) for valid in (row, row.expand(3, -1).clone()))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", FEW)
def test_autocast_changes_no_number(name):
    variant = of(name, name == "delta")
    # large products leave the range of float16, which autocast would compute them in
    for factor in (1.0, 300.0):
        given = [(x.detach() * factor).requires_grad_() for x in inputs()]
        mask = Mask(causal=variant.shape.causal)
        expected = passes(variant, given, mask)
        for lowered in (torch.bfloat16, torch.float16):
            found = passes(variant, given, mask, lowered)
            for a, b in zip(found, expected, strict=True):
                torch.testing.assert_close(a, b, equal_nan=True)


@pytest.mark.parametrize("name", FEW)
def test_autocast_changes_no_number_of_decoding(name):
    variant = of(name, True)
    given, found = [x.detach() for x in inputs()], {}
    hidden = torch.randn(3, LENGTH, variant.shape.hidden_width, generator=torch.Generator().manual_seed(seed(6)))
    for lowered in (None, torch.bfloat16, torch.float16):
        state, outputs = None, []
        for at in range(9):
            now = [x[:, :, at : at + 1] for x in given]
            with torch.no_grad(), torch.autocast("cpu", lowered or torch.bfloat16, enabled=lowered is not None):
                output, state = variant.step_with(*now, state, hidden[:, at : at + 1])
            outputs.append(output)
        found[lowered] = torch.cat(outputs, 2)
    for lowered in (torch.bfloat16, torch.float16):
        torch.testing.assert_close(found[lowered], found[None], rtol=0, atol=0)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["softmax", "rela", "rela[norm=head]", "rela[gated=false]", "entmax15"])
def test_scores_of_exactly_zero_give_what_the_eager_definition_gives_in_float64(name, causal):
    """Rounding must make no small score of none: what divides by a sum of weights would show it, or a norm."""
    variant = of(name, causal)
    spec = Spec.parse(name)
    eager = str(Spec.of(spec.name, **(dict(spec.parameters) | {"impl": "eager"})))
    twin = build(eager, variant.shape).eval()
    twin.load_state_dict(variant.state_dict())
    query, key, value = (x.detach() for x in inputs())
    # whole numbers (a, b, a + b, …) by (c, c, -c, …): a sum of exactly nothing, but for whoever scales a factor first
    query, key = (torch.randint_like(x, -9, 10) for x in (query, key))
    for first in range(0, HEAD_DIM - 2, 3):
        query[..., first + 2] = query[..., first] + query[..., first + 1]
        key[..., first + 1], key[..., first + 2] = key[..., first], -key[..., first]
    query[..., first + 3 :] = 0

    def run(of, dtype=torch.float32):
        return passes(of, [x.to(dtype).requires_grad_() for x in (query, key, value)], Mask(causal=causal))

    for found, exact in zip(run(variant), run(twin.double(), torch.float64), strict=True):
        # a row made of rounding would be as large as any other
        assert relative_error(found, exact) < 1e-3


@pytest.mark.parametrize("name", ["entmax[alpha=1.3]", "entmax[alpha=1.7,impl=eager]"])
def test_alpha_keeps_its_digits_under_float64(name):
    """Kept in float32 it would move the weights by a hundred millionth."""
    shape = AttentionShape(heads=HEADS, head_dim=HEAD_DIM, max_length=LENGTH, dtype="float64")
    query, key, value = (x.detach() for x in inputs(torch.float64))
    alpha = float(dict(Spec.parse(name).parameters)["alpha"])
    scores = (alpha - 1) * query @ key.transpose(-2, -1) / HEAD_DIM**0.5
    # of each row the threshold that makes the weights sum to one, by halving
    low, high = scores.amax(-1, keepdim=True) - 1, scores.amax(-1, keepdim=True)
    for _ in range(80):
        middle = (low + high) / 2
        full = (scores - middle).clamp(min=0).pow(1 / (alpha - 1)).sum(-1, keepdim=True) >= 1
        low, high = torch.where(full, middle, low), torch.where(full, high, middle)
    output = build(name, shape).double().eval()(query, key, value, Mask())
    torch.testing.assert_close(output, (scores - low).clamp(min=0).pow(1 / (alpha - 1)) @ value, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", [*FEW, "additive", "gated-linear"])
def test_inputs_that_autocast_lowered_meet_parameters_that_it_did_not(name):
    variant = of(name, True)
    given, mask = inputs(torch.bfloat16), Mask(causal=True)
    output, *gradients = passes(variant, given, mask, torch.bfloat16)
    exact, *_ = passes(variant, [x.detach().float().requires_grad_() for x in given], mask)
    assert output.dtype == torch.bfloat16 and all(g.isfinite().all() for g in gradients)
    assert (output.float() - exact).abs().max() <= 0.1 * exact.abs().max()


@pytest.mark.parametrize("name", NAMES)
def test_a_forward_pass_calls_nothing_that_dynamo_of_torch_2_11_cannot_trace(name):
    """It cannot trace the question whether a device has autocast, and warns about `slice.indices`."""
    variant, width, called = of(name, True), of(name, True).shape.hidden_width, set()
    package = str(Path(attnbench.__file__).parent / "variants")

    def heard(frame, event, function):
        if event == "c_call" and frame.f_code.co_filename.startswith(package):
            called.add(function.__name__)
        elif event == "call" and frame.f_back.f_code.co_filename.startswith(package):
            called.add(frame.f_code.co_name)

    sys.setprofile(heard)
    try:
        variant(*inputs(), Mask(torch.ones(3, LENGTH, dtype=torch.bool), causal=True), torch.zeros(3, LENGTH, width))
    finally:
        sys.setprofile(None)
    assert "is_autocast_enabled" in called
    assert called.isdisjoint({"indices", "is_autocast_available"})
