"""Records made by hand, for everything to the right of Record."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from attnbench.bench.core.cell import Cell
from attnbench.bench.core.record import Machine, Measurement, Outcome, Provenance, Record
from attnbench.bench.core.spec import Spec
from attnbench.bench.store.artifacts import ExampleResults

SETTING = {
    "layers": 2, "width": 64, "heads": 2, "feed_forward": 128, "positions": "learned", "pooling": "mean", "length": 512,
    "batch": 32, "steps": 200, "learning_rate": 1e-3, "warmup": 20, "schedule": "linear", "precision": "float32",
    "ranked": True, "test_examples": 1000,
}  # fmt: skip


def machine(name: str = "box-1") -> Machine:
    return Machine(
        id=name,
        system="Linux",
        processor="Abacus 9",
        cores=2,
        threads=2,
        memory_bytes=2**33,
        versions={"torch": "2.13.0"},
    )


@dataclass
class Bench:
    """Makes Records of one task and keeps their predictions, as a store would."""

    task: str = "lra-text"
    preset: str = "quick"
    fidelity: str = "official"
    records: list[Record] = field(default_factory=list)
    artifacts: dict[str, np.ndarray] = field(default_factory=dict)
    documents: np.ndarray | None = None

    def predictions(self, name: str) -> ExampleResults | None:
        return ExampleResults(self.artifacts[name], self.documents) if name in self.artifacts else None

    def cell(self, variant: str, seed: int = 0, lane: str = "train", **changes: object) -> Cell:
        values = {
            "task": Spec.parse(self.task),
            "preset": Spec.parse(self.preset),
            "seed": seed,
            "lane": lane,
        } | changes
        return Cell(variant=Spec.parse(variant), **values)

    def add(self, cell: Cell, measurements: Sequence[Measurement] = (), **changes: object) -> Record:
        values = {
            "outcome": Outcome.OK,
            "machine": machine(),
            "data": Provenance(source="aclImdb", fidelity=self.fidelity, counts={"test": 1000}),
            "digest": "p1-t1-v1",
            "setting": SETTING,
            "started": f"2026-01-01T00:{len(self.records) // 60:02}:{len(self.records) % 60:02}+00:00",
            "block": "block-1" if cell.lane == "time" else "",
        }
        self.records.append(Record(cell=cell, measurements=tuple(measurements), **values | changes))
        return self.records[-1]

    def train(
        self,
        variant: str,
        shares: Sequence[float],
        examples: int = 1000,
        correct: Sequence[np.ndarray] | None = None,
        cell: dict[str, object] | None = None,
        more: Sequence[Measurement] = (),
        **changes: object,
    ) -> None:
        """One train Record a seed, with test accuracies `shares`, or with those of `correct`."""
        for seed, share in enumerate(shares if correct is None else [float(np.mean(c)) for c in correct]):
            kept = {}
            if correct is not None:
                name = hashlib.sha256(f"{variant}{seed}{correct[seed].tobytes()!r}".encode()).hexdigest()[:24] + ".npz"
                self.artifacts[name] = correct[seed].astype(np.uint8)
                kept = {"artifacts": {"predictions": name}}
            count = examples if correct is None else len(correct[seed])
            self.add(
                self.cell(variant, seed, **cell or {}),
                [
                    Measurement.of("accuracy", share, split="test", examples=count),
                    Measurement.of("accuracy", share, split="validation", examples=500),
                    Measurement.of("parameters", 100_000),
                    *more,
                ],
                **kept | changes,
            )

    def score(
        self,
        variant: str,
        quantity: str,
        scores: Sequence[float],
        statistics: Sequence[np.ndarray] | None = None,
        **changes: object,
    ) -> None:
        """One train Record a seed, judged by another quantity than accuracy, with the statistics of each example."""
        for seed, value in enumerate(scores):
            kept = {}
            if statistics is not None:
                name = hashlib.sha256(f"{variant}{seed}".encode()).hexdigest()[:24] + ".npz"
                self.artifacts[name] = np.asarray(statistics[seed], dtype=np.float64)
                kept = {"artifacts": {"predictions": name}}
            tested = Measurement.of(quantity, value, split="test")
            self.add(self.cell(variant, seed), [tested, Measurement.of("parameters", 100_000)], **kept | changes)

    def time(
        self,
        variant: str,
        seconds: Sequence[float],
        reference: Sequence[float],
        null: Sequence[float] | None = None,
        peak: float = 1e6,
        load: float = 0.0,
        more: Sequence[Measurement] = (),
        **changes: object,
    ) -> Record:
        null = reference if null is None else null
        named = {"step_seconds": seconds, "reference_step_seconds": reference, "null_step_seconds": null}
        numbers = [Measurement.of(name, float(np.median(s)), tuple(s)) for name, s in named.items()]
        numbers += [Measurement.of("peak_bytes", peak), Measurement.of("foreign_load", load), *more]
        return self.add(self.cell(variant, lane="time"), numbers, **changes)


@pytest.fixture
def bench() -> Callable[..., Bench]:
    return Bench
