"""Translate with a trained model one token at a time, with a cache where the variant allows one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ....variants.contract import Mask, Variant
from ...models.blocks import BlockState
from .beam_search import Hypothesis, Step, beam_search, greedy_search
from .model import Memory, Transformer, TranslationLayer

EXTRA_TOKENS = 50
"""The most subwords by which a translation is longer than its sentence (Vaswani et al. 2017, section 6.1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cached:
    """State of the decoder between tokens. One row for each hypothesis in every tensor.

    `blocks`: by layer; `remembered`: keys and values of the sources by layer; `valid`: (rows, sources); `seen`: tokens.
    """

    blocks: tuple[BlockState, ...]
    remembered: tuple[tuple[Tensor, Tensor], ...]
    valid: Tensor | None
    seen: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputed:
    """The state of decoding without a cache: all inputs so far, (rows, seen), and the sources."""

    inputs: Tensor
    states: Tensor
    valid: Tensor | None


def can_cache(model: Transformer) -> bool:
    """True if every variant of the decoder goes token by token, so that a cache gives what the whole sequence gives."""
    kinds = model.kinds()
    steps = all(variant.decodes and variant.causality == "strict" for variant in kinds["decoder"])
    return steps and all(asks_alone(variant) for variant in kinds["cross"])


@torch.inference_mode()
def asks_alone(variant: Variant) -> bool:
    """True if a query of cross attention gets the same output alone as behind others, tried on random vectors.

    Where it does not, the output depends on the query's place, as with relative positions, or on the other queries.
    """
    shape = variant.shape
    like = next(variant.parameters(), torch.empty(0, device=shape.device))
    random = torch.Generator().manual_seed(0)
    drawn = torch.randn(1, shape.heads, 12, shape.head_dim, generator=random).to(like.device)
    hidden = torch.randn(1, 4, shape.hidden_width, generator=random).to(like.device)
    query, key, value = drawn[:, :, :4], drawn[:, :, 4:8], drawn[:, :, 8:]
    training = variant.training
    variant.eval()
    whole = variant(query, key, value, Mask(), hidden)[:, :, -1:]
    alone = variant(query[:, :, -1:], key, value, Mask(), hidden[:, -1:])
    variant.train(training)
    return torch.allclose(whole, alone, atol=1e-4, rtol=1e-3)


def start(model: Transformer, memory: Memory) -> Cached | Recomputed:
    """The state before the first token; cached wherever the variant under test can."""
    if not can_cache(model):
        return uncached(memory)
    crosses = [
        layer.cross for layer in model.decoder if isinstance(layer, TranslationLayer) and layer.cross is not None
    ]
    return Cached(
        blocks=(BlockState(),) * len(crosses),
        remembered=tuple(cross.remember(memory) for cross in crosses),
        valid=memory.valid,
    )


def uncached(memory: Memory) -> Recomputed:
    return Recomputed(
        inputs=torch.zeros(len(memory.states), 0, dtype=torch.long, device=memory.states.device),
        states=memory.states,
        valid=memory.valid,
    )


def search_step(model: Transformer) -> Step:
    """The model as a search sees it; padding and the beginning are never an output."""

    def step(tokens: Tensor, state: Cached | Recomputed) -> tuple[Tensor, Cached | Recomputed]:
        after: Cached | Recomputed
        if isinstance(state, Cached):
            logits, after = advanced(model, tokens, state)
        else:
            logits, after = recomputed(model, tokens, state)
        logits = logits.float()
        # They never follow anything in training, but an untrained model would choose them.
        logits[:, [0, model.problem.begin]] = -torch.inf
        return logits.log_softmax(-1), after

    return step


def advanced(model: Transformer, tokens: Tensor, state: Cached) -> tuple[Tensor, Cached]:
    """Logits (rows, vocabulary) after the decoder inputs `tokens` (rows,)."""
    x = model.embed(tokens[:, None], state.seen)
    blocks = []
    for layer, block, remembered in zip(model.decoder, state.blocks, state.remembered, strict=True):
        assert isinstance(layer, TranslationLayer)
        x, block = layer.step(x, block, state.seen, remembered, state.valid)
        blocks.append(block)
    return model.logits(x)[:, 0], replace(state, blocks=tuple(blocks), seen=state.seen + 1)


def recomputed(model: Transformer, tokens: Tensor, state: Recomputed) -> tuple[Tensor, Recomputed]:
    """The same from all inputs so far."""
    inputs = torch.cat([state.inputs, tokens[:, None]], dim=1)
    memory = Memory(states=state.states, valid=state.valid)
    return model.decode(inputs, memory)[:, -1], replace(state, inputs=inputs)


def limits(model: Transformer, lengths: Tensor) -> Tensor:
    """The most tokens of each translation, END counted: EXTRA_TOKENS more for each sentence that a source may have."""
    return (lengths.flatten() + EXTRA_TOKENS * model.problem.sentences).clamp(max=model.recipe.length)


@torch.inference_mode()
def translate(
    model: Transformer, source: Tensor, lengths: Tensor, *, beam: int | None = None, alpha: float | None = None
) -> list[Hypothesis]:
    """The translation of each source, ids (batch, 1, sources); beam 1 is greedy, None the recipe's."""
    problem, recipe = model.problem, model.recipe
    beam = recipe.beam if beam is None else beam
    state, step = start(model, model.encode(source, lengths)), search_step(model)
    most = limits(model, lengths)
    # A search of one hypothesis keeps no candidates, and costs half.
    if beam == 1:
        return greedy_search(step, state, most, begin=problem.begin, end=problem.end)
    alpha = recipe.length_penalty if alpha is None else alpha
    return beam_search(step, state, most, begin=problem.begin, end=problem.end, beam=beam, alpha=alpha)
