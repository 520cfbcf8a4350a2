"""Contents of padded slots, for every variant and every path of a CPU: no trace in real outputs or gradients."""

from __future__ import annotations

import math

import pytest
import torch
from causal_forms import causal_forms
from seeds import seed
from torch import Tensor

from attnbench.bench.core.registry import VARIANTS
from attnbench.variants import AttentionShape, Mask, Variant, build

EVERY = [entry.name for entry in VARIANTS.entries() if entry.origin.startswith("attnbench")]
# long enough for the fused kernels that `auto` takes on a CPU
BATCH, HEADS, LENGTH, WIDTH = 4, 2, 72, 8
CONTENTS = [math.nan, math.inf, 1e30]
ALSO_EAGER = [f"{name}[impl=eager]" for name in ("rela", "softmax", "sparsemax", "entmax15", "entmax")]
SELECTIONS = [*EVERY, *ALSO_EAGER, "entmax[alpha=learned]", "additive-lm[kernel_size=3]", "performer[kernel=relu]"]


def valid() -> Tensor:
    """Padding at the end, at the start, in holes, and a sequence of nothing else."""
    valid = torch.ones(BATCH, LENGTH, dtype=torch.bool)
    valid[0, 50:] = False
    valid[1, :9] = False
    valid[2, 5::3] = False
    valid[3] = False
    return valid


def heads(*lengths: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed())
    return [torch.randn(BATCH, HEADS, n, WIDTH, generator=generator) for n in lengths]


def made(selection: str, **shape: bool) -> Variant:
    torch.manual_seed(seed())
    return build(selection, AttentionShape(heads=HEADS, head_dim=WIDTH, max_length=LENGTH, **shape))


def passed(variant: Variant, inputs: list[Tensor], mask: Mask, upstream: Tensor) -> tuple[Tensor, list[Tensor | None]]:
    """The output, then the gradients of query, key, value and the parameters, in training without dropout."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    output = variant.train()(*leaves, mask)
    trained = [*leaves, *variant.parameters()]
    return output.detach(), list(torch.autograd.grad((output * upstream).sum(), trained, allow_unused=True))


FORMS = [
    pytest.param(name, causal, id=f"{name}-{'causal' if causal else 'full'}")
    for name in SELECTIONS
    for causal in causal_forms(name)
]
CROSSING = [name for name in SELECTIONS if made(name, causal=causal_forms(name)[0]).crosses]
ONE_SEQUENCE = ["local", "longformer", "sparse", "sinkhorn", "gated-linear", "delta", "no-attention"]
SHORTER = [name for name in CROSSING if made(name).causality is not None] + ONE_SEQUENCE


def assert_same(found: list[Tensor | None], expected: list[Tensor | None]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        if ours is None or theirs is None:
            assert ours is theirs
        else:
            assert theirs.isfinite().all()
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize(("selection", "causal"), FORMS)
def test_anything_in_padded_slots_changes_no_real_output_and_no_real_gradient(
    selection: str, causal: bool, content: float
) -> None:
    variant = made(selection, causal=causal)
    mask, real = Mask(valid(), causal), valid()[:, None, :, None].expand(-1, HEADS, -1, WIDTH)
    inputs, (upstream,) = heads(LENGTH, LENGTH, LENGTH), heads(LENGTH)
    upstream = upstream.where(real, 0.0)
    expected, gradients = passed(variant, [x.where(real, 0.0) for x in inputs], mask, upstream)
    output, found = passed(variant, [x.where(real, content) for x in inputs], mask, upstream)
    assert output.isfinite().all()
    assert torch.equal(output[real], expected[real])
    assert_same(found, gradients)
    assert all(ours is None or (ours[~real] == 0).all() for ours in found[:3])


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("selection", CROSSING)
def test_in_cross_attention_the_keys_alone_are_padded(selection: str, content: float) -> None:
    """As many queries as keys, and each of them is real."""
    variant = made(selection, cross=True)
    mask, real = Mask(valid()), valid()[:, None, :, None].expand(-1, HEADS, -1, WIDTH)
    query, key, value, upstream = heads(LENGTH, LENGTH, LENGTH, LENGTH)
    expected, gradients = passed(variant, [query, key.where(real, 0.0), value.where(real, 0.0)], mask, upstream)
    output, found = passed(variant, [query, key.where(real, content), value.where(real, content)], mask, upstream)
    assert torch.equal(output, expected)
    assert_same(found, gradients)
    of_query = found[0]
    assert of_query is None or (of_query[:3][~real[:3]] != 0).any()


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("selection", SHORTER)
def test_fewer_queries_than_keys_are_padded_where_the_last_keys_are(selection: str, content: float) -> None:
    variant, queries = made(selection, causal=True), 7
    mask, real = Mask(valid(), causal=True), valid()[:, None, :, None].expand(-1, HEADS, -1, WIDTH)
    query, key, value, upstream = heads(queries, LENGTH, LENGTH, queries)
    upstream = upstream.where(real[:, :, -queries:], 0.0)
    quiet, loud = ([x.where(real[:, :, -x.shape[2] :], y) for x in (query, key, value)] for y in (0.0, content))
    expected, gradients = passed(variant, quiet, mask, upstream)
    output, found = passed(variant, loud, mask, upstream)
    assert torch.equal(output[real[:, :, -queries:]], expected[real[:, :, -queries:]])
    assert_same(found, gradients)
