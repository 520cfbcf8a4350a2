"""One file without the harness: train any attention on recall, and test it for leaks. Ten minutes to read, some to run.

python examples/one_file.py --variant entmax15 --steps 400

All else in this repository makes these two answers trustworthy: many seeds and a choice of learning rate by validation
instead of one run; intervals and ranks corrected for all pairs; padding, gradients, precision and decoding checked
beside leaks; times measured in the same rounds as softmax's; and a Record of every run, also of one that failed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from attnbench.variants import AttentionShape, Mask, build

FILLER, KEYS, VALUES = 1, 64, 64
"""Token ids: 0 pads, 1 fills, then 64 keys, then 64 values."""

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Queries, keys and values to outputs, all (batch, heads, length, head_dim)."""


# 1. The attention. Replace this function by yours, or name a variant of attnbench.


def plain_softmax(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """softmax(Q K^T / sqrt(d)) V over the keys up to each query's place (Vaswani et al. 2017)."""
    scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return scores.masked_fill(future, -torch.inf).softmax(-1) @ value


def leaking_softmax(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The same with an error that people make: each query sees one token too far."""
    scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(2)
    return scores.masked_fill(future, -torch.inf).softmax(-1) @ value


class Named(nn.Module):
    """A variant of attnbench by its name, such as `local[flange=16,query_block=16]`, as a causal attention."""

    def __init__(self, name: str, heads: int, head_dim: int, longest: int):
        super().__init__()
        shape = AttentionShape(heads=heads, head_dim=head_dim, max_length=longest, causal=True)
        self.variant = build(name, shape)
        if self.variant.takes_hidden:
            raise SystemExit(
                f"{name} also takes the hidden state; `attnbench run --variants {name} --task recall` has it"
            )

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return self.variant(query, key, value, Mask(causal=True))


# 2. The task: pairs of key and value first, then the keys again; asked is the value, at the key.


def recall(examples: int, length: int, pairs: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Ids and answers, both (examples, length); an answer of -100 is not asked (Arora et al. 2023, MQAR)."""
    keys = torch.rand(examples, KEYS, generator=generator).argsort(1)[:, :pairs] + 2
    values = torch.randint(VALUES, (examples, pairs), generator=generator) + 2 + KEYS
    ids = torch.full((examples, length), FILLER)
    ids[:, 0 : 2 * pairs : 2], ids[:, 1 : 2 * pairs : 2] = keys, values
    # each key returns once, at an even place behind the pairs, in an order of its own
    order = torch.rand(examples, pairs, generator=generator).argsort(1)
    free = (length - 2 * pairs) // 2
    places = 2 * pairs + 2 * torch.rand(examples, free, generator=generator).argsort(1)[:, :pairs]
    answers = torch.full_like(ids, -100)
    ids.scatter_(1, places, keys.gather(1, order))
    ids.scatter_(1, places + 1, values.gather(1, order))
    answers.scatter_(1, places, values.gather(1, order))
    return ids, answers


# 3. The model: one layer. A short convolution shows each token the one before it, so that a value knows its key.


class Model(nn.Module):
    """Embedding, shift, attention, feed-forward, and a reading of token ids at every place."""

    def __init__(self, attention: Attention, width: int = 64, heads: int = 2):
        super().__init__()
        self.attention, self.heads = attention, heads
        tokens = 2 + KEYS + VALUES
        self.embed = nn.Embedding(tokens, width)
        self.shift = nn.Parameter(torch.tensor([0.5, 0.5])[:, None].repeat(1, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.project_in, self.project_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.read = nn.Linear(width, tokens)

    def forward(self, ids: Tensor) -> Tensor:
        """ids: (batch, length); logits: (batch, length, tokens)."""
        x = self.embed(ids)
        before = torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], dim=1)
        shifted = self.norms[0](self.shift[0] * x + self.shift[1] * before)
        query, key, value = (
            each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in self.project_in(shifted).chunk(3, dim=-1)
        )
        x = x + self.project_out(self.attention(query, key, value).transpose(1, 2).flatten(2))
        x = x + self.feed_forward(self.norms[1](x))
        return self.read(self.norms[2](x))


# 4. Training, and the test at lengths beyond those of training.


def train(model: Model, steps: int, rate: float = 4e-3, longest: int = 64) -> None:
    """Adam with a warm-up and a linear decay, on lengths from 16 to `longest`."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * min((step + 1) / 20, 1 - step / steps)
        # short sequences are learned first and make the long ones easier
        length = 16 * int(torch.randint(1, longest // 16 + 1, (), generator=generator))
        ids, answers = recall(32, length, length // 4, generator)
        loss = cross_entropy(model(ids).flatten(0, 1), answers.flatten())
        auxiliary = getattr(getattr(model.attention, "variant", None), "auxiliary_loss", lambda: None)()
        optimizer.zero_grad()
        (loss if auxiliary is None else loss + auxiliary).backward()
        optimizer.step()
        # a few variants move a state of their own, such as the centres of clusters
        getattr(getattr(model.attention, "variant", None), "after_step", lambda: None)()


@torch.no_grad()
def accuracy(model: Model, length: int, pairs: int) -> float:
    """The share of asked keys whose value is right, on examples that training never drew."""
    model.eval()
    ids, answers = recall(64, length, pairs, torch.Generator().manual_seed(2))
    asked = answers >= 0
    return float((model(ids).argmax(-1)[asked] == answers[asked]).float().mean())


# 5. The leak: an attention that sees the future scores well and predicts nothing.


@torch.no_grad()
def leak(attention: Attention, heads: int = 2, length: int = 32, head_dim: int = 32) -> str:
    """The first place whose output changes with later tokens, in words; empty where there is none.

    Every token from `cut` on is replaced. Outputs before it must stay the same to the bit of rounding: float64.
    """
    generator = torch.Generator().manual_seed(3)
    if isinstance(attention, nn.Module):
        attention = attention.double().eval()
    for cut in (1, length // 2, length - 1):
        inputs = [torch.randn(1, heads, length, head_dim, generator=generator, dtype=torch.float64) for _ in range(3)]
        other = [torch.cat([each[:, :, :cut], torch.randn_like(each[:, :, cut:])], dim=2) for each in inputs]
        apart = (attention(*inputs) - attention(*other))[:, :, :cut].abs().amax((0, 1, 3))
        if (moved := (apart > 1e-9).nonzero()).numel():
            return f"the output at place {int(moved[0])} changes with tokens from place {cut} on"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variant", default="plain", help="`plain` and `leaking` of this file, or a name of attnbench")
    parser.add_argument("--steps", type=int, default=400)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    own = {"plain": plain_softmax, "leaking": leaking_softmax}
    attention = own.get(arguments.variant) or Named(arguments.variant, heads=2, head_dim=32, longest=256)
    model = Model(attention)
    train(model, arguments.steps)
    for length, pairs in ((64, 16), (128, 16), (256, 16)):
        print(f"{arguments.variant}: {100 * accuracy(model, length, pairs):.1f} % at {length} tokens, {pairs} pairs")
    found = leak(attention)
    print(f"{arguments.variant}: LEAKS: {found}" if found else f"{arguments.variant}: no leak found")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
