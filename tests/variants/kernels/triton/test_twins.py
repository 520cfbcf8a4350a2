"""Fused forms of the variants with softmax bands and scans, in Triton's interpreter, against their eager selves.

The eager form in float64 is the definition; output and gradients of inputs and parameters are compared with it. Allowed
is four times the error of the eager form in the same dtype: see `error_budget`.
"""

import os

import pytest
import torch
from cpu_kernels import forced
from error_budget import over_budget, runs
from seeds import seed
from soaked import soaked
from torch import Tensor

from attnbench.variants import build
from attnbench.variants.contract import AttentionShape, Mask, Variant

pytest.importorskip("triton", reason="Triton is not installed")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs TRITON_INTERPRET=1", allow_module_level=True)

# selection, causal, queries, keys, head_dim, with padding
CASES = [
    ("linear", True, 70, 70, 20, True),
    ("linear", True, 20, 90, 16, False),
    ("linear", False, 66, 40, 16, True),
    ("additive-lm", True, 70, 70, 20, True),
    ("additive-lm[window=5]", True, 50, 50, 16, True),
    ("local[query_block=12,flange=7]", True, 70, 70, 20, True),
    ("local[query_block=12,flange=20]", False, 30, 70, 16, False),
    ("local[query_block=9,flange=5,relative=true]", True, 70, 70, 16, True),
    ("local[query_block=9,flange=12,max_relative=40]", False, 40, 40, 16, True),
    ("routing[form=strict,window=9,clusters=4]", True, 70, 70, 16, True),
    ("routing[form=strict,window=12,clusters=3,suppress_self=true,share_qk=true]", False, 70, 70, 20, True),
    ("routing[form=strict,window=80,clusters=2,relative=false]", True, 70, 70, 16, False),
    ("local-routing[form=strict,query_block=12,flange=5,window=20,clusters=3]", True, 50, 50, 16, True),
    ("additive[hidden=5]", True, 40, 70, 20, True),
    ("additive[hidden=3,normalized=true]", False, 70, 35, 16, True),
    ("relative[clip=3]", True, 30, 70, 16, True),
    ("relative[clip=20]", False, 70, 40, 20, True),
    ("relative[clip=4,values=false]", True, 40, 40, 16, False),
]
DROPPED = [
    (*case, rate)
    for rate, case in (
        (0.1, ("local[query_block=12,flange=20]", False, 30, 70, 16, True)),
        (0.5, ("local[query_block=9,flange=5,relative=true]", True, 70, 70, 16, True)),
        (0.1, ("routing[form=strict,window=9,clusters=4]", True, 70, 70, 16, True)),
        (0.3, ("routing[form=strict,window=12,clusters=3,suppress_self=true,share_qk=true]", False, 70, 70, 20, True)),
        (1.0, ("local-routing[form=strict,query_block=12,flange=5,window=20,clusters=3]", True, 50, 50, 16, True)),
        (0.1, ("local-routing[form=strict,query_block=12,flange=5,window=20,clusters=3]", True, 50, 50, 16, True)),
        (0.3, ("relative[clip=3]", True, 30, 70, 16, True)),
        (0.1, ("relative[clip=4,values=false]", False, 70, 40, 16, False)),
    )
]
HALF = [CASES[at] for at in (0, 3, 6, 7, 10, 13, 16)]
# one case for each kernel and dtype; `local-routing` runs the kernels of `local` and `routing`
QUICK, QUICK_HALF, QUICK_DROPPED = (0, 3, 5, 9, 13, 15), (0, 1, 2, 4, 5, 6), (0, 2, 6)


def shape_of(length: int, head_dim: int, causal: bool, cross: bool, dtype: str, rate: float) -> AttentionShape:
    layer = {"layer": 1, "layers": 3}
    return AttentionShape(
        heads=2, head_dim=head_dim, max_length=length, causal=causal, cross=cross, dtype=dtype, dropout=rate, **layer
    )


def twins(selection: str, shape: AttentionShape) -> tuple[Variant, Variant, Variant]:
    """The fused and the eager form in the dtype of the shape, and the eager one in float64, of the same state.

    In training where the shape drops weights, otherwise in evaluation.
    """
    torch.manual_seed(seed())
    fused = build(forced(selection, "triton"), shape)
    eager, double = (build(forced(selection, "eager"), shape) for _ in range(2))
    for module in (eager, double.double()):
        module.load_state_dict(fused.state_dict())
    for module in (fused, eager, double):
        module.train(shape.dropout > 0.0)
    return fused, eager, double


def padding(keys: int) -> Tensor:
    """The first sequence begins with pads and has some in between, the second is padding from the middle on."""
    valid = torch.ones(2, keys, dtype=torch.bool)
    valid[0, :6] = valid[0, 20:23] = valid[1, keys // 2 :] = False
    return valid


def compare(
    selection: str, causal: bool, queries: int, keys: int, head_dim: int, padded: bool, dtype: str, rate: float = 0.0
) -> None:
    cross = queries != keys and not selection.startswith("local")
    shape = shape_of(max(queries, keys), head_dim, causal, cross, dtype, rate)
    fused, eager, double = twins(selection, shape)
    generator = torch.Generator().manual_seed(seed(1))
    inputs = [
        torch.randn(2, 2, n, head_dim, generator=generator).to(getattr(torch, dtype)) for n in (queries, keys, keys)
    ]
    grad_output = torch.randn(2, 2, queries, head_dim, generator=generator).to(inputs[0].dtype)
    mask = Mask(padding(keys) if padded else None, causal)

    def passes(variant: Variant, given: list[Tensor]) -> dict[str, Tensor]:
        leaves = [x.detach().requires_grad_() for x in given]
        # of which each form draws the seed of its mask
        torch.manual_seed(seed(2))
        output = variant(*leaves, mask)
        named = dict(zip(("query", "key", "value"), leaves, strict=True)) | dict(variant.named_parameters())
        if "share_qk" in selection:
            del named["key"]
        gradients = torch.autograd.grad(output, list(named.values()), grad_output.to(output.dtype))
        return {"output": output.detach()} | dict(zip(named, gradients, strict=True))

    found = passes(fused, inputs)
    single = runs(lambda x: list(passes(eager, x).values()), inputs)
    exact = passes(double, [x.double() for x in inputs])
    assert "triton" in fused.implementation and "eager" not in fused.implementation
    assert eager.implementation == double.implementation == "eager"
    assert found["output"].dtype == inputs[0].dtype
    assert not over_budget(list(found.values()), single, list(exact.values()), list(found))


@pytest.mark.parametrize(("selection", "causal", "queries", "keys", "head_dim", "padded"), soaked(CASES, QUICK))
def test_a_kernel_equals_the_eager_definition_forward_and_backward(
    selection: str, causal: bool, queries: int, keys: int, head_dim: int, padded: bool
) -> None:
    compare(selection, causal, queries, keys, head_dim, padded, "float32")


@pytest.mark.parametrize(("selection", "causal", "queries", "keys", "head_dim", "padded"), soaked(HALF, QUICK_HALF))
def test_float16_costs_no_more_than_its_rounding(
    selection: str, causal: bool, queries: int, keys: int, head_dim: int, padded: bool
) -> None:
    compare(selection, causal, queries, keys, head_dim, padded, "float16")


@pytest.mark.parametrize(
    ("selection", "causal", "queries", "keys", "head_dim", "padded", "rate"), soaked(DROPPED, QUICK_DROPPED)
)
def test_with_dropout_a_kernel_drops_what_the_eager_definition_drops(
    selection: str, causal: bool, queries: int, keys: int, head_dim: int, padded: bool, rate: float
) -> None:
    compare(selection, causal, queries, keys, head_dim, padded, "float32", rate)
