"""Standard errors of dependent examples, held against brute force and against simulation."""

import numpy as np
import pytest
from seeds import seed

from attnbench.bench.stats.bootstrap import corpus_score, resampled_scores, standard_error


def drawn_pairs(draw: np.random.Generator, examples: int = 300, documents: int = 60) -> np.ndarray:
    pairs = draw.integers(documents, size=(examples, 2))
    # some pairs come twice, some the other way round, some hold one document twice
    pairs[1:20] = pairs[20:39]
    pairs[40:50] = pairs[50:60, ::-1]
    pairs[60:65, 1] = pairs[60:65, 0]
    return pairs


def test_it_sums_the_products_of_all_examples_that_share_a_document() -> None:
    draw = np.random.default_rng(seed())
    pairs = drawn_pairs(draw)
    values = draw.normal(size=60)[pairs[:, 0]] + draw.normal(size=60)[pairs[:, 1]] + draw.normal(size=300)
    residuals = values - values.mean()
    shares = (pairs[:, None, :, None] == pairs[None, :, None, :]).any((2, 3))
    expected = np.sqrt((np.outer(residuals, residuals) * shares).sum() * 300 / 299) / 300
    assert standard_error(values, pairs) == pytest.approx(expected, rel=1e-9)


def test_examples_without_a_common_document_are_independent() -> None:
    values = np.random.default_rng(seed()).normal(size=50)
    apart = np.arange(100).reshape(50, 2)
    assert standard_error(values, apart) == pytest.approx(values.std(ddof=1) / 50**0.5)
    assert standard_error(values, apart) == pytest.approx(standard_error(values))
    # never below that, even where neighbours balance one another
    opposed = np.tile([1.0, -1.0], 25)
    assert standard_error(opposed, np.repeat(np.arange(25), 2)[:, None] * [1, 1]) == standard_error(opposed)
    assert standard_error(np.array([1.0])) == 0.0


def test_it_is_the_deviation_of_the_mean_over_repetitions() -> None:
    draw = np.random.default_rng(seed())
    pairs = drawn_pairs(draw)
    means, errors, naive = [], [], []
    for _ in range(300):
        effects = draw.normal(size=60)
        values = effects[pairs].sum(axis=1) + draw.normal(size=300)
        means.append(values.mean())
        errors.append(standard_error(values, pairs))
        naive.append(standard_error(values))
    true = np.std(means)
    assert 0.75 < np.mean(errors) / true < 1.1
    assert np.mean(naive) < 0.6 * true


def test_blocks_of_windows_keep_the_dependence_of_a_text() -> None:
    """Bits of windows that follow an autoregression of 0.8: independent draws would give a third of the error."""
    draw = np.random.default_rng(seed())
    scores, errors = [], []
    for _ in range(40):
        noise = draw.normal(size=900)
        level = np.zeros(900)
        for at in range(1, 900):
            level[at] = 0.8 * level[at - 1] + noise[at]
        statistics = np.stack([100 + 5 * level, np.full(900, 50.0)], axis=1)
        scores.append(corpus_score("bits_per_character", statistics))
        errors.append(resampled_scores("bits_per_character", statistics).std(ddof=1))
    assert 0.65 < np.mean(errors) / np.std(scores) < 1.25
