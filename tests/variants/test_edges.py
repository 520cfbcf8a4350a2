"""What every variant does with an empty batch, without keys or queries, with one of each, and with dropout."""

from __future__ import annotations

import json

import pytest
import torch
from causal_forms import causal_forms
from typer.testing import CliRunner

from attnbench.bench.cli.app import app
from attnbench.bench.core.registry import VARIANTS
from attnbench.variants import AttentionShape, Mask, Variant, build

EVERY = [entry.name for entry in VARIANTS.entries() if entry.origin.startswith("attnbench")]


def made(name: str, **shape: object) -> Variant:
    torch.manual_seed(0)
    return build(name, AttentionShape(**{"heads": 2, "head_dim": 8, "max_length": 32} | shape))


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("batch", "queries", "keys"), [(0, 7, 7), (2, 0, 0), (2, 3, 0), (2, 0, 5)])
@pytest.mark.parametrize("name", EVERY)
def test_nothing_to_attend_with_or_to_gives_zeros_and_zero_gradients(
    name: str, batch: int, queries: int, keys: int, padded: bool
) -> None:
    for causal in causal_forms(name):
        variant = made(name, causal=causal)
        query, key, value = (torch.randn(batch, 2, n, 8, requires_grad=True) for n in (queries, keys, keys))
        valid = torch.zeros(batch, keys, dtype=torch.bool) if padded else None
        output = variant(query, key, value, Mask(valid, causal))
        assert output.shape == (batch, 2, queries, 8)
        assert (output == 0).all()
        gradients = torch.autograd.grad(output.sum(), (query, key, value))
        assert all((gradient == 0).all() for gradient in gradients)


@pytest.mark.parametrize("name", EVERY)
def test_a_lone_token_gives_a_finite_output_and_gradients(name: str) -> None:
    for causal in causal_forms(name):
        variant = made(name, causal=causal)
        query, key, value = (torch.randn(2, 2, 1, 8, requires_grad=True) for _ in range(3))
        output = variant(query, key, value, Mask(causal=causal))
        assert output.shape == (2, 2, 1, 8)
        trained = [query, key, value, *variant.parameters()]
        gradients = torch.autograd.grad(output.sum(), trained, allow_unused=True)
        assert output.isfinite().all()
        assert all(gradient is None or gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("name", EVERY)
def test_dropout_acts_in_training_where_the_variant_says_so(name: str) -> None:
    """With the same random numbers, so that nothing else of training differs."""
    causal = causal_forms(name)[0]
    dropped = made(name, dropout=0.5, causal=causal).train()
    plain = made(name, causal=causal).train()
    plain.load_state_dict(dropped.state_dict())
    inputs = [torch.randn(2, 2, 24, 8) for _ in range(3)]
    outputs = []
    for variant in (dropped, plain):
        torch.manual_seed(1)
        outputs.append(variant(*inputs, Mask(causal=causal)))
    assert torch.equal(*outputs) != dropped.uses_dropout


@pytest.mark.parametrize("name", ["performer", "softmax"])
def test_show_says_whether_attention_dropout_drops_anything(name: str) -> None:
    shown = CliRunner().invoke(app, ["show", name, "--json"])
    assert shown.exit_code == 0
    assert json.loads(shown.stdout)["attention dropout"].startswith("yes" if made(name).uses_dropout else "no")
