"""Small originals in the official layout of every task, made up and the same on every machine."""

from __future__ import annotations

import gzip
import hashlib
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from attnbench.bench.core.registry import TASKS
from attnbench.tasks.contract import DataPlace
from attnbench.tasks.language_modeling import enwik8, tinyshakespeare
from attnbench.tasks.lra._image.cifar import FILES as CIFAR_FILES
from attnbench.tasks.lra._text.pairs import FILES as PAIR_FILES

WORDS = ("house", "dog", "tree", "sees", "the", "a", "small", "runs", "green", "old", "of", "and", "river", "stone")


def sentences(count: int, seed: int) -> list[str]:
    draw = np.random.default_rng(seed)
    return [" ".join(WORDS[at] for at in draw.integers(0, len(WORDS), draw.integers(3, 12))) for _ in range(count)]


def lines(path: Path, texts: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(text + "\n" for text in texts), encoding="utf-8", newline="\n")


def lay_out(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Originals for every task that generates none."""
    for at, folder in enumerate(("train/neg", "train/pos", "test/neg", "test/pos")):
        for index, text in enumerate(sentences(30, at)):
            lines(root / "aclImdb" / folder / f"{index}_7.txt", [text])
    cifar = root / "cifar-10-batches-py"
    cifar.mkdir()
    for seed, name in enumerate(CIFAR_FILES):
        draw = np.random.default_rng(seed)
        pixels = draw.integers(0, 256, (20, 3072), dtype=np.uint8)
        (cifar / name).write_bytes(pickle.dumps({b"data": pixels, b"labels": [i % 10 for i in range(20)]}, protocol=2))
    for seed, name in enumerate(PAIR_FILES.values()):
        texts = [text.encode() for text in sentences(40, 10 + seed)]
        rows = [f"{at % 2}.0\tP0\tP1\t{texts[at]!r}\t{texts[-at]!r}" for at in range(40)]
        lines(root / "lra_release" / "tsv_data" / name, rows)
    lines(root / "tinyshakespeare.txt", sentences(400, 20))
    text = (root / "tinyshakespeare.txt").read_bytes()
    digest = hashlib.sha256(text).hexdigest()
    monkeypatch.setattr(tinyshakespeare, "REMOTE", replace(tinyshakespeare.REMOTE, sha256=digest, bytes=len(text)))
    for seed, folder in enumerate(("wikitext-2-raw", "wikitext-103-raw")):
        for part in ("train", "valid", "test"):
            lines(root / folder / f"wiki.{part}.raw", sentences(600, 30 + seed))
    text = "\n".join(sentences(500, 40)).encode()[:20_000]
    (root / "enwik8").write_bytes(text)
    monkeypatch.setattr(enwik8, "BYTES", len(text))
    monkeypatch.setattr(enwik8, "VALIDATION", 2_000)
    monkeypatch.setattr(enwik8, "TEST", 2_000)
    for book in range(3):
        lines(root / "gutenberg" / f"{book}.txt", sentences(200, 50 + book))
        for split in ("train", "validation", "test"):
            lines(root / "pg19" / split / f"{book}.txt", sentences(150, 60 + book))
    for entry in TASKS.entries():
        corpus = getattr(TASKS.load(entry.name), "corpus", None)
        if corpus is not None and corpus.downloads:
            # as downloads, since a folder multi30k under the root would train the tasks of WMT too
            for seed, (source, target) in enumerate(corpus.downloads.values()):
                for side, remote in enumerate((source, target)):
                    text = "".join(line + "\n" for line in sentences(120, 90 + 2 * seed + side))
                    path = root.parent / "cache" / "downloads" / remote.name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(gzip.compress(text.encode(), mtime=0))
        elif corpus is not None:
            pair = f"{corpus.source}-{corpus.target}"
            sets = [corpus.tests[0], corpus.validation, corpus.substitutes[0]]
            for seed, name in enumerate(sets):
                for side, language in enumerate((corpus.source, corpus.target)):
                    lines(root / "wmt" / "train" / f"{name}.{pair}.{language}", sentences(120, 70 + 2 * seed + side))
    # `text[file=…]` is named from the folder where the command runs
    lines(root / "own.txt", sentences(600, 110))
    monkeypatch.chdir(root)
    for seed, name in enumerate(("train", "valid", "test")):
        for side, language in enumerate(("en", "de")):
            lines(root / "mine" / f"{name}.{language}", sentences(120, 80 + 2 * seed + side))


@pytest.fixture
def originals(place: DataPlace, monkeypatch: pytest.MonkeyPatch) -> DataPlace:
    """The data place of a test, with originals."""
    lay_out(place.root, monkeypatch)
    return place
