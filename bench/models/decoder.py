"""The causal stack of blocks, and its two models: one predicts the next token, one answers at some positions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...tasks.contract import Problem, Recipe
from ...tasks.problems.language_modeling import Language
from ...tasks.problems.token_prediction import TokenPrediction
from ...variants.contract import Mask
from ..core.hashing import axis_seed
from .blocks import BlockState, BuildVariant, Model, TransformerBlock, build_variants, convolution_of, longest_sequence
from .positions import embedding_scale, position_table

UNCOUNTED = -1
"""The target of a position that does not count."""

UNASKED = 0
"""The answer of a place that is not asked about: padding, which is no answer to anything."""


@dataclass(frozen=True, slots=True)
class DecoderState:
    """State of decoding: the number of tokens seen so far, the state of each block, and of the convolution its past.

    `past`: the last embeddings, (batch, kernel - 1, width).
    """

    seen: int
    blocks: tuple[BlockState, ...]
    past: Tensor | None = None


class CausalStack(Model):
    """Embedding, convolution, positions, pre-norm causal blocks and a norm; a subclass has the output.

    Where the variant brings positions of its own, none are added, as in the Routing Transformer (Roy et al. 2021).
    """

    def __init__(self, problem: Problem, recipe: Recipe, build: BuildVariant, seed: int, device: str = "cpu"):
        super().__init__()
        self.recipe = recipe
        brought = build_variants(build, problem, recipe, seed, device)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(axis_seed(use="init", seed=seed))
            self.embedding = nn.Embedding(problem.vocabulary, recipe.width)
            nn.init.normal_(self.embedding.weight, std=recipe.deviation)
            # drawn for all, so that the blocks of all start alike
            table = position_table(recipe, longest_sequence(problem, recipe))
            own = all(variant.brings_positions for variant, _ in brought)
            self.positions = None if own else table
            self.dropout = nn.Dropout(recipe.dropout)
            self.convolution = convolution_of(recipe)
            self.blocks = nn.ModuleList(
                TransformerBlock(variant, before, recipe, relative=not own) for variant, before in brought
            )
            self.norm = nn.LayerNorm(recipe.width)
            self.draw_output(problem, recipe)
        self.scale = 1.0 if self.positions is None else embedding_scale(recipe)

    def draw_output(self, problem: Problem, recipe: Recipe) -> None:
        """Makes what a subclass adds, from the same stream of random numbers."""

    def states(self, ids: Tensor, valid: Tensor | None = None) -> Tensor:
        """Normalised states (batch, length, width) of ids (batch, length); valid: as in `Mask`, None = all are real."""
        x = self.embedding(ids) * self.scale
        if self.convolution is not None:
            x = self.convolution(x)
        x = self.dropout(self._placed(x, 0))
        for block in self.blocks:
            x = block(x, Mask(valid, causal=True))
        normed: Tensor = self.norm(x)
        return normed

    def begin(self) -> DecoderState:
        """Nothing seen yet."""
        return DecoderState(0, (BlockState(),) * len(self.blocks))

    def step_states(self, ids: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Normalised states (batch, width) of one more token of each sequence, ids (batch,)."""
        x, past = self.embedding(ids[:, None]) * self.scale, state.past
        if self.convolution is not None:
            past = self.convolution.nothing_before(x) if past is None else past
            x, past = self.convolution(x, past), torch.cat([past, x], dim=1)[:, 1:]
        x = self._placed(x, state.seen)
        kept = []
        for block, before in zip(self.blocks, state.blocks, strict=True):
            x, after = block.step(x, before, state.seen)  # type: ignore[operator]
            kept.append(after)
        return self.norm(x)[:, 0], DecoderState(state.seen + 1, tuple(kept), past)

    def _placed(self, x: Tensor, first: int) -> Tensor:
        return x if self.positions is None else x + self.positions[first : first + x.shape[1]]


class Decoder(CausalStack):
    """The causal stack with the embedding's transpose as output (Press and Wolf 2017).

    Column c of its logits is token id c + 1, since 0 is padding and never comes.
    """

    def __init__(self, problem: Language, recipe: Recipe, build: BuildVariant, seed: int, device: str = "cpu"):
        super().__init__(problem, recipe, build, seed, device)
        self.problem = problem

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (batch, length, vocabulary - 1) of the token after each of ids (batch, length)."""
        # Windows of text are full, so nothing is padded.
        return self._logits(self.states(ids))

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

    def step(self, ids: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Logits (batch, vocabulary - 1) after one more token of each sequence, ids (batch,); at most `length`."""
        states, after = self.step_states(ids, state)
        return self._logits(states), after

    def _logits(self, states: Tensor) -> Tensor:
        return F.linear(states, self.embedding.weight[1:])


class TokenPredictor(CausalStack):
    """The causal stack with an output of its own, not tied to the embedding. Column c of its logits is token id c."""

    def __init__(self, problem: TokenPrediction, recipe: Recipe, build: BuildVariant, seed: int, device: str = "cpu"):
        super().__init__(problem, recipe, build, seed, device)
        self.problem = problem

    def draw_output(self, problem: Problem, recipe: Recipe) -> None:
        self.head = nn.Linear(recipe.width, problem.vocabulary, bias=False)

    def forward(self, ids: Tensor, asked: Tensor, valid: Tensor | None = None) -> Tensor:
        """Logits (batch, asked, vocabulary) at positions `asked` (batch, asked) of ids (batch, length)."""
        states = self.states(ids, valid)
        # Before the output: of a thousand positions often one is asked about.
        chosen = states.gather(1, asked[..., None].expand(-1, -1, states.shape[-1]))
        logits: Tensor = self.head(chosen)
        return logits

    def loss(self, batch: tuple[Tensor, ...]) -> Tensor:
        """Mean loss of ids (batch, 1, length), lengths, asked and answers (batch, asked); `valid` if lengths differ."""
        ids, _, asked, answers, *valid = batch
        logits = self(ids[:, 0], asked, valid[0] if valid else None).float()
        smoothing = self.recipe.label_smoothing if self.training else 0.0
        return F.cross_entropy(logits.flatten(0, 1), answers.flatten(), ignore_index=UNASKED, label_smoothing=smoothing)

    def step(self, ids: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Logits (batch, vocabulary) after one more token of each sequence, ids (batch,)."""
        states, after = self.step_states(ids, state)
        logits: Tensor = self.head(states)
        return logits, after
