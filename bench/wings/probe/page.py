"""The page of a probe: what one variant can do, in a line, with the numbers that each part of it rests on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from ...board.timings import format_log_difference
from ...core.cell import NO_ATTENTION, REFERENCE
from ...core.metrics import Interval
from ...core.record import Outcome, Record
from ...score.cost import costs_by_variant, floor_of
from ...score.key import board_keys
from ...score.settings import LENGTH, series_of
from ...stats.format import listed, percent
from ...stats.scoring import ratio
from ...store.table import table_of
from .score import CAUSAL_TASKS, HELD, Examined, Neighbour, ProbedTask

HEADLINE_LENGTH = 1_024
"""Tokens at which the headline states the cost, or else the longest length that was timed."""

SUITE_MINUTES = 20
"""About the time of the suite synthetic for one variant beside the reference and no-attention."""

UNTOLD = math.log(1.5)
"""Noise from which a time that differs by half cannot be told from an equal one."""

NEIGHBOURS = 3
"""The most variants of like behaviour that the page names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedCost:
    """A training step of attention alone at `length` tokens, by ratio to the reference; `reason` where there is none.

    `floor`: the noise floor of all lengths, as a log-ratio. `even`: the difference to 1 is within it, or within its own
    interval.
    """

    length: int
    ratio: Interval | None = None
    even: bool = False
    floor: float = 0.0
    rounds: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeTable:
    """Accuracies along one axis of a task, in per cent: a row each of the variant and the reference."""

    task: str
    axis: str
    fixed: str
    values: tuple[float, ...]
    rows: tuple[tuple[str, tuple[float | None, ...]], ...]

    def as_text(self) -> list[str]:
        """The lines in per cent, with the values of the axis above."""
        title = f"% right by {self.axis}" + (f" ({self.fixed})" if self.fixed else "")
        width = max(len(title), *(len(name) for name, _ in self.rows))
        lines = [f"{title:{width}}" + "".join(f"{value:>8,g}" for value in self.values)]
        for name, values in self.rows:
            lines.append(f"{name:{width}}" + "".join(f"{'' if v is None else format(v, '.1f'):>8}" for v in values))
        return lines


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeLine:
    """One statement about the variant and what it rests on."""

    topic: str
    text: str
    evidence: tuple[str, ...] = ()
    tables: tuple[ProbeTable, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReport:
    """The page: `headline`, then its lines. `passed`: the gate is green; `complete`: no training failed."""

    variant: str
    headline: str
    lines: tuple[ProbeLine, ...]
    notes: tuple[str, ...] = ()
    passed: bool = True
    unsupported: bool = False
    complete: bool = True

    def __str__(self) -> str:
        """The page as text."""
        width = max(len(line.topic) for line in self.lines) + 2
        found = [f"{self.variant}: {self.headline}", ""]
        for line in self.lines:
            below = (*line.evidence, *(row for table in line.tables for row in table.as_text()))
            found += [f"{line.topic:{width}}{line.text}", *(f"{'':{width}}{text}" for text in below)]
        # a reason of a plugin makes no line of its own
        return "\n".join(text.replace("\n", " ") for text in [*found, "", *self.notes])


def probe_report(
    variant: str,
    examined: Examined,
    tasks: Sequence[tuple[ProbedTask, ProbedTask | None]],
    costs: Sequence[ProbedCost],
    nearest: Sequence[Neighbour],
) -> ProbeReport:
    """The page of `variant`.

    tasks: each with what the reference reached, None where it has no result. costs: by length.
    """
    gate = gate_line(examined)
    lines = [gate]
    if not examined.passed:
        return ProbeReport(
            variant=variant,
            headline=gate.text,
            lines=(gate,),
            notes=("Nothing was trained or timed: the numbers of a variant that breaks a promise say nothing.",),
            passed=False,
            unsupported=examined.unsupported,
        )
    lines += [task_line(own, reference) for own, reference in tasks]
    lines.append(cost_line(costs))
    lines.append(nearest_line(variant, nearest))
    parts = [*_abilities([own for own, _ in tasks]), _cost_in_brief(costs), gate.text]
    ended = {own.outcome for own, _ in tasks}
    return ProbeReport(
        variant=variant,
        headline=" · ".join(filter(None, parts)),
        lines=tuple(lines),
        notes=tuple(_notes(variant, examined, [own for own, _ in tasks])),
        complete=ended <= {Outcome.OK, Outcome.UNSUPPORTED},
    )


def gate_line(examined: Examined) -> ProbeLine:
    """The line that says whether the variant keeps what it promises.

    >>> gate_line(Examined(holding=("causal", "padding content", "padding length"))).text
    'causal, padding-safe'
    """
    if examined.problem:
        return ProbeLine(topic="gate", text=examined.problem)
    if examined.failures:
        words = f"incorrect: {len(examined.failures)} of the gate's properties fail"
        return ProbeLine(topic="gate", text=words, evidence=examined.failures)
    holds = {"causal": "causal" in examined.holding}
    holds["padding-safe"] = {"padding content", "padding length"} <= set(examined.holding)
    named = [word for word, held in holds.items() if held]
    if not examined.causal:
        named.insert(0, "no causal form")
    counted = f"{len(examined.holding)} properties hold, none fails, {examined.not_applicable} do not apply"
    return ProbeLine(
        topic="gate", text=", ".join(named) or "keeps its promises", evidence=(f"{counted} ({examined.seconds:.0f} s)",)
    )


def task_line(own: ProbedTask, reference: ProbedTask | None) -> ProbeLine:
    """One task: what was reached, with the accuracy at every setting, the reference beside it, and the budget."""
    if own.outcome != Outcome.OK:
        return ProbeLine(topic=own.task, text=f"no result: {own.outcome}: {own.reason}")
    parts = []
    if (pairs := own.at_most_pairs) is not None:
        parts.append(_recalls(pairs))
    at = own.at_training_length
    if own.by_length:
        reached = f"{percent(at)} right at its training length" if at is not None else ""
        holds = own.holds_to
        longest = max(own.by_length) / own.trained if own.trained else 0
        end = ", the longest tested" if holds is not None and holds >= longest else ""
        parts.append(f"{_holds(holds)} its training length of {own.trained}{end} ({reached})" if holds else reached)
    elif at is not None:
        parts.append(f"{percent(at)} right")
    budget = f"{own.steps:,} steps in {own.seconds:.0f} s, learning rate {own.learning_rate:g}, seed {own.seed}"
    return ProbeLine(
        topic=own.task,
        text=": ".join(filter(None, [_beside(own, reference), "; ".join(filter(None, parts))])),
        evidence=(f"{budget}, {own.examples:,} test examples", *_whole(own, reference)),
        tables=tuple(_tables(own, reference)),
    )


def _beside(own: ProbedTask, reference: ProbedTask | None) -> str:
    """Better, equal or worse than the reference at the same settings, as far as this many test examples can tell.

    Two standard errors of the difference of two shares, each with one example more right and one more wrong.
    """
    if reference is None or own.variant == reference.variant or reference.outcome != Outcome.OK:
        return ""
    both = own.accuracies.keys() & reference.accuracies.keys()
    if not both:
        return ""
    mine, theirs = (fmean(task.accuracies[place] for place in both) for task in (own, reference))
    shares = [(share * own.examples + 1) / (own.examples + 2) for share in (mine, theirs)]
    error = math.sqrt(sum(share * (1 - share) for share in shares) / max(own.examples, 1))
    word = "equal to" if abs(mine - theirs) <= 2 * error else "better than" if mine > theirs else "worse than"
    return f"{word} {REFERENCE} ({100 * mine:.1f} against {100 * theirs:.1f} % of all settings)"


def cost_line(costs: Sequence[ProbedCost]) -> ProbeLine:
    """The time of a training step at every length, as a ratio to the reference."""
    evidence = []
    for cost in costs:
        if cost.ratio is None:
            evidence.append(f"{cost.length:,} tokens: {cost.reason}")
            continue
        within = ", not told from 1 on this machine" if cost.even else ""
        evidence.append(
            f"{cost.length:,} tokens: {cost.ratio.value:.2f}× ({cost.ratio.low:.2f} to {cost.ratio.high:.2f}), "
            f"{cost.rounds} rounds{within}"
        )
    if floors := [cost.floor for cost in costs if cost.floor]:
        evidence.append(f"noise floor {format_log_difference(max(floors))}, by {REFERENCE} against itself")
    text = _cost_in_brief(costs) or "no cost was measured"
    return ProbeLine(topic="cost", text=text, evidence=tuple(evidence))


def costs_of(records: Sequence[Record], variant: str) -> list[ProbedCost]:
    """The cost of a training step at every length that these Records of a sweep timed, the shortest first."""
    table = table_of(records)
    timings = {key: costs_by_variant(table, key) for key in board_keys(table)}
    # as on the board of these lengths: one noisy length says what the machine did
    floor = max((floor_of(by_variant) for by_variant in timings.values()), default=0.0)
    found = []
    for by_variant in timings.values():
        if (cost := by_variant.get(variant)) is None:
            continue
        length = int(table.rows[cost.row].setting.get("length") or 0)
        if cost.cost is None:
            reason = ": ".join(filter(None, (cost.outcome if cost.outcome != Outcome.OK else "", cost.reason)))
            found.append(ProbedCost(length=length, reason=reason))
            continue
        even = abs(cost.cost.value) <= max(floor, cost.cost.half_width())
        rounds = len(cost.seconds)
        found.append(ProbedCost(length=length, ratio=ratio(cost.cost), even=even, floor=floor, rounds=rounds))
    return sorted(found, key=lambda one: one.length)


def nearest_line(variant: str, nearest: Sequence[Neighbour]) -> ProbeLine:
    """The line that names who behaves most alike, by accuracy at the same settings.

    >>> nearest_line("mine", [Neighbour("entmax15", 0.004, 14), Neighbour("softmax", 0.08, 14)]).text
    'behaves most like entmax15: 0.4 points apart'
    """
    if not nearest:
        return ProbeLine(topic="nearest", text="no other variant has Records to compare with")
    first = nearest[0]
    evidence = [
        f"mean difference over {first.settings} settings, tasks weighing the same: "
        + ", ".join(f"{one.variant} {100 * one.apart:.1f} points" for one in nearest[:NEIGHBOURS])
    ]
    if {one.variant for one in nearest} <= {REFERENCE, NO_ATTENTION}:
        at_hand = " and ".join(one.variant for one in nearest)
        text = f"nothing but {at_hand} to compare with: {100 * first.apart:.1f} points from {first.variant}"
        evidence.append("`attnbench probe entmax15`, `attnbench probe linear` and others give more to compare with")
    else:
        text = f"behaves most like {first.variant}: {100 * first.apart:.1f} points apart"
    return ProbeLine(topic="nearest", text=text, evidence=tuple(evidence))


def _abilities(tasks: Sequence[ProbedTask]) -> list[str]:
    """The words of the headline on the tasks, the ones with a result."""
    done = [task for task in tasks if task.outcome == Outcome.OK]
    found = [_recalls(pairs) for task in done if (pairs := task.at_most_pairs) is not None]
    far = [(task.task, task.holds_to) for task in done if task.by_length]
    held = [(name, holds) for name, holds in far if holds is not None]
    if held:
        by_factor: dict[str, list[str]] = {}
        for name, holds in held:
            by_factor.setdefault(_holds(holds), []).append(name)
        found += [f"{factor} its training length in {listed(names)}" for factor, names in by_factor.items()]
    short = [task for task in done if (task.at_training_length or 0.0) < HELD]
    found += [f"only {percent(task.at_training_length or 0.0)} right in {task.task} as trained" for task in short]
    found += [
        f"{percent(at)} right in {task.task}"
        for task in done
        if not task.by_length and (at := task.at_training_length) is not None and at >= HELD
    ]
    failed = [task for task in tasks if task.outcome != Outcome.OK]
    return found + [f"{task.outcome} in {task.task}" for task in failed]


def _recalls(pairs: tuple[int, float]) -> str:
    """
    >>> _recalls((64, 0.58))
    'recalls 37 of 64 pairs'
    """
    most, accuracy = pairs
    return f"recalls {round(most * accuracy)} of {most} pairs"


def _holds(factor: float) -> str:
    return "works only up to" if factor <= 1 else f"holds to {factor:.3g}×"


def _cost_in_brief(costs: Sequence[ProbedCost]) -> str:
    measured = [cost for cost in costs if cost.ratio is not None]
    if not measured:
        return ""
    cost = min(measured, key=lambda one: (one.length != HEADLINE_LENGTH, -one.length))
    assert cost.ratio is not None
    if not cost.even:
        word = "slower than" if cost.ratio.value > 1 else "faster than"
        return f"{word} {REFERENCE}: {cost.ratio.value:.2g}× its time at {cost.length:,} tokens"
    # a noisy machine tells a variant that costs twice as much from nothing
    width = max(cost.floor, math.log(cost.ratio.high / cost.ratio.low) / 2)
    if width > UNTOLD:
        noise = format_log_difference(width, decimals=0)
        return f"cost unknown at {cost.length:,} tokens: this machine is too busy now (noise of {noise})"
    return f"equal in cost to {REFERENCE} at {cost.length:,} tokens (to {format_log_difference(width, decimals=0)})"


def _tables(own: ProbedTask, reference: ProbedTask | None) -> list[ProbeTable]:
    found = []
    for series in series_of(list(own.accuracies)):
        values = tuple(value for value, _ in series.places)
        fixed = ", ".join(f"{value:g} {axis}" for axis, value in series.fixed) if series.axis == LENGTH else ""
        rows = []
        for task in (own, reference):
            if task is not None and (along := series.along(task.accuracies)):
                rows.append((task.variant, tuple(_points(along.get(value)) for value in values)))
        found.append(ProbeTable(task=own.task, axis=series.axis, fixed=fixed, values=values, rows=tuple(rows)))
    return found


def _whole(own: ProbedTask, reference: ProbedTask | None) -> list[str]:
    """The reference's result where there is no table that shows it."""
    if reference is None or series_of(list(own.accuracies)):
        return []
    return [f"{reference.variant}: {percent(value)} right" for value in reference.accuracies.values()]


def _points(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 1)


def _notes(variant: str, examined: Examined, tasks: Sequence[ProbedTask]) -> list[str]:
    notes = ["One seed at one learning rate is no ranking: another seed or rate may differ by many points."]
    if examined.sees_order:
        notes.append(
            f"The order of keys matters to it, as under rotary positions: {REFERENCE} has them beside it "
            "(positions=rope), and its own model adds none."
        )
    if not all(task.ranked for task in tasks):
        notes.insert(0, "This preset proves that everything runs; its numbers say nothing about the variant.")
    if not examined.causal:
        notes.append(f"Without a causal form it takes no part in {listed(CAUSAL_TASKS)}; max-pooled stands for them.")
        return notes
    suite = [task.task for task in tasks if task.task in CAUSAL_TASKS]
    if suite:
        words = f"For ranks, in {SUITE_MINUTES} minutes on two cores for a variant about as fast as {REFERENCE}"
        notes.append(f"{words}: attnbench run --suite synthetic --variants '{variant}'")
    return notes
