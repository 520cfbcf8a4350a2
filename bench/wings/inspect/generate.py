"""Generate text from a trained language model, one token at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ...models.decoder import Decoder, DecoderState


def can_cache(model: Decoder) -> bool:
    """True if every variant goes token by token with what it keeps, and gets what the whole sequence would give."""
    return all(variant.decodes and variant.causality == "strict" for variant in model.variants)


def sample(
    model: Decoder, prompt: Sequence[int], count: int, *, temperature: float, seed: int = 0, cached: bool = True
) -> Iterator[int]:
    """`count` more token ids after those of `prompt`, drawn at `temperature`; 0 takes the likeliest.

    At most `recipe.length` tokens are seen: where there are more, the oldest go, half a context at a time. Without
    `cached` all of them are read again for every token, as must be where a variant cannot go token by token.
    """
    model.eval()
    tokens = list(prompt)
    reader = _Stepwise(model) if cached else _Whole(model)
    # drawn on the CPU, so that a seed means the same on every device
    random = torch.Generator().manual_seed(seed)
    for _ in range(count):
        with torch.inference_mode():
            logits = reader.logits(tokens).double().cpu()
        if temperature:
            # so that no temperature is too low to divide by
            scaled = (logits - logits.max()) / temperature
            token = int(torch.multinomial(scaled.softmax(-1), 1, generator=random)) + 1
        else:
            token = int(logits.argmax()) + 1
        tokens.append(token)
        yield token


def first_seen(count: int, length: int) -> int:
    """The first of `count` tokens that a context of `length` still holds.

    >>> [first_seen(count, 8) for count in (7, 8, 9, 12, 13)]
    [0, 0, 4, 4, 8]
    """
    # Half a context at once: dropping one token at a time would move every position and void the cache each time.
    half = max(length // 2, 1)
    return -(-max(count - length, 0) // half) * half


class _Whole:
    """Reads all tokens of the context each time."""

    def __init__(self, model: Decoder):
        self.model = model

    def logits(self, tokens: list[int]) -> Tensor:
        seen = tokens[first_seen(len(tokens), self.model.recipe.length) :]
        logits: Tensor = self.model(_ids(self.model, [seen]))
        return logits[0, -1]


class _Stepwise:
    """Reads each token once, and the rest of a context again when its older half goes."""

    def __init__(self, model: Decoder):
        self.model = model
        self.state: DecoderState = model.begin()
        self.first = self.read = 0

    def logits(self, tokens: list[int]) -> Tensor:
        first = first_seen(len(tokens), self.model.recipe.length)
        if first != self.first:
            self.first = self.read = first
            self.state = self.model.begin()
        for token in tokens[self.read :]:
            logits, self.state = self.model.step(_ids(self.model, [token]), self.state)
        self.read = len(tokens)
        return logits[0]


def _ids(model: Decoder, ids: list[int] | list[list[int]]) -> Tensor:
    return torch.tensor(ids, device=model.embedding.weight.device)
