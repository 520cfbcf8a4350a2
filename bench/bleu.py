"""BLEU and chrF of a set of translations, as sacreBLEU computes them, with what is counted in each sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import DataError

Counts = npt.NDArray[np.int64]

COLUMNS = (
    "system_length", "reference_length", "correct_1", "correct_2", "correct_3", "correct_4", "total_1", "total_2",
    "total_3", "total_4",
)  # fmt: skip
"""What a sentence contributes to corpus BLEU (Papineni et al. 2002): words, and n-grams found and made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslationScore:
    """Corpus scores with sacreBLEU's signatures, and `statistics` (sentences, len(COLUMNS))."""

    bleu: float
    bleu_signature: str
    chrf: float
    chrf_signature: str
    statistics: Counts


def scored(translations: Sequence[str], references: Sequence[str], language: str) -> TranslationScore:
    """Scores against one reference each. Chinese and Japanese are split as sacreBLEU's own defaults for them say.

    Raises DataError without the extra `translation`.
    """
    if len(translations) != len(references):
        raise ValueError(f"expected {len(references)} translations, got {len(translations)}")
    metrics = _metrics()
    bleu = metrics.BLEU(trg_lang=language)
    chrf = metrics.CHRF()
    whole = bleu.corpus_score(list(translations), [list(references)])
    characters = chrf.corpus_score(list(translations), [list(references)])
    single = metrics.BLEU(trg_lang=language, effective_order=True)
    rows = [single.sentence_score(mine, [its]) for mine, its in zip(translations, references, strict=True)]
    statistics = np.array([[row.sys_len, row.ref_len, *row.counts, *row.totals] for row in rows], dtype=np.int64)
    return TranslationScore(
        bleu=float(whole.score),
        bleu_signature=str(bleu.get_signature()),
        chrf=float(characters.score),
        chrf_signature=str(chrf.get_signature()),
        statistics=statistics.reshape(-1, len(COLUMNS)),
    )


def bleu_of(statistics: Counts) -> float:
    """Corpus BLEU of sentences whose statistics these are, by the sums of their columns; exponential smoothing.

    >>> round(bleu_of(np.array([[6, 7, 5, 3, 2, 1, 6, 5, 4, 3]])), 2)
    42.38
    """
    sums = statistics.sum(0)
    system, reference, correct, total = sums[0], sums[1], sums[2:6], sums[6:10]
    if not correct.any():
        return 0.0
    logs = []
    smoothing = 1.0
    for found, made in zip(correct.tolist(), total.tolist(), strict=True):
        if made == 0:
            return 0.0
        if found == 0:
            # Chen & Cherry 2014, technique 3, as sacreBLEU: 1/2, 1/4, … of one n-gram
            smoothing *= 2
        logs.append(np.log(100.0 * (found or 1 / smoothing) / made))
    brevity = 1.0 if system >= reference else np.exp(1 - reference / system)
    return float(brevity * np.exp(np.mean(logs)))


def _metrics() -> Any:
    try:
        from sacrebleu import metrics
    except ModuleNotFoundError:
        raise DataError("BLEU needs sacrebleu: pip install 'attnbench[translation]'") from None
    return metrics
