"""The gated norm of ReLA in C++: against the definition in float64, forward and backward."""

import pytest
import torch
from error_budget import over_budget, runs
from seeds import seed
from torch import Tensor

from attnbench.variants import build
from attnbench.variants.contract import AttentionShape
from attnbench.variants.kernels.cpu import build as cpu_build
from attnbench.variants.kernels.cpu.norm import gated_rms_norm


@pytest.fixture(autouse=True)
def _kernels() -> None:
    if cpu_build.failure():
        pytest.skip(f"no C++ kernels here: {cpu_build.failure()}")


def rela(heads: int, head_dim: int, options: str):
    torch.manual_seed(seed(3))
    variant = build(f"rela[impl=eager{options}]", AttentionShape(heads=heads, head_dim=head_dim, max_length=256))
    with torch.no_grad():
        for parameter in variant.parameters():
            parameter.uniform_(-2.0, 2.0)
    return variant


def in_cpp(variant, sums: Tensor) -> Tensor:
    return gated_rms_norm(sums, variant.scale, variant.gate, variant.epsilon, variant.norm)


def gradients(output: Tensor, sums: Tensor, variant, upstream: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(output, [sums, *variant.parameters()], upstream.to(output.dtype)))


@pytest.mark.parametrize("options", ["", ",norm=head", ",gated=false"])
@pytest.mark.parametrize(("queries", "head_dim"), [(130, 16), (64, 20), (1, 5)])
def test_equals_the_definition_forward_and_backward(options: str, queries: int, head_dim: int) -> None:
    """130 queries are three pieces of the parameters' gradients; 20 and 5 columns end inside a vector."""
    variant = rela(3, head_dim, options)
    sums = torch.randn(2, 3, queries, head_dim, generator=torch.Generator().manual_seed(seed())) * 4.0
    upstream = torch.randn(sums.shape, generator=torch.Generator().manual_seed(seed(1)))

    def passes(module, norm, given: Tensor) -> list[Tensor]:
        given = given.clone().requires_grad_()
        output = norm(given)
        return [output, *gradients(output, given, module, upstream)]

    found = passes(variant, lambda x: in_cpp(variant, x), sums)
    single = runs(lambda x: passes(variant, variant.normalise, x[0]), [sums])
    definition = rela(3, head_dim, options).double()
    assert not over_budget(found, single, passes(definition, definition.normalise, sums.double()))


def test_large_sums_close_or_open_the_gate_whole() -> None:
    """Where the exponential leaves the range of float32."""
    variant = rela(1, 8, "")
    with torch.no_grad():
        variant.gate.fill_(1.0)
    sums = torch.full((1, 1, 1, 8), 1e4)
    sums[..., ::2] *= -1.0
    sums.requires_grad_()
    output = in_cpp(variant, sums)
    assert not output[..., ::2].any()
    torch.testing.assert_close(output[..., 1::2].flatten(), variant.scale.detach()[1::2])
    assert all(g.isfinite().all() for g in gradients(output, sums, variant, torch.ones_like(output)))


def test_the_same_bits_with_any_number_of_threads() -> None:
    variant, before = rela(4, 24, ""), torch.get_num_threads()
    sums = torch.randn(2, 4, 200, 24, generator=torch.Generator().manual_seed(seed())).requires_grad_()
    results = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            output = in_cpp(variant, sums)
            results.append([output, *gradients(output, sums, variant, torch.ones_like(output))])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
