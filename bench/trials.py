"""Trials: what the seeds of one variant gave on one task, lined up with the reference's."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from .cell import REFERENCE
from .frame import Frame
from .intervals import Estimate, Interval
from .question import Question
from .record import Outcome
from .score import LEAST_SEEDS, Correct, accuracy, quality_gap

Predictions = Callable[[str], Correct | None]
"""Reads an artifact: which test examples were right, 0 or 1 each; None where it is not at hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """Test accuracy by seed; `correct`: per-example results by seed, None unless all are kept.

    `curves`: artifacts that hold the training curves, by seed, empty where there is none. `lack`: why these trials do
    not suffice for a rank; empty where they do. `rows`: of the Frame, the failed ones too.
    """

    variant: str
    seeds: tuple[int, ...] = ()
    shares: tuple[float, ...] = ()
    examples: int = 0
    correct: tuple[Correct, ...] | None = None
    curves: tuple[str, ...] = ()
    lack: str = ""
    rows: tuple[int, ...] = ()

    def accuracy(self) -> Interval:
        return accuracy(self.shares, self.examples, self.correct)

    def gap(self, other: Trials) -> Estimate:
        """How far these are above `other`, by the seeds that both have; raises ValueError where they have none."""
        both = sorted(set(self.seeds) & set(other.seeds))
        if not both:
            raise ValueError(f"{self.variant} and {other.variant} have no seed in common")
        ours, theirs = (
            ([t.shares[t.seeds.index(s)] for s in both], t.correct and [t.correct[t.seeds.index(s)] for s in both])
            for t in (self, other)
        )
        paired = ours[1] and theirs[1] and ours[1][0].shape == theirs[1][0].shape
        return quality_gap(
            ours[0],
            theirs[0],
            min(self.examples, other.examples),
            ours[1] if paired else None,
            theirs[1] if paired else None,
        )


def trials_of_all(frame: Frame, question: Question, predictions: Predictions) -> dict[str, Trials]:
    """Trials by variant. The reference's seeds are the question's: more are not used, with fewer there is no rank."""
    # a cell that was run on two machines counts once, the newer
    cells = question.cells(frame, "train").drop_duplicates("key", keep="last")
    done = _done(frame, cells)
    wanted = set(done[done["variant"] == REFERENCE]["seed"])
    return {
        str(variant): _trials(str(variant), own, done[done["variant"] == variant], wanted, predictions)
        for variant, own in cells.groupby("variant")
    }


def _done(frame: Frame, cells: pd.DataFrame) -> pd.DataFrame:
    """The cells with a usable test accuracy, and that as `share` and `count`."""
    ok = cells[cells["outcome"] == Outcome.OK]
    tested = [frame.number("accuracy", at, split="test") for at in ok.index]
    joined = ok.assign(
        share=[m.value if m else math.nan for m in tested],
        count=[m.where.get("examples") or 0 if m else 0 for m in tested],
    )
    return joined[joined["share"].between(0, 1) & (joined["count"] > 0)]


def _trials(
    variant: str, cells: pd.DataFrame, done: pd.DataFrame, wanted: set[int], predictions: Predictions
) -> Trials:
    used = done[done["seed"].isin(wanted)] if wanted else done
    used = used.sort_values("seed")
    shares = tuple(float(share) for share in used["share"])
    return Trials(
        variant=variant,
        seeds=tuple(int(seed) for seed in used["seed"]),
        shares=shares,
        examples=int(used["count"].min()) if len(used) else 0,
        correct=_correct(used, predictions),
        curves=tuple(artifacts.get("curve", "") for artifacts in used["artifacts"]),
        lack=_lack(cells, set(used["seed"]), wanted),
        rows=tuple(int(row) for row in cells.index),
    )


def _correct(used: pd.DataFrame, predictions: Predictions) -> tuple[Correct, ...] | None:
    found = []
    for artifacts, share, count in zip(used["artifacts"], used["share"], used["count"], strict=True):
        name = artifacts.get("predictions")
        correct = predictions(name) if name else None
        # predictions that do not bear out their Record's accuracy are not its own
        if correct is None or len(correct) != count or abs(float(np.mean(correct)) - share) > 1e-6:
            return None
        found.append(correct)
    return tuple(found) or None


def _lack(cells: pd.DataFrame, seeds: set[int], wanted: set[int]) -> str:
    failed = cells[(cells["outcome"] != Outcome.OK) & (cells["seed"].isin(wanted) if wanted else True)]
    if len(failed):
        first = failed.sort_values("seed").iloc[0]
        also = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
        because = f": {first['reason']}" if first["reason"] else ""
        return f"{outcome_words(first['outcome'])} at seed {first['seed']}{also}{because}"
    if not wanted:
        return f"no result of {REFERENCE}, the reference, to compare with"
    missing = sorted(wanted - seeds)
    if missing:
        return f"seed {', '.join(map(str, missing))} of the reference is missing here; run it to be ranked"
    if len(seeds) < LEAST_SEEDS:
        return f"fewer than {LEAST_SEEDS} seeds"
    return ""


def outcome_words(outcome: str) -> str:
    """
    >>> outcome_words("out_of_memory")
    'out of memory'
    """
    return outcome.replace("_", " ")
