"""IMDb: the 50,000 labelled reviews of Maas et al. 2011, as byte ids in an order that follows from the content."""

from __future__ import annotations

import hashlib
from collections import Counter

import numpy as np

from ....bench.core.hashing import axis_seed
from ...contract import Provenance
from ...data.byte_ids import byte_ids
from ...data.prepared import PreparedData, pack
from ...data.subsets import stratified

NAME = "lra-text"
SURROGATE_TEST = 5_000

OFFICIAL_CONTENT = "0e304d6a9105fbd7a626733bf97d3f5d09e152787fec710a43ef56af7c8e7e3a"
"""`content_digest` of the 50,000 official reviews."""

Reviews = dict[str, list[tuple[int, bytes]]]
"""Split → (label, text), label 1 = positive."""


def content_digest(reviews: Reviews) -> str:
    """SHA-256 over (split, label, length, text), sorted. It is the same for every source, file name and order."""
    digest = hashlib.sha256()
    for split in sorted(reviews):
        for label, text in sorted(reviews[split]):
            digest.update(f"{split} {label} {len(text)}\n".encode())
            digest.update(text)
    return digest.hexdigest()


def arrange(
    reviews: Reviews, source: str, files: dict[str, str], notes: tuple[str, ...] = (), verified: bool = False
) -> PreparedData:
    """Reviews as prepared splits, ordered by content, so that every complete source yields the same arrays.

    `verified`: the original has its published checksum, so the content needs no check.
    """
    fidelity = "official" if verified or content_digest(reviews) == OFFICIAL_CONTENT else "surrogate"
    ordered = {split: sorted(reviews[split]) for split in ("train", "test")}
    times = Counter(text for rows in ordered.values() for _, text in rows)
    # 123 texts are in both official splits; they stay there, since published results have them too
    crossing = {text for _, text in ordered["train"]} & {text for _, text in ordered["test"]}
    if fidelity == "surrogate" and not notes:
        counts = ", ".join(f"{len(rows):,} {split}" for split, rows in ordered.items())
        notes = (f"differs from the 50,000 official reviews ({counts} here)",)
    if crossing:
        notes = (*notes, f"{len(crossing)} texts are in both train and test; validation avoids them")
    return PreparedData(
        splits={
            split: pack((byte_ids(text) for _, text in rows), (label for label, _ in rows))
            for split, rows in ordered.items()
        },
        provenance=Provenance(source=source, fidelity=fidelity, files=files, notes=notes),
        repeated={
            split: tuple(index for index, (_, text) in enumerate(rows) if times[text] > 1)
            for split, rows in ordered.items()
        },
    )


def split_off_test(rows: list[tuple[int, bytes]], count: int = SURROGATE_TEST) -> Reviews:
    """Draw a balanced, seeded test split from the texts that occur once, so that no text is in both splits."""
    rows = sorted(rows)
    times = Counter(text for _, text in rows)
    # the label of a text that also stands in training would be no prediction
    repeated = np.array([index for index, (_, text) in enumerate(rows) if times[text] > 1], dtype=np.int64)
    labels = np.array([label for label, _ in rows], dtype=np.int64)
    drawn = set(stratified(labels, count, axis_seed(use="surrogate test", task=NAME), repeated).tolist())
    return {
        "train": [row for index, row in enumerate(rows) if index not in drawn],
        "test": [row for index, row in enumerate(rows) if index in drawn],
    }
