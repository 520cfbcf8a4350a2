"""Language modelling: the next token of a text, evaluated by the bits spent on each character."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from ....tasks.contract import Subset, Whole
from ....tasks.problems.language_modeling import Language, LanguageRecipe, Windows
from ...core.hashing import axis_seed
from ...core.order import evenly_spaced, order
from ...core.record import Measurement
from ...measure.attention.heads import Diversity, head_diversity
from ...measure.attention.recorder import Call, recording, slices
from ...models.blocks import BuildVariant, Model
from ...models.decoder import UNCOUNTED, Decoder
from ..device import autocast, to_device
from .objective import Choice, Columns, Evaluation, Objective

Real = npt.NDArray[np.float64]

COMPARED = 8
"""Validation windows in which the heads of a layer are compared."""

ROWS, STRETCHES = 32, 4
"""Queries that are compared at once, and how often in a window: all of up to 128, and of more some of each part."""

FIRST_END = 16
"""The last of the first positions whose cost is reported together; each further stretch ends at twice the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageModelingResult(Evaluation):
    """Cost of predicting a text. `bits`, `characters`, `words` and `tokens` are by window, float64 (windows,).

    Words are those of the original text between blanks, and each end of a line counts as one, whatever the tokens are.
    `by_position`: bits per character by position in longer windows, where a test reads them. `compare`: looks at
    the heads of the model as it is then, so it is called for a validation that is kept alone.
    """

    metric: ClassVar[str] = "bits_per_character"
    recipe: LanguageRecipe
    bits: Real
    characters: Real
    words: Real
    tokens: Real
    by_position: tuple[Measurement, ...] = field(default=(), repr=False)
    compare: Callable[[], Sequence[Measurement]] = field(default=tuple, repr=False)

    @property
    def loss(self) -> float:  # type: ignore[override]
        return float(self.bits.sum() / self.tokens.sum()) * math.log(2)

    @property
    def value(self) -> float:
        return float(self.bits.sum() / self.characters.sum())

    @property
    def perplexity(self) -> float:
        """2 to the bits per word; infinite where that is no number."""
        bits, words = float(self.bits.sum()), float(self.words.sum())
        return 2.0 ** (bits / words) if bits < 1024 * words else math.inf

    def measurements(self, split: str) -> list[Measurement]:
        of: dict[str, Any] = {"split": split, "examples": len(self.bits)}
        read: dict[str, Any] = {"context": self.recipe.length, "stride": self.recipe.stride}
        # a script without blanks has words of any length
        known = [self.perplexity] if math.isfinite(self.perplexity) else []
        return [
            Measurement.of("bits_per_character", self.value, **of, **read),
            *(Measurement.of("perplexity", each, **of, **read, token="word") for each in known),
            Measurement.of("loss", self.loss, **of),
            *self.by_position,
            *(self.compare() if split == "validation" else ()),
        ]

    def predictions(self) -> dict[str, Columns]:
        return {"statistics": np.stack([self.bits, self.characters], axis=1)}


class LanguageModelingObjective(Objective):
    """A decoder, cross entropy, and windows of a text that slide by a stride, so that each token counts once."""

    metric = "bits_per_character"
    problem: Language
    recipe: LanguageRecipe

    def model(self, build: BuildVariant, seed: int, device: str = "cpu") -> Decoder:
        return Decoder(self.problem, self.recipe, build, seed, device)

    def choice(self, train: Subset, task: str, seed: int) -> Choice:
        """Windows in an order drawn anew each epoch, moved on by a number drawn anew, so that edges differ."""
        assert isinstance(train, Windows)
        return partial(self._moved, train, task, seed)

    def _moved(self, train: Windows, task: str, seed: int, step: int) -> tuple[Windows, Whole]:
        batch, count = self.recipe.batch, len(train)
        # Shifted by the epoch: with fixed windows the same tokens would always stand at the edges, with little context.
        drawn = axis_seed(use="shift", task=task, seed=seed, epoch=step * batch // count)
        taken = train.taken(order(step, batch, count, task, seed)).moved(drawn % self.recipe.length)
        return taken, np.arange(batch)

    def evaluate(
        self, model: Model, subset: Subset, device: torch.device, heartbeat: Callable[[], None] = lambda: None
    ) -> LanguageModelingResult:
        assert isinstance(subset, Windows)
        model.eval()
        bits = np.zeros(len(subset))
        counts = np.zeros((3, len(subset)))
        with torch.inference_mode(), autocast(self.recipe, device):
            for at in _alike(subset, self.recipe.evaluate_batch):
                ids, _, targets = self.batch(subset, at, device)
                # Float32 logits and float64 sums: a bit per character is the sum of a million small terms.
                logits = model(ids[:, 0]).float().transpose(1, 2)
                nats = F.cross_entropy(logits, targets - 1, ignore_index=UNCOUNTED, reduction="none")
                bits[at] = nats.sum(1, dtype=torch.float64).cpu().numpy() / math.log(2)
                counts[:, at] = self._counted(subset, at)
                heartbeat()
        return LanguageModelingResult(
            recipe=self.recipe,
            bits=bits,
            characters=counts[0],
            words=counts[1],
            tokens=counts[2],
            by_position=tuple(self._by_position(model, subset.longer, device, heartbeat)) if subset.longer else (),
            compare=partial(self._diversities, model, subset, device),
        )

    def _by_position(
        self, model: Model, longer: Windows, device: torch.device, heartbeat: Callable[[], None]
    ) -> Iterator[Measurement]:
        """Bits per character at positions up to 16, from there up to 32, and so on up to the end of the windows."""
        longest = self.recipe.longest
        at_once = max(1, self.recipe.evaluate_batch * self.recipe.length // longest)
        bits, characters = np.zeros(longest), np.zeros(longest)
        with torch.inference_mode(), autocast(self.recipe, device):
            for first in range(0, len(longer), at_once):
                read = longer.batch(np.arange(first, min(first + at_once, len(longer))), longest)
                ids, _, targets = to_device(read, device)
                nats = F.cross_entropy(model(ids[:, 0]).float().transpose(1, 2), targets - 1, reduction="none")
                bits += nats.sum(0, dtype=torch.float64).cpu().numpy() / math.log(2)
                characters += longer.vocabulary.characters[read[2]].sum(0)
                heartbeat()
        ends = [end for power in range(FIRST_END.bit_length() - 1, 63) if (end := 2**power) < longest] + [longest]
        for begin, end in zip([0, *ends], ends, strict=False):
            value = float(bits[begin:end].sum() / characters[begin:end].sum())
            yield Measurement.of("bits_per_character", value, split="test", position=end, examples=len(longer))

    def measure_baseline(self, predicted: Columns, test: Subset) -> list[Measurement]:
        bits, count = predicted.sum(0)
        return [Measurement.of("bits_per_character", float(bits / count), split="test", examples=len(test))]

    @torch.inference_mode()
    def _diversities(self, model: Model, windows: Windows, device: torch.device) -> list[Measurement]:
        """The diversity of the heads of a layer: the mean over layers, and each; none without weights."""
        found: list[list[Diversity]] = [[] for _ in model.variants]
        model.eval()
        with recording(model.variants, partial(_compare_heads, found)):
            # one at a time: they may differ in length
            for place in evenly_spaced(len(windows), COMPARED):
                model(self.batch(windows, np.array([place]), device)[0][:, 0])
        by_layer = {}
        for layer, own in enumerate(found):
            rows = sum(each.rows for each in own)
            if rows:
                share = rows / sum(each.all_rows for each in own)
                mean = sum(each.total for each in own) / rows
                by_layer[layer] = Measurement.of("head_diversity", mean, layer=layer, rows=share)
        if not by_layer:
            return []
        overall = float(np.mean([each.value for each in by_layer.values()]))
        return [Measurement.of("head_diversity", overall), *by_layer.values()]

    def _counted(self, windows: Windows, at: Whole) -> Real:
        """Characters, words and tokens that count in these windows, (3, windows)."""
        # Characters of the original text are counted and not tokens, so that vocabularies compare.
        ids, _, targets = windows.batch(at, self.recipe.length)
        counted = targets > 0
        vocabulary = windows.vocabulary
        spelt = vocabulary.characters[targets] * counted
        begun = vocabulary.words(ids[:, 0], targets) * counted
        return np.stack([spelt.sum(1), begun.sum(1), counted.sum(1)]).astype(np.float64)


def _compare_heads(found: list[list[Diversity]], layer: int, call: Call) -> None:
    queries = call.queries
    parts = slices(queries, ROWS)
    if len(parts) > STRETCHES:
        parts = [slice(first, first + ROWS) for first in evenly_spaced(queries - ROWS + 1, STRETCHES).tolist()]
    for _, weights in call.weights_of(parts):
        found[layer].extend(head_diversity(each.double().cpu().numpy()) for each in weights)


def _alike(windows: Windows, batch: int) -> Iterator[Whole]:
    """Positions of windows of one length each, up to `batch` at a time: nothing is padded."""
    reads = windows.reads[windows.indices]
    for length in np.unique(reads):
        alike = np.flatnonzero(reads == length)
        for first in range(0, len(alike), batch):
            yield alike[first : first + batch]
