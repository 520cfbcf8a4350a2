"""The model that answers at some positions of a sequence: the causal stack, and an output applied there alone."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from ...tasks.contract import Problem, Recipe
from ...tasks.problems.token_prediction import TokenPrediction
from .blocks import BuildVariant
from .decoder import CausalStack, DecoderState

UNASKED = 0
"""The answer of a place that is not asked about: padding, which is no answer to anything."""


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
        """Of ids (batch, 1, length), lengths, asked and answers (batch, asked), and where sequences differ `valid`."""
        ids, _, asked, answers, *valid = batch
        logits = self(ids[:, 0], asked, valid[0] if valid else None).float()
        smoothing = self.recipe.label_smoothing if self.training else 0.0
        return F.cross_entropy(logits.flatten(0, 1), answers.flatten(), ignore_index=UNASKED, label_smoothing=smoothing)

    def step(self, ids: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Logits (batch, vocabulary) after one more token of each sequence, ids (batch,)."""
        states, after = self.step_states(ids, state)
        logits: Tensor = self.head(states)
        return logits, after
