"""lra-listops: the value of a nested list expression, generated or read from the official files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Annotated, ClassVar

import numpy as np

from ..contract import (
    METRICS,
    Availability,
    Baseline,
    Classification,
    DataError,
    DataPlace,
    Dataset,
    Metric,
    Provenance,
    Range,
    Recipe,
    Split,
    Task,
)
from ..data.baselines import majority
from ..data.data import make_dataset
from ..data.generated import regenerated
from ..data.prepared import PreparedData, pack, prepare
from ..data.sources import ExportSource, checksum
from ._listops.baselines import root_and_literals, root_operator
from ._listops.grammar import IDS, OPEN, OPERATORS, SEED, VERSION, VOCABULARY, Sizes, generate
from .recipes import LISTOPS

NAME = "lra-listops"
BUILDER = 1
FOLDERS = ("listops-1000", "lra_release/listops-1000", "lra_release/lra_release/listops-1000")
OFFICIAL = {"train": "basic_train.tsv", "validation": "basic_val.tsv", "test": "basic_test.tsv"}
OFFICIAL_SOURCE = "listops-1000"
OFFICIAL_COUNTS = {"train": 96_000, "validation": 2_000, "test": 2_000}
OFFICIAL_LENGTH = 2_000
CHECKED = 100

APPLY: dict[str, Callable[[list[int]], int]] = {
    "MIN": min,
    "MAX": max,
    "MED": lambda values: int(median(values)),
    "SM": lambda values: sum(values) % 10,
}


class ListOps(Task):
    """Value of a nested list expression of MIN, MAX, MED and SM (ListOps); Long Range Arena's own grammar.

    `examples`: number of expressions to generate, 96 in 100 for training and 2 each for validation and test. A preset
    of fewer than 2,000 tokens gets expressions that fit, between a quarter and the whole of its length: a cut
    expression has no value. A preset with `train_examples` gets no more than it asks for.
    """

    metric: ClassVar[Metric] = METRICS["accuracy"].with_chance(0.1)
    paper: ClassVar[str] = "Tay et al. 2020, Long Range Arena, 2.2.1; grammar: Nangia & Bowman 2018"

    recipes: ClassVar[dict[str, Recipe]] = {
        "smoke": Recipe(
            length=128,
            batch=8,
            steps=6,
            warmup=2,
            evaluate_every=3,
            train_examples=256,
            validation_examples=32,
            test_examples=64,
            ranked=False,
            timing_seconds=4.0,
        ),
        # expressions of 33 to 127 tokens, for a minute a cell on two cores; rate by validation, see README.md
        "quick": Recipe(
            length=128,
            batch=64,
            steps=160,
            learning_rate=4e-3,
            warmup=20,
            dropout=0.0,
            attention_dropout=0.0,
            evaluate_every=40,
            evaluate_batch=32,
            validation_examples=500,
        ),
        **LISTOPS,
    }

    baselines: ClassVar[dict[str, Baseline]] = {
        "majority": majority,
        "root-operator": root_operator,
        "root-and-literals": root_and_literals,
    }

    def __init__(self, *, examples: Annotated[int, Range(100, 10_000_000)] = 100_000):
        self.examples = examples

    def problem(self) -> Classification:
        return Classification(vocabulary=VOCABULARY, classes=10)

    def availability(self, place: DataPlace) -> list[Availability]:
        folder = official_folder(place)
        return [
            Availability(
                source="basic_{train,val,test}.tsv",
                fidelity="official",
                ready=folder is not None,
                detail=str(folder or place.root / FOLDERS[0]),
                advice=f"put the files of Long Range Arena's archive in {place.root / FOLDERS[0]}",
                estimate="half a minute and 0.22 GB",
            ),
            Availability(
                source=f"generator {VERSION}",
                fidelity="regenerated",
                ready=True,
                detail="made on this machine",
                estimate="half a minute and 0.22 GB for 100,000 expressions",
            ),
        ]

    def load(self, place: DataPlace, recipe: Recipe, seed: int, selection: str) -> Dataset:
        # the official expressions have up to 1,999 tokens, so a shorter preset needs expressions of its own
        prepared = None
        if self.examples == 100_000 and recipe.length >= OFFICIAL_LENGTH:
            prepared = official(place)
        if prepared is None:
            prepared = regenerate(self.sizes(recipe), place)
        return make_dataset(prepared, task=NAME, recipe=recipe, seed=seed, selection=selection)

    def sizes(self, recipe: Recipe) -> Sizes:
        """The splits to generate for a preset."""
        held_out = self.examples // 50
        train, validation, test = self.examples - 2 * held_out, held_out, held_out
        if recipe.train_examples is not None:
            train = min(train, recipe.train_examples)
            validation = min(validation, recipe.validation_examples or validation)
            test = min(test, recipe.test_examples or test)
        high = min(recipe.length, OFFICIAL_LENGTH)
        return Sizes(train=train, validation=validation, test=test, low=high // 4, high=high)


def evaluate(text: str) -> int:
    """The value of an expression, with or without parentheses. MED truncates the median; SM is the sum modulo 10.

    It checks labels by a second way: the generator computes values level by level. Raises DataError for any other text.

    >>> evaluate("[MAX 2 9 [MIN 4 7 ] 0 ]"), evaluate("( ( ( [SM 6 ) 7 ) ] )")
    (9, 3)
    """
    # a stack of open operators with the arguments read so far; no recursion, so depth has no limit
    frames: list[tuple[str, list[int]]] = []
    value: int | None = None
    open_parentheses = 0
    for token in text.replace("(", " ( ").replace(")", " ) ").replace("]", " ] ").split():
        if token in "()":
            open_parentheses += 1 if token == "(" else -1
            if open_parentheses < 0:
                raise DataError(f"not an expression: a ')' closes nothing in {_shown(text)}")
            continue
        if value is not None:
            raise DataError(f"not an expression: {token!r} follows its end in {_shown(text)}")
        if token[0] == "[" and token[1:] in APPLY:
            frames.append((token[1:], []))
            continue
        if token == "]":
            if not frames or not frames[-1][1]:
                raise DataError(
                    f"not an expression: a ']' closes {'no arguments' if frames else 'nothing'} in {_shown(text)}"
                )
            operator, arguments = frames.pop()
            result = APPLY[operator](arguments)
        elif len(token) == 1 and token in "0123456789":
            result = int(token)
        else:
            known = ", ".join(symbol for symbol in IDS if symbol.startswith("["))
            raise DataError(f"not an expression: expected a digit, ']' or one of {known}, got {token!r}")
        if frames:
            frames[-1][1].append(result)
        else:
            value = result
    if value is None or open_parentheses:
        what = "a parenthesis" if open_parentheses else "it"
        raise DataError(f"not an expression: {what} does not end in {_shown(text)}")
    return value


def regenerate(sizes: Sizes, place: DataPlace) -> PreparedData:
    """Generated expressions of these sizes, prepared once and read from the cache later."""
    lengths = f"expressions of {sizes.low + 1} to {sizes.high - 1} tokens"
    is_whole = sizes.high == OFFICIAL_LENGTH
    origin = f"ListOps generator {VERSION}, seed {SEED}, {sizes.train:,}/{sizes.validation:,}/{sizes.test:,}"
    origin += "" if is_whole else f", {lengths}"

    def generate_splits() -> dict[str, Split]:
        return generate(sizes, progress=lambda done: place.progress("generating ListOps", done, sizes.total))

    notes = [f"{sizes.total:,} expressions instead of 100,000"] if sizes.total != Sizes().total else []
    notes += [] if is_whole else [f"{lengths} instead of 501 to 1,999"]
    identity = {"generator": VERSION, "seed": SEED, "builder": BUILDER, "sizes": repr(sizes)}
    return regenerated(place, NAME, identity, origin=origin, generate=generate_splits, notes=notes)


def official(place: DataPlace) -> PreparedData | None:
    """The official expressions, from their files or from an export; None where neither is here."""
    folder = official_folder(place)
    if folder:
        return read_official(folder, place)
    exported = ExportSource(task=NAME, fits=OFFICIAL_SOURCE.__eq__).prepared(place)
    return exported if isinstance(exported, PreparedData) else None


def official_folder(place: DataPlace) -> Path | None:
    """The folder under the root that holds the three official files."""
    folders = (place.root / folder for folder in FOLDERS)
    return next((folder for folder in folders if all((folder / name).is_file() for name in OFFICIAL.values())), None)


def read_official(folder: Path, place: DataPlace) -> PreparedData:
    """The official files without parentheses. Raises DataError where a line is no expression with its value."""
    paths = {split: folder / name for split, name in OFFICIAL.items()}
    files = {path.name: checksum(place, NAME, path) for path in paths.values()}

    def build() -> PreparedData:
        splits = {split: read_tsv(path) for split, path in paths.items()}
        counts = {split: len(each) for split, each in splits.items()}
        # no checksum of the archive was ever published, so layout and counts are all that can be checked
        shown = "/".join(f"{count:,}" for count in counts.values())
        notes = () if counts == OFFICIAL_COUNTS else (f"{shown} expressions instead of 96,000/2,000/2,000",)
        fidelity = "surrogate" if notes else "official"
        return PreparedData(
            splits=splits, provenance=Provenance(source=OFFICIAL_SOURCE, fidelity=fidelity, files=files, notes=notes)
        )

    return prepare(place, NAME, {"source": "official", "files": files, "builder": BUILDER}, build)


def read_tsv(path: Path) -> Split:
    """One official file: a header, then lines of an expression, a tab and its value.

    The released files bracket every argument with parentheses. They carry no information, and the released code drops
    them too.
    """
    header, *lines = path.read_bytes().rstrip(b"\n").split(b"\n")
    if header.strip().split(b"\t") != [b"Source", b"Target"]:
        raise DataError(f"expected the header Source<tab>Target in {path}, got {header[:60]!r}")
    table = np.zeros(256, dtype=np.uint16)
    # each operator becomes one byte, so that one table turns a whole line into ids: 100,000 lines in seconds
    for symbol, token in IDS.items():
        table[_STAND_IN.get(symbol, symbol.encode())[0]] = token
    sequences, labels = [], []
    for number, line in enumerate(lines, start=2):
        text, _, label = line.rstrip(b"\r").partition(b"\t")
        flat = text.translate(None, b"() ")
        for symbol, letter in _STAND_IN.items():
            flat = flat.replace(symbol.encode(), letter)
        ids = table[np.frombuffer(flat, dtype=np.uint8)]
        if not len(ids) or not ids.all() or label not in _LABELS:
            raise DataError(f"{path}, line {number}: expected an expression, a tab and a digit, got {line[:60]!r}")
        # a wrong grammar shows in the first hundred lines, and evaluating all of them is slow
        value = evaluate(text.decode()) if number < CHECKED else int(label)
        if value != int(label):
            raise DataError(f"{path}, line {number}: the expression's value is {value}, not {int(label)}")
        sequences.append(ids)
        labels.append(int(label))
    return pack(sequences, labels)


_STAND_IN = {f"[{name}": bytes([OPEN + 200 + index]) for index, name in enumerate(OPERATORS)}
_LABELS = {str(value).encode() for value in range(10)}


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
