"""The board of `choose`: the variants that fit a length, a memory and a loss of quality, by cost; why others do not."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..core.cell import NO_ATTENTION, REFERENCE
from ..core.errors import SelectionError
from ..core.metrics import ACCURACY, Metric, check_margin
from ..core.record import Outcome
from ..core.spec import Spec
from ..score.contrasts import Contrasts
from ..score.cost import Mode, RelativeCost, costs_by_variant, floor_of
from ..score.key import BoardKey
from ..score.quality import Predictions, is_unlearned, metric_of, outcome_words, scores_by_variant
from ..stats.format import counted, listed, size
from ..stats.ranking import standings
from ..store.table import ResultTable
from .board import Board, Note, Row, TableCell, split_by_rank
from .cells import EMPTY, difference_cell, number_cell, ratio_cell, reference_cell
from .columns import BoardColumn, cells_of, plain_columns
from .footnotes import CHOSEN_ON_TEST
from .length_columns import MODES
from .notes import NoteKind, footnote
from .quality_notes import corrected_words


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """`memory_bytes`: most that a training step may hold at its peak or, of decoding, a sequence; None for any.

    `margin`: how many points worse than the reference still count as no worse, None for each task's own. Where tasks of
    several metrics are judged it is one of accuracy, and the others keep their own.
    """

    length: int
    mode: Mode = "step"
    memory_bytes: float | None = None
    margin: float | None = None

    def __post_init__(self) -> None:
        check_margin(self.margin)

    @property
    def memory_words(self) -> str:
        return "decode state" if self.mode == "decode" else "peak memory"

    def margin_of(self, metric: Metric, beside: Iterable[Metric]) -> float:
        """The margin of a metric that is judged with those `beside`."""
        is_meant = metric.name == ACCURACY.name or {each.name for each in beside} == {metric.name}
        return self.margin if self.margin is not None and is_meant else metric.margin


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What the cells of one variant are made from: its cost, None where it has none, and all contrasts."""

    name: str
    cost: RelativeCost | None
    contrasts: Mapping[BoardKey, Contrasts]
    peak_bytes: float | None
    state_bytes: float | None


def board_for_choice(
    table: ResultTable,
    asked: list[BoardKey],
    requirements: Requirements,
    predictions: Predictions,
    others: Sequence[BoardKey] = (),
) -> Board:
    """Ranks by cost who was measured at the length, fits the memory, and is no worse on any task by the margin.

    Quality is judged on every board asked for, cost on one of the length: times and memory of two shapes or machines
    are never mixed. Where none asked for has the length, `others` are looked at, such as a sweep. Raises SelectionError
    where nothing was timed at that length.
    """
    timed, left_out = _timed(table, asked, others, requirements)
    costs = costs_by_variant(table, timed, requirements.mode)
    trained = sorted({replace(q, machine="") for q in asked if q.runs(table, "train")})
    scores = {board_key: scores_by_variant(table, board_key, predictions) for board_key in trained}
    judged = [board_key for board_key, found in scores.items() if not is_unlearned(found.get(REFERENCE))]
    unlearned = [board_key for board_key in trained if board_key not in judged]
    contrasts = {board_key: Contrasts(scores[board_key]) for board_key in judged}
    metrics = {board_key: metric_of(table, board_key) for board_key in judged}
    judged_by = list(metrics.values()) or [ACCURACY]
    columns = choose_columns(requirements, metrics)
    rows = {}
    # the model without attention is a baseline, and no choice of attention
    for name in sorted(set(costs).union(*scores.values()) - {NO_ATTENTION}):
        candidate = Candidate(
            name=name,
            cost=costs.get(name),
            contrasts=contrasts,
            peak_bytes=_largest(table, timed, name, "peak_bytes"),
            state_bytes=_largest(table, timed, name, "state_bytes"),
        )
        rows[name] = Row(
            name=name,
            entries=cells_of(columns, candidate),
            reason=_reason(candidate, timed, metrics, requirements),
            records=_records(table, [timed, *judged], name),
        )
    fitting = [name for name, row in rows.items() if not row.reason]
    order = standings(fitting, lambda one, other: costs[one].advantage_over(costs[other]), floor_of(costs))
    ranked, unranked = split_by_rank(order, rows)
    margins = dict.fromkeys(metric.margin_words(requirements.margin_of(metric, judged_by)) for metric in judged_by)
    memory = f", in {size(requirements.memory_bytes)}" if requirements.memory_bytes is not None else ""
    title = f"{MODES[requirements.mode].one} at length {requirements.length:,}{memory}"
    return Board(
        name=f"choice/{requirements.mode}/{requirements.length}",
        title=title,
        question=f"Which attention costs least for {title} and is at most {' or '.join(margins)} worse "
        f"than {REFERENCE}?",
        headline=_headline(ranked, judged, unlearned),
        columns=plain_columns(columns),
        ranked=ranked,
        unranked=unranked,
        notes=(
            *_footnotes(timed, left_out, judged, requirements, rows.values()),
            *_unlearned_footnotes(unlearned),
            *_correction_footnotes(contrasts, rows),
            *(footnote(topic=f"records of {row.name}", text=", ".join(row.records)) for row in ranked),
        ),
    )


def lengths_timed(table: ResultTable, board_keys: Sequence[BoardKey]) -> dict[Mode, list[int]]:
    """The lengths at which some cost is known, by mode: what `board_for_choice` can answer."""
    found: dict[Mode, list[int]] = {}
    for mode in MODES:
        at = {
            length
            for board_key in board_keys
            if (length := _length(table, board_key))
            and any(cost.cost is not None for cost in costs_by_variant(table, board_key, mode).values())
        }
        if at:
            found[mode] = sorted(at)
    return found


def choose_columns(
    requirements: Requirements, metrics: Mapping[BoardKey, Metric]
) -> tuple[BoardColumn[Candidate], ...]:
    """Cost and memory, then the difference in quality on each task."""

    def quality(board_key: BoardKey, metric: Metric) -> Callable[[Candidate], TableCell]:
        def cell(candidate: Candidate) -> TableCell:
            found = candidate.contrasts[board_key]
            if _unknown(found, candidate.name):
                return EMPTY
            if candidate.name == REFERENCE:
                return reference_cell(0.0)
            return difference_cell(metric, found.between(candidate.name, REFERENCE).interval)

        return cell

    return (
        BoardColumn(name="cost", title=MODES[requirements.mode].one, unit="× reference", better="lower", importance=0,
                    description=f"time over {REFERENCE}'s at length {requirements.length:,}", cell=_cost),
        BoardColumn(name="peak", title="peak memory", unit="bytes", better="lower",
                    description="peak memory of one training step at that length",
                    cell=lambda candidate: number_cell(candidate.peak_bytes, size)),
        BoardColumn(name="state", title="decode state", unit="bytes", better="lower", importance=2,
                    description="bytes that decoding keeps per sequence at that length",
                    cell=lambda candidate: number_cell(candidate.state_bytes, size)),
        *(
            BoardColumn(name=f"gap_{q.task}_{q.preset}", title=f"{q.task} ({q.preset})", unit=metric.of_difference,
                        better=metric.better, importance=2, cell=quality(q, metric),
                        description=f"{metric.title} against {REFERENCE}, with its 95 % interval")
            for q, metric in metrics.items()
        ),
    )  # fmt: skip


def _timed(
    table: ResultTable, asked: Sequence[BoardKey], others: Sequence[BoardKey], requirements: Requirements
) -> tuple[BoardKey, list[BoardKey]]:
    """The board that the costs come from, and those that also have the length.

    That of the newest timings' machine; there a sweep before a task, the plainest shape, and the most variants.
    """
    lengths = {board_key: _length(table, board_key) for board_key in (*asked, *others)}
    there = [
        board_key
        for board_key, length in lengths.items()
        if length == requirements.length
        and any(cost.cost is not None for cost in costs_by_variant(table, board_key, requirements.mode).values())
    ]
    there = [board_key for board_key in there if board_key in asked] or there
    if not there:
        measured = ", ".join(f"{length:,}" for length in sorted({length for length in lengths.values() if length}))
        raise SelectionError(
            f"{MODES[requirements.mode].one} was not timed at length {requirements.length:,}; "
            f"{f'lengths with timings: {measured}' if measured else 'nothing was timed at all'}; time it with "
            f"`attnbench run --variants rela,linear --task 'sweep[length={requirements.length}]'`"
        )
    started = {board_key: max(run.started for run in board_key.runs(table, "time")) for board_key in there}
    machine = max(there, key=lambda board_key: started[board_key]).machine

    def rank(board_key: BoardKey) -> tuple[object, ...]:
        shape = [name for name, _ in Spec.parse(board_key.task).parameters if name not in ("length", "mode")]
        timed = costs_by_variant(table, board_key, requirements.mode)
        is_sweep = not board_key.runs(table, "train")
        return board_key.machine == machine, is_sweep, -len(shape), len(timed), started[board_key]

    # neither speeds nor memory depend on the selection
    found = {(q.task, q.preset, q.fidelity, q.protocol, q.machine): q for q in there}
    best, *others = sorted(found.values(), key=rank, reverse=True)
    return best, others


def _length(table: ResultTable, board_key: BoardKey) -> int | None:
    lengths = [run.setting["length"] for run in board_key.runs(table, "time") if run.setting.get("length")]
    return int(lengths[-1]) if lengths and board_key.machine else None


def _largest(table: ResultTable, timed: BoardKey, name: str, quantity: str) -> float | None:
    rows = [run.at for run in timed.runs(table, "time") if run.variant == name]
    return max(table.values(quantity, rows), default=None)


def _records(table: ResultTable, board_keys: list[BoardKey], name: str) -> tuple[str, ...]:
    runs = [run for board_key in board_keys for run in board_key.runs(table, "train", "time")]
    return tuple(dict.fromkeys(run.key for run in runs if run.variant == name))


def _reason(
    candidate: Candidate, timed: BoardKey, metrics: Mapping[BoardKey, Metric], requirements: Requirements
) -> str:
    """Why the variant does not fit; empty where it does. The proven comes before the unknown."""
    cost = candidate.cost
    if cost is None:
        return f"not timed at this length on {timed.task}"
    if cost.outcome != Outcome.OK:
        return ": ".join(filter(None, [f"{outcome_words(cost.outcome)} on {timed.task}", cost.reason]))
    if cost.cost is None:
        return cost.reason
    if requirements.memory_bytes is not None:
        held = candidate.state_bytes if requirements.mode == "decode" else candidate.peak_bytes
        if held is None:
            return f"its {requirements.memory_words} was not measured"
        if held > requirements.memory_bytes:
            return f"needs {size(held)}"
    worse, unknown, undecided = [], [], []
    for board_key, metric in metrics.items() if candidate.name != REFERENCE else ():
        if why := _unknown(candidate.contrasts[board_key], candidate.name):
            unknown.append(f"no {metric.title} to compare on {board_key.task}: {why}")
            continue
        margin = requirements.margin_of(metric, metrics.values())
        words = metric.margin_words(margin)
        found = candidate.contrasts[board_key].between(candidate.name, REFERENCE).verdict(margin / metric.points)
        if found == "worse":
            worse.append(f"worse than {REFERENCE} by more than {words} on {board_key.task}")
        elif found == "undecided":
            undecided.append(f"not shown to be within {words} of {REFERENCE} on {board_key.task}")
    if worse:
        return _first(worse)
    if unknown:
        return _first(unknown)
    return f"{_first(undecided)}: more seeds could show it" if undecided else ""


def _first(reasons: Sequence[str]) -> str:
    return reasons[0] + (f", and likewise on {counted(len(reasons) - 1, 'other task')}" if len(reasons) > 1 else "")


def _unknown(contrasts: Contrasts, name: str) -> str:
    """Why the variant cannot be held against the reference; empty where it can."""
    found = [contrasts.scores.get(each) for each in (name, REFERENCE)]
    missing = [each.missing_reason for each in found if each is not None and each.missing_reason]
    return missing[0] if missing else "" if all(found) else "not trained"


def _cost(candidate: Candidate) -> TableCell:
    if candidate.cost is None or candidate.cost.cost is None:
        return EMPTY
    return reference_cell(1.0) if candidate.name == REFERENCE else ratio_cell(candidate.cost.cost)


def _headline(ranked: Sequence[Row], judged: Sequence[BoardKey], unlearned: Sequence[BoardKey]) -> str:
    """Whom to take; of quality that nobody knows, who costs least."""
    if not ranked:
        return "No variant fits."
    if [row.name for row in ranked] == [REFERENCE]:
        return f"Take {REFERENCE}: no other variant is shown to fit."
    best = [row for row in ranked if row.group == ranked[0].group]
    alone = len(best) == 1
    names = listed([row.name for row in best])
    why = "their costs cannot be told apart" if not alone else _cheaper_words(best[0])
    if judged:
        return f"Take {'' if alone else 'one of '}{names}: {why}."
    reason = _unlearned_words(unlearned) if unlearned else "no variant was trained here"
    verb, whose = ("is", "Its") if alone else ("are", "Their")
    return f"Cheapest {verb} {names}: {why}. {whose} quality is unknown: {reason}."


def _cheaper_words(row: Row) -> str:
    return "no variant that fits costs less" if row.name == REFERENCE else row.entries[0].text


def _unlearned_words(unlearned: Sequence[BoardKey]) -> str:
    return f"{REFERENCE} did not learn {listed([q.task for q in unlearned])}"


def _unlearned_footnotes(unlearned: Sequence[BoardKey]) -> Iterator[Note]:
    if unlearned:
        text = f"{_unlearned_words(unlearned)}: no variant is judged there"
        yield footnote(topic="learned", text=text, kind=NoteKind.LEARNING, brief=text, warning=True)


def _correction_footnotes(contrasts: Mapping[BoardKey, Contrasts], names: Iterable[str]) -> Iterator[Note]:
    for found in list(contrasts.values())[:1]:
        text = f"intervals and verdicts are one test at 95 %, {corrected_words(found, names)}"
        yield footnote(topic="comparisons", text=text)


def _footnotes(
    timed: BoardKey,
    left_out: Sequence[BoardKey],
    judged: list[BoardKey],
    requirements: Requirements,
    rows: Iterable[Row],
) -> Iterator[Note]:
    where = f"from {timed.task} ({timed.preset}) on machine {timed.machine}"
    here = dict.fromkeys(shlex.quote(q.task) for q in left_out if q.machine == timed.machine and q.task != timed.task)
    elsewhere = dict.fromkeys(q.machine for q in left_out if q.machine != timed.machine)
    others = "".join(
        f"; others: {option} {' or '.join(names)}"
        for option, names in (("--task", here), ("--machine", elsewhere))
        if names
    )
    yield footnote(topic="cost", text=where + others, brief=where)
    if judged:
        boards = listed([f"{q.task} ({q.preset}, {q.fidelity} data)" for q in judged])
        yield footnote(topic="quality", text=f"judged on {boards}")
        if all(q.selection == "test" for q in judged):
            yield CHOSEN_ON_TEST
    else:
        text = "quality: no variant was trained here"
        yield footnote(topic="not measured", text=text, kind=NoteKind.MISSING, warning=True)
    if all(row.entries[1].value is None for row in rows):
        yield footnote(topic="not measured", text="memory", kind=NoteKind.MISSING, warning=True)
    if requirements.memory_bytes is not None:
        of = "one sequence" if requirements.mode == "decode" else "one training step"
        text = f"limit of {size(requirements.memory_bytes)} on the {requirements.memory_words} of {of}"
        yield footnote(topic="memory", text=text)
