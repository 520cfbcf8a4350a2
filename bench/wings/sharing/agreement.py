"""Agreement: whether the numbers of a Record bear each other out, and whether Records look copied from each other.

Within one Record a contradiction is an error, since only its maker can have made it. Between two Records it is a
warning, since nothing tells which of them is the honest one. `SECURITY.md` says what remains possible.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ...core.metrics import RANKING_METRICS
from ...core.record import Measurement, Outcome, Record
from ...store.artifacts import Curve, ExampleResults, agrees, results_of, score_of
from ...store.packs import DamagedArtifact, arrays_of
from ...store.record_files import ArrivedRecord
from ...store.rows import is_disputed, tested

CURVE_TOLERANCE = 0.01
"""The largest difference of a validation score computed a second time: sums on a GPU do not come out the same."""

COMMON_RULE = 0.995
"""A share of the examples. Where a third model predicts the same on so many, models learn one rule without copying."""


def prediction_errors(record: Record, results: ExampleResults) -> Iterator[str]:
    """The differences of the test score from the one that `results` give, and so that of each setting of the test."""
    stated, kept = tested(record), results.values
    if stated is None:
        return
    found = score_of(stated.name, kept)
    examples = stated.where.get("examples")
    if found is None:
        yield f"its predictions hold no statistics of {stated.name}"
    elif not agrees(found, stated.value):
        yield f"its {stated.name.replace('_', ' ')} is {stated.value:.4f}, but its predictions give {found:.4f}"
    if examples is not None and examples != len(kept):
        yield f"it states {examples:,} test examples, but its predictions are of {len(kept):,}"
    if results.setting is not None:
        yield from _setting_errors(record, stated, kept, results.setting)


def _setting_errors(
    record: Record, stated: Measurement, kept: npt.NDArray[Any], setting: npt.NDArray[Any]
) -> Iterator[str]:
    """The same of each setting; they are stated behind the score of all, in the order of their numbers."""
    by_setting = [m for m in record.measurements if m.name == stated.name and m.where.get("split") == "test"][1:]
    count = int(setting.max(initial=0)) + 1
    if len(by_setting) != count:
        yield f"it states scores of {len(by_setting)} settings, but its predictions are of {count}"
        return
    for at, measurement in enumerate(by_setting):
        own = kept[setting == at]
        found = score_of(stated.name, own) if len(own) else None
        names = ", ".join(f"{k}={v}" for k, v in measurement.where.items() if k not in ("split", "examples"))
        if found is None or not agrees(found, measurement.value):
            given = "none" if found is None else f"{found:.4f}"
            yield f"its {stated.name} at {names} is {measurement.value:.4f}, but its predictions give {given}"


def curve_errors(record: Record, curve: Curve) -> Iterator[str]:
    """The differences of the curve from the measurements: steps, times, and the validation score of the chosen step."""
    steps = [int(point["step"]) for point in curve]
    if not steps or any(later <= earlier for earlier, later in pairwise(steps)):
        yield "the steps of its curve do not increase"
        return
    timed = [point["seconds"] for point in curve if point.get("seconds") is not None]
    if any(later < earlier for earlier, later in pairwise(timed)):
        yield "the seconds of its curve decrease"
    made, best, trained = (_value(record, name) for name in ("steps", "best_step", "train_seconds"))
    if made is not None and made != steps[-1]:
        yield f"it states {made:,.0f} steps, but its curve ends at {steps[-1]:,}"
    most: Any = record.setting.get("steps", made)
    # one that may end where validation is solved makes fewer
    ends_early = record.setting.get("schedule") == "until_solved" and made is not None and made < most
    if made is not None and made != most and not ends_early:
        yield f"it states {made:,.0f} steps, but its preset has {most:,}"
    if trained is not None and timed and timed[-1] > trained + 1:
        yield f"it states {trained:.0f} s of training, but its curve ends at {timed[-1]:.0f} s"
    if best is not None and best not in steps:
        yield f"its best step, {best:,.0f}, is not on its curve"
    elif best is not None and record.setting.get("averaged", 1) <= 1:
        yield from _validation_errors(record, curve[steps.index(int(best))])


def _validation_errors(record: Record, chosen: Any) -> Iterator[str]:
    for name in ("loss", *(metric.name for metric in RANKING_METRICS)):
        stated, drawn = _value(record, name, split="validation"), chosen.get(f"validation_{name}")
        if stated is None or drawn is None:
            continue
        # two that are not finite agree
        if abs(stated - drawn) > CURVE_TOLERANCE * max(1.0, abs(stated)):
            yield f"its validation {name.replace('_', ' ')} is {stated:.4f}, but its curve has {drawn:.4f} at that step"


def time_errors(record: Record) -> Iterator[str]:
    """The differences of times from their own samples, and from how long the Record took."""
    for measurement in record.measurements:
        name, samples = measurement.name, measurement.samples
        if not samples or measurement.unit != "seconds" or "layer" in measurement.where:
            continue
        median = statistics.median(samples)
        if abs(measurement.value - median) > 1e-6 * abs(median):
            yield f"its {name} is {measurement.value:.6g}, but the median of its samples is {median:.6g}"
        if measurement.where.get("rounds", len(samples)) != len(samples):
            yield f"its {name} states {measurement.where['rounds']} rounds, but has {len(samples)} samples"
    taken = sum(sum(m.samples) for m in record.measurements if m.name.endswith(("step_seconds", "forward_seconds")))
    if taken > 1.01 * record.seconds + 1:
        yield f"its samples take {taken:.0f} s together, but it took {record.seconds:.0f} s"


def _value(record: Record, name: str, **where: Any) -> float | None:
    found = record.first(name, **where)
    return None if found is None else found.value


@dataclass
class Copies:
    """Records seen so far, by what no two of them should share; `add` yields what a further one shares.

    Whether equal predictions are a copy shows once all are seen: `copied_predictions` yields them, with their place.
    """

    predictions: dict[str, tuple[str, Record]] = field(default_factory=dict)
    curves: dict[str, tuple[str, Record]] = field(default_factory=dict)
    labels: dict[tuple[str, ...], tuple[str, npt.NDArray[np.int64]]] = field(default_factory=dict)
    rounds: dict[tuple[str, str, str], tuple[str, tuple[float, ...]]] = field(default_factory=dict)
    classes: dict[tuple[str, ...], dict[str, npt.NDArray[np.int32]]] = field(default_factory=dict)
    equal: list[tuple[str, str, Record, tuple[str, ...] | None]] = field(default_factory=list)
    rules: dict[tuple[str, ...], float] = field(default_factory=dict)  # accuracy of the best trivial rule, by data

    def add(self, place: str, record: Record, content: bytes | None) -> Iterator[str]:
        """`content`: of its predictions, where it has any that are sound."""
        if record.outcome is not Outcome.OK:
            return
        yield from self._rounds(place, record)
        if record.cell.lane == "baseline" and (score := tested(record)) and score.unit == "fraction":
            data = _same_data(record, 0)
            self.rules[data] = max(score.value, self.rules.get(data, 0.0))
        if record.cell.lane != "train":
            return
        yield from _shared(self.curves, "curve", place, record)
        found = _predicted(content) if content is not None else None
        # a model that learned nothing may say the same of every example, and one that learned all is always right
        group = _same_data(record, len(found[0])) if found is not None else None
        if not _is_common(record, content) and (found is None or not (found[0] == found[0][:1]).all()):
            file = record.artifacts.get("predictions", "")
            self.equal += [
                (place, text, record, group) for text in _shared(self.predictions, "predictions", place, record)
            ]
            if found is not None and group is not None:
                self.classes.setdefault(group, {})[file] = found[0].astype(np.int32)
        if found is not None and group is not None:
            yield from self._labels(place, group, *found)

    def copied_predictions(self) -> Iterator[tuple[str, str]]:
        """Place and words of each Record whose predictions are those of another, and no rule that others know.

        That is one that a third model learned, or one no better than a trivial rule: to copy it would gain nothing.
        """
        for place, text, record, group in self.equal:
            score, file = tested(record), record.artifacts.get("predictions", "")
            if score is not None and score.value <= self.rules.get(_same_data(record, 0), -math.inf):
                continue
            beside = self.classes[group] if group is not None else {}
            near = (beside[file] == other for name, other in beside.items() if name != file)
            if not any(same.mean() >= COMMON_RULE for same in near):
                yield place, text

    def _rounds(self, place: str, record: Record) -> Iterator[str]:
        for name in ("reference_step_seconds", "reference_forward_seconds", "reference_decode_seconds"):
            own = record.first(name)
            if own is None or not record.block:
                continue
            other, samples = self.rounds.setdefault((record.block, record.machine.id, name), (place, own.samples))
            if samples != own.samples:
                yield f"it shares the rounds of {other}, but not the reference's times in them"

    def _labels(
        self, place: str, group: tuple[str, ...], predicted: npt.NDArray[Any], correct: npt.NDArray[Any]
    ) -> Iterator[str]:
        """Two right predictions of one example are the same: its label."""
        fresh = np.where(correct, predicted, -1)
        other, known = self.labels.setdefault(group, (place, fresh))
        differing = int(((known >= 0) & (fresh >= 0) & (known != fresh)).sum())
        if differing:
            yield f"its right predictions are not those of {other}, of the same data, on {differing:,} examples"
        else:
            self.labels[group] = (other, np.maximum(known, fresh))


@dataclass
class Repeats:
    """The first result of each cell, made by one code; `add` yields how a later one differs.

    `undecided`: cells with different results in two files, of which only the stated start says which came first.
    """

    first: dict[tuple[str, str], tuple[str, ArrivedRecord | None, Record]] = field(default_factory=dict)
    undecided: int = 0
    each: dict[tuple[str, str, str], tuple[str, Record]] = field(default_factory=dict)

    def remember(self, place: str, record: Record) -> None:
        """Notes a Record of a folder that was there before all that are added."""
        if record.outcome is Outcome.OK:
            self.first.setdefault((record.key, record.digest), (place, None, record))

    def add(self, arrived: ArrivedRecord) -> Iterator[str]:
        """`arrived`: in the order of arrival."""
        record = arrived.record
        place, same = self.each.setdefault((record.key, record.digest, record.started), (arrived.place, record))
        if record is not same and record == same:
            yield f"it is {place} once more, to the last digit; one of them counts"
            return
        # of timings the newest counts, beside what shared its rounds
        if record.outcome is not Outcome.OK or record.cell.lane == "time":
            return
        place, before, first = self.first.setdefault((record.key, record.digest), (arrived.place, arrived, record))
        ours, theirs = tested(record), tested(first)
        differs = ours is not None and theirs is not None and ours.value != theirs.value
        if before is not None and before.arrival == arrived.arrival and before.file != arrived.file:
            self.undecided += differs
            return
        if ours is not None and theirs is not None and differs:
            state = "result disputed: " if is_disputed(ours, theirs) else ""
            yield (
                f"{state}its {ours.name} is {ours.value:.4f}, but {place}, of the same cell, has {theirs.value:.4f}; "
                "that came first and counts"
            )
        if record.started < first.started:
            yield f"it states an earlier start than {place}, which is of the same cell and came first"


def _same_data(record: Record, examples: int) -> tuple[str, ...]:
    """Equal for Records that were tested on the same examples."""
    cell, data_code = record.cell, record.digest.rpartition("-")[0].rpartition("-")[2]
    return str(cell.task), str(cell.preset), data_code, str(examples)


def _shared(seen: dict[str, tuple[str, Record]], name: str, place: str, record: Record) -> Iterator[str]:
    file = record.artifacts.get(name)
    if file is None:
        return
    other, first = seen.setdefault(file, (place, record))
    ours, theirs = record.cell, first.cell
    # two implementations of one mechanism may agree to the last bit
    if ours.seed != theirs.seed or ours.task != theirs.task or ours.variant.name != theirs.variant.name:
        verb = "is" if name == "curve" else "are"
        yield f"its {name} {verb} the very file of {other} ({theirs}); one of them may be copied"


def _is_common(record: Record, content: bytes | None) -> bool:
    """True if models may give these results without copying: one result for all examples or all but one, or guessing.

    All right, or all but the hardest example, is what models do that learned the task; all wrong, what others do.
    Files that keep no answers do not tell a constant one; its share of right answers is that of guessing.
    """
    try:
        kept = results_of(content).values if content is not None else None
    except DamagedArtifact:
        return False
    if kept is None or kept.ndim != 1 or not len(kept):
        return False
    chance = record.metric.chance if record.metric else None
    # a file may name any number as the chance
    guessed = (
        chance is not None
        and 0 < chance < 1
        and kept.mean() <= chance + 3 * math.sqrt(chance * (1 - chance) / len(kept))
    )
    return guessed or int(np.unique(kept, return_counts=True)[1].max()) >= len(kept) - 1


def _predicted(content: bytes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]] | None:
    """The class that each example was given and whether it was right; None where no classes are kept."""
    try:
        found = arrays_of(content, "predicted", "correct")
    except DamagedArtifact:
        return None
    if len(found) < 2:
        return None
    predicted, correct = found["predicted"], found["correct"]
    if predicted.ndim != 1 or predicted.shape != correct.shape or predicted.dtype.kind not in "iu":
        return None
    return predicted.astype(np.int64), correct.astype(np.bool_)
