"""BLEU and chrF of a set of translations, as sacreBLEU computes them, with what is counted in each sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .aggregate import AGGREGATES, Statistics
from .errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslationScore:
    """Corpus scores with sacreBLEU's signatures; `statistics`: of each sentence, as `aggregate` has them for BLEU."""

    bleu: float
    bleu_signature: str
    chrf: float
    chrf_signature: str
    statistics: Statistics


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
    statistics = np.array([[row.sys_len, row.ref_len, *row.counts, *row.totals] for row in rows], dtype=np.float64)
    return TranslationScore(
        bleu=float(whole.score),
        bleu_signature=str(bleu.get_signature()),
        chrf=float(characters.score),
        chrf_signature=str(chrf.get_signature()),
        statistics=statistics.reshape(-1, len(AGGREGATES["bleu"].columns)),
    )


def _metrics() -> Any:
    try:
        from sacrebleu import metrics
    except ModuleNotFoundError:
        raise DataError("BLEU needs sacrebleu: pip install 'attnbench[translation]'") from None
    return metrics
