"""The model that translates: encoder, decoder and cross attention, each with the variant under test or with softmax.

Vaswani et al. 2017, with one embedding for source, target and output. Parameters are drawn as in `blocks.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ....tasks.translation.problem import KINDS, Translation, TranslationRecipe
from ....variants.contract import AttentionShape, Mask, Variant
from ...core.cell import REFERENCE
from ...core.errors import Unsupported
from ...core.hashing import axis_seed
from ...core.registry import VARIANTS
from ...core.spec import Spec
from ...models.blocks import (
    Attention,
    BlockState,
    BuildVariant,
    Model,
    added_parameters,
    feed_forward_units,
    scale_projections,
    step_before,
    trainable_count,
)
from ...models.positions import check_positions, position_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Output of the encoder: states (batch, sources, width), valid (batch, sources), True = a token."""

    states: Tensor
    valid: Tensor | None


class CrossAttention(nn.Module):
    """Projections round a variant whose queries are of one sequence, and keys and values of another."""

    def __init__(self, variant: Variant, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.project_query = nn.Linear(width, width)
        self.project_memory = nn.Linear(width, 2 * width)
        self.variant = variant
        self.project_out = nn.Linear(width, width)

    def remember(self, memory: Memory) -> tuple[Tensor, Tensor]:
        """Keys and values of the sources, (batch, heads, sources, head_dim), the same for all queries to come."""
        batch, length, width = memory.states.shape
        split = self.project_memory(memory.states).view(batch, length, 2, self.heads, width // self.heads)
        key, value = split.permute(2, 0, 3, 1, 4)
        return key, value

    def forward(self, x: Tensor, remembered: tuple[Tensor, Tensor], valid: Tensor | None) -> Tensor:
        batch, length, width = x.shape
        query = self.project_query(x).view(batch, length, self.heads, width // self.heads).transpose(1, 2)
        with torch.autocast(x.device.type, enabled=False):
            output = self.variant(query, *remembered, Mask(valid), x)
        joined: Tensor = self.project_out(output.transpose(1, 2).reshape(batch, length, width))
        return joined


class Sublayer(nn.Module):
    """The norm, dropout and residual round one sublayer: x + f(norm(x)), or norm(x + f(x))."""

    def __init__(self, recipe: TranslationRecipe):
        super().__init__()
        self.norm = nn.LayerNorm(recipe.width)
        self.dropout = nn.Dropout(recipe.dropout)
        self.pre = recipe.norm == "pre"

    def entering(self, x: Tensor) -> Tensor:
        normed: Tensor = self.norm(x) if self.pre else x
        return normed

    def leaving(self, x: Tensor, output: Tensor) -> Tensor:
        x = x + self.dropout(output)
        normed: Tensor = x if self.pre else self.norm(x)
        return normed


class TranslationLayer(nn.Module):
    """One layer of the encoder or, with cross attention, of the decoder; a variant may bring a sublayer of its own."""

    def __init__(
        self, attention: Attention, before: nn.Module | None, cross: CrossAttention | None, recipe: TranslationRecipe
    ):
        super().__init__()
        self.before = before
        self.attention = attention
        self.around_attention = Sublayer(recipe)
        self.cross = cross
        self.around_cross = Sublayer(recipe) if cross is not None else None
        tested = [attention.variant, *([] if cross is None else [cross.variant])]
        matched = any(variant.matches_parameters for variant in tested)
        units = feed_forward_units(recipe, self.added_parameters(recipe.width), matched)
        self.feed_forward = nn.Sequential(
            nn.Linear(recipe.width, units), nn.ReLU(), nn.Dropout(recipe.dropout), nn.Linear(units, recipe.width)
        )
        self.around_feed_forward = Sublayer(recipe)

    def added_parameters(self, width: int) -> int:
        """Parameters that the variants of attention and cross attention add; softmax adds none."""
        crossing = 0 if self.cross is None else added_parameters(width, self.cross.variant)
        return added_parameters(width, self.attention.variant, self.before) + crossing

    def forward(
        self,
        x: Tensor,
        mask: Mask,
        remembered: tuple[Tensor, Tensor] | None = None,
        memory_valid: Tensor | None = None,
    ) -> Tensor:
        if self.before is not None:
            x = x + self.before(x, mask.valid)
        attended = self.attention(self.around_attention.entering(x), mask)
        return self.after_attention(self.around_attention.leaving(x, attended), remembered, memory_valid)

    def step(
        self,
        x: Tensor,
        state: BlockState,
        seen: int,
        remembered: tuple[Tensor, Tensor] | None,
        memory_valid: Tensor | None,
    ) -> tuple[Tensor, BlockState]:
        """One more position of each sequence, (batch, 1, width), behind `seen` others.

        What comes before attention is run over all so far.
        """
        x, past = step_before(self.before, x, state.past)
        attended, kept = self.attention.step(self.around_attention.entering(x), state.kept, seen)
        x = self.after_attention(self.around_attention.leaving(x, attended), remembered, memory_valid)
        return x, BlockState(kept, past)

    def after_attention(
        self, x: Tensor, remembered: tuple[Tensor, Tensor] | None, memory_valid: Tensor | None
    ) -> Tensor:
        """Cross attention where there is some, and feed-forward."""
        if self.cross is not None and self.around_cross is not None and remembered is not None:
            crossed = self.cross(self.around_cross.entering(x), remembered, memory_valid)
            x = self.around_cross.leaving(x, crossed)
        return self.around_feed_forward.leaving(x, self.feed_forward(self.around_feed_forward.entering(x)))


class Transformer(Model):
    """Sources to translations. `build` makes the variant under test, used where `problem.where` says.

    Raises Unsupported, with the kind of attention and the reason, for a variant that cannot be used there.
    """

    recipe: TranslationRecipe

    def __init__(
        self, problem: Translation, recipe: TranslationRecipe, build: BuildVariant, seed: int, device: str = "cpu"
    ):
        super().__init__()
        check_positions(problem, recipe)
        self.problem, self.recipe = problem, recipe
        brought = {
            kind: [self._brought(build, kind, layer, seed, device) for layer in range(recipe.layers)] for kind in KINDS
        }
        width, heads = recipe.width, recipe.heads
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(axis_seed(use="init", seed=seed))
            self.embedding = nn.Embedding(recipe.vocabulary, width, padding_idx=0)
            # Inputs are multiplied by the root of the width; the same matrix gives the logits, which keep a scale of
            # one.
            nn.init.normal_(self.embedding.weight, std=width**-0.5)
            with torch.no_grad():
                self.embedding.weight[0] = 0
            self.positions = position_table(recipe, recipe.length)
            self.dropout = nn.Dropout(recipe.dropout)
            self.encoder = nn.ModuleList(
                TranslationLayer(Attention(variant, recipe), before, None, recipe)
                for variant, before in brought["encoder"]
            )
            self.decoder = nn.ModuleList(
                TranslationLayer(Attention(variant, recipe), before, CrossAttention(crossing, width, heads), recipe)
                for (variant, before), (crossing, _) in zip(brought["decoder"], brought["cross"], strict=True)
            )
            self.encoder_norm, self.decoder_norm = (
                nn.LayerNorm(width) if recipe.norm == "pre" else nn.Identity() for _ in range(2)
            )
            for layer in self.layers():
                _xavier(layer)
                assert isinstance(layer.attention.project_in, nn.Linear)
                scale_projections(layer.attention.project_in, 2 * width, recipe)
                layer.attention.drop_replaced()
                if layer.cross is not None:
                    scale_projections(layer.cross.project_query, width, recipe)
                    scale_projections(layer.cross.project_memory, width, recipe)

    def _brought(
        self, build: BuildVariant, kind: str, layer: int, seed: int, device: str
    ) -> tuple[Variant, nn.Module | None]:
        """Build the variant of a layer, drawn apart, so that it moves no random number of the shared model."""
        shape = attention_shape(self.recipe, kind, layer, device)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(axis_seed(use="variant init", seed=seed, layer=layer, kind=kind))
            if kind not in self.problem.where:
                return VARIANTS.build(Spec(REFERENCE), shape), None
            try:
                variant = build(shape)
            except Unsupported as error:
                raise Unsupported(f"{kind} attention: {error}") from None
            return variant, None if kind == "cross" else variant.pre_layer(self.recipe.width)

    def layers(self) -> Iterator[TranslationLayer]:
        for layer in [*self.encoder, *self.decoder]:
            assert isinstance(layer, TranslationLayer)
            yield layer

    def kinds(self) -> dict[str, list[Variant]]:
        """The variants of each kind of attention, by layer, those under test and those that are softmax."""
        layers = list(self.layers())
        return {
            "encoder": [layer.attention.variant for layer in layers if layer.cross is None],
            "decoder": [layer.attention.variant for layer in layers if layer.cross is not None],
            "cross": [layer.cross.variant for layer in layers if layer.cross is not None],
        }

    @property
    def variants(self) -> list[Variant]:
        """The variants under test."""
        return [variant for kind, each in self.kinds().items() if kind in self.problem.where for variant in each]

    def forward(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """Logits (batch, targets, vocabulary) of target ids (batch, targets), each from those before it.

        source: ids (batch, 1, sources) or (batch, sources), 0 = padding; lengths: (batch, 1) or (batch,).
        """
        memory = self.encode(source, lengths)
        # Teacher forcing: the input at each step is the token before it in the reference.
        begin = torch.full_like(target[:, :1], self.problem.begin)
        return self.decode(torch.cat([begin, target[:, :-1]], dim=1), memory, target != 0)

    def encode(self, source: Tensor, lengths: Tensor) -> Memory:
        source, lengths = source.flatten(0, -2), lengths.flatten()
        valid = None
        if self.problem.padded:
            valid = torch.arange(source.shape[1], device=source.device)[None, :] < lengths[:, None]
        x = self.embed(source)
        for layer in self.encoder:
            x = layer(x, Mask(valid))
        return Memory(states=self.encoder_norm(x), valid=valid)

    def decode(self, inputs: Tensor, memory: Memory, valid: Tensor | None = None) -> Tensor:
        """Logits of all outputs at once, from decoder inputs (batch, targets); valid: (batch, targets)."""
        x = self.embed(inputs)
        for layer in self.decoder:
            assert isinstance(layer, TranslationLayer) and layer.cross is not None
            x = layer(x, Mask(valid, causal=True), layer.cross.remember(memory), memory.valid)
        return self.logits(x)

    def embed(self, ids: Tensor, first: int = 0) -> Tensor:
        """(batch, length) to (batch, length, width); the first id stands at position `first`."""
        # Section 3.4 of the paper: as large as the positions that are added.
        x = self.embedding(ids) * math.sqrt(self.recipe.width)
        if self.positions is not None:
            x = x + self.positions[first : first + ids.shape[1]]
        embedded: Tensor = self.dropout(x)
        return embedded

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(self.decoder_norm(x), self.embedding.weight)

    def loss(self, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Mean cross entropy of the target tokens of a batch of source ids, lengths and target ids, in nats."""
        source, lengths, target = batch
        smoothing = self.recipe.label_smoothing if self.training else 0.0
        logits = self(source, lengths, target).float()
        return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=0, label_smoothing=smoothing)

    def parameter_counts(self) -> tuple[int, int]:
        """Trainable and added parameters; variants that are not under test are softmax, and add nothing."""
        added = sum(layer.added_parameters(self.recipe.width) for layer in self.layers())
        return trainable_count(self.parameters()), added


def attention_shape(recipe: TranslationRecipe, kind: str, layer: int, device: str) -> AttentionShape:
    """The shape that the variant of one layer and kind is built for."""
    mixed = recipe.precision == "bfloat16" and device.startswith("cuda")
    return AttentionShape(
        heads=recipe.heads,
        head_dim=recipe.head_dim,
        max_length=recipe.length,
        causal=kind == "decoder",
        cross=kind == "cross",
        padding=True,
        dropout=recipe.attention_dropout,
        dtype="bfloat16" if mixed else "float32",
        device=device,
        layer=layer,
        layers=recipe.layers,
    )


def _xavier(layer: TranslationLayer) -> None:
    """Vaswani's uniform initialisation for the shared maps, drawn in a fixed order; what a variant brings stays."""
    maps: list[nn.Module] = [layer.attention.project_in, layer.attention.project_out]
    if layer.cross is not None:
        maps += [layer.cross.project_query, layer.cross.project_memory, layer.cross.project_out]
    for each in (part for part in [*maps, *layer.feed_forward] if isinstance(part, nn.Linear)):
        # a fused map is initialised as the square maps that it holds
        squares = each.out_features // each.in_features if each in maps else 1
        for square in each.weight.chunk(squares):
            nn.init.xavier_uniform_(square)
        nn.init.zeros_(each.bias)
