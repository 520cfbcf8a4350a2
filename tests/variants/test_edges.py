"""What every variant does without queries, keys or examples, and whether `show` says that attention dropout acts."""

from __future__ import annotations

import itertools
import json
import re

import pytest
import torch
from causal_forms import causal_forms
from typer.testing import CliRunner

from attnbench.bench.cli.app import app
from attnbench.variants import AttentionShape, Mask, Variant, build
from attnbench.variants.sparse.local import Local

# one of each kind of forward; a call of any variant sees to this before its forward
KINDS = ["softmax", "rela", "linear", "nystrom", "local", "additive-lm"]


def made(name: str, **shape: object) -> Variant:
    torch.manual_seed(0)
    return build(name, AttentionShape(**{"heads": 2, "head_dim": 8, "max_length": 32} | shape))


@pytest.mark.parametrize("name", KINDS)
def test_nothing_to_attend_with_or_to_gives_zeros_and_zero_gradients(name: str) -> None:
    sizes = [(0, 7, 7), (2, 0, 0), (2, 3, 0), (2, 0, 5)]
    for (batch, queries, keys), padded, causal in itertools.product(sizes, (False, True), causal_forms(name)):
        variant = made(name, causal=causal)
        query, key, value = (torch.randn(batch, 2, n, 8, requires_grad=True) for n in (queries, keys, keys))
        valid = torch.zeros(batch, keys, dtype=torch.bool) if padded else None
        output = variant(query, key, value, Mask(valid, causal))
        assert output.shape == (batch, 2, queries, 8)
        assert (output == 0).all()
        gradients = torch.autograd.grad(output.sum(), (query, key, value))
        assert all((gradient == 0).all() for gradient in gradients)


@pytest.mark.parametrize("name", ["performer", "softmax"])
def test_show_says_whether_attention_dropout_drops_anything(name: str) -> None:
    shown = CliRunner().invoke(app, ["show", name, "--json"])
    assert shown.exit_code == 0
    assert json.loads(shown.stdout)["attention dropout"].startswith("yes" if made(name).uses_dropout else "no")


def test_the_example_of_the_docstring_builds() -> None:
    (selection,) = re.findall(r"such as `(.+?)`", str(build.__doc__))
    variant = build(selection, AttentionShape(heads=2, head_dim=16, max_length=256))
    assert isinstance(variant, Local) and variant.flange == 64
