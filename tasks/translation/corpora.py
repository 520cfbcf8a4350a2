"""Corpora: the names of the sets on which each translation task trains, validates and tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """One direction of one pair of languages. Sets have the names of their files, `SET.L1-L2.{L1,L2}` or `SET.{L1,L2}`.

    `official`: the training sets of the shared task, `official_pairs` pairs in all. `substitutes`: the training sets
    of small runs that do not have those. The first of `tests` ranks; the others are shown. `validation` may be empty
    or missing: then a share of training validates. `sacrebleu`: set → name under which sacreBLEU downloads it; `tfds`:
    its configuration.
    """

    source: str
    target: str
    tests: tuple[str, ...]
    validation: str = ""
    official: tuple[str, ...] = ()
    official_pairs: int = 0
    substitutes: tuple[str, ...] = ()
    tfds: str = ""
    sacrebleu: dict[str, str] | None = None

    @property
    def languages(self) -> tuple[str, str]:
        return self.source, self.target

    @property
    def training(self) -> tuple[str, ...]:
        """Every set that one of the sources trains on."""
        names = (*self.official, *self.substitutes, *(self.sacrebleu or {}))
        return tuple(name for name in dict.fromkeys(names) if name not in (*self.tests, self.validation))


def invalid_sets(sets: str, names: Sequence[str]) -> str:
    """The error in `sets`, parts of names joined by plus signs that choose among `names`; empty if `sets` is right.

    >>> invalid_sets("news", ["books", "newstest"]), invalid_sets("", ["books"])
    ('', '')
    """
    unknown = [part for part in sets.split("+") if not any(part and part in name for name in names)]
    if not sets or not unknown:
        return ""
    return f"expected sets to join parts of {', '.join(names)} by plus signs, got {unknown[0]!r} in {sets!r}"


NEWS_2008_2012 = (
    "news-test2008", "newssyscomb2009", "newstest2009", "newstest2010", "newstest2011", "newstest2012",
)  # fmt: skip
"""Test sets of earlier years. No English sentence of these is in newstest2014."""

SACREBLEU_NEWS = {
    "news-test2008": "wmt08", "newstest2009": "wmt09", "newstest2010": "wmt10", "newstest2011": "wmt11",
    "newstest2012": "wmt12", "newstest2013": "wmt13", "newstest2014": "wmt14/full",
}  # fmt: skip

EN_DE_2014 = Corpus(
    source="en",
    target="de",
    tests=("newstest2014", "multi30k/test_2016_flickr"),
    validation="newstest2013",
    official=("europarl-v7", "commoncrawl", "news-commentary-v9"),
    official_pairs=4_508_785,
    substitutes=(
        *NEWS_2008_2012,
        "opennmt-py-wmt-ende-10k",
        "tatoeba-test-v2021-08-07",
        "multi30k/train",
    ),
    tfds="wmt14_translate/de-en",
    sacrebleu=SACREBLEU_NEWS,
)

EN_FR_2014 = Corpus(
    source="en",
    target="fr",
    tests=("newstest2014", "multi30k/test_2016_flickr"),
    validation="newstest2013",
    official=("europarl-v7", "commoncrawl", "undoc.2000", "news-commentary-v9", "giga-fren.release2.fixed"),
    official_pairs=40_836_715,
    substitutes=(*NEWS_2008_2012, "multi30k/train"),
    tfds="wmt14_translate/fr-en",
    sacrebleu=SACREBLEU_NEWS,
)

RO_EN_2016 = Corpus(
    source="ro",
    target="en",
    tests=("newstest2016",),
    validation="newsdev2016",
    official=("europarl-v8", "SETIMES2"),
    official_pairs=610_320,
    substitutes=("ntrex-128", "tatoeba-test-v2021-03-30"),
    tfds="wmt16_translate/ro-en",
    sacrebleu={"newstest2016": "wmt16", "newsdev2016": "wmt16/dev"},
)

ZH_EN_2018 = Corpus(
    source="zh",
    target="en",
    tests=("newstest2018",),
    validation="newstest2017",
    official=("news-commentary-v13", "UNv1.0", "casia2015", "casict2015", "datum2015", "datum2017", "neu2017"),
    official_pairs=25_160_346,
    substitutes=("newstest2019", "newstest2020", "newstest2021"),
    tfds="wmt18_translate/zh-en",
    sacrebleu={"newstest2017": "wmt17", "newstest2018": "wmt18", "newstest2019": "wmt19", "newstest2020": "wmt20"},
)

EN_FI_2018 = Corpus(
    source="en",
    target="fi",
    tests=("newstest2018",),
    validation="newstest2017",
    official=("europarl-v8", "paracrawl-release1.en-fi.zipporah0-dedup-clean", "rapid2016", "wikititles-v1"),
    official_pairs=2_969_624,
    substitutes=("newstest2015", "newstest2016", "newstest2019", "ntrex-128", "tatoeba-test-v2021-08-07"),
    tfds="wmt18_translate/fi-en",
    sacrebleu={"newstest2015": "wmt15", "newstest2016": "wmt16", "newstest2017": "wmt17", "newstest2018": "wmt18"},
)
