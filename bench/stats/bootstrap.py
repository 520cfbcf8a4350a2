"""Bootstrap: scores of a whole test set from statistics by example, for the set itself and for resampled examples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

DRAWS = 400

MOST_WINDOWS, LEAST_BLOCKS = 20, 20
"""Windows in a block of the block bootstrap at most, and blocks that a text should at least be cut into."""

Statistics = npt.NDArray[np.float64]
"""(…, k): one row an example, or sums over examples."""

NGRAMS = 4


@dataclass(frozen=True, slots=True)
class Aggregate:
    """`columns`: what one example is described by; `score`: (…, columns) sums over examples to scores (…).

    `consecutive`: examples are windows of one text in its order, and so depend on their neighbours.
    """

    columns: tuple[str, ...]
    score: Callable[[Statistics], npt.NDArray[np.float64]]
    consecutive: bool = False


def bleu(sums: Statistics) -> npt.NDArray[np.float64]:
    """Corpus BLEU, 0 to 100, of system length, reference length, and correct and total n-grams of 1 to 4 words.

    Papineni et al. 2002, as sacrebleu has it by default: an order without a match counts as half a match of the last,
    then a quarter and so on (Chen and Cherry 2014, method 3); an order without n-grams makes the whole 0.

    >>> perfect = [7.0, 7.0, 7, 6, 5, 4, 7, 6, 5, 4]
    >>> round(float(bleu(np.array(perfect))), 9)
    100.0
    """
    sums = np.asarray(sums, dtype=np.float64)
    system, reference = sums[..., 0], sums[..., 1]
    correct, total = sums[..., 2 : 2 + NGRAMS], sums[..., 2 + NGRAMS : 2 + 2 * NGRAMS]
    halvings = np.cumsum(correct == 0, axis=-1)
    usable = (total > 0).all(axis=-1) & (correct > 0).any(axis=-1) & (system > 0)
    matches = np.where(correct > 0, correct, 0.5**halvings)
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.exp(np.log(matches / total).mean(axis=-1))
        brevity = np.where(system < reference, np.exp(1 - reference / system), 1.0)
        found: npt.NDArray[np.float64] = np.where(usable, 100 * brevity * precision, 0.0)
    return found


def bits_per_character(sums: Statistics) -> npt.NDArray[np.float64]:
    """
    >>> float(bits_per_character(np.array([30.0, 20.0])))
    1.5
    """
    sums = np.asarray(sums, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        found: npt.NDArray[np.float64] = sums[..., 0] / sums[..., 1]
    return found


AGGREGATES: dict[str, Aggregate] = {
    "bleu": Aggregate(
        ("system_length", "reference_length", *(f"{kind}_{n}" for kind in ("correct", "total") for n in range(1, 5))),
        bleu,
    ),
    "bits_per_character": Aggregate(("bits", "characters"), bits_per_character, consecutive=True),
}
"""The aggregate by the name of the metric; accuracy needs none, being a mean."""


def sound_statistics(name: str, statistics: npt.NDArray[np.float64]) -> bool:
    """True if these may be statistics of that metric: of its shape, finite and none negative."""
    return (
        name in AGGREGATES
        and statistics.dtype == np.float64
        and statistics.ndim == 2
        and statistics.shape[0] > 0
        and statistics.shape[1] == len(AGGREGATES[name].columns)
        and bool(np.isfinite(statistics).all() and (statistics >= 0).all())
    )


def corpus_score(name: str, statistics: Statistics) -> float:
    """The score of all examples together.

    >>> corpus_score("bits_per_character", np.array([[10.0, 10.0], [20.0, 10.0]]))  # and not (1 + 2) / 2 of others
    1.5
    """
    return float(AGGREGATES[name].score(statistics.sum(axis=0)))


def blocks(examples: int) -> npt.NDArray[np.int64]:
    """The block of each of so many consecutive windows, (examples,): 20 windows, fewer where there would be few blocks.

    A hard passage spans windows. On tinyshakespeare blocks of 20 give twice the error that independent windows would.

    >>> blocks(5).tolist(), int(blocks(435)[-1]), int(blocks(10_000)[-1])
    ([0, 1, 2, 3, 4], 21, 499)
    """
    length = min(max(examples // LEAST_BLOCKS, 1), MOST_WINDOWS)
    return np.arange(examples) // length


@lru_cache(maxsize=4)
def resamples(examples: int, consecutive: bool = False) -> npt.NDArray[np.float32]:
    """The counts of each example in each draw of the bootstrap, (DRAWS, examples): Poisson of mean 1.

    The same for all variants and seeds, so that what is paired stays paired. `consecutive`: whole blocks are drawn, as
    in the block bootstrap (Künsch 1989, here without overlap), so that the dependence within them is kept.
    """
    block = blocks(examples) if consecutive else np.arange(examples)
    drawn = np.random.default_rng([0, examples]).poisson(1.0, (DRAWS, int(block[-1]) + 1)).astype(np.float32)
    # a draw of nothing would have no score
    drawn[drawn.sum(axis=1) == 0, 0] = 1
    counts = drawn[:, block]
    counts.flags.writeable = False
    return counts


def resampled_scores(name: str, statistics: Statistics) -> npt.NDArray[np.float64]:
    """The corpus score in every draw, (DRAWS,)."""
    aggregate = AGGREGATES[name]
    counts = resamples(len(statistics), aggregate.consecutive)
    return aggregate.score(counts.astype(np.float64) @ statistics)


def resampled_shares(
    correct: Sequence[npt.NDArray[Any]], documents: npt.NDArray[Any] | None = None
) -> npt.NDArray[np.float64]:
    """The share of right examples in every draw, (DRAWS, seeds), of the right ones of each seed.

    Sums of whole numbers, which come out the same in any order and on any processor; those of shares do so but for
    rounding in float32. `documents`: as in
    `stats.dependence`; the draws then lie farther from their middle, as far as the standard error is larger.
    """
    counts, stacked = resamples(len(correct[0])), np.stack(correct)
    right = counts @ stacked.astype(np.float32).T
    shares: npt.NDArray[np.float64] = right.astype(np.float64) / counts.sum(axis=1, dtype=np.float64)[:, None]
    if documents is None:
        return shares
    means = stacked.mean(axis=1)
    farther: npt.NDArray[np.float64] = means + inflation(stacked.mean(axis=0), documents) * (shares - means)
    return farther


def standard_error(values: npt.NDArray[Any], documents: npt.NDArray[Any] | None = None) -> float:
    """The standard error of the mean of `values` (examples,).

    `documents`: (examples, 2), the two documents of each example by number, which may be the same; None where all
    examples are independent. Examples that share a document may err alike: this is the dyadic cluster-robust variance
    (Aronow, Samii and Assenova 2015), the sum of the products of all such pairs of residuals. Noise can make that sum
    too small, so it is never below that of independent examples.

    >>> values = np.array([0.0, 0.0, 1.0, 1.0])
    >>> round(standard_error(values), 3)
    0.289
    >>> round(standard_error(values, np.array([[0, 1], [0, 2], [3, 4], [3, 5]])), 3)  # two twice over
    0.408
    """
    count = len(values)
    if count < 2:
        return 0.0
    residuals = np.asarray(values, dtype=np.float64) - np.mean(values, dtype=np.float64)
    independent = float(np.sum(residuals**2))
    scale = count / (count - 1) / count**2
    if documents is None:
        return math.sqrt(independent * scale)
    low, high = documents.min(axis=1), documents.max(axis=1)
    pairs = low != high
    by_document = np.bincount(low, weights=residuals, minlength=int(high.max()) + 1)
    by_document += np.bincount(high[pairs], weights=residuals[pairs], minlength=len(by_document))
    # examples of the same two documents were counted once for each of them
    _, same = np.unique(np.stack([low[pairs], high[pairs]], axis=1), axis=0, return_inverse=True)
    twice = np.bincount(same.ravel(), weights=residuals[pairs])
    total = float(np.sum(by_document**2) - np.sum(twice**2))
    return math.sqrt(max(total, independent) * scale)


def inflation(values: npt.NDArray[Any], documents: npt.NDArray[Any] | None) -> float:
    """The standard error over that of independent examples; at least 1.

    >>> inflation(np.array([0.0, 0.0, 1.0, 1.0]), np.array([[0, 1], [0, 2], [3, 4], [3, 5]])).__round__(3)
    1.414
    """
    independent = standard_error(values)
    return standard_error(values, documents) / independent if documents is not None and independent else 1.0
