"""Pre-norm Transformer blocks around a variant, shared by the models of the core.

Shared parameters take their values from the seed alone, so two variants of one seed start from the same model; what a
variant adds is drawn apart and counted apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...tasks.contract import Classification, Problem, Recipe
from ...tasks.problems.language_modeling import LanguageRecipe
from ...tasks.problems.token_prediction import TokenPrediction, TokenRecipe
from ...variants.contract import AttentionShape, Mask, Variant
from ..core.errors import Unsupported
from ..core.hashing import axis_seed
from .positions import ALIBI_DIMENSIONS, LinearBias, check_positions, rotated

Batch = tuple[Tensor, ...]
"""Token ids (batch, towers, length), their lengths (batch, towers), then whatever the objective needs."""

BuildVariant = Callable[[AttentionShape], Variant]


class Attention(nn.Module):
    """Projections round a variant: (batch, length, width) to the same. It brings in positions that are not added.

    A variant with projections of its own gets the states of a head each as query, key and value.
    """

    variant: Variant
    project_in: nn.Module
    project_out: nn.Module

    def __init__(self, variant: Variant, recipe: Recipe, *, relative: bool = True):
        """`relative`: whether positions by rotation or by bias apply, where the recipe asks for them."""
        super().__init__()
        self.heads, self.width = recipe.heads, recipe.width
        self.project_in = nn.Linear(recipe.width, 3 * recipe.width)
        self.variant = variant
        self.project_out = nn.Linear(recipe.width, recipe.width)
        self.rotates = relative and recipe.positions == "rope"
        self.bias = LinearBias(recipe.heads) if relative and recipe.positions == "alibi" else None
        scale_projections(self.project_in, 2 * recipe.width, recipe)

    def drop_replaced(self) -> None:
        """Leaves out projections that the variant has itself: after all was drawn, so that no other draw moves."""
        if self.variant.owns_projections:
            self.project_in, self.project_out = nn.Identity(), nn.Identity()

    def forward(self, x: Tensor, mask: Mask) -> Tensor:
        query, key, value = self._heads(x, 0)
        with self._autocast(x):
            output = self.variant(query, key, value, mask, x)
        return self._joined(output)

    def step(self, x: Tensor, state: Any, seen: int) -> tuple[Tensor, Any]:
        """One more position of each sequence, (batch, 1, width), with what the variant keeps of the `seen` before."""
        query, key, value = self._heads(x, seen)
        with self._autocast(x):
            output, state = self.variant.step_with(query, key, value, state, x)
        return self._joined(output), state

    def _autocast(self, x: Tensor) -> torch.autocast:
        # a variant decides itself what it accumulates in; autocast would cast its float32 scores back down
        device = x.device.type
        return torch.autocast(device, enabled=self.variant.owns_projections and torch.is_autocast_enabled(device))

    def _heads(self, x: Tensor, first: int) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value, each (batch, heads, length, head_dim), with positions from `first` on."""
        batch, length, width = x.shape
        if self.variant.owns_projections:
            states = x.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            return states, states, states
        # One product for all three projections, as fast implementations do; its parameters are those of three.
        joined: Tensor = self.project_in(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = joined.permute(2, 0, 3, 1, 4)
        if self.rotates:
            query, key = rotated(query, first), rotated(key, first)
        return (query, key, value) if self.bias is None else self.bias.widened(query, key, value, first)

    def _joined(self, output: Tensor) -> Tensor:
        # without the dimensions of a bias, which hold zeros
        joined: Tensor = self.project_out(output[..., : self.width // self.heads].transpose(1, 2).flatten(2))
        return joined


def scale_projections(projection: nn.Linear, rows: int, recipe: Recipe) -> None:
    """Multiplies the first `rows` outputs of a projection, which are queries and keys, by `query_key_scale`."""
    if recipe.query_key_scale != 1.0:
        with torch.no_grad():
            projection.weight[:rows] *= recipe.query_key_scale
            projection.bias[:rows] *= recipe.query_key_scale


def added_parameters(width: int, variant: Variant, before: nn.Module | None = None) -> int:
    """Trainable parameters that a variant and its sublayer bring to a layer, less the projections that it replaces."""
    own = [*variant.parameters(), *(before.parameters() if before else ())]
    return trainable_count(own) - (4 * width * (width + 1) if variant.owns_projections else 0)


def parameters_with_projections(variants: Iterable[Variant]) -> int:
    """Trainable parameters of those that have projections of their own."""
    return sum(trainable_count(variant.parameters()) for variant in variants if variant.owns_projections)


def feed_forward_units(recipe: Recipe, added: int, matched: bool) -> int:
    """Hidden units of a layer's feed-forward: where parameters are `matched`, fewer by as many as `added` needs.

    Raises Unsupported where the feed-forward has not so many.
    """
    # a unit has a weight to and from each number of the width, and a bias
    units = recipe.feed_forward - (round(added / (2 * recipe.width + 1)) if matched else 0)
    if units < 1:
        raise Unsupported(
            f"its layer has {added:,} more parameters than that of softmax, and a feed-forward of "
            f"{recipe.feed_forward:,} units cannot give up so many; leave out `matched`, or choose another preset"
        )
    return units


@dataclass(frozen=True, slots=True)
class BlockState:
    """State of a block while decoding: `kept` by its variant; `past` inputs (batch, seen, width) where it needs them.

    A variant's own sublayer has no step of its own, so its inputs are kept.
    """

    kept: Any = None
    past: Tensor | None = None


def step_before(before: nn.Module | None, x: Tensor, past: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """One position (batch, 1, width) through a variant's own sublayer and residual, and the inputs so far with it."""
    if before is None:
        return x, None
    # a sublayer such as a convolution over the whole input needs its past; attention keeps its own state
    past = x if past is None else torch.cat([past, x], dim=1)
    return x + before(past, None)[:, -1:], past


class TransformerBlock(nn.Module):
    """Pre-norm attention and feed-forward with residuals; a variant may put a sublayer of its own before attention."""

    def __init__(self, variant: Variant, before: nn.Module | None, recipe: Recipe, *, relative: bool = True):
        """`relative`: as in `Attention`."""
        super().__init__()
        self.before = before
        self.attention_norm = nn.LayerNorm(recipe.width)
        self.attention = Attention(variant, recipe, relative=relative)
        self.attention.drop_replaced()
        self.feed_forward_norm = nn.LayerNorm(recipe.width)
        units = feed_forward_units(recipe, added_parameters(recipe.width, variant, before), variant.matches_parameters)
        self.feed_forward = nn.Sequential(
            nn.Linear(recipe.width, units), nn.GELU(), nn.Dropout(recipe.dropout), nn.Linear(units, recipe.width)
        )
        self.dropout = nn.Dropout(recipe.dropout)

    def forward(self, x: Tensor, mask: Mask) -> Tensor:
        if self.before is not None:
            x = x + self.before(x, mask.valid)
        x = x + self.dropout(self.attention(self.attention_norm(x), mask))
        x = x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        return x

    def step(self, x: Tensor, state: BlockState, seen: int) -> tuple[Tensor, BlockState]:
        """One more position of each sequence, (batch, 1, width), behind `seen` others.

        What comes before attention is run over all so far.
        """
        x, past = step_before(self.before, x, state.past)
        attended, kept = self.attention.step(self.attention_norm(x), state.kept, seen)
        x = x + self.dropout(attended)
        x = x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        return x, BlockState(kept, past)


class Model(nn.Module):
    """The interface of a model to training and measuring, whatever its problem."""

    recipe: Recipe

    @property
    def variants(self) -> list[Variant]:
        """One for each attention, in the order of the layers."""
        return [module.variant for module in self.modules() if isinstance(module, Attention)]

    def loss(self, batch: Any) -> Tensor:
        """Mean loss of one batch of the model's kind, in nats, label smoothing only while training."""
        raise TypeError(f"{type(self).__name__} defines no loss(batch)")

    def auxiliary_loss(self) -> Tensor | None:
        """Sum of what the variants add to the loss; None where none adds anything."""
        terms = [term for term in (variant.auxiliary_loss() for variant in self.variants) if term is not None]
        return sum(terms[1:], terms[0]) if terms else None

    def after_step(self) -> None:
        for variant in self.variants:
            variant.after_step()

    def parameter_counts(self) -> tuple[int, int]:
        """Trainable parameters of the whole model, and those that variants add, less what they replace."""
        blocks = [module for module in self.modules() if isinstance(module, TransformerBlock)]
        added = [added_parameters(self.recipe.width, block.attention.variant, block.before) for block in blocks]
        return trainable_count(self.parameters()), sum(added)


def build_variants(
    build: BuildVariant, problem: Problem, recipe: Recipe, seed: int, device: str
) -> list[tuple[Variant, nn.Module | None]]:
    """Build the variant of each layer, drawn apart, so that it moves no random number of the shared model.

    Raises Unsupported where the recipe asks for ALiBi, which only maps of products of query and key can be given.
    """
    found = []
    for layer in range(recipe.layers):
        # Drawn apart: otherwise a variant with parameters would shift every later draw, and two variants of one seed
        # would start from different embeddings and heads.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(axis_seed(use="variant init", seed=seed, layer=layer))
            variant = build(attention_shape(problem, recipe, layer, device))
            require_bias(variant, recipe)
            found.append((variant, variant.pre_layer(recipe.width)))
    return found


def require_bias(variant: Variant, recipe: Recipe) -> None:
    """Raises Unsupported where the recipe asks for ALiBi and the variant cannot be given it."""
    if recipe.positions == "alibi" and not variant.maps_products:
        raise Unsupported(
            "positions=alibi adds a bias to scores q·k / sqrt(d) through two more dimensions of each head, and this "
            "variant weighs by something else"
        )


def attention_shape(problem: Problem, recipe: Recipe, layer: int, device: str) -> AttentionShape:
    """The shape that the variant of one layer is built for. Raises SelectionError for positions it cannot have."""
    check_positions(problem, recipe)
    mixed = recipe.precision == "bfloat16" and device.startswith("cuda")
    biased = recipe.positions == "alibi"
    return AttentionShape(
        heads=recipe.heads,
        head_dim=recipe.head_dim + ALIBI_DIMENSIONS * biased,
        hidden_width=recipe.width,
        max_length=longest_sequence(problem, recipe),
        causal=problem.causal,
        padding=problem.padded,
        dropout=recipe.attention_dropout,
        # a bias is a position times a slope, which half precision rounds
        dtype="bfloat16" if mixed and not biased else "float32",
        device=device,
        layer=layer,
        layers=recipe.layers,
    )


def longest_sequence(problem: Problem, recipe: Recipe) -> int:
    """Positions of the longest sequence that the model ever reads, in training or in a test."""
    if isinstance(problem, TokenPrediction):
        assert isinstance(recipe, TokenRecipe)
        return problem.tokens(max(recipe.length, recipe.longest))
    if isinstance(recipe, LanguageRecipe):
        return max(recipe.length, recipe.longest)
    # The summary token is one more position, which masks and positions of a variant must have room for.
    return recipe.length + (isinstance(problem, Classification) and recipe.pooling == "cls")


def trainable_count(parameters: Iterable[nn.Parameter]) -> int:
    """Numbers that training changes."""
    return sum(p.numel() for p in parameters if p.requires_grad)


class EmbeddingConvolution(nn.Module):
    """x_t + sum over 0 < u < kernel of W_u x_(t - u): each token knows the `kernel` - 1 before it.

    Of width 2 it is a token shift, as that of RWKV (Peng et al. 2023), with a full matrix: the short way by which a
    value knows its key in recall (Arora et al. 2023 put a convolution of width 3 there). The token itself stays as it
    is: a matrix on it as well halves the others at the start, and selective copying then learns half as fast.
    """

    def __init__(self, width: int, kernel: int):
        super().__init__()
        self.kernel = kernel
        self.convolution = nn.Conv1d(width, width, kernel - 1, bias=False)

    def forward(self, x: Tensor, past: Tensor | None = None) -> Tensor:
        """(batch, length, width) to the same; `past`: the inputs before, (batch, kernel - 1, width), else 0."""
        past = self.nothing_before(x) if past is None else past
        before = torch.cat([past, x], dim=1)[:, :-1]
        added: Tensor = self.convolution(before.transpose(1, 2))
        return x + added.transpose(1, 2)

    def nothing_before(self, like: Tensor) -> Tensor:
        """The past of a first token: zeros, of a batch like (batch, length, width)."""
        return like.new_zeros(like.shape[0], self.kernel - 1, like.shape[2])


def convolution_of(recipe: Recipe) -> EmbeddingConvolution | None:
    """The convolution of the recipe. Without one, return None and draw no random number."""
    return EmbeddingConvolution(recipe.width, recipe.convolution) if recipe.convolution else None
