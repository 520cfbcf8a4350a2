"""Use a variant in a model of your own: a causal layer with 1.5-entmax that learns to repeat the first token.

python examples/use_a_variant.py --variant entmax15 --steps 100
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from attnbench.variants import AttentionShape, Mask, build


class SelfAttention(nn.Module):
    """A multi-head layer, (batch, length, width) to the same, with any variant that supports the shape."""

    def __init__(self, variant: str, width: int, heads: int, max_length: int):
        super().__init__()
        shape = AttentionShape(heads=heads, head_dim=width // heads, max_length=max_length, causal=True)
        self.attention = build(variant, shape)  # raises Unsupported, with the reason, where the variant cannot do it
        self.project_in, self.project_out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """valid: (batch, length), True for real tokens and False for padding."""
        heads = self.project_in(x).unflatten(-1, (3, self.attention.shape.heads, -1))
        query, key, value = heads.permute(2, 0, 3, 1, 4)  # each (batch, heads, length, head_dim)
        output = self.attention(query, key, value, Mask(valid=valid, causal=True))
        return self.project_out(output.transpose(1, 2).flatten(2))


class Repeater(nn.Module):
    """Predicts the first token at every position."""

    def __init__(self, variant: str, tokens: int = 8, width: int = 32, length: int = 16):
        super().__init__()
        self.embed = nn.Embedding(tokens, width)
        self.places = nn.Parameter(torch.randn(length, width))
        self.attend = SelfAttention(variant, width, heads=2, max_length=length)
        self.read = nn.Linear(width, tokens)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.places
        return self.read(x + self.attend(x))


def train(variant: str, steps: int) -> tuple[float, float]:
    """The loss of the first step and of the last."""
    torch.manual_seed(0)
    model = Repeater(variant)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        ids = torch.randint(8, (32, 16))
        loss = cross_entropy(model(ids).flatten(0, 1), ids[:, :1].expand_as(ids).flatten())
        auxiliary = model.attend.attention.auxiliary_loss()  # None for most variants
        loss = loss if auxiliary is None else loss + auxiliary
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.attend.attention.after_step()  # some variants update a state of their own after each step
        losses.append(loss.item())
    return losses[0], losses[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variant", default="entmax15")
    parser.add_argument("--steps", type=int, default=100)
    arguments = parser.parse_args()
    first, last = train(arguments.variant, arguments.steps)
    print(f"{arguments.variant}: loss {first:.3f} at the first step, {last:.3f} after {arguments.steps}")


if __name__ == "__main__":
    main()
