"""Parallel text: sets of sentence pairs from plain files, one sentence a line, two files a set."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations
from pathlib import Path

from ..contract import DataError

FOLDERS = ("wmt/newstest", "wmt/train", "")
"""Folders under a root that may hold a set, as `SET.L1-L2.{L1,L2}` or `SET.{L1,L2}`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelSet:
    """Sentence pairs in the order of their files. `gaps`: positions of pairs before which others were left out."""

    name: str
    source: tuple[str, ...]
    target: tuple[str, ...]
    gaps: frozenset[int] = frozenset()

    def __len__(self) -> int:
        return len(self.source)

    def only(self, places: Sequence[int]) -> ParallelSet:
        """The pairs at these ascending places. Where others between two were left out, there is a gap."""
        follow = enumerate(pairwise(places), start=1)
        return ParallelSet(
            name=self.name,
            source=tuple(self.source[at] for at in places),
            target=tuple(self.target[at] for at in places),
            gaps=frozenset(new for new, (before, at) in follow if at != before + 1 or at in self.gaps),
        )

    def digest(self) -> str:
        """SHA-256 over both sides. File names and line ends do not change it."""
        # the number of lines keeps apart the end of one side and the start of the other
        digest = hashlib.sha256()
        for side in (self.source, self.target):
            digest.update(f"{len(side)}\n".encode())
            digest.update("\n".join(side).encode())
        return digest.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePair:
    """The paths of the two files of a set, which may not exist."""

    name: str
    source: Path
    target: Path

    def exist(self) -> bool:
        return self.source.is_file() and self.target.is_file()

    def read(self) -> ParallelSet:
        """The pairs of both files. Raises DataError where one has more lines than the other."""
        source, target = read_lines(self.source), read_lines(self.target)
        if len(source) != len(target):
            raise DataError(
                f"expected as many lines in {self.source} as in {self.target}, got {len(source):,} and {len(target):,}"
            )
        return ParallelSet(name=self.name, source=tuple(source), target=tuple(target))


def read_lines(path: Path, most_bytes: int | None = None) -> list[str]:
    """The lines of a UTF-8 file, packed where its name ends in .gz.

    Only "\\n" ends a line: sentences contain U+0085, where `splitlines` breaks. Raises DataError where the file has, or
    unpacks to, more than `most_bytes`.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(-1 if most_bytes is None else most_bytes + 1)
        if most_bytes is not None and len(content) > most_bytes:
            raise DataError(f"expected at most {most_bytes:,} bytes in {path}, got more; take a part of it")
        text = content.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"expected UTF-8 text in {path}, got byte {error.object[error.start]:#x}") from None
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines[:-1] if not lines[-1] else lines


def find_sets(root: Path, name: str, languages: tuple[str, str]) -> list[FilePair]:
    """Every set of that name under `root`, source language first. `name` may contain folders."""
    first, second = languages
    # WMT names a set after one direction and uses it for both
    stems = [f"{name}.{a}-{b}" for a, b in permutations(languages)] + [name]
    pairs = [
        FilePair(
            name=stem,
            source=root / folder / f"{stem}.{first}",
            target=root / folder / f"{stem}.{second}",
        )
        for folder in FOLDERS
        for place, stem in enumerate(stems)
    ]
    return [pair for pair in pairs if pair.exist()]


def list_sets(folder: Path, languages: tuple[str, str]) -> list[str]:
    """Sorted names of the sets of two languages in a folder."""
    ends = [f".{a}-{b}" for a, b in permutations(languages)]
    names = set()
    for path in folder.glob(f"*.{languages[0]}"):
        stem = path.name.removesuffix(f".{languages[0]}")
        if (folder / f"{stem}.{languages[1]}").is_file():
            for end in ends:
                stem = stem.removesuffix(end)
            names.add(stem)
    return sorted(names)


def without(training: Sequence[ParallelSet], held_out: Sequence[ParallelSet]) -> tuple[list[ParallelSet], int]:
    """Training sets without pairs that share a side with a held-out set or have an empty side; the number of those.

    A sentence that was seen in training tests nothing, whichever side was seen.
    """
    # whole sentences are compared; near-duplicates stay
    sources = {line for each in held_out for line in each.source}
    targets = {line for each in held_out for line in each.target}
    kept = []
    for each in training:
        places = [
            at
            for at, (s, t) in enumerate(zip(each.source, each.target, strict=True))
            if s.strip() and t.strip() and s not in sources and t not in targets
        ]
        kept.append(each.only(places))
    return kept, sum(map(len, training)) - sum(map(len, kept))
