"""Choice: which variants fit a wish, which do not and why, and what nobody measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..core.cell import REFERENCE
from ..core.errors import SelectionError
from ..core.metrics import ACCURACY, Metric
from ..core.record import Outcome
from ..score.cost import Mode, RelativeCost, costs_by_variant, floor_of
from ..score.key import BoardKey
from ..score.quality import Predictions, SeedScores, metric_of, outcome_words, scores_by_variant
from ..stats import format as wording
from ..stats.ranking import standings
from ..stats.scoring import ratio, verdict
from ..store.table import ResultTable
from .board import Board, Column, Footnote, Row, TableCell, in_order
from .length_board import MODES, mean_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """`memory_bytes`: what a training step may take at its peak, None for any; of decoding, what a sequence may keep.

    `margin`: how many points worse than the reference are no loss, None for each task's own.
    """

    length: int
    mode: Mode = "step"
    memory_bytes: float | None = None
    margin: float | None = None

    def margin_of(self, metric: Metric) -> float:
        return metric.margin if self.margin is None else self.margin


def board_for_choice(
    table: ResultTable,
    asked: list[BoardKey],
    requirements: Requirements,
    predictions: Predictions,
    others: Sequence[BoardKey] = (),
) -> Board:
    """The short list by cost. On it is who was measured at the length, fits the memory, and lost no task by the margin.

    Quality is judged on every question asked, cost on those of the wished length; where none has it, on `others`, such
    as a sweep. Raises SelectionError where nothing was timed at that length, or on several machines.
    """
    timed = _timed(table, asked, others, requirements)
    timings = {board_key: costs_by_variant(table, board_key, requirements.mode) for board_key in timed}
    judged = sorted({replace(q, machine="") for q in asked if len(q.cells(table, "train"))})
    scores = {board_key: scores_by_variant(table, board_key, predictions) for board_key in judged}
    metrics = {board_key: metric_of(table, board_key) for board_key in judged}
    names = sorted(
        {name for found in timings.values() for name in found} | {n for found in scores.values() for n in found}
    )
    peaks = {name: _largest(table, timed, name, "peak_bytes") for name in names}
    states = {name: _largest(table, timed, name, "state_bytes") for name in names}
    limited = states if requirements.mode == "decode" else peaks
    reasons = {name: _reason(name, timings, scores, limited[name], requirements) for name in names}
    listed = [name for name in names if not reasons[name]]
    floor = max(floor_of(by_name) for by_name in timings.values())
    order = standings(
        listed, lambda one, other: mean_of([by_name[one].gap(by_name[other]) for by_name in timings.values()]), floor
    )
    columns = (
        Column(name="cost", title=MODES[requirements.mode], unit="× reference", better="lower", importance=0,
               description=f"time over the reference's at length {requirements.length:,}"),
        Column(name="peak", title="peak memory", unit="bytes", better="lower", importance=1,
               description="peak memory of one training step at that length"),
        Column(name="state", title="decode state", unit="bytes", better="lower", importance=2,
               description="bytes that decoding keeps per sequence at that length"),
        *(Column(name=f"gap_{q.task}_{q.preset}", title=f"{q.task}, {q.preset}", unit=y.of_difference, better=y.better,
                 importance=2, description=f"{y.title} against {REFERENCE}, with its 95 % interval")
          for q, y in metrics.items()),
    )  # fmt: skip
    rows = {
        name: Row(
            name=name,
            entries=(
                _cost(name, timings),
                _size(peaks[name]),
                _size(states[name]),
                *(_gap(by_name.get(name), by_name.get(REFERENCE)) for by_name in scores.values()),
            ),
            reason=reasons[name],
            records=_keys(table, [*timed, *judged], name),
        )
        for name in names
    }
    return Board(
        name=f"choice/{requirements.mode}/{requirements.length}",
        title=f"{MODES[requirements.mode]} at length {requirements.length:,}" + _limits(requirements),
        question=f"Which attention costs least and is at most {_margins(metrics, requirements)} worse than "
        f"{REFERENCE}?",
        columns=columns,
        ranked=in_order(order, rows),
        unranked=tuple(row for name, row in rows.items() if reasons[name]),
        footnotes=_footnotes(timed, judged, requirements, rows, listed),
    )


def _length(table: ResultTable, board_key: BoardKey) -> int | None:
    settings = [s for s in board_key.cells(table, "time")["setting"] if s.get("length")]
    return int(settings[-1]["length"]) if settings and board_key.machine else None


def _timed(
    table: ResultTable, asked: Sequence[BoardKey], others: Sequence[BoardKey], requirements: Requirements
) -> list[BoardKey]:
    lengths = {board_key: _length(table, board_key) for board_key in (*asked, *others)}
    there = [board_key for board_key in lengths if lengths[board_key] == requirements.length]
    there = [
        q for q in there if any(t.cost is not None for t in costs_by_variant(table, q, requirements.mode).values())
    ]
    there = [board_key for board_key in there if board_key in asked] or there
    if not there:
        measured = sorted({length for length in lengths.values() if length})
        near = (
            f"lengths with timings: {', '.join(f'{n:,}' for n in measured)}" if measured else "nothing was timed at all"
        )
        raise SelectionError(
            f"{MODES[requirements.mode]} was not timed at length {requirements.length:,}; {near}; run it at that length"
        )
    machines = sorted({board_key.machine for board_key in there})
    if len(machines) > 1:
        raise SelectionError(
            f"timed on machines {wording.listed(machines)}, which must not be mixed; choose one with --machine"
        )
    # one question a task and preset: neither speeds nor memory hang on the selection
    return list({(q.task, q.preset, q.fidelity, q.protocol): q for q in there}.values())


def _largest(table: ResultTable, timed: list[BoardKey], name: str, quantity: str) -> float | None:
    found = []
    for board_key in timed:
        cells = board_key.cells(table, "time")
        found += table.values(quantity, cells.index[cells["variant"] == name])
    return max(found) if found else None


def _reason(
    name: str,
    timings: Mapping[BoardKey, Mapping[str, RelativeCost]],
    scores: Mapping[BoardKey, Mapping[str, SeedScores]],
    held: float | None,
    requirements: Requirements,
) -> str:
    for board_key, by_name in timings.items():
        timing = by_name.get(name)
        if timing is None:
            return f"not timed at this length on {board_key.task}"
        if timing.outcome != Outcome.OK:
            return f"{outcome_words(timing.outcome)} on {board_key.task}" + (
                f": {timing.reason}" if timing.reason else ""
            )
        if timing.cost is None:
            return timing.reason
    if requirements.memory_bytes is not None and (held is None or held > requirements.memory_bytes):
        what = "decode state" if requirements.mode == "decode" else "peak memory"
        return f"its {what} was not measured" if held is None else f"needs {wording.size(held)}"
    for board_key, by_trial in scores.items():
        mine, reference = by_trial.get(name), by_trial.get(REFERENCE)
        if name == REFERENCE:
            continue
        metric = next(iter(by_trial.values())).metric
        if mine is None or reference is None or mine.missing_reason or reference.missing_reason:
            missing_reason = next(
                (t.missing_reason for t in (mine, reference) if t is not None and t.missing_reason), "not trained"
            )
            return f"its {metric.title} on {board_key.task} is not known: {missing_reason}"
        margin = requirements.margin_of(metric)
        within = metric.margin_words(margin)
        found = verdict(mine.gap(reference).interval(), margin / metric.points)
        if found == "worse":
            return f"worse than {REFERENCE} by more than {within} on {board_key.task}"
        if found == "undecided":
            return f"not shown to be within {within} of {REFERENCE} on {board_key.task}: more seeds could tell"
    return ""


def _cost(name: str, timings: Mapping[BoardKey, Mapping[str, RelativeCost]]) -> TableCell:
    costs = [by_name[name].cost for by_name in timings.values() if name in by_name]
    known = [cost for cost in costs if cost is not None]
    if len(known) < len(timings):
        return TableCell()
    if name == REFERENCE:
        return TableCell(text="reference", value=1.0)
    found = ratio(mean_of(known))
    brief = wording.speed(wording.point(found.value))
    return TableCell(text=wording.speed(found), brief=brief, value=found.value, low=found.low, high=found.high)


def _size(peak: float | None) -> TableCell:
    return TableCell() if peak is None else TableCell(text=wording.size(peak), value=peak)


def _gap(mine: SeedScores | None, reference: SeedScores | None) -> TableCell:
    if mine is None or reference is None or mine.missing_reason or reference.missing_reason:
        return TableCell()
    if mine.variant == REFERENCE:
        return TableCell(text="reference", value=0.0)
    ends = mine.gap(reference).interval()
    shown = mine.metric.difference(ends)
    brief = mine.metric.gap_in_brief(ends)
    return TableCell(text=mine.metric.gap(ends), brief=brief, value=shown.value, low=shown.low, high=shown.high)


def _keys(table: ResultTable, questions: list[BoardKey], name: str) -> tuple[str, ...]:
    found = []
    for board_key in questions:
        cells = board_key.cells(table, "train", "time")
        found += cells[cells["variant"] == name]["key"].tolist()
    return tuple(dict.fromkeys(found))


def _margins(metrics: Mapping[BoardKey, Metric], requirements: Requirements) -> str:
    found = [metric.margin_words(requirements.margin_of(metric)) for metric in metrics.values()]
    return " or ".join(dict.fromkeys(found)) or ACCURACY.margin_words(requirements.margin_of(ACCURACY))


def _limits(requirements: Requirements) -> str:
    return f", in {wording.size(requirements.memory_bytes)}" if requirements.memory_bytes is not None else ""


def _footnotes(
    timed: list[BoardKey],
    judged: list[BoardKey],
    requirements: Requirements,
    rows: Mapping[str, Row],
    listed: list[str],
) -> tuple[Footnote, ...]:
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
    if requirements.memory_bytes is not None:
        matched = (
            "the decode state of one sequence" if requirements.mode == "decode" else "the peak of one training step"
        )
        notes.append(
            Footnote(topic="memory", text=f"{matched} is held against {wording.size(requirements.memory_bytes)}")
        )
    notes += [Footnote(topic=f"records of {name}", text=", ".join(rows[name].records)) for name in listed]
    return tuple(notes)
