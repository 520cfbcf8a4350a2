"""Alignment: which words cross attention links, and how often that is what people link (AER)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ....tasks.translation.problem import GoldLinks, Links

Weights = npt.NDArray[np.floating]


@dataclass(slots=True)
class Agreement:
    """Counts over sentences of predicted links A against sure links S and possible links P, S within P."""

    predicted: int = 0
    sure: int = 0
    found_sure: int = 0
    found_possible: int = 0

    def add(self, predicted: Links, gold: GoldLinks) -> None:
        self.predicted += len(predicted)
        self.sure += len(gold.sure)
        self.found_sure += len(predicted & gold.sure)
        self.found_possible += len(predicted & gold.possible)

    @property
    def error_rate(self) -> float:
        """1 - (|A & S| + |A & P|) / (|A| + |S|) (Och & Ney 2003); 0 is perfect. NaN where there is nothing to link."""
        whole = self.predicted + self.sure
        return 1 - (self.found_sure + self.found_possible) / whole if whole else float("nan")


def alignment_error_rate(predicted: Sequence[Links], gold: Sequence[GoldLinks]) -> float:
    """AER over all sentences.

    >>> gold = [GoldLinks(sure=frozenset({(0, 0), (1, 1)}), possible=frozenset({(0, 0), (1, 1), (1, 2)}))]
    >>> alignment_error_rate([frozenset({(0, 0), (1, 2), (0, 2)})], gold)
    0.4
    """
    agreement = Agreement()
    for mine, its in zip(predicted, gold, strict=True):
        agreement.add(mine, its)
    return agreement.error_rate


def diagonal(sources: int, targets: int) -> Links:
    """Each source word with the target word at the same share of the sentence: what an aligner must beat.

    >>> sorted(diagonal(3, 5))
    [(0, 0), (1, 2), (2, 4)]
    """
    scale = (targets - 1) / max(sources - 1, 1)
    return frozenset((source, round(source * scale)) for source in range(sources)) if targets else frozenset()


def links(weights: Weights, source_words: Sequence[int], target_words: Sequence[int]) -> Links:
    """Pairs (source word, target word) that are linked: each output subword with the source subword of most weight.

    weights: (outputs, sources), row i being the step that has to do with output i; `source_words` and `target_words`
    give the word of each subword, -1 for none, such as END. Words are linked where any of their subwords are. A null
    row links nothing, which lowers recall and not precision.
    """
    if weights.shape != (len(target_words), len(source_words)):
        raise ValueError(f"expected weights {(len(target_words), len(source_words))}, got {weights.shape}")
    found = set()
    # One link for each output, as in the papers; a threshold instead would need tuning on gold links.
    best = weights.argmax(1)
    for row, word in enumerate(target_words):
        linked = source_words[best[row]]
        if word >= 0 and linked >= 0 and weights[row, best[row]] > 0:
            found.add((linked, word))
    return frozenset(found)


def shifted(weights: Weights) -> Weights:
    """Rows moved up by one, the last one null: row i becomes the step whose input, not output, is token i.

    Cross attention often looks at the source of the token that was just written (Zhang et al. 2021, section 4.3).
    """
    return np.concatenate([weights[..., 1:, :], np.zeros_like(weights[..., :1, :])], axis=-2)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerErrors:
    """AER of one layer. `heads`: of each head; `averaged`: of the mean over heads of their normalised weights."""

    layer: int
    shift: bool
    heads: tuple[float, ...]
    averaged: float

    @property
    def best(self) -> int:
        """The head with the lowest AER, as the papers choose it, on the sentences that it is shown for."""
        return int(np.nanargmin(self.heads))

    @property
    def mean(self) -> float:
        """The mean of the heads' AER, which is not the AER of their mean."""
        return float(np.mean(self.heads))


def layer_errors(
    weights: Sequence[Weights],
    source_words: Sequence[Sequence[int]],
    target_words: Sequence[Sequence[int]],
    gold: Sequence[GoldLinks],
) -> list[LayerErrors]:
    """Every layer, normal and shifted. weights: for each sentence (layers, heads, outputs, sources)."""
    found = []
    layers, heads = weights[0].shape[:2]
    for layer in range(layers):
        for shift in (False, True):
            scores = [Agreement() for _ in range(heads + 1)]
            for each, sources, targets, its in zip(weights, source_words, target_words, gold, strict=True):
                rows = shifted(each[layer]) if shift else each[layer]
                # Normalised first: otherwise heads with large sums, as ReLU has them, would outvote the others.
                averaged = normalised(rows).mean(0, keepdims=True)
                for agreement, matrix in zip(scores, np.concatenate([rows, averaged]), strict=True):
                    agreement.add(links(matrix, sources, targets), its)
            *by_head, whole = (agreement.error_rate for agreement in scores)
            found.append(LayerErrors(layer=layer, shift=shift, heads=tuple(by_head), averaged=whole))
    return found


def normalised(weights: Weights) -> Weights:
    """Rows over their sum; null rows stay null."""
    sums = weights.sum(-1, keepdims=True)
    return np.asarray(np.divide(weights, sums, out=np.zeros_like(weights), where=sums > 0))
