"""Translation: sequences into others, measured by BLEU of the output of a beam search."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, ClassVar

import numpy as np
import torch
from torch.nn import functional as F

from ....tasks.contract import Subset, Whole
from ....tasks.translation.problem import EvaluationPairs, SentencePairs, Translation, TranslationRecipe
from ...core.order import evenly_spaced
from ...core.record import Measurement
from ...measure.attention.view import AttentionView
from ...models.blocks import BuildVariant, Model
from ...train.device import autocast
from ...train.objectives.objective import Choice, Columns, Evaluation, Objective
from .batching import TokenBatches
from .bleu import TranslationScore, score_translations
from .decoding import translate
from .inspection import views_of_pair
from .model import Transformer

OBSERVED = 32
"""Test pairs whose attention is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TestSet:
    """One set that was translated, and its scores. `places`: of its pairs, in the order of the subset."""

    name: str
    places: tuple[int, ...]
    score: TranslationScore

    @property
    def examples(self) -> int:
        return len(self.places)


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslationResult(Evaluation):
    """Loss (nats per target token). Where translations were searched for: their scores by set, the first one ranking.

    `translations`: text, in the order of the subset. `attention`: its statistics.
    """

    metric: ClassVar[str] = "loss"
    loss: float
    tokens: int
    sets: tuple[TestSet, ...] = ()
    translations: tuple[str, ...] = ()
    tokens_per_second: float = 0.0
    beam: int = 1
    attention: tuple[Measurement, ...] = field(default=(), repr=False)

    @property
    def value(self) -> float:
        return self.loss

    def measurements(self, split: str) -> list[Measurement]:
        found = [m for each in self.sets for m in set_measurements(each, split)]
        # a baseline has neither a loss nor a search
        if self.tokens:
            found.append(Measurement.of("loss", self.loss, split=split, tokens=self.tokens))
        if self.tokens_per_second:
            found.append(
                Measurement.of("decode_tokens_per_second", self.tokens_per_second, split=split, beam=self.beam)
            )
        return [*found, *self.attention]

    def predictions(self) -> dict[str, Columns]:
        """`statistics` (sentences of the ranked set, 10), see `aggregate`; `translations` of all sets as UTF-8.

        In the order of these: `sentence_statistics` (sentences, 10), and `sentence_sets`, the place in `set_names` of
        the set that each is of.
        """
        if not self.sets:
            return {}
        text = "\n".join(line.replace("\n", " ") for line in self.translations).encode()
        ranked = self.sets[0].score.statistics
        statistics = np.zeros((len(self.translations), ranked.shape[1]))
        numbers = np.zeros(len(self.translations), dtype=np.uint8)
        for number, each in enumerate(self.sets):
            statistics[list(each.places)], numbers[list(each.places)] = each.score.statistics, number
        return {
            "statistics": ranked,
            "sentence_statistics": statistics,
            "sentence_sets": numbers,
            "set_names": np.array([each.name for each in self.sets]),
            "translations": np.frombuffer(text, dtype=np.uint8),
        }


def set_measurements(each: TestSet, split: str) -> list[Measurement]:
    score = each.score
    where: dict[str, Any] = {"split": split, "set": each.name, "examples": each.examples}
    return [
        Measurement.of("bleu", score.bleu, **where, signature=score.bleu_signature),
        Measurement.of("chrf", score.chrf, **where, signature=score.chrf_signature),
    ]


class TranslationObjective(Objective):
    """The Transformer; batches of like lengths; the checkpoint with the lowest validation loss."""

    metric = "loss"
    measures_attention: ClassVar[bool] = True
    """Attention is measured with the test split, by kind: see `measure/attention/translation.py`."""
    problem: Translation
    recipe: TranslationRecipe

    def model(self, build: BuildVariant, seed: int, device: str = "cpu") -> Transformer:
        return Transformer(self.problem, self.recipe, build, seed, device)

    def choice(self, train: Subset, task: str, seed: int) -> Choice:
        """Batches of at most `recipe.tokens` tokens a side, pairs of like lengths together."""
        assert isinstance(train, SentencePairs)
        lengths = np.minimum(train.lengths(), self.recipe.length)
        batches = TokenBatches(lengths, self.recipe.tokens, task=task, seed=seed)
        return lambda step: (train, batches.at(step))

    def evaluate(
        self, model: Model, subset: Subset, device: torch.device, heartbeat: Callable[[], None] = lambda: None
    ) -> TranslationResult:
        """The loss; for pairs with references, translations and their scores too."""
        assert isinstance(model, Transformer) and isinstance(subset, SentencePairs)
        model.eval()
        # like lengths together: less padding, and results in the subset's order all the same
        order = np.argsort(subset.lengths(), kind="stable")
        size = self.recipe.evaluate_batch
        batches = [order[first : first + size] for first in range(0, len(order), size)]
        # Steps are compared by the loss: a beam search of every validation would take longer than the training.
        loss, tokens = self._loss(model, subset, batches, device, heartbeat)
        if not isinstance(subset, EvaluationPairs):
            return TranslationResult(loss=loss, tokens=tokens)
        translations, speed = self._translations(model, subset, batches, device, heartbeat)
        return TranslationResult(
            loss=loss,
            tokens=tokens,
            sets=tuple(test_sets(translations, subset)),
            translations=tuple(translations),
            tokens_per_second=speed,
            beam=self.recipe.beam,
            attention=tuple(self._attention(model, subset, device)),
        )

    def _loss(
        self,
        model: Transformer,
        subset: Subset,
        batches: Sequence[Whole],
        device: torch.device,
        heartbeat: Callable[[], None],
    ) -> tuple[float, int]:
        total, tokens = 0.0, 0
        with torch.inference_mode(), autocast(self.recipe, device):
            for at in batches:
                source, lengths, target = self.batch(subset, at, device)
                logits = model(source, lengths, target).float()
                total += float(F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=0, reduction="sum"))
                tokens += int((target != 0).sum())
                heartbeat()
        return total / max(tokens, 1), tokens

    def _translations(
        self,
        model: Transformer,
        subset: EvaluationPairs,
        batches: Sequence[Whole],
        device: torch.device,
        heartbeat: Callable[[], None],
    ) -> tuple[list[str], float]:
        """Text in the order of the subset, and tokens put out per second of the search."""
        found = [""] * len(subset)
        tokens, seconds = 0, 0.0
        # on a GPU kernels are compiled for the first batch, so that is translated once before any is timed
        warm_up = batches[:1] if device.type == "cuda" else []
        for number, at in enumerate([*warm_up, *batches]):
            source, lengths, _ = self.batch(subset, at, device)
            started = perf_counter()
            with autocast(self.recipe, device):
                hypotheses = translate(model, source, lengths)
            if number < len(warm_up):
                continue
            # The search alone: detokenising is the same for all variants.
            seconds += perf_counter() - started
            for place, hypothesis in zip(at, hypotheses, strict=True):
                found[place] = subset.decode(hypothesis.tokens)
                tokens += len(hypothesis.tokens) + 1
            heartbeat()
        return found, tokens / max(seconds, 1e-9)

    def _attention(self, model: Transformer, subset: EvaluationPairs, device: torch.device) -> list[Measurement]:
        from .attention import alignment_measurements, attention_measurements

        length = self.recipe.length
        chosen = subset.indices[evenly_spaced(len(subset), OBSERVED)]
        pairs = [
            tuple(subset.split.sequence(int(index), side)[:length].tolist() for side in (0, 1)) for index in chosen
        ]
        return [
            *attention_measurements(model, [(source, target) for source, target in pairs], device),
            *alignment_measurements(model, subset.aligned[: self.recipe.test_examples], device),
        ]

    def inspect_example(
        self, model: Model, test: Subset, example: int, device: torch.device
    ) -> tuple[tuple[str, ...], tuple[AttentionView, ...]]:
        """A test pair with its reference, as far as the model reads."""
        assert isinstance(model, Transformer) and isinstance(test, EvaluationPairs)
        index = int(test.indices[example])
        source, target = (test.split.sequence(index, side)[: self.recipe.length].tolist() for side in (0, 1))
        return (test.sources[index], test.references[index]), views_of_pair(model, test, source, target, device)

    def inspect_sentence(
        self, model: Model, test: Subset, sentence: str, device: torch.device
    ) -> tuple[tuple[str, ...], tuple[AttentionView, ...]]:
        """A sentence with the translation that the model's search finds."""
        assert isinstance(model, Transformer) and isinstance(test, EvaluationPairs)
        source = test.encode([sentence])[0][: self.recipe.length].tolist()
        ids = torch.tensor([source], device=device)
        model.eval()
        best = translate(model, ids[:, None], torch.tensor([[len(source)]], device=device))[0]
        views = views_of_pair(model, test, source, [*best.tokens, model.problem.end], device)
        return (sentence, test.decode(best.tokens)), views

    def measure_baseline(self, predicted: Columns, test: Subset) -> list[Measurement]:
        """Scores of a baseline's translations, as text."""
        return self.evaluate_baseline(predicted, test).measurements("test")

    def evaluate_baseline(self, predicted: Columns, test: Subset) -> TranslationResult:
        """A baseline's translations, scored like those of a model; it has no loss."""
        assert isinstance(test, EvaluationPairs)
        lines = tuple(str(line) for line in predicted)
        return TranslationResult(loss=math.nan, tokens=0, sets=tuple(test_sets(lines, test)), translations=lines)


def test_sets(translations: Sequence[str], subset: EvaluationPairs) -> list[TestSet]:
    """Scores of each test set that has pairs in the subset."""
    labels = subset.labels
    found = []
    for number, name in enumerate(subset.sets):
        at = np.flatnonzero(labels == number).tolist()
        if at:
            mine = [translations[place] for place in at]
            its = [subset.references[subset.indices[place]] for place in at]
            found.append(TestSet(name=name, places=tuple(at), score=score_translations(mine, its, subset.language)))
    return found
