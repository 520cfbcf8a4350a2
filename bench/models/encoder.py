"""Encoder: the model that classifies one sequence, or a pair."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...tasks.contract import Classification, Recipe
from ...variants.contract import Mask
from ..core.hashing import axis_seed
from .blocks import BuildVariant, Model, TransformerBlock, build_variants, convolution_of
from .positions import embedding_scale, position_table


class Encoder(Model):
    """Embedding, convolution, positions, blocks, pooling, head; two towers share all of it and meet in the head."""

    def __init__(self, problem: Classification, recipe: Recipe, build: BuildVariant, seed: int, device: str = "cpu"):
        super().__init__()
        self.problem, self.recipe = problem, recipe
        length = recipe.length + (recipe.pooling == "cls")
        brought = build_variants(build, problem, recipe, seed, device)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(axis_seed(use="init", seed=seed))
            # id `vocabulary` is the token that CLS pooling prepends
            self.embedding = nn.Embedding(problem.vocabulary + 1, recipe.width, padding_idx=0)
            nn.init.normal_(self.embedding.weight, std=recipe.deviation)
            with torch.no_grad():
                # `normal_` has filled the row of padding too
                self.embedding.weight[0].zero_()
            self.positions = position_table(recipe, length)
            self.dropout = nn.Dropout(recipe.dropout)
            self.convolution = convolution_of(recipe)
            self.blocks = nn.ModuleList(TransformerBlock(variant, before, recipe) for variant, before in brought)
            self.norm = nn.LayerNorm(recipe.width)
            parts = {"nli4": 4, "concat2": 2}[problem.head] if problem.towers == 2 else 1
            features = recipe.width * parts
            self.scale = embedding_scale(recipe)
            self.head = nn.Sequential(
                nn.Linear(features, recipe.feed_forward), nn.ReLU(), nn.Linear(recipe.feed_forward, problem.classes)
            )

    def loss(self, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        ids, lengths, labels = batch
        smoothing = self.recipe.label_smoothing if self.training else 0.0
        return F.cross_entropy(self(ids, lengths).float(), labels, label_smoothing=smoothing)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Logits (batch, classes) of ids (batch, towers, length), 0 = padding, and lengths (batch, towers)."""
        batch, towers, length = ids.shape
        ids, lengths = ids.reshape(batch * towers, length), lengths.reshape(batch * towers)
        if self.recipe.pooling == "cls":
            ids = torch.cat([torch.full_like(ids[:, :1], self.problem.vocabulary), ids], dim=1)
            lengths, length = lengths + 1, length + 1
        valid = None
        if self.problem.padded:
            valid = torch.arange(length, device=ids.device)[None, :] < lengths[:, None]
        x = self.embedding(ids) * self.scale
        if self.convolution is not None:
            # causal, so that what follows a text, its padding, reaches no token of it
            x = self.convolution(x)
        if self.positions is not None:
            x = x + self.positions[:length]
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x, Mask(valid))
        pooled = self._pool(self.norm(x), valid)
        if self.problem.towers == 2:
            first, second = pooled.view(batch, 2, -1).unbind(1)
            # The head of Long Range Arena's Retrieval: both, their product and their difference.
            meeting = [first * second, first - second] if self.problem.head == "nli4" else []
            pooled = torch.cat([first, second, *meeting], dim=-1)
        logits: Tensor = self.head(pooled)
        return logits

    def _pool(self, x: Tensor, valid: Tensor | None) -> Tensor:
        if self.recipe.pooling == "cls":
            return x[:, 0]
        if valid is None:
            return x.mean(1)
        # Padding counts for nothing, or the result would depend on how long the batch is. `padded_mean` divides by the
        # length of the preset all the same, as code does that pads every sequence to it and sets padded states to 0.
        real = valid[..., None].to(x.dtype)
        count = self.recipe.length if self.recipe.pooling == "padded_mean" else real.sum(1).clamp(min=1)
        return (x * real).sum(1) / count
