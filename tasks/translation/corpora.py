"""Corpora: the names of the sets on which each translation task trains, validates and tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..data.download import RemoteFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """One direction of one pair of languages. Sets have the names of their files, `SET.L1-L2.{L1,L2}` or `SET.{L1,L2}`.

    `official`: the training sets of the shared task, `official_pairs` pairs in all. `substitutes`: the training sets
    of small runs that do not have those. The first of `tests` ranks; the others are shown. `validation` may be empty
    or missing: then a share of training validates. `sacrebleu`: set → name under which sacreBLEU downloads it; `tfds`:
    its configuration. `downloads`: set → its files of source and target, each packed by gzip.
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
    downloads: dict[str, tuple[RemoteFile, RemoteFile]] | None = None

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


def _multi30k(name: str, *files: tuple[str, int, str]) -> tuple[RemoteFile, RemoteFile]:
    """The files of a set in the repository of the data's authors (multi30k/dataset, commit a3d2e0d)."""
    source, target = (
        RemoteFile(
            name=f"multi30k-{name}.{language}.gz",
            urls=(f"https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/{name}.{language}.gz",),
            sha256=sha256,
            bytes=size,
        )
        for language, size, sha256 in files
    )
    return source, target


MULTI30K_EN_DE = Corpus(
    source="en",
    target="de",
    tests=("multi30k/test_2016_flickr", "multi30k/test_2017_flickr", "multi30k/test_2017_mscoco"),
    validation="multi30k/val",
    official=("multi30k/train",),
    official_pairs=29_000,
    downloads={
        "multi30k/train": _multi30k(
            "train",
            ("en", 568_929, "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f"),
            ("de", 637_044, "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6"),
        ),
        "multi30k/val": _multi30k(
            "val",
            ("en", 21_650, "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28"),
            ("de", 24_681, "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a"),
        ),
        "multi30k/test_2016_flickr": _multi30k(
            "test_2016_flickr",
            ("en", 21_077, "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9"),
            ("de", 22_890, "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8"),
        ),
        "multi30k/test_2017_flickr": _multi30k(
            "test_2017_flickr",
            ("en", 19_138, "76a444ee25172e72695cddb13ae4a3bda59430617be88e0bb46b60504f054074"),
            ("de", 21_471, "a2c89666db00c495cd8513b9d708d5a3acc205d7de312ef2bf5fb7ebc1540aee"),
        ),
        "multi30k/test_2017_mscoco": _multi30k(
            "test_2017_mscoco",
            ("en", 8_844, "aab300bfb4427697987e02cd0aacd44bfe8aa50456231b6474c08038bbed2b58"),
            ("de", 10_230, "799e4854c25d601cb6cb6be29eabe5667734c61ace2f495e03e429031a0bc338"),
        ),
    },
)
"""Captions of pictures: 29,000 training pairs, and test sets of 1,000, 1,000 and 461."""
