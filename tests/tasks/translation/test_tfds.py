"""TFDS `wmt*_translate` as a source of pairs: with TFDS itself, and with a stand-in where it is not installed."""

import importlib.util
import json
import sys
import types
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnbench.tasks.contract import DataPlace
from attnbench.tasks.data.prepared import PreparedData
from attnbench.tasks.splits import bytes_of
from attnbench.tasks.translation.build import CorpusSlice, texts
from attnbench.tasks.translation.corpora import RO_EN_2016
from attnbench.tasks.translation.sources import TfdsPairsSource
from attnbench.tasks.translation.subwords import Subwords

pytest.importorskip("sentencepiece", reason="the extra `translation` is not installed")

WORDS = {"casa": "house", "câinele": "dog", "copacul": "tree", "vede": "sees", "mică": "small", "fuge": "runs"}
HELD_OUT = ("casa vede copacul", "house sees tree")
CUT = CorpusSlice(vocabulary=90)


def pairs(count: int, seed: int) -> list[tuple[str, str]]:
    random = np.random.default_rng(seed)
    rows = [random.choice(list(WORDS), random.integers(4, 9)) for _ in range(count)]
    return [(" ".join(row), " ".join(WORDS[word] for word in row)) for row in rows]


SPLITS = {
    "train": [*pairs(80, 1), HELD_OUT, ("fuge\nmică", "runs\nsmall")],
    "validation": pairs(6, 2),
    "test": [HELD_OUT, *pairs(4, 3)],
}


def check(prepared: PreparedData) -> None:
    """The pairs of SPLITS, source first, without those held out and with every sentence on one line."""
    provenance = prepared.provenance
    assert provenance.source == "TFDS wmt16_translate/ro-en"
    assert provenance.fidelity == "surrogate", (
        "the training set claims to be official, and the test set is none that is"
    )
    assert provenance.counts == {"train": 81, "validation": 6, "test": 5}
    for split in ("validation", "test"):
        for tower in (0, 1):
            assert texts(prepared.splits[f"{split}.text"], tower) == [pair[tower] for pair in SPLITS[split]]
    subwords = Subwords(bytes_of(prepared.splits["subwords"].tokens))
    train = prepared.splits["train"]
    found = [tuple(subwords.decode(train.sequence(at, tower)) for tower in (0, 1)) for at in range(len(train))]
    assert found == [*pairs(80, 1), ("fuge mică", "runs small")]
    assert any(note.startswith("1 training pairs left out") for note in provenance.notes)


class StandIn:
    """What the source asks of a builder, and of nothing else."""

    def __init__(self, folder: str):
        self.folder = Path(folder)

    def as_data_source(self, split: str) -> list[dict[str, bytes]]:
        rows = json.loads((self.folder / f"wmt16_translate-{split}.rows").read_text(encoding="utf-8"))
        # as TFDS does: text as bytes, by language, in no order that could be relied on
        return [{"en": english.encode(), "ro": romanian.encode()} for romanian, english in rows]


def written(root: Path, file_format: str = "array_record", version: str = "1.0.0") -> Path:
    """A folder that looks as TFDS leaves one."""
    folder = root / "wmt16_translate" / "ro-en" / version
    folder.mkdir(parents=True)
    (folder / "dataset_info.json").write_text(json.dumps({"fileFormat": file_format}), encoding="utf-8")
    for split, rows in SPLITS.items():
        (folder / f"wmt16_translate-{split}.rows").write_text(json.dumps(rows), encoding="utf-8")
    return folder


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("tensorflow_datasets")
    module.__spec__ = ModuleSpec("tensorflow_datasets", loader=None)
    module.builder_from_directory = StandIn  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", module)


def source() -> TfdsPairsSource:
    return TfdsPairsSource(task="wmt16-ro-en", corpus=RO_EN_2016, cut=CUT)


def test_pairs_are_read_by_language_and_what_is_tested_on_does_not_train(place: DataPlace, stand_in: None) -> None:
    written(place.root)
    prepared = source().prepared(place)
    assert isinstance(prepared, PreparedData)
    check(prepared)
    assert sorted(prepared.provenance.files) == [f"wmt16_translate-{split}.rows" for split in sorted(SPLITS)]


def test_records_that_only_tensorflow_reads_are_no_source(place: DataPlace, stand_in: None) -> None:
    written(place.root, file_format="tfrecord")
    way = source().availability(place)
    assert not way.ready and "array_record" in way.advice
    assert not isinstance(source().prepared(place), PreparedData)


def test_without_tfds_the_extra_is_named(place: DataPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    written(place.root)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    way = source().availability(place)
    assert not way.ready and "attnbench[tfds]" in way.advice
    assert source().prepared(place) is None


@pytest.mark.parametrize(
    ("changes", "reason"), [({"sets": "SETIMES2"}, "sets=SETIMES2 cannot choose"), ({"document": 4}, "no neighbours")]
)
def test_a_slice_that_one_shuffled_set_cannot_give_is_refused(
    place: DataPlace, stand_in: None, changes: dict[str, Any], reason: str
) -> None:
    written(place.root)
    records = TfdsPairsSource(task="wmt16-ro-en", corpus=RO_EN_2016, cut=replace(CUT, **changes))
    way, found = records.availability(place), records.prepared(place)
    assert not way.ready and reason in way.detail
    assert found is None
