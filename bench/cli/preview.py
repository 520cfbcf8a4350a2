"""Preview: examples of a task as a person can look at them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ...tasks.contract import Classification, Ids, Problem, Subset
from ...tasks.problems.language_modeling import Windows
from ...tasks.problems.token_prediction import UNASKED, TokenBatch, TokenStream
from ..core.errors import DataError

BYTES = 257
"""The vocabulary of gray values and of bytes: their value + 1."""

SHEET = 1600
"""Greatest width of a contact sheet, in pixels."""

CAPTION = 12
SHOWN = 300


def is_image(problem: Problem, subset: Subset) -> bool:
    """True if examples are square gray images: never padded, one id for each gray value, as many as a square has."""
    length = len(subset.split.sequence(0)) if len(subset) else 0
    return (
        isinstance(problem, Classification)
        and not problem.padded
        and problem.vocabulary == BYTES
        and problem.towers == 1
        and math.isqrt(length) ** 2 == length
    )


def contact_sheet(subset: Subset, count: int, path: Path) -> int:
    """Writes the first `count` images as a PNG, labels below them; returns how many there are.

    Raises DataError without Pillow, and where it cannot be written.
    """
    try:
        from PIL import Image, ImageDraw
    except ImportError as error:
        raise DataError("a contact sheet needs Pillow; pip install 'attnbench[images]'") from error
    images = [_image(ids) for _, ids in zip(range(count), subset.sequences(), strict=False)]
    side = len(images[0])
    zoom = max(1, 96 // side)
    cell = side * zoom + 4
    columns = min(len(images), max(1, SHEET // cell))
    rows = -(-len(images) // columns)
    sheet = Image.new("L", (columns * cell, rows * (cell + CAPTION)), 64)
    pen = ImageDraw.Draw(sheet)
    for index, (image, label) in enumerate(zip(images, subset.labels.tolist(), strict=False)):
        x, y = index % columns * cell + 2, index // columns * (cell + CAPTION)
        sheet.paste(Image.fromarray(image.repeat(zoom, 0).repeat(zoom, 1)), (x, y + CAPTION))
        pen.text((x, y), str(label), fill=255)
    try:
        sheet.save(path, format="PNG")
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}; --out FILE.png names another") from error
    return len(images)


def text_of(problem: Problem, subset: Subset, count: int) -> Iterator[str]:
    """The first `count` examples as lines: label, tokens, and the text of bytes or else the ids, cut at 300."""
    if isinstance(subset, TokenStream):
        for step in range(count):
            yield _asked(subset.at(step, 1, "preview", 0))
        return
    towers = subset.split.towers
    sequences = zip(range(count * towers), subset.sequences(), strict=False)
    for at, ids in sequences:
        label = f"label {subset.labels[at // towers]}, " if isinstance(problem, Classification) else ""
        yield f"{label}{len(ids):,} tokens: {_text(problem, subset, ids[:SHOWN])}{' …' if len(ids) > SHOWN else ''}"


def _asked(batch: TokenBatch) -> str:
    """The first sequence of a batch, with what is asked of it."""
    ids, shown = batch.ids[0], batch.ids[0][:SHOWN].tolist()
    asked = zip(batch.asked[0].tolist(), batch.answers[0].tolist(), strict=True)
    answers = ", ".join(f"{answer} at {at}" for at, answer in asked if answer != UNASKED)
    return f"{len(ids):,} tokens: {' '.join(map(str, shown))}{' …' if len(ids) > SHOWN else ''}; answers {answers}"


def _image(ids: Ids) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    side = math.isqrt(len(ids))
    return (np.asarray(ids).reshape(side, side) - 1).astype(np.uint8)


def _text(problem: Problem, subset: Subset, ids: Ids) -> str:
    if isinstance(subset, Windows):
        return _quoted(subset.vocabulary.decode(ids.tolist()))
    if problem.vocabulary != BYTES:
        return " ".join(map(str, ids.tolist()))
    return _quoted((np.asarray(ids) - 1).astype(np.uint8).tobytes())


def _quoted(text: bytes) -> str:
    # repr keeps what would move a terminal's cursor from doing so
    return repr(text.decode("utf-8", errors="replace"))
