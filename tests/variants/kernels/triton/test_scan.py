"""The scans in Triton's interpreter: what the twins do not show."""

import os

import pytest
import torch
from error_budget import FACTOR, over_budget, runs
from seeds import seed

from attnbench.variants.ops import prefix_scan as prefix

pytest.importorskip("triton", reason="Triton is not installed")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs TRITON_INTERPRET=1", allow_module_level=True)
from attnbench.variants.kernels.triton import linear as triton_linear
from attnbench.variants.kernels.triton import prefix as triton_prefix

LOWEST = torch.finfo(torch.float32).min


@pytest.mark.parametrize(("length", "spread"), [(1, 1.0), (33, 1.0), (270, 80.0)])
def test_masses_means_and_their_gradients_equal_those_of_the_eager_scan(length, spread, monkeypatch):
    # three levels of the scan at 270, each of which rounds, in the definition too
    monkeypatch.setattr(triton_prefix, "_CHUNK", 16)
    monkeypatch.setattr(prefix, "_CHUNK", 16)
    generator = torch.Generator().manual_seed(seed(length))
    logits = spread * torch.randn(2, length, generator=generator)
    values = torch.randn(2, length, 5, generator=generator)
    absent = torch.zeros(2, length, dtype=torch.bool)
    absent[1, : length // 2] = True
    logits, values = logits.masked_fill(absent, LOWEST), values.masked_fill(absent[..., None], 0.0)
    grad_output = torch.randn(2, length, generator=generator), torch.randn(2, length, 5, generator=generator)

    def passes(scan, given):
        leaves = [x.detach().requires_grad_() for x in given]
        mass, mean = scan(*leaves)
        gradients = torch.autograd.grad([mass, mean], leaves, [x.to(mass.dtype) for x in grad_output])
        # an absent entry has neither mass nor gradient that anybody takes
        found = [x.detach().masked_fill(absent, 0.0) for x in (mass, gradients[0])]
        return found + [x.detach().masked_fill(absent[..., None], 0.0) for x in (mean, gradients[1])]

    found = passes(triton_prefix.prefix_softmax, [logits, values])
    single = runs(lambda x: passes(prefix.prefix_softmax, x), [logits, values])
    double = passes(prefix.prefix_softmax, [logits.double(), values.double()])
    # backward the kernel takes exponentials of logits less masses, whose rounding grows with their size; the definition
    # takes them within a chunk
    factor = FACTOR if spread == 1 else 16.0
    names = ("mass", "gradient of logits", "mean", "gradient of values")
    assert not over_budget(found, single, double, names, factor)


def test_nothing_later_enters_an_earlier_average_not_even_by_rounding():
    logits, values = torch.randn(1, 80), torch.randn(1, 80, 16)
    mass, mean = triton_prefix.prefix_softmax(logits, values)
    logits[:, 40:] += 50.0
    values[:, 40:] *= 1e6
    other_mass, other_mean = triton_prefix.prefix_softmax(logits, values)
    assert torch.equal(mass[:, :40], other_mass[:, :40])
    assert torch.equal(mean[:, :40], other_mean[:, :40])
    assert not torch.equal(mean[:, 40:], other_mean[:, 40:])


def test_nothing_later_enters_an_earlier_output_of_linear_attention_not_even_by_rounding():
    query, key, value = (torch.randn(1, 1, 140, 16) for _ in range(3))
    output = triton_linear.linear_attention(query, key, value, None, True)
    key[:, :, 100:] += 30.0
    value[:, :, 100:] *= 1e6
    other = triton_linear.linear_attention(query, key, value, None, True)
    assert torch.equal(output[:, :, :100], other[:, :, :100])
    assert not torch.equal(output[:, :, 100:], other[:, :, 100:])


def test_float16_states_may_pass_its_range():
    query, key = torch.full((1, 1, 70, 16), 5.0).half(), torch.full((1, 1, 70, 16), 40.0).half()
    value = torch.full((1, 1, 70, 16), 300.0).half()
    # the sum over keys is 70 x 41 x 300, beyond 65504
    output = triton_linear.linear_attention(query, key, value, None, False)
    torch.testing.assert_close(output, value, atol=0, rtol=1e-3)
