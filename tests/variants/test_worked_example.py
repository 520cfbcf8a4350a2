"""The example of variants/README.md runs as it stands, for any causal variant, and does what it says."""

from pathlib import Path
from typing import Any

import pytest
import torch

README = Path(__file__).resolve().parents[2] / "variants" / "README.md"


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    code = README.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {}
    exec(compile(code, str(README), "exec"), names)
    return names


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
