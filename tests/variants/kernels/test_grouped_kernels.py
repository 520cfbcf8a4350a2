"""Fused kernels with fewer heads of keys and values than of queries, against float64 with repeated ones."""

from dataclasses import replace

import pytest
import torch
from error_budget import over_budget, runs
from implementations import require
from seeds import seed

from attnbench.variants import AttentionShape, Mask, build
from attnbench.variants.contract import repeat_heads

HEADS, HEAD_DIM = 6, 20
NAMES = ("entmax15", "sparsemax", "entmax[alpha=1.25]", "rela")


def forced(name, impl):
    return name.replace("]", f",impl={impl}]") if "[" in name else f"{name}[impl={impl}]"


def passes(variant, inputs, mask, upstream):
    leaves = [x.detach().requires_grad_() for x in inputs]
    repeated = [leaves[0], *leaves[1:]] if variant.shape.kv_heads < HEADS else [repeat_heads(x, HEADS) for x in leaves]
    output = variant(*repeated, mask)
    return [output, *torch.autograd.grad(output, leaves, upstream.to(output.dtype))]


@pytest.mark.parametrize(("kv_heads", "padded"), [(2, False), (1, True)])
@pytest.mark.parametrize("impl", ["cpp", pytest.param("triton", marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", NAMES)
def test_grouped_heads_equal_repeated_ones(name, impl, kv_heads, padded):
    require(impl)
    queries, keys = (37, 45) if impl == "triton" else (301, 310)
    shape = AttentionShape(heads=HEADS, head_dim=HEAD_DIM, max_length=keys, causal=True)
    made = []
    for selection, each in (
        (forced(name, impl), replace(shape, kv_heads=kv_heads)), (forced(name, "eager"), shape),
        (forced(name, "eager"), shape),
    ):  # fmt: skip
        torch.manual_seed(seed(2))
        made.append(build(selection, each))
    draw = torch.Generator().manual_seed(seed(4))
    inputs = [
        torch.randn(2, heads, length, HEAD_DIM, generator=draw)
        for heads, length in ((HEADS, queries), (kv_heads, keys), (kv_heads, keys))
    ]
    upstream = torch.randn(2, HEADS, queries, HEAD_DIM, generator=draw)
    valid = torch.ones(2, keys, dtype=torch.bool)
    if padded:
        # left padding of one sequence: its keys have to be moved, and its first queries are padded
        valid[1, :20] = False
        upstream = upstream * valid[:, None, keys - queries :, None]
    mask = Mask(valid=valid if padded else None, causal=True)
    found = passes(made[0], inputs, mask, upstream)
    exact = passes(made[1].double(), [x.double() for x in inputs], mask, upstream)
    single = runs(lambda x: passes(made[2], x, mask, upstream), inputs)
    real = torch.ones(2, 1, queries, 1) if not padded else valid[:, None, keys - queries :, None]
    for each in (found, exact, *single):
        each[0] = each[0] * real
    assert made[0].implementation == impl
    assert not over_budget(found, single, exact, ("output", "query", "key", "value"))
