"""Token prediction: answers at some positions of fresh sequences, measured by accuracy, one setting at a time too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from ....tasks.contract import Subset, Whole
from ....tasks.problems.token_prediction import UNASKED, TokenExamples, TokenPrediction, TokenRecipe, TokenStream
from ...core.order import evenly_spaced
from ...core.record import Measurement
from ...measure.attention.right_keys import RightKeys, weight_on_right_keys
from ...models.blocks import Batch, BuildVariant, Model
from ...models.decoder import TokenPredictor
from ..device import autocast, to_device
from .objective import Columns, Evaluation, Feed, Objective

Real = npt.NDArray[np.float64]

LOOKED_AT, LEAST_LOOKED_AT, MOST_LOOKED_AT = 256, 4, 32
"""Asked positions of a setting at which attention is measured, and the fewest and the most examples that hold them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPredictionResult(Evaluation):
    """The share of right answers and the nats per answer of each example, in the order of `subset`.

    `attention`: the weight on the right keys by place in `subset.settings`, where that was measured. `nats` is None for
    a baseline, which has no loss.
    """

    metric: ClassVar[str] = "accuracy"
    correct: Real
    nats: Real | None
    subset: TokenExamples
    attention: tuple[tuple[int, float], ...] = field(default=(), repr=False)

    @property
    def loss(self) -> float:  # type: ignore[override]
        return float(self.nats.mean()) if self.nats is not None else float("nan")

    @property
    def value(self) -> float:
        # as many examples of each setting, so that this is the mean over settings
        return float(self.correct.mean())

    def measurements(self, split: str) -> list[Measurement]:
        """Accuracy and loss of all examples, then of each setting, which its `where` names."""
        found = self._of(slice(None), {"split": split})
        for at, setting in enumerate(self.subset.settings):
            found += self._of(self.subset.labels == at, {"split": split, **setting})
        for at, value in self.attention:
            where: dict[str, Any] = {"split": split, **self.subset.settings[at]}
            found.append(Measurement.of("weight_on_right_key", value, **where))
        return found

    def _of(self, chosen: Any, where: dict[str, Any]) -> list[Measurement]:
        correct = self.correct[chosen]
        named = [("accuracy", float(correct.mean()))]
        if self.nats is not None:
            named.append(("loss", float(self.nats[chosen].mean())))
        return [Measurement.of(name, value, **where, examples=len(correct)) for name, value in named]

    def predictions(self) -> dict[str, Columns]:
        """`correct`, float64 shares from 0 to 1, and `setting`, the place of each example's setting in their order."""
        return {"correct": self.correct, "setting": self.subset.labels.astype(np.uint8)}


class TokenPredictionObjective(Objective):
    """The causal stack with an output at the asked positions, cross entropy, and fresh sequences at every step."""

    metric = "accuracy"
    problem: TokenPrediction
    recipe: TokenRecipe

    def model(self, build: BuildVariant, seed: int, device: str = "cpu") -> TokenPredictor:
        return TokenPredictor(self.problem, self.recipe, build, seed, device)

    def batch(self, subset: Subset, at: Whole, device: torch.device) -> Batch:
        """ids (batch, 1, length), lengths (batch, 1), asked and answers (batch, most).

        A fifth, `valid` (batch, length), comes only where sequences differ in length: they never do in training.
        """
        assert isinstance(subset, TokenExamples)
        found, lengths = subset.taken(at)
        parts: list[npt.NDArray[Any]] = [
            found.ids[:, None],
            lengths[:, None],
            found.asked,
            found.answers,
        ]
        if (lengths != found.ids.shape[1]).any():
            parts.append(np.arange(found.ids.shape[1]) < lengths[:, None])
        return to_device(parts, device)

    def choice(self, train: Subset, task: str, seed: int) -> None:
        """Return None: there is nothing to choose from."""

    def feed(self, train: Subset, task: str, seed: int) -> Feed:
        """Fresh sequences by (task, seed) and step, of one length in each batch."""
        assert isinstance(train, TokenStream)
        return partial(self._drawn, train, task, seed)

    def _drawn(self, train: TokenStream, task: str, seed: int, step: int, device: torch.device) -> Batch:
        found = train.at(step, self.recipe.batch, task, seed)
        lengths = np.full((len(found), 1), found.ids.shape[1])
        return to_device([found.ids[:, None], lengths, found.asked, found.answers], device)

    def evaluate(
        self, model: Model, subset: Subset, device: torch.device, heartbeat: Callable[[], None] = lambda: None
    ) -> TokenPredictionResult:
        """Every example once; where there are settings, attention at the right keys of a few of each too."""
        assert isinstance(subset, TokenExamples) and isinstance(model, TokenPredictor)
        model.eval()
        correct, nats = np.zeros(len(subset)), np.zeros(len(subset))
        with torch.inference_mode(), autocast(self.recipe, device):
            for at in self._alike(subset):
                ids, _, asked, answers = self.batch(subset, at, device)[:4]
                logits = model(ids[:, 0], asked).float()
                lost = F.cross_entropy(logits.transpose(1, 2), answers, ignore_index=UNASKED, reduction="none")
                counts = answers != UNASKED
                right = (logits.argmax(-1) == answers) & counts
                number = counts.sum(1).clamp(min=1).double()
                nats[at] = (lost.sum(1, dtype=torch.float64) / number).cpu().numpy()
                correct[at] = self._credit(right.sum(1).double() / number).cpu().numpy()
                heartbeat()
        attention = tuple(self._attention(model, subset, device, heartbeat)) if subset.settings else ()
        return TokenPredictionResult(correct=correct, nats=nats, subset=subset, attention=attention)

    def measure_baseline(self, predicted: Columns, test: Subset) -> list[Measurement]:
        return self.evaluate_baseline(predicted, test).measurements("test")

    def evaluate_baseline(self, predicted: Columns, test: Subset) -> TokenPredictionResult:
        """predicted: token ids (examples, most), of which those count that stand where `test.answers` has one."""
        assert isinstance(test, TokenExamples)
        answers = test.answers[test.indices]
        counts = answers != UNASKED
        shares = ((predicted == answers) & counts).sum(1) / np.maximum(counts.sum(1), 1)
        correct = self._credit(torch.from_numpy(shares)).numpy()
        return TokenPredictionResult(correct=correct, nats=None, subset=test)

    def _credit(self, shares: Tensor) -> Tensor:
        # greedy decoding puts out the right tokens exactly where each is the likeliest after the right ones before it
        return (shares == 1).double() if self.problem.exact else shares

    def _alike(self, subset: TokenExamples) -> Iterator[Whole]:
        """Positions of sequences of one length each, as many at a time as `evaluate_batch` sequences have tokens."""
        lengths = subset.lengths()
        budget = self.recipe.evaluate_batch * self.problem.tokens(self.recipe.length)
        for length in np.unique(lengths):
            alike = np.flatnonzero(lengths == length)
            size = max(int(budget // length), 1)
            for first in range(0, len(alike), size):
                yield alike[first : first + size]

    @torch.inference_mode()
    def _attention(
        self, model: TokenPredictor, subset: TokenExamples, device: torch.device, heartbeat: Callable[[], None]
    ) -> Iterator[tuple[int, float]]:
        """The weight on the right key by setting, of the one head that puts most there over all settings."""
        found: dict[int, RightKeys] = {}
        for number in range(len(subset.settings)):
            places = np.flatnonzero(subset.labels == number)
            if (subset.right_keys[subset.indices[places]] < 0).all():
                continue
            asked = max(int((subset.answers[subset.indices[places]] != UNASKED).sum(1).max()), 1)
            examples = min(max(LOOKED_AT // asked, LEAST_LOOKED_AT), MOST_LOOKED_AT)
            sums = RightKeys()
            for at in evenly_spaced(len(places), examples):
                batch = self.batch(subset, places[at : at + 1], device)
                keys = subset.taken(places[at : at + 1])[0].right_keys
                weight_on_right_keys(sums, model, batch, torch.from_numpy(keys).to(device))
                heartbeat()
            if sums.count:
                found[number] = sums
        if found:
            means = torch.stack([sums.means() for sums in found.values()])
            best = int(means.mean(0).argmax())
            yield from zip(found, means[:, best].tolist(), strict=True)
