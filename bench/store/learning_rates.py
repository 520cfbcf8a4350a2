"""The search of a learning rate: which rates of a preset's grid are tried next, and which one a variant takes.

A pure function of the Records of the lane `tune`, whose seeds no board uses. It reads their validation results alone:
the test results beside them are for the figure of all rates.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any, NamedTuple

from ..core.cell import FIRST_TUNING_SEED, RATE_SETTINGS, Cell
from ..core.metrics import ACCURACY
from ..core.record import Outcome, Record
from ..core.spec import Spec

EDGE_FACTOR = 3.0
"""The factor between an end of a grid and the next rate beyond it."""


@dataclass(frozen=True, slots=True)
class RateChoice:
    """The rate that a variant takes; None where training failed at every rate, with the outcome and the reason.

    `scale`: the factor on the initial projections to queries and keys that it takes; None for that of the preset.
    """

    rate: float | None
    outcome: Outcome = Outcome.OK
    reason: str = ""
    scale: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RateGrid:
    """The learning rates of a preset, among which each variant searches its own.

    `grid`: the rates that are tried first; a search goes beyond their ends `extensions` times at most. `presets`: each
    rate that may be tried, with the preset that trains at it alone. `seeds`: trials of each rate. `scale`: the preset's
    `query_key_scale`; `scaled`: the other values that are tried at the chosen rate, each with a preset for each rate.
    """

    grid: tuple[float, ...]
    extensions: int
    seeds: int
    presets: tuple[tuple[float, Spec], ...]
    scale: float = 1.0
    scaled: tuple[tuple[float, tuple[tuple[float, Spec], ...]], ...] = ()

    def trials(self, cell: Cell) -> dict[float, tuple[Cell, ...]]:
        """The cells of the lane `tune` that may choose the learning rate of a cell to train, by rate.

        They are the same for all seeds. Their checkpoints are chosen on validation data, whatever the cell's own are.
        """
        return {rate: self._trials(cell, preset) for rate, preset in self.presets}

    def _trials(self, cell: Cell, preset: Spec) -> tuple[Cell, ...]:
        seeds = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + self.seeds)
        return tuple(
            Cell(variant=cell.variant, task=cell.task, preset=preset, seed=seed, lane="tune") for seed in seeds
        )

    def search(
        self, cell: Cell, trained: Mapping[tuple[str, str], Record], digest_of: Callable[[Cell], str]
    ) -> tuple[list[Cell], RateChoice | None]:
        """The trials of a cell to train as far as the search has come, and its choice.

        Once the rate is chosen, the other factors on queries and keys are tried at it, and the same rule chooses among
        them: every variant gets as many trials of its start. The choice is None where a trial is still to be run.
        `trained`: as `first_results` gives it, of any
        machine, so that every machine that sees the Records chooses the same.
        """
        trials = self.trials(cell)

        def records_of(cells: Iterable[Cell]) -> list[Record]:
            found = (trained.get((trial.key, digest_of(trial))) for trial in cells)
            return [record for record in found if record is not None]

        rates, choice = search(self.grid, self.extensions, self.seeds, lambda rate: records_of(trials[rate]))
        cells = [trial for rate in rates for trial in trials[rate]]
        if choice is None or choice.rate is None or not self.scaled:
            return cells, choice
        tried = {self.scale: records_of(trials[choice.rate])}
        for scale, presets in self.scaled:
            own = self._trials(cell, dict(presets)[choice.rate])
            cells += own
            tried[scale] = records_of(own)
        if any(len(found) < self.seeds for found in tried.values()):
            return cells, None
        return cells, replace(choice, scale=choose_rate(tried).rate)


class _Score(NamedTuple):
    """Validation of one rate over the tuning seeds; `advantage`: the higher the better; `error`: its standard error."""

    rate: float
    advantage: float
    error: float
    loss: float


def choose_rate(tried: Mapping[float, Sequence[Record]]) -> RateChoice:
    """The choice from the Records of every rate, one a tuning seed.

    The best mean validation score counts. Rates within one standard error of it are ties, and of these the smallest
    validation loss counts, then the smallest rate (the one-standard-error rule of Breiman et al. 1984, with the loss
    for the simpler model). The standard error is that of the best rate: over the validation examples with two
    right and two wrong ones added (Agresti and Coull 1998), so that it is not 0 at 100 %; or over the tuning seeds,
    where that is larger. A rate at which any training failed, or ended with a loss that is not finite, is not
    chosen.
    """
    scores = _scores(tried)
    return RateChoice(min(_ties(scores), key=lambda one: (one.loss, one.rate)).rate) if scores else _failure(tried)


def extended(grid: Sequence[float], extensions: int) -> tuple[float, ...]:
    """The rates of a grid in ascending order, with as many beyond either end as may be tried.

    Each has three digits, as people write them.

    >>> extended((1e-3, 4e-3), 2)
    (0.000111, 0.000333, 0.001, 0.004, 0.012, 0.036)
    """
    rates = sorted(grid)
    for _ in range(extensions):
        rates = [float(f"{rates[0] / EDGE_FACTOR:.3g}"), *rates, float(f"{rates[-1] * EDGE_FACTOR:.3g}")]
    return tuple(rates)


def search(
    grid: Sequence[float], extensions: int, seeds: int, trials_of: Callable[[float], Sequence[Record]]
) -> tuple[tuple[float, ...], RateChoice | None]:
    """The rates that a variant tries, and its choice; None where a trial of one of them has no Record yet.

    These are the grid, and while the choice lies at an end one more rate beyond that end, at most `extensions` of
    them: a best rate at an end tells nothing of what lies beyond. What lies beyond is chosen where it is better by more
    than its standard error. Else the grid's rate stays: two trials of scalable softmax recalled all at 4e-3 and at
    1.2e-2, where the loss was smaller, and where five of six other trainings failed. `seeds`: trials of each rate.
    """
    rates = extended(grid, extensions)
    low, high = extensions, extensions + len(grid)
    tried = {rate: trials_of(rate) for rate in rates[low:high]}
    if any(len(found) < seeds for found in tried.values()):
        return tuple(tried), None
    choice = choose_rate(tried)
    for _ in range(extensions):
        if choice.rate == rates[low]:
            low, beyond = low - 1, rates[low - 1]
        elif choice.rate == rates[high - 1]:
            high, beyond = high + 1, rates[high]
        else:
            break
        two = {choice.rate: trials_of(choice.rate), beyond: trials_of(beyond)}
        if len(two[beyond]) < seeds:
            return rates[low:high], None
        if [one.rate for one in _ties(_scores(two))] == [beyond]:
            choice = RateChoice(beyond)
    return rates[low:high], choice


def first_results(records: Iterable[Record]) -> dict[tuple[str, str], Record]:
    """The Record that counts of each cell and digest, on whatever machine: the first result, else the last failure.

    `records` stand in the order of arrival, as `Store.records` gives them.
    """
    found: dict[tuple[str, str], Record] = {}
    for record in records:
        known = found.get((record.key, record.digest))
        if known is None or known.outcome is not Outcome.OK:
            found[record.key, record.digest] = record
    return found


def without_rates(setting: Mapping[str, Any]) -> str:
    """A preset but for its learning rates, as text: what a trial and the training at the chosen rate share."""
    # a setting that was read from a file has lists for tuples, which are the same text
    return json.dumps(apart_from_rates(setting), sort_keys=True, default=str)


def apart_from_rates(setting: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a preset but for those of its learning rates."""
    return {name: value for name, value in setting.items() if name not in RATE_SETTINGS}


def _scores(tried: Mapping[float, Sequence[Record]]) -> list[_Score]:
    """The scores of the rates at which every training ended well, in ascending order."""
    return [found for rate, records in sorted(tried.items()) if (found := _score(rate, records)) is not None]


def _ties(scores: Sequence[_Score]) -> list[_Score]:
    """The best, and those within one standard error of it."""
    best = max(scores, key=lambda one: (one.advantage, -one.loss))
    return [one for one in scores if one.advantage >= best.advantage - best.error]


def _score(rate: float, records: Sequence[Record]) -> _Score | None:
    """The score of one rate; None where a training failed, or diverged."""
    values, losses, examples = [], [], 0
    metric = next((record.metric for record in records if record.metric), ACCURACY)
    for record in records:
        value, loss = (record.first(name, split="validation") for name in (metric.name, "loss"))
        if record.outcome is not Outcome.OK or value is None or loss is None:
            return None
        if not (math.isfinite(value.value) and math.isfinite(loss.value)):
            return None
        values.append(value.value)
        losses.append(loss.value)
        examples += int(value.where.get("examples") or 0)
    if not values:
        return None
    mean = fmean(values)
    of_seeds = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    of_examples = 0.0
    if metric.is_share and examples:
        share = (mean * examples + 2) / (examples + 4)
        of_examples = math.sqrt(share * (1 - share) / (examples + 4))
    return _Score(rate, metric.sign * mean, max(of_seeds, of_examples), fmean(losses))


def _failure(tried: Mapping[float, Sequence[Record]]) -> RateChoice:
    failed = [record for records in tried.values() for record in records if record.outcome is not Outcome.OK]
    rates = ", ".join(f"{rate:g}" for rate in sorted(tried))
    if not failed:
        return RateChoice(None, Outcome.CRASHED, f"training diverged at every learning rate ({rates})")
    outcomes = {record.outcome for record in failed}
    # diverged at one rate and failed at another: the failure has a reason to show
    outcome = failed[0].outcome if len(outcomes) == 1 else Outcome.CRASHED
    return RateChoice(None, outcome, f"at every learning rate ({rates}): {failed[0].reason}")
