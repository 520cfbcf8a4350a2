"""No false alarm on layers that are right: variants of this package in layers of their own, and torch's."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from attnbench import variants
from attnbench.bench.wings.audit.suite import audit_module
from attnbench.variants.contract import AttentionShape, Mask

NAMES = [
    "softmax[impl=eager]",
    "entmax15[impl=eager]",
    "linear",
    "local[impl=eager,flange=8]",
    "gated-linear",
    "delta",
    "differential",
    "topk",
]


class Owned(nn.Module):
    """A variant between projections of its own, as a stranger would wrap it."""

    causal = True

    def __init__(self, name):
        super().__init__()
        torch.manual_seed(2)
        shape = AttentionShape(heads=4, head_dim=8, max_length=128, causal=True)
        self.projections, self.output, self.attention = (
            nn.Linear(32, 96),
            nn.Linear(32, 32),
            variants.build(name, shape),
        )

    def forward(self, x, mask=None):
        q, k, v = self.projections(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        hidden = x if self.attention.takes_hidden else None
        mixed = self.attention(q, k, v, Mask(causal=True, valid=mask), hidden)
        return self.output(mixed.transpose(1, 2).flatten(2))


class Torch(nn.Module):
    """torch's attention between projections of its own, in forms that a caller may choose."""

    def __init__(self, grouped=False, window=0):
        super().__init__()
        torch.manual_seed(3)
        self.query, self.pair, self.output = nn.Linear(32, 32), nn.Linear(32, 32 if grouped else 64), nn.Linear(32, 32)
        self.grouped, self.window, self.is_causal = grouped, window, True

    def forward(self, hidden_states, attention_mask=None):
        length = hidden_states.shape[1]
        q = self.query(hidden_states).unflatten(-1, (4, 8)).transpose(1, 2)
        k, v = self.pair(hidden_states).unflatten(-1, (2, -1, 8)).permute(2, 0, 3, 1, 4)
        pairs = torch.ones(length, length, dtype=torch.bool).tril()
        if self.window:
            pairs = pairs.triu(1 - self.window)
        if attention_mask is not None:
            pairs = pairs & attention_mask[:, None, None].bool()
        mixed = F.scaled_dot_product_attention(q, k, v, pairs, enable_gqa=self.grouped)
        return self.output(mixed.transpose(1, 2).flatten(2))


RIGHT = [*((name, lambda name=name: Owned(name)) for name in NAMES), ("torch", Torch), ("grouped", lambda: Torch(True)),
         ("window", lambda: Torch(window=8)), ("function", lambda: F.scaled_dot_product_attention)]  # fmt: skip


@pytest.mark.parametrize(("name", "make"), RIGHT, ids=[name for name, _ in RIGHT])
def test_a_right_layer_raises_no_alarm(name, make):
    report = audit_module(make(), name, compile="")
    assert report, str(report)
    future = next(each for each in report.findings if each.property == "future")
    assert future.verdict == "holds"
