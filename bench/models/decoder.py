"""The model that predicts the next token: causal blocks, and the embedding once more as output."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...tasks.contract import Recipe
from ...tasks.problems.language_modeling import Language
from ...variants.contract import Mask
from ..core.hashing import axis_seed
from .blocks import (
    BlockState,
    BuildVariant,
    Model,
    TransformerBlock,
    build_variants,
    embedding_scale,
    position_table,
)

UNCOUNTED = -1
"""The target of a position that does not count."""


@dataclass(frozen=True, slots=True)
class DecoderState:
    """State of decoding: the number of tokens seen so far, and the state of each block."""

    seen: int
    blocks: tuple[BlockState, ...]


class Decoder(Model):
    """Embedding, positions, pre-norm causal blocks, and the embedding's transpose (Press and Wolf 2017).

    Where the variant brings positions of its own, none are added, as in the Routing Transformer (Roy et al. 2021).
    Column c of its logits is token id c + 1, since 0 is padding and never comes.
    """

    def __init__(self, problem: Language, recipe: Recipe, build: BuildVariant, seed: int, device: str = "cpu"):
        super().__init__()
        self.problem, self.recipe = problem, recipe
        brought = build_variants(build, problem, recipe, seed, device)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(axis_seed(use="init", seed=seed))
            self.embedding = nn.Embedding(problem.vocabulary, recipe.width)
            nn.init.normal_(self.embedding.weight, std=recipe.deviation)
            # drawn for all, so that the blocks of all start alike
            table = position_table(recipe, recipe.length)
            self.positions = None if all(variant.brings_positions for variant, _ in brought) else table
            self.dropout = nn.Dropout(recipe.dropout)
            self.blocks = nn.ModuleList(TransformerBlock(variant, before, recipe) for variant, before in brought)
            self.norm = nn.LayerNorm(recipe.width)
        self.scale = 1.0 if self.positions is None else embedding_scale(recipe)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (batch, length, vocabulary - 1) of the token after each of ids (batch, length)."""
        x = self.dropout(self._embedded(ids, 0))
        for block in self.blocks:
            # Windows of text are full, so nothing is padded.
            x = block(x, Mask(None, causal=True))
        return self._logits(x)

    def loss(self, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        ids, _, targets = batch
        logits = self(ids[:, 0]).float()
        smoothing = self.recipe.label_smoothing if self.training else 0.0
        return F.cross_entropy(
            # Target 0 marks a position that does not count, and column c is token c + 1.
            logits.flatten(0, 1),
            targets.flatten() - 1,
            ignore_index=UNCOUNTED,
            label_smoothing=smoothing,
        )

    def begin(self) -> DecoderState:
        """Nothing seen yet."""
        return DecoderState(0, (BlockState(),) * len(self.blocks))

    def step(self, ids: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Logits (batch, vocabulary - 1) after one more token of each sequence, ids (batch,); at most `length`."""
        x = self._embedded(ids[:, None], state.seen)
        kept = []
        for block, before in zip(self.blocks, state.blocks, strict=True):
            x, after = block.step(x, before)  # type: ignore[operator]
            kept.append(after)
        return self._logits(x)[:, 0], DecoderState(state.seen + 1, tuple(kept))

    def _embedded(self, ids: Tensor, first: int) -> Tensor:
        x: Tensor = self.embedding(ids) * self.scale
        return x if self.positions is None else x + self.positions[first : first + ids.shape[1]]

    def _logits(self, x: Tensor) -> Tensor:
        return F.linear(self.norm(x), self.embedding.weight[1:])
