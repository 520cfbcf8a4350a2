"""BLEU and chrF of a set of translations, as sacreBLEU computes them, with what is counted in each sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ....tasks.translation.problem import bleu_metric
from ...stats.bootstrap import AGGREGATES, Statistics


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslationScore:
    """Corpus scores with sacreBLEU's signatures; `statistics`: of each sentence, as `aggregate` has them for BLEU."""

    bleu: float
    bleu_signature: str
    chrf: float
    chrf_signature: str
    statistics: Statistics


def score_translations(translations: Sequence[str], references: Sequence[str], language: str) -> TranslationScore:
    """Scores against one reference each. Chinese, Japanese and Korean are split as sacreBLEU's defaults for them say.

    Raises DataError without the extra `translation`, or what a language needs beside it.
    """
    if len(translations) != len(references):
        raise ValueError(f"expected {len(references)} translations, got {len(translations)}")
    bleu, single = bleu_metric(language), bleu_metric(language, effective_order=True)
    from sacrebleu import CHRF

    chrf = CHRF()
    whole = bleu.corpus_score(list(translations), [list(references)])
    characters = chrf.corpus_score(list(translations), [list(references)])
    # Counts of each sentence add up to those of the corpus, so that a bootstrap over sentences needs no second search.
    rows = [single.sentence_score(mine, [its]) for mine, its in zip(translations, references, strict=True)]
    statistics = np.array([[row.sys_len, row.ref_len, *row.counts, *row.totals] for row in rows], dtype=np.float64)
    return TranslationScore(
        bleu=float(whole.score),
        bleu_signature=str(bleu.get_signature()),
        chrf=float(characters.score),
        chrf_signature=str(chrf.get_signature()),
        statistics=statistics.reshape(-1, len(AGGREGATES["bleu"].columns)),
    )
