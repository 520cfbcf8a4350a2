"""lra-retrieval: whether one paper cites another, from the bytes of both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from ..contract import METRICS, Baseline, Classification, DataPlace, Metric, Recipe
from ..data.baselines import majority
from ..data.data import DataSource, SourcedTask
from ._text.pairs import NAME, sources, word_overlap
from .recipes import RETRIEVAL


class Retrieval(SourcedTask):
    """Tell whether one paper cites the other, from the first 4,000 bytes of each (AAN); Long Range Arena's Retrieval.

    One encoder reads both documents, and the head compares them: `nli4` sees [x1, x2, x1 * x2, x1 - x2], as in the
    paper and the PyTorch ports; `concat2` sees [x1, x2], as in the released code. Other pairs in the official format
    are read as a surrogate.
    """

    name: ClassVar[str] = NAME
    metric: ClassVar[Metric] = METRICS["accuracy"].with_chance(0.5)
    paper: ClassVar[str] = "Tay et al. 2020, Long Range Arena, 2.2.3; data: Radev et al. 2013"

    recipes: ClassVar[dict[str, Recipe]] = {
        # the first 256 bytes of each document, for a minute a cell on two cores
        "quick": Recipe(
            length=256,
            batch=16,
            steps=120,
            learning_rate=2e-3,
            warmup=20,
            dropout=0.0,
            attention_dropout=0.0,
            evaluate_every=40,
            evaluate_batch=16,
            validation_examples=200,
            test_examples=1_000,
        ),
        **RETRIEVAL,
    }

    baselines: ClassVar[dict[str, Baseline]] = {"majority": majority, "word-overlap": word_overlap}

    def __init__(self, *, head: Literal["nli4", "concat2"] = "nli4"):
        self.head: Literal["nli4", "concat2"] = head

    def problem(self) -> Classification:
        return Classification(vocabulary=257, classes=2, towers=2, head=self.head)

    def sources(self, place: DataPlace) -> Sequence[DataSource]:
        return sources(place)
