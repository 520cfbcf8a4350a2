"""Examples of the documents run as they stand and do what they say: a layer of any causal variant, and a map."""

from pathlib import Path
from typing import Any

import pytest
import torch
from cpu_kernels import inputs_of, require_kernels

from attnbench.variants import AttentionShape, Mask

ROOT = Path(__file__).resolve().parents[2]


def names_of(page: str, block: int) -> dict[str, Any]:
    code = (ROOT / page).read_text(encoding="utf-8").split("```python\n")[block].split("```")[0]
    names: dict[str, Any] = {"__name__": "mine"}
    exec(compile(code, page, "exec"), names)
    return names


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    return names_of("variants/README.md", 1)


@pytest.mark.parametrize("variant", ["entmax15", "softmax", "rela", "linear", "local[query_block=16,flange=16]"])
def test_the_layer_is_causal_blind_to_padding_and_learns(example: dict[str, Any], variant: str) -> None:
    torch.manual_seed(0)
    layer, x, valid = example["SelfAttention"](variant=variant), example["x"], example["valid"]
    output = layer(x, valid)
    changed = x.clone()
    changed[0, 70:] += 1.0
    changed[1, 60:] += 1.0
    after = layer(changed, valid)
    torch.testing.assert_close(after[0, :70], output[0, :70])
    torch.testing.assert_close(after[1, :60], output[1, :60])
    assert (after[0, 70:] - output[0, 70:]).abs().max() > 1e-3
    output.square().mean().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in layer.parameters())


def test_the_map_is_fused_and_gives_what_its_formula_says() -> None:
    require_kernels()
    cauchy, shape = names_of("docs/own-variant.md", 3)["cauchy"], AttentionShape(heads=2, head_dim=16, max_length=150)
    (query, key, value), _ = inputs_of(150, 150, 16, heads=2)
    variant = cauchy(shape)
    weights = 1.0 / (1.0 + (query.double() @ key.double().transpose(-2, -1) / 4.0 / 1.5).square())
    expected = weights / weights.sum(-1, keepdim=True) @ value.double()
    torch.testing.assert_close(variant(query, key, value, Mask()).double(), expected, rtol=1e-4, atol=1e-5)
    assert variant.implementation == "cpp"
    assert {name for name, _ in variant.named_parameters()} == {"width"}
