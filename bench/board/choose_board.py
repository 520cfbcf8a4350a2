"""Choice: which variants fit a wish, which do not and why, and what nobody measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..core.cell import REFERENCE
from ..core.errors import SelectionError
from ..core.record import Outcome
from ..score.cost import Mode, Timing, floor_of, timings_of_all
from ..score.key import Question
from ..score.quality import Predictions, Trials, outcome_words, trials_of_all, yardstick_of
from ..stats import format as wording
from ..stats.metric import ACCURACY, Yardstick
from ..stats.ranking import standings
from ..stats.scoring import ratio, verdict
from ..store.table import Frame
from .board import Board, Column, Entry, Footnote, Row, in_order
from .length_board import MODES, mean_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """`memory_bytes`: what a training step may take at its peak, None for any; of decoding, what a sequence may keep.

    `margin`: how many points worse than the reference are no loss, None for each task's own.
    """

    length: int
    mode: Mode = "step"
    memory_bytes: float | None = None
    margin: float | None = None

    def margin_of(self, yardstick: Yardstick) -> float:
        return yardstick.margin if self.margin is None else self.margin


def board_for_choice(
    frame: Frame, asked: list[Question], wish: Wish, predictions: Predictions, others: Sequence[Question] = ()
) -> Board:
    """The short list by cost. On it is who was measured at the length, fits the memory, and lost no task by the margin.

    Quality is judged on every question asked, cost on those of the wished length; where none has it, on `others`, such
    as a sweep. Raises SelectionError where nothing was timed at that length, or on several machines.
    """
    timed = _timed(frame, asked, others, wish)
    timings = {question: timings_of_all(frame, question, wish.mode) for question in timed}
    judged = sorted({replace(q, machine="") for q in asked if len(q.cells(frame, "train"))})
    trials = {question: trials_of_all(frame, question, predictions) for question in judged}
    yardsticks = {question: yardstick_of(frame, question) for question in judged}
    names = sorted(
        {name for found in timings.values() for name in found} | {n for found in trials.values() for n in found}
    )
    peaks = {name: _largest(frame, timed, name, "peak_bytes") for name in names}
    states = {name: _largest(frame, timed, name, "state_bytes") for name in names}
    limited = states if wish.mode == "decode" else peaks
    reasons = {name: _reason(name, timings, trials, limited[name], wish) for name in names}
    listed = [name for name in names if not reasons[name]]
    floor = max(floor_of(by_name) for by_name in timings.values())
    order = standings(
        listed, lambda one, other: mean_of([by_name[one].gap(by_name[other]) for by_name in timings.values()]), floor
    )
    columns = (
        Column(name="cost", title=MODES[wish.mode], unit="× reference", better="lower", importance=0,
               description=f"time over the reference's at length {wish.length:,}"),
        Column(name="peak", title="peak memory", unit="bytes", better="lower", importance=1,
               description="peak memory of one training step at that length"),
        Column(name="state", title="decode state", unit="bytes", better="lower", importance=2,
               description="bytes that decoding keeps per sequence at that length"),
        *(Column(name=f"gap_{q.task}_{q.preset}", title=f"{q.task}, {q.preset}", unit=y.of_difference, better=y.better,
                 importance=2, description=f"{y.title} against {REFERENCE}, with its 95 % interval")
          for q, y in yardsticks.items()),
    )  # fmt: skip
    rows = {
        name: Row(
            name=name,
            entries=(
                _cost(name, timings),
                _size(peaks[name]),
                _size(states[name]),
                *(_gap(by_name.get(name), by_name.get(REFERENCE)) for by_name in trials.values()),
            ),
            reason=reasons[name],
            records=_keys(frame, [*timed, *judged], name),
        )
        for name in names
    }
    return Board(
        name=f"choice/{wish.mode}/{wish.length}",
        title=f"{MODES[wish.mode]} at length {wish.length:,}" + _limits(wish),
        question=f"Which attention costs least and is at most {_margins(yardsticks, wish)} worse than {REFERENCE}?",
        columns=columns,
        ranked=in_order(order, rows),
        unranked=tuple(row for name, row in rows.items() if reasons[name]),
        footnotes=_footnotes(timed, judged, wish, rows, listed),
    )


def _length(frame: Frame, question: Question) -> int | None:
    settings = [s for s in question.cells(frame, "time")["setting"] if s.get("length")]
    return int(settings[-1]["length"]) if settings and question.machine else None


def _timed(frame: Frame, asked: Sequence[Question], others: Sequence[Question], wish: Wish) -> list[Question]:
    lengths = {question: _length(frame, question) for question in (*asked, *others)}
    there = [question for question in lengths if lengths[question] == wish.length]
    there = [q for q in there if any(t.cost is not None for t in timings_of_all(frame, q, wish.mode).values())]
    there = [question for question in there if question in asked] or there
    if not there:
        measured = sorted({length for length in lengths.values() if length})
        near = (
            f"lengths with timings: {', '.join(f'{n:,}' for n in measured)}" if measured else "nothing was timed at all"
        )
        raise SelectionError(
            f"{MODES[wish.mode]} was not timed at length {wish.length:,}; {near}; run it at that length"
        )
    machines = sorted({question.machine for question in there})
    if len(machines) > 1:
        raise SelectionError(
            f"timed on machines {wording.listed(machines)}, which must not be mixed; choose one with --machine"
        )
    # one question a task and preset: neither speeds nor memory hang on the selection
    return list({(q.task, q.preset, q.fidelity, q.protocol): q for q in there}.values())


def _largest(frame: Frame, timed: list[Question], name: str, quantity: str) -> float | None:
    found = []
    for question in timed:
        cells = question.cells(frame, "time")
        found += frame.values(quantity, cells.index[cells["variant"] == name])
    return max(found) if found else None


def _reason(
    name: str,
    timings: Mapping[Question, Mapping[str, Timing]],
    trials: Mapping[Question, Mapping[str, Trials]],
    held: float | None,
    wish: Wish,
) -> str:
    for question, by_name in timings.items():
        timing = by_name.get(name)
        if timing is None:
            return f"not timed at this length on {question.task}"
        if timing.outcome != Outcome.OK:
            return f"{outcome_words(timing.outcome)} on {question.task}" + (
                f": {timing.reason}" if timing.reason else ""
            )
        if timing.cost is None:
            return timing.reason
    if wish.memory_bytes is not None and (held is None or held > wish.memory_bytes):
        what = "decode state" if wish.mode == "decode" else "peak memory"
        return f"its {what} was not measured" if held is None else f"needs {wording.size(held)}"
    for question, by_trial in trials.items():
        mine, reference = by_trial.get(name), by_trial.get(REFERENCE)
        if name == REFERENCE:
            continue
        yardstick = next(iter(by_trial.values())).yardstick
        if mine is None or reference is None or mine.lack or reference.lack:
            lack = next((t.lack for t in (mine, reference) if t is not None and t.lack), "not trained")
            return f"its {yardstick.title} on {question.task} is not known: {lack}"
        margin = wish.margin_of(yardstick)
        within = yardstick.margin_words(margin)
        found = verdict(mine.gap(reference).interval(), margin / yardstick.points)
        if found == "worse":
            return f"worse than {REFERENCE} by more than {within} on {question.task}"
        if found == "undecided":
            return f"not shown to be within {within} of {REFERENCE} on {question.task}: more seeds could tell"
    return ""


def _cost(name: str, timings: Mapping[Question, Mapping[str, Timing]]) -> Entry:
    costs = [by_name[name].cost for by_name in timings.values() if name in by_name]
    known = [cost for cost in costs if cost is not None]
    if len(known) < len(timings):
        return Entry()
    if name == REFERENCE:
        return Entry(text="reference", value=1.0)
    found = ratio(mean_of(known))
    brief = wording.speed(wording.point(found.value))
    return Entry(text=wording.speed(found), brief=brief, value=found.value, low=found.low, high=found.high)


def _size(peak: float | None) -> Entry:
    return Entry() if peak is None else Entry(text=wording.size(peak), value=peak)


def _gap(mine: Trials | None, reference: Trials | None) -> Entry:
    if mine is None or reference is None or mine.lack or reference.lack:
        return Entry()
    if mine.variant == REFERENCE:
        return Entry(text="reference", value=0.0)
    ends = mine.gap(reference).interval()
    shown = mine.yardstick.difference(ends)
    brief = mine.yardstick.gap_in_brief(ends)
    return Entry(text=mine.yardstick.gap(ends), brief=brief, value=shown.value, low=shown.low, high=shown.high)


def _keys(frame: Frame, questions: list[Question], name: str) -> tuple[str, ...]:
    found = []
    for question in questions:
        cells = question.cells(frame, "train", "time")
        found += cells[cells["variant"] == name]["key"].tolist()
    return tuple(dict.fromkeys(found))


def _margins(yardsticks: Mapping[Question, Yardstick], wish: Wish) -> str:
    found = [yardstick.margin_words(wish.margin_of(yardstick)) for yardstick in yardsticks.values()]
    return " or ".join(dict.fromkeys(found)) or ACCURACY.margin_words(wish.margin_of(ACCURACY))


def _limits(wish: Wish) -> str:
    return f", in {wording.size(wish.memory_bytes)}" if wish.memory_bytes is not None else ""


def _footnotes(
    timed: list[Question], judged: list[Question], wish: Wish, rows: Mapping[str, Row], listed: list[str]
) -> tuple[Footnote, ...]:  # fmt: skip
    tasks = wording.listed([f"{q.task} ({q.preset})" for q in timed])
    notes = [
        Footnote(topic="cost", text=f"from {tasks} on machine {timed[0].machine}; over several, the geometric mean")
    ]
    if judged:
        fidelities = wording.listed([f"{q.task} ({q.preset}, {q.fidelity} data)" for q in judged])
        notes.append(Footnote(topic="quality", text=f"judged on {fidelities}"))
        if all(q.selection == "test" for q in judged):
            notes.append(Footnote(topic="selection", text="checkpoints were chosen on the test split", warning=True))
    else:
        notes.append(Footnote(topic="not measured", text="quality: no variant was trained here", warning=True))
    if all(row.entries[1].value is None for row in rows.values()):
        notes.append(Footnote(topic="not measured", text="memory", warning=True))
    if wish.memory_bytes is not None:
        matched = "the decode state of one sequence" if wish.mode == "decode" else "the peak of one training step"
        notes.append(Footnote(topic="memory", text=f"{matched} is held against {wording.size(wish.memory_bytes)}"))
    notes += [Footnote(topic=f"records of {name}", text=", ".join(rows[name].records)) for name in listed]
    return tuple(notes)
