"""Gold word alignments: sentence pairs whose words people have linked, `PAIR/{text.src,text.tgt,gold.talp}`."""

from __future__ import annotations

import re
from pathlib import Path

from ..contract import DataError, DataPlace
from ..data.sources import checksum
from .parallel import read_lines
from .problem import AlignedPair, GoldLinks

FILES = ("text.src", "text.tgt", "gold.talp")


def aligned_pairs(place: DataPlace, source: str, target: str) -> list[AlignedPair]:
    """The pairs of `alignments/SOURCE-TARGET`, or of the other direction, swapped; empty without both folders."""
    folder = _folder(place, source, target)
    if folder is None:
        return []
    pairs = read_pairs(folder)
    return pairs if folder.name == f"{source}-{target}" else [each.swapped() for each in pairs]


def alignment_files(place: DataPlace, task: str, source: str, target: str) -> dict[str, str]:
    """SHA-256 of each file that `aligned_pairs` reads, by its path under the data root."""
    folder = _folder(place, source, target)
    paths = [folder / name for name in FILES] if folder else []
    return {path.relative_to(place.root).as_posix(): checksum(place, task, path) for path in paths}


def _folder(place: DataPlace, source: str, target: str) -> Path | None:
    folders = (place.root / "alignments" / pair for pair in (f"{source}-{target}", f"{target}-{source}"))
    return next((folder for folder in folders if all((folder / name).is_file() for name in FILES)), None)


def read_pairs(folder: Path) -> list[AlignedPair]:
    """The pairs of a folder. Raises DataError for links outside of a sentence, or files of different lengths."""
    sources, targets, golds = (read_lines(folder / name) for name in FILES)
    if not len(sources) == len(targets) == len(golds):
        counts = ", ".join(f"{len(lines):,}" for lines in (sources, targets, golds))
        raise DataError(f"expected as many lines in {', '.join(FILES)} of {folder}, got {counts}")
    pairs = []
    for number, (source, target, gold) in enumerate(zip(sources, targets, golds, strict=True), start=1):
        pair = AlignedPair(source=_words(source), target=_words(target), gold=read_links(gold))
        # a link beyond the end of a sentence is the sign of words counted from 1
        most = max((a for a, _ in pair.gold.possible), default=-1), max((b for _, b in pair.gold.possible), default=-1)
        if most[0] >= len(pair.source) or most[1] >= len(pair.target):
            raise DataError(
                f"{folder}, line {number}: a link {most[0]}-{most[1]} in a pair of {len(pair.source)} and "
                f"{len(pair.target)} words; words are counted from 0"
            )
        pairs.append(pair)
    return pairs


def _words(line: str) -> tuple[str, ...]:
    """Words separated by spaces alone: a word may contain U+00A0 or U+2028, at which `split()` breaks."""
    return tuple(word for word in line.split(" ") if word)


def read_links(text: str) -> GoldLinks:
    """Links in the notation `i-j` for sure and `ipj` for possible ones.

    >>> read_links("0-1 2p0").sure
    frozenset({(0, 1)})
    """
    sure, possible = set(), set()
    for part in text.split():
        found = re.fullmatch(r"(\d+)([-p])(\d+)", part)
        if found is None:
            raise DataError(f"expected links such as 0-1 (sure) or 2p0 (possible), got {part!r}")
        link = int(found[1]), int(found[3])
        # sure links count as possible ones too: the alignment error rate is defined so
        possible.add(link)
        if found[2] == "-":
            sure.add(link)
    return GoldLinks(sure=frozenset(sure), possible=frozenset(possible))
