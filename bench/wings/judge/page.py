"""The page of a judgement: is it right, better, dear? Each line with the numbers that it rests on."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...board.timings import format_log_difference
from ...core.cell import REFERENCE
from ...core.metrics import Interval
from ...core.record import Outcome, Record
from ...score.cost import costs_by_variant, floor_of
from ...score.key import board_keys
from ...score.settings import LENGTH, series_of
from ...stats.format import listed, percent
from ...stats.scoring import ratio
from ...store.table import table_of
from .score import CAUSAL_TASKS, HELD, MOVED_BY_SEED, Audited, Examined, JudgedTask

WIDTH, TOPIC_WIDTH = 80, 16
"""Columns of a line, and of the word before it."""

NAMED = 3
"""The most failures that a sentence names."""

HEADLINE_LENGTH = 1_024
"""Tokens at which the headline states the cost, or else the longest length that was timed."""

UNTOLD = math.log(1.5)
"""Noise from which a time that differs by half cannot be told from an equal one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedCost:
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
class JudgeTable:
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
class JudgeLine:
    """One statement about the variant and what it rests on."""

    topic: str
    text: str
    evidence: tuple[str, ...] = ()
    tables: tuple[JudgeTable, ...] = ()

    def __str__(self) -> str:
        """The line for a terminal of 80 columns; a reason of a plugin makes no line of its own."""
        below = [wrapped(" " * TOPIC_WIDTH, text) for text in self.evidence]
        rows = [" " * TOPIC_WIDTH + row for table in self.tables for row in table.as_text()]
        return "\n".join([wrapped(f"{self.topic:{TOPIC_WIDTH}}", self.text), *below, *rows])


def wrapped(first: str, text: str) -> str:
    """The text behind `first`, in lines of 80 columns that begin below it."""
    return "\n".join(
        textwrap.wrap(
            " ".join(text.split()), WIDTH, initial_indent=first, subsequent_indent=" " * len(first),
            break_on_hyphens=False, break_long_words=False,
        )
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeReport:
    """The page, or as much of it as is measured: its lines, and what they say in short.

    `answers`: to the three questions: right, better, cost. `passed`: audit and gate are green; `undecided`: it must be
    told what it claims; `complete`: nothing is left to measure and no training failed.
    """

    variant: str
    answers: tuple[tuple[str, str], ...]
    lines: tuple[JudgeLine, ...]
    notes: tuple[str, ...] = ()
    passed: bool = True
    unsupported: bool = False
    undecided: bool = False
    complete: bool = True

    @property
    def headline(self) -> str:
        return " · ".join(text for _, text in self.answers)

    @property
    def ending(self) -> str:
        """The answers and the notes, which stand below the lines."""
        answers = [wrapped(f"{question:{TOPIC_WIDTH}}", text) for question, text in self.answers]
        return "\n".join(["", f"In short: {self.variant}", *answers, "", *(wrapped("", text) for text in self.notes)])

    def __str__(self) -> str:
        """The page as text."""
        return "\n".join([*map(str, self.lines), self.ending])


def judge_report(
    variant: str,
    examined: Examined | None,
    *,
    audited: Audited,
    tasks: Sequence[tuple[JudgedTask, JudgedTask | None]] = (),
    costs: Sequence[JudgedCost] = (),
    without: Sequence[JudgedTask] = (),
    complete: bool = False,
    short: bool = False,
) -> JudgeReport:
    """The page of `variant`, as far as it is measured; `complete` where nothing follows.

    examined: None before the gate has run. tasks: each with what the reference reached, None where it has no result.
    costs: by length. without: the tasks without attention, for the tables. short: whether less was asked for than a
    whole page.
    """
    lines = [audit_line(audited)] if audited.question or audited.verdict else []
    lines += [gate_line(examined)] if examined else []
    wrong = bool(audited.failures) or bool(examined and (examined.failures or examined.problem))
    although = _although(audited, examined)
    lines += [task_line(own, reference, although, [each for each in without if each.task == own.task])
              for own, reference in tasks]  # fmt: skip
    if costs:
        lines.append(cost_line(costs, examined, although))
    ended = {own.outcome for own, _ in tasks}
    own_tasks = [own for own, _ in tasks]
    return JudgeReport(
        variant=variant,
        answers=tuple(_answers(audited, examined, tasks, costs)),
        lines=tuple(lines),
        notes=tuple(_notes(variant, examined, own_tasks, although, short)) if examined and (tasks or complete) else (),
        passed=not wrong,
        unsupported=bool(examined and examined.unsupported),
        undecided=bool(audited.asks),
        complete=complete and ended <= {Outcome.OK, Outcome.UNSUPPORTED},
    )


def _although(audited: Audited, examined: Examined | None) -> str:
    """The names of what fails in words, of the gate first."""
    of_gate = (each.partition(":")[0] for each in (examined.failures if examined else ()))
    return _fails(list(dict.fromkeys([*of_gate, *audited.names])))


def _fails(names: Sequence[str]) -> str:
    """
    >>> _fails(["causal"]), _fails(["causal", "padding"]), _fails([])
    ('causal fails', 'causal and padding fail', '')
    """
    more = [f"{len(names) - NAMED} more"] if len(names) > NAMED else []
    return f"{listed([*names[:NAMED], *more])} fail{'s' * (len(names) == 1)}" if names else ""


def _answers(
    audited: Audited,
    examined: Examined | None,
    tasks: Sequence[tuple[JudgedTask, JudgedTask | None]],
    costs: Sequence[JudgedCost],
) -> Iterator[tuple[str, str]]:
    failing = _although(audited, examined)
    if audited.asks:
        yield "right?", f"not decided: {audited.asks}"
    elif examined is not None and examined.problem:
        yield "right?", f"unknown: {examined.problem}"
    elif failing:
        yield "right?", f"no: {failing}"
    elif examined is not None:
        yield "right?", f"nothing fails: {gate_line(examined).text}"
    if tasks:
        where: dict[str, list[str]] = {}
        for own, reference in tasks:
            where.setdefault(_beside(own, reference), []).append(own.task)
        compared = [f"{word} in {listed(names)}" for word, names in where.items() if word]
        yield "better?", "; ".join([*compared, *_abilities(tasks)])
    elif examined is not None and examined.looks_ahead:
        yield "better?", "not trained: it would read the answers from later tokens"
    if costs and examined:
        yield "cost?", cost_line(costs, examined).text


def audit_line(audited: Audited) -> JudgeLine:
    """The line that says what the audit of the module as it is found.

    >>> audit_line(Audited(verdict="nothing fails", seconds=4.6)).text
    'nothing fails (5 s)'
    """
    if audited.question:
        return JudgeLine(topic="audit", text=f"not audited: {audited.question}")
    evidence = (*audited.failures, *audited.flags)
    return JudgeLine(topic="audit", text=f"{audited.verdict} ({audited.seconds:.0f} s)", evidence=evidence)


def gate_line(examined: Examined) -> JudgeLine:
    """The line that says whether the variant keeps what it promises.

    >>> gate_line(Examined(holding=("causal", "padding content", "padding length"))).text
    'causal, padding-safe'
    """
    if examined.problem:
        return JudgeLine(topic="gate", text=examined.problem)
    if examined.failures:
        words = f"incorrect: {_fails(tuple(each.partition(':')[0] for each in examined.failures))}"
        return JudgeLine(topic="gate", text=words, evidence=examined.failures)
    holds = {"causal": "causal" in examined.holding}
    holds["padding-safe"] = {"padding content", "padding length"} <= set(examined.holding)
    named = [word for word, held in holds.items() if held]
    if not examined.causal:
        named.insert(0, "no causal form")
    counted = f"{len(examined.holding)} properties hold, none fails, {examined.not_applicable} do not apply"
    return JudgeLine(
        topic="gate", text=", ".join(named) or "keeps its promises", evidence=(f"{counted} ({examined.seconds:.0f} s)",)
    )


def task_line(
    own: JudgedTask, reference: JudgedTask | None, although: str = "", without: Sequence[JudgedTask] = ()
) -> JudgeLine:
    """One task: what was reached, with the accuracy at every setting, the reference beside it, and the budget.

    although: what fails, where it was measured all the same. without: the same task without attention.
    """
    although = although or _fails([own.reason.partition(":")[0]] if own.reason else [])
    if own.outcome != Outcome.OK:
        return JudgeLine(topic=own.task, text=f"no result: {own.outcome}: {own.reason}")
    parts, compared, at = [], _beside(own, reference), own.at_training_length
    there = f" at its training length of {own.trained}" if own.by_length else ""
    if (pairs := own.at_most_pairs) is not None:
        parts.append(_recalls(pairs))
    if (holds := own.holds_to) is not None:
        end = ", the longest tested" if holds >= max(own.by_length) / own.trained else ""
        parts.append(_holds(holds, reference) + end)
    if compared and reference is not None and at is not None:
        shares = f"{100 * at:.1f} against {100 * (reference.at_training_length or 0):.1f} %"
        compared += (
            f" ({shares} right{there}, which another seed may move by {100 * _moved_by_seed(own.task):g} points)"
        )
    elif at is not None:
        parts.append(f"{percent(at)} right{there}")
    budget = (
        f"{own.model}, {own.steps:,} steps in {own.seconds:.0f} s, learning rate {own.learning_rate:g}, seed {own.seed}"
    )
    marked = f"measured although {although}: " if although else ""
    return JudgeLine(
        topic=own.task,
        text=marked + ": ".join(filter(None, [compared, "; ".join(parts)])),
        evidence=(f"{budget}, {own.examples:,} test examples", *_whole(own, reference)),
        tables=tuple(_tables(own, [task for task in (own, reference, *without) if task is not None])),
    )


def _beside(own: JudgedTask, reference: JudgedTask | None) -> str:
    """Better or worse than the reference at the training length, by more than another seed may move it.

    Beyond that length, accuracies move too much with the seed to say so from one.
    """
    if reference is None or own.variant == reference.variant or reference.outcome != Outcome.OK:
        return ""
    mine, theirs = own.at_training_length, reference.at_training_length
    if mine is None or theirs is None:
        return ""
    if abs(mine - theirs) <= _moved_by_seed(own.task):
        return f"not told from {REFERENCE} by one seed"
    return f"{'better' if mine > theirs else 'worse'} than {REFERENCE}"


def _moved_by_seed(task: str) -> float:
    return MOVED_BY_SEED.get(task, max(MOVED_BY_SEED.values()))


def cost_line(costs: Sequence[JudgedCost], examined: Examined | None = None, although: str = "") -> JudgeLine:
    """The time of a training step at every length, as a ratio to the reference."""
    evidence = []
    if examined is not None and examined.projects:
        turned = " and rotary positions" if examined.sees_order else ""
        evidence.append(f"a layer, beside {REFERENCE} with the same projections{turned}")
    for cost in costs:
        if cost.ratio is None:
            evidence.append(f"{cost.length:,} tokens: {cost.reason}")
            continue
        within = ", not told from 1 on this machine" if cost.even else ""
        evidence.append(
            f"{cost.length:,} tokens: {cost.ratio.value:.2f}× ({cost.ratio.low:.2f} to {cost.ratio.high:.2f}), "
            f"{cost.rounds} rounds{within}"
        )
    evidence.append(f"{REFERENCE} runs as a fused kernel of PyTorch: faster than softmax written in operators")
    if floors := [cost.floor for cost in costs if cost.floor]:
        evidence.append(f"noise floor {format_log_difference(max(floors))}, by {REFERENCE} against itself")
    marked = f"measured although {although}: " if although else ""
    text = marked + (_cost_in_brief(costs) or "no cost was measured")
    return JudgeLine(topic="cost", text=text, evidence=tuple(evidence))


def costs_of(records: Sequence[Record], variant: str) -> list[JudgedCost]:
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
        if cost.cost is None or cost.disturbed:
            reason = ": ".join(filter(None, (cost.outcome if cost.outcome != Outcome.OK else "", cost.reason)))
            if cost.cost is not None:
                reason = f"{ratio(cost.cost).value:.2f}×, which tells nothing: {reason}"
            found.append(JudgedCost(length=length, reason=reason))
            continue
        even = abs(cost.cost.value) <= max(floor, cost.cost.half_width())
        rounds = len(cost.seconds)
        found.append(JudgedCost(length=length, ratio=ratio(cost.cost), even=even, floor=floor, rounds=rounds))
    return sorted(found, key=lambda one: one.length)


def _abilities(tasks: Sequence[tuple[JudgedTask, JudgedTask | None]]) -> list[str]:
    """The words of the headline on the tasks, the ones with a result."""
    done = [own for own, _ in tasks if own.outcome == Outcome.OK]
    beside = {own.task: reference.at_most_pairs if reference else None for own, reference in tasks}
    found = [_recalls(pairs, beside[task.task]) for task in done if (pairs := task.at_most_pairs) is not None]
    by_words: dict[str, list[str]] = {}
    for own, reference in tasks:
        if own.outcome == Outcome.OK and (holds := own.holds_to) is not None:
            by_words.setdefault(_holds(holds, reference), []).append(own.task)
    found += [f"{words} in {listed(names)}" for words, names in by_words.items()]
    short = [task for task in done if (task.at_training_length or 0.0) < HELD]
    found += [f"only {percent(task.at_training_length or 0.0)} right in {task.task} as trained" for task in short]
    found += [
        f"{percent(at)} right in {task.task}"
        for task in done
        if not task.by_length and (at := task.at_training_length) is not None and at >= HELD
    ]
    failed = [own for own, _ in tasks if own.outcome != Outcome.OK]
    return found + [f"{task.outcome} in {task.task}" for task in failed]


def _recalls(pairs: tuple[int, float], of_reference: tuple[int, float] | None = None) -> str:
    """
    >>> _recalls((64, 0.58)), _recalls((64, 0.58), (64, 1.0))
    ('recalls 37 of 64 pairs', 'recalls 37 of 64 pairs (softmax: 64)')
    """
    most, accuracy = pairs
    there = f" ({REFERENCE}: {round(most * of_reference[1])})" if of_reference and of_reference[0] == most else ""
    return f"recalls {round(most * accuracy)} of {most} pairs{there}"


def _holds(factor: float, reference: JudgedTask | None) -> str:
    words = "works only up to" if factor <= 1 else f"holds to {factor:.3g}×"
    there = reference.holds_to if reference else None
    return f"{words} its training length{f' ({REFERENCE}: {there:.3g}×)' if there else ''}"


def _cost_in_brief(costs: Sequence[JudgedCost]) -> str:
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


def _tables(own: JudgedTask, shown: Sequence[JudgedTask]) -> list[JudgeTable]:
    found = []
    for series in series_of(list(own.accuracies)):
        values = tuple(value for value, _ in series.places)
        fixed = ", ".join(f"{value:g} {axis}" for axis, value in series.fixed) if series.axis == LENGTH else ""
        rows = []
        for task in shown:
            if along := series.along(task.accuracies):
                rows.append((task.variant, tuple(_points(along.get(value)) for value in values)))
        found.append(JudgeTable(task=own.task, axis=series.axis, fixed=fixed, values=values, rows=tuple(rows)))
    return found


def _whole(own: JudgedTask, reference: JudgedTask | None) -> list[str]:
    """The reference's result where there is no table that shows it."""
    if reference is None or series_of(list(own.accuracies)):
        return []
    return [f"{reference.variant}: {percent(value)} right" for value in reference.accuracies.values()]


def _points(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 1)


def _notes(variant: str, examined: Examined, tasks: Sequence[JudgedTask], although: str, short: bool) -> list[str]:
    notes = ["One seed at one learning rate is no ranking: another seed or rate may differ by many points."]
    if examined.sees_order:
        notes.append(
            f"The order of keys matters to it, as under rotary positions: {REFERENCE} has them beside it "
            "(positions=rope), and its own model adds none."
        )
    if although:
        notes.insert(0, "What fails was measured for comparison alone; no board shows these numbers.")
    if not all(task.ranked for task in tasks):
        notes.insert(0, "This preset proves that everything runs; its numbers say nothing about the variant.")
    if examined.looks_ahead:
        return [*notes, "Mend what moves earlier outputs, and type the same command again."]
    if not examined.causal:
        notes.append(f"Without a causal form it takes no part in {listed(CAUSAL_TASKS)}; max-pooled stands for them.")
        return notes
    if short:
        notes.append("Without `--quick`: longer trainings, copying, the largest of many, and three lengths.")
    elif [task.task for task in tasks if task.task in CAUSAL_TASKS]:
        # the suite synthetic for one variant beside the reference and no-attention
        words = f"For ranks, in 20 minutes on two cores for a variant about as fast as {REFERENCE}"
        notes.append(f"{words}: attnbench run --suite synthetic --variants '{variant}'")
    return notes
