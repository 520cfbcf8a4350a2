"""BLEU and chrF: what sacreBLEU says when asked by hand, from counts that can be resampled."""

import numpy as np
import pytest

from attnbench.bench.stats.bootstrap import corpus_score, sound_statistics
from attnbench.bench.wings.translation.bleu import score_translations

sacrebleu = pytest.importorskip("sacrebleu")

REFERENCES = [
    "The cat sat on the mat.",
    "A dog, two birds & a fish!",
    "It rains.",
    "He said: “no”.",
    "One more line here.",
]
SYSTEM = [
    "The cat sat on a mat.",
    "A dog, two birds and fish!",
    "It is raining today",
    # of another case than its reference, which counts
    "he said: no",
    "One more line here.",
]


def test_scores_are_those_of_sacrebleu_called_by_hand():
    found = score_translations(SYSTEM, REFERENCES, "en")
    assert found.bleu == sacrebleu.corpus_bleu(SYSTEM, [REFERENCES]).score
    assert found.chrf == sacrebleu.corpus_chrf(SYSTEM, [REFERENCES]).score
    assert found.bleu_signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert found.chrf_signature.startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:")


def test_chinese_is_scored_by_characters():
    found = score_translations(["我 爱 猫 和 狗"], ["我爱猫和小狗。"], "zh")
    assert "tok:zh" in found.bleu_signature
    assert found.bleu == sacrebleu.corpus_bleu(["我 爱 猫 和 狗"], [["我爱猫和小狗。"]], tokenize="zh").score


def test_statistics_of_sentences_add_up_to_bleu_of_any_set_of_them():
    statistics = score_translations(SYSTEM, REFERENCES, "en").statistics
    assert sound_statistics("bleu", statistics)
    random = np.random.default_rng(0)
    for _ in range(20):
        at = random.integers(0, 5, 5)
        by_hand = sacrebleu.corpus_bleu([SYSTEM[i] for i in at], [[REFERENCES[i] for i in at]]).score
        assert corpus_score("bleu", statistics[at]) == pytest.approx(by_hand, abs=1e-9)


@pytest.mark.parametrize("system", [["", "", "", "", ""], ["x"] * 5, ["the"] * 5])
def test_translations_with_next_to_nothing_right_score_as_sacrebleu_says(system):
    found = score_translations(system, REFERENCES, "en")
    assert corpus_score("bleu", found.statistics) == pytest.approx(
        sacrebleu.corpus_bleu(system, [REFERENCES]).score, abs=1e-9
    )
