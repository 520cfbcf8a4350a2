"""Scores of a whole test set, held against sacrebleu and against sums by hand; and their bootstrap draws."""

import numpy as np
import pytest

from attnbench.bench.stats.bootstrap import (
    DRAWS,
    bleu,
    corpus_score,
    resampled_scores,
    resampled_shares,
    resamples,
    sound_statistics,
)

WORDS = ["the", "cat", "sat", "on", "a", "mat", "dog", "ran", "far", "off"]


def sentences(count: int, seed: int, wrong: float) -> tuple[list[str], list[str]]:
    rng = np.random.default_rng(seed)
    references = [list(rng.choice(WORDS, rng.integers(3, 15))) for _ in range(count)]
    systems = [[w if rng.random() > wrong else str(rng.choice(WORDS)) for w in r][: rng.integers(2, 15)]
               for r in references]  # fmt: skip
    return [" ".join(s) for s in systems], [" ".join(r) for r in references]


@pytest.mark.parametrize(("count", "wrong"), [(200, 0.2), (50, 0.7), (3, 0.9), (1, 0.95), (1, 0.0), (2, 1.0)])
@pytest.mark.parametrize("seed", range(4))
def test_bleu_is_what_sacrebleu_says(count: int, wrong: float, seed: int) -> None:
    sacrebleu = pytest.importorskip("sacrebleu", reason="the extra translation is not installed")
    systems, references = sentences(count, seed, wrong)
    each = [sacrebleu.corpus_bleu([s], [[r]]) for s, r in zip(systems, references, strict=True)]
    statistics = np.array([[e.sys_len, e.ref_len, *e.counts, *e.totals] for e in each], dtype=np.float64)
    whole = sacrebleu.corpus_bleu(systems, [references])
    assert corpus_score("bleu", statistics) == pytest.approx(whole.score, rel=1e-9, abs=1e-12)


def test_no_match_and_too_few_words_make_nothing() -> None:
    assert bleu(np.array([5.0, 5, 0, 0, 0, 0, 5, 4, 3, 2])) == 0.0
    assert bleu(np.array([2.0, 2, 2, 1, 0, 0, 2, 1, 0, 0])) == 0.0
    assert bleu(np.array([0.0, 2, 0, 0, 0, 0, 0, 0, 0, 0])) == 0.0


def test_a_draw_is_the_corpus_of_the_examples_that_it_holds() -> None:
    rng = np.random.default_rng(3)
    statistics = np.column_stack([rng.uniform(50, 90, 40), rng.integers(20, 40, 40)]).astype(np.float64)
    counts = resamples(40, consecutive=True)
    drawn = resampled_scores("bits_per_character", statistics)
    for at in (0, 17, DRAWS - 1):
        rows = np.repeat(statistics, counts[at].astype(int), axis=0)
        assert drawn[at] == pytest.approx(rows[:, 0].sum() / rows[:, 1].sum(), rel=1e-12)
    # the spread is that of a ratio of sums: the deviation of what is left over, over the mean, by √n
    left = statistics[:, 0] - statistics[:, 0].sum() / statistics[:, 1].sum() * statistics[:, 1]
    expected = left.std() / statistics[:, 1].mean() / np.sqrt(40)
    assert drawn.std() == pytest.approx(expected, rel=0.15)


def test_shares_of_equal_counts_tie_exactly() -> None:
    correct = (np.arange(30) < 12).astype(np.uint8)
    both = resampled_shares([correct, correct])
    assert both.shape == (DRAWS, 2) and np.array_equal(both[:, 0], both[:, 1])
    first = resamples(30)[0].astype(int)
    assert both[0, 0] == (first * correct).sum() / first.sum()


def test_examples_that_share_documents_move_the_draws_farther() -> None:
    # every example stands there twice, with the same documents: half as many, so √2 times the error
    correct = np.repeat(np.arange(30) < 12, 2).astype(np.uint8)
    documents = np.repeat(np.arange(60).reshape(30, 2), 2, axis=0)
    apart, together = (resampled_shares([correct] * 3, each) - 0.4 for each in (None, documents))
    np.testing.assert_allclose(together, np.sqrt(2) * apart, atol=1e-12)


def test_a_small_test_set_has_no_empty_draw() -> None:
    assert (resamples(1).sum(axis=1) > 0).all() and (resamples(2).sum(axis=1) > 0).all()


@pytest.mark.parametrize(
    "statistics",
    [
        np.ones((3, 3)),
        np.ones((3, 2), dtype=np.float32),
        np.ones(2),
        np.full((3, 2), np.nan),
        -np.ones((3, 2)),
        np.ones((0, 2)),
    ],
    ids=["columns", "kind", "flat", "nan", "negative", "empty"],
)
def test_what_can_be_no_statistics_is_refused(statistics: np.ndarray) -> None:
    assert not sound_statistics("bits_per_character", statistics)
    assert sound_statistics("bits_per_character", np.ones((3, 2))) and not sound_statistics("accuracy", np.ones((3, 2)))


@pytest.mark.parametrize(
    "counts",
    [
        # no four words in a row anywhere, no match at all, nothing translated
        [3, 3, 3, 2, 1, 0, 3, 2, 1, 0],
        [9, 9, 0, 0, 0, 0, 9, 8, 7, 6],
        [0, 9, 0, 0, 0, 0, 0, 0, 0, 0],
    ],
)
def test_bleu_is_0_where_an_order_has_no_ngrams_or_nothing_matches(counts):
    assert corpus_score("bleu", np.array([counts], dtype=float)) == 0.0


def test_a_draw_of_nothing_becomes_one_of_the_first_example_once():
    drawn = np.random.default_rng([0, 1]).poisson(1.0, (DRAWS, 1))
    assert (drawn == 0).any()
    assert np.array_equal(resamples(1), np.maximum(drawn, 1))
