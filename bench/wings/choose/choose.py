"""`attnbench.choose`: the variants that fit a length, a memory and a loss of quality, by cost; why others do not."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Unpack

from ...api.boards import answered
from ...board.board import Board, Column, Note, Row, TableCell, split_by_rank
from ...board.cells import (
    EMPTY,
    Cell,
    cells_of,
    contrast_cell,
    finished,
    number_cell,
    plain_columns,
    ratio_cell,
    reference_cell,
)
from ...board.length_board import MODES, part_timed
from ...board.notes import note, some
from ...board.quality_notes import describe_correction
from ...board.timings import RAN_AS, Timings
from ...board.version_notes import describe_stale
from ...core.cell import NO_ATTENTION, REFERENCE
from ...core.errors import LOG, Notice, SelectionError
from ...core.files import RESULTS
from ...core.metrics import ACCURACY, Metric, check_margin
from ...core.record import Outcome
from ...core.spec import Spec, bytes_of, parse_value
from ...score.contrasts import Contrasts
from ...score.cost import Mode, RelativeCost, costs_by_variant, floor_of
from ...score.key import BoardKey, Filters, board_keys
from ...score.quality import Predictions, describe_outcome, is_unlearned, metric_of, scores_by_variant
from ...stats.format import counted, listed, size
from ...stats.ranking import rank_intervals
from ...store.records import Records
from ...store.table import ResultTable

UNKNOWN = {
    "to compare": "without enough Records on every task that is judged",
    "not shown": "trained with too few seeds to tell",
    "not timed": "not timed at this length",
}
"""The words of reasons that leave a question open, and how they read of several variants."""


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


def choose(
    length: int | str,
    results: str | Path | Records = RESULTS,
    *,
    mode: Mode = "step",
    memory: str | int | None = None,
    margin: float | None = None,
    notice: Notice = LOG.warning,
    **filters: Unpack[Filters],
) -> Board:
    """The variants that fit a length, a memory and a loss of quality, by cost; the others with the reason.

    length: tokens, or text such as `16k`, which is 16,384. memory: bytes, or text such as `40GB`, that a training step,
    or decoding one sequence, may hold. Raises SelectionError where nothing was timed at that length.
    """
    limit = None if memory is None else bytes_of(str(memory))
    # a machine is asked for its speeds; quality may come from any
    table, predictions, keys = answered(results, notice, {**filters, "machine": None})
    every = board_keys(table, fidelity=filters.get("fidelity"), machine=filters.get("machine"))
    wanted = Requirements(length=tokens_of(length), mode=mode, memory_bytes=limit, margin=margin)
    return board_for_choice(table, keys, wanted, predictions, every, predictions.store.root)


def lengths_to_choose_at(
    results: str | Path | Records = RESULTS, *, notice: Notice = LOG.warning, **filters: Unpack[Filters]
) -> dict[Mode, list[int]]:
    """The lengths that `choose` can answer for, by mode; empty where nothing was timed."""
    table, _, _ = answered(results, notice, {**filters, "machine": None})
    return lengths_timed(table, board_keys(table, fidelity=filters.get("fidelity"), machine=filters.get("machine")))


def tokens_of(length: int | str) -> int:
    """A length in tokens, as a parameter of a task has it: 32k is 32,768. Raises SelectionError for other text."""
    text = str(length).strip()
    tokens = parse_value(text)
    if not text.isascii() or isinstance(tokens, bool) or not isinstance(tokens, int) or not 1 <= tokens <= 2**40:
        raise SelectionError(f"expected a length such as 512 or 16k, got {length!r}")
    return tokens


def board_for_choice(
    table: ResultTable,
    asked: list[BoardKey],
    requirements: Requirements,
    predictions: Predictions,
    every: Sequence[BoardKey] = (),
    folder: Path = Path("results"),
) -> Board:
    """Ranks by cost who was measured at the length, fits the memory, and is no worse on any task by the margin.

    Quality is judged on every board asked for of the present version, or on all where none is; cost on one of the
    length: times and memory of two shapes or machines are never mixed. Where none asked for has it, `every` is looked
    at, such as a sweep. Raises SelectionError where nothing was timed at that length, saying what times it in `folder`.
    """
    timed, left_out = _timed(table, asked, every or asked, requirements, folder)
    costs = costs_by_variant(table, timed, requirements.mode)
    timings = Timings(table=table, by_point={requirements.length: costs})
    judgement = judge(table, asked, predictions)
    contrasts, metrics, unlearned = judgement.contrasts, judgement.metrics, judgement.unlearned
    judged = list(contrasts)
    judged_by = list(metrics.values()) or [ACCURACY]
    # the model without attention is a baseline, and no choice of attention
    names = sorted(set(costs).union(judgement.names) - {NO_ATTENTION})
    peaks, states = (
        {name: _largest(table, timed, name, quantity) for name in names} for quantity in ("peak_bytes", "state_bytes")
    )

    def quality(board_key: BoardKey, name: str) -> TableCell:
        found = contrasts[board_key]
        if why_unknown(found, name):
            return EMPTY
        if name == REFERENCE:
            return reference_cell(0.0)
        return contrast_cell(found.between(name, REFERENCE))

    part = part_timed(timed.runs(table, "time"))
    work, of_length = f"{MODES[requirements.mode].one} of {part}", f"at length {requirements.length:,}"
    where = _where(table, timed)
    columns: list[tuple[Column, Cell]] = [
        (Column(name="cost", title=work, short=part, unit="× reference", better="lower", importance=0,
                description=f"time over {REFERENCE}'s {of_length}"),
         lambda name: _cost_cell(name, costs.get(name))),
        (Column(name="implementation", title="ran as", importance=1, description=RAN_AS),
         lambda name: TableCell(text=(ran := timings.implementation(name)), brief=ran.partition(";")[0])),
        (Column(name="peak", title="peak memory", unit="bytes", better="lower",
                description="peak memory of one training step at that length"),
         lambda name: number_cell(peaks[name], size)),
        (Column(name="state", title="decode state", unit="bytes", better="lower", importance=2,
                description="bytes that decoding keeps per sequence at that length"),
         lambda name: number_cell(states[name], size)),
        *(
            (Column(name=f"gap_{key.task}_{key.preset}", title=f"{key.task} ({key.preset})", unit=metric.of_difference,
                    better=metric.better, importance=2,
                    description=f"{metric.title} against {REFERENCE}, with its 95 % interval"),
             partial(quality, key))
            for key, metric in metrics.items()
        ),
    ]  # fmt: skip
    held = states if requirements.mode == "decode" else peaks
    rows = {
        name: Row(
            name=name,
            entries=cells_of(columns, name),
            reason=_cost_reason(costs.get(name), held[name], timed, requirements)
            or _quality_reason(name, contrasts, metrics, requirements),
            records=_records(table, [timed, *judged], name),
        )
        for name in names
    }
    fitting = [name for name, row in rows.items() if not row.reason]
    order = rank_intervals(fitting, lambda one, other: costs[one].advantage_over(costs[other]), floor_of(costs))
    ranked, unranked = split_by_rank(order, rows)
    margins = dict.fromkeys(metric.margin_words(requirements.margin_of(metric, judged_by)) for metric in judged_by)
    memory = f", in {size(requirements.memory_bytes)}" if requirements.memory_bytes is not None else ""
    title = f"{work} {of_length}{memory}"
    board = Board(
        name=f"choice/{requirements.mode}/{requirements.length}",
        title=title,
        question=f"Which attention costs least for {title} and is at most {' or '.join(margins)} worse "
        f"than {REFERENCE}?",
        headline=_headline(ranked, unranked, {q: longest_test(table, q) for q in judged}, unlearned, work, where),
        columns=plain_columns(columns),
        ranked=ranked,
        unranked=unranked,
        notes=(
            *_notes(timed, where, left_out, judged, requirements),
            *_notes_on_judging(unlearned, judgement.older),
            *([_not_measured("memory")] if all(peak is None for peak in peaks.values()) else []),
            *(note("ranks", corrected=describe_correction(found, rows)) for found in [*contrasts.values()][:1]),
            *(_method("records", f"{row.name}: {', '.join(row.records)}") for row in ranked),
        ),
    )
    return finished(board)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The boards that judge quality, of the present version where there are any.

    `names`: of all variants on them. `unlearned`: boards that the reference did not learn; `older`: tasks whose boards
    are of older versions. Neither judges.
    """

    contrasts: Mapping[BoardKey, Contrasts]
    metrics: Mapping[BoardKey, Metric]
    names: Collection[str]
    unlearned: Sequence[BoardKey]
    older: Sequence[str]


def judge(table: ResultTable, asked: Sequence[BoardKey], predictions: Predictions) -> Judgement:
    """The quality that the trainings on the boards asked for show."""
    trained = sorted({replace(q, machine="") for q in asked if q.runs(table, "train")})
    current = [board_key for board_key in trained if not describe_stale(board_key.runs(table, "train"))] or trained
    scores = {board_key: scores_by_variant(table, board_key, predictions) for board_key in current}
    judged = [board_key for board_key, found in scores.items() if not is_unlearned(found.get(REFERENCE))]
    return Judgement(
        contrasts={board_key: Contrasts(scores[board_key]) for board_key in judged},
        metrics={board_key: metric_of(table, board_key) for board_key in judged},
        names=set[str]().union(*scores.values()),
        unlearned=[board_key for board_key in current if board_key not in judged],
        older=[board_key.task for board_key in trained if board_key not in current],
    )


def lengths_timed(table: ResultTable, board_keys: Sequence[BoardKey]) -> dict[Mode, list[int]]:
    """The lengths at which some cost is known, by mode: what `board_for_choice` can answer."""
    by_mode: dict[Mode, list[int]] = {mode: sorted(_timed_by_length(table, board_keys, mode)) for mode in MODES}
    return {mode: lengths for mode, lengths in by_mode.items() if lengths}


def _timed_by_length(table: ResultTable, board_keys: Sequence[BoardKey], mode: Mode) -> dict[int, list[BoardKey]]:
    """The boards on which some cost is known, by their length."""
    found: dict[int, list[BoardKey]] = {}
    for board_key in board_keys:
        length = _length(table, board_key)
        if length and any(cost.cost is not None for cost in costs_by_variant(table, board_key, mode).values()):
            found.setdefault(length, []).append(board_key)
    return found


def command_for_times(mode: Mode, lengths: str, folder: Path, variants: Iterable[str] = ()) -> str:
    """The command that times an operation of these variants by a sweep over these lengths, into that folder."""
    task = f"sweep[length={lengths}{'' if mode == 'step' else f',mode={mode}'}]"
    names = ",".join(variants) or "rela,linear"
    return shlex.join(["attnbench", "run", "--variants", names, "--task", task, "--results", str(folder)])


def _timed(
    table: ResultTable, asked: Sequence[BoardKey], every: Sequence[BoardKey], requirements: Requirements, folder: Path
) -> tuple[BoardKey, list[BoardKey]]:
    """The board that the costs come from, and those that also have the length.

    That of the newest timings' machine; there a sweep before a task, the plainest shape, and the most variants.
    """
    by_length = _timed_by_length(table, every, requirements.mode)
    there = by_length.get(requirements.length, [])
    there = [board_key for board_key in there if board_key in asked] or there
    if not there:
        trained = {run.variant for key in asked for run in key.runs(table, "train")} - {NO_ATTENTION, REFERENCE}
        # nobody reads a command of all variants of all tasks
        few = sorted(trained) if len(trained) < 7 else ()
        command = command_for_times(requirements.mode, str(requirements.length), folder, few)
        measured = ", ".join(f"{length:,}" for length in sorted(by_length))
        raise SelectionError(
            f"{MODES[requirements.mode].one} was not timed at length {requirements.length:,}"
            f"{f'; lengths with timings: {measured}' if measured else ', nor at any other'}; time it with `{command}`, "
            f"or estimate it: `attnbench choose --model llama-3-8b --context {requirements.length} --on h100`"
        )
    machine = max(there, key=lambda board_key: board_key.last_timing(table)).machine

    def rank(board_key: BoardKey) -> tuple[object, ...]:
        shape = [name for name, _ in Spec.parse(board_key.task).parameters if name not in ("length", "mode")]
        timed = costs_by_variant(table, board_key, requirements.mode)
        is_sweep = not board_key.runs(table, "train")
        return board_key.machine == machine, is_sweep, -len(shape), len(timed), board_key.last_timing(table)

    # neither speeds nor memory depend on the selection
    found = {(q.task, q.preset, q.fidelity, q.protocol, q.machine): q for q in there}
    best, *others = sorted(found.values(), key=rank, reverse=True)
    return best, others


def _length(table: ResultTable, board_key: BoardKey) -> int | None:
    lengths = [run.setting["length"] for run in board_key.runs(table, "time") if run.setting.get("length")]
    return int(lengths[-1]) if lengths and board_key.machine else None


def longest_test(table: ResultTable, board_key: BoardKey) -> int:
    """The longest sequences of the tests."""
    settings = [run.setting for run in board_key.runs(table, "train")]
    return max(int(setting.get("longest") or setting.get("length") or 0) for setting in settings)


def _largest(table: ResultTable, timed: BoardKey, name: str, quantity: str) -> float | None:
    rows = [run.at for run in timed.runs(table, "time") if run.variant == name]
    return max(table.values(quantity, rows), default=None)


def _records(table: ResultTable, board_keys: list[BoardKey], name: str) -> tuple[str, ...]:
    runs = [run for board_key in board_keys for run in board_key.runs(table, "train", "time")]
    return tuple(dict.fromkeys(run.key for run in runs if run.variant == name))


def _cost_reason(cost: RelativeCost | None, held: float | None, timed: BoardKey, requirements: Requirements) -> str:
    """The reason why the variant does not fit by its cost or memory; empty where it does."""
    if cost is None:
        return f"not timed at this length on {timed.task}"
    if cost.outcome != Outcome.OK:
        return ": ".join(filter(None, [f"{describe_outcome(cost.outcome)} on {timed.task}", cost.reason]))
    if cost.cost is None or cost.disturbed:
        return cost.reason
    if requirements.memory_bytes is None:
        return ""
    if held is None:
        return f"its {requirements.memory_words} was not measured"
    return f"needs {size(held)}" if held > requirements.memory_bytes else ""


def _quality_reason(
    name: str, contrasts: Mapping[BoardKey, Contrasts], metrics: Mapping[BoardKey, Metric], requirements: Requirements
) -> str:
    """The reason why the variant does not fit by its quality, the proven before the unknown; empty where it does."""
    worse, unknown, undecided = [], [], []
    for board_key, metric in metrics.items() if name != REFERENCE else ():
        if why := why_unknown(contrasts[board_key], name):
            unknown.append(f"no {metric.title} to compare on {board_key.task}: {why}")
            continue
        margin = requirements.margin_of(metric, metrics.values())
        words = metric.margin_words(margin)
        verdict = contrasts[board_key].between(name, REFERENCE).verdict(margin / metric.points)
        if verdict == "worse":
            worse.append(f"worse than {REFERENCE} by more than {words} on {board_key.task}")
        elif verdict == "undecided":
            undecided.append(f"not shown to be within {words} of {REFERENCE} on {board_key.task}")
    if worse or unknown:
        return _first(worse or unknown)
    return f"{_first(undecided)}: more seeds could show it" if undecided else ""


def _first(reasons: Sequence[str]) -> str:
    return reasons[0] + (f", and likewise on {counted(len(reasons) - 1, 'other board')}" if len(reasons) > 1 else "")


def why_unknown(contrasts: Contrasts, name: str) -> str:
    """The reason why the variant cannot be compared with the reference; empty where it can."""
    found = [contrasts.scores.get(each) for each in (name, REFERENCE)]
    missing = [each.missing_reason for each in found if each is not None and each.missing_reason]
    return missing[0] if missing else "" if all(found) else "no Records on this board"


def _cost_cell(name: str, cost: RelativeCost | None) -> TableCell:
    if cost is None or cost.cost is None:
        return EMPTY
    return reference_cell(1.0) if name == REFERENCE else ratio_cell(cost.cost)


def _headline(
    ranked: Sequence[Row], unranked: Sequence[Row], judged: Mapping[BoardKey, int], unlearned: Sequence[BoardKey],
    work: str, where: str,
) -> str:  # fmt: skip
    """Whom to take, or why nobody can say; of quality that nobody knows, who costs least. `judged`: longest tests."""
    open_reasons = [row.reason for row in unranked if any(word in row.reason for word in UNKNOWN)]
    tasks = list(dict.fromkeys(key.task for key in judged))
    if [row.name for row in ranked] == [REFERENCE] and open_reasons:
        many = f" Judged on {listed(tasks)}: name those that matter, as in `--task {tasks[0]}`." if tasks[1:] else ""
        return f"No answer: {_open_question(open_reasons)}.{many}"
    if not ranked:
        return "No variant fits."
    best = [row for row in ranked if row.group == ranked[0].group]
    names = some([row.name for row in best])
    if len(best) > 1:
        why = "equal in cost as far as can be told"
    else:
        why = "no variant that fits costs less" if names == REFERENCE else f"{work} is {best[0].entries[0].text}"
    # an answer holds of this machine and mask alone
    why += f", timed {where}"
    if judged:
        tested = listed([f"{key.task} up to {longest:,} tokens" for key, longest in judged.items()])
        return f"Take {names}: {why}. Judged on {tested}."
    unjudged = f"{REFERENCE} did not learn {some([key.task for key in unlearned])}"
    reason = unjudged if unlearned else "no variant was trained here"
    return f"Cheapest: {names} ({why}). Quality is unknown: {reason}."


def _where(table: ResultTable, timed: BoardKey) -> str:
    """The machine of the times, and whether a query was kept from later keys."""
    causal = "causal" if any(run.setting.get("causal") for run in timed.runs(table, "time")) else "not causal"
    return f"on {table.machines[timed.machine].words}, {causal}"


def _open_question(reasons: Sequence[str]) -> str:
    """The counts of variants that may fit, by what is unknown of them, quality before cost."""
    counts = Counter(next(word for word in UNKNOWN if word in reason) for reason in reasons)
    parts = [f"{n} {'was' if n == 1 else 'were'} {words}" for word, words in UNKNOWN.items() if (n := counts[word])]
    return f"of {counted(len(reasons), 'variant')} that may fit, {listed(parts)}"


def _notes(
    timed: BoardKey, where: str, left_out: Sequence[BoardKey], judged: list[BoardKey], requirements: Requirements
) -> Iterator[Note]:
    here = dict.fromkeys(shlex.quote(q.task) for q in left_out if q.machine == timed.machine and q.task != timed.task)
    elsewhere = dict.fromkeys(q.machine for q in left_out if q.machine != timed.machine)
    others = "".join(
        f"; others: {option} {some(list(names))}"
        for option, names in (("--task", here), ("--machine", elsewhere))
        if names
    )
    yield Note(topic="cost", text=f"from {timed.task} ({timed.preset}), {where} ({timed.machine}){others}")
    if judged:
        boards = some([f"{key.task} ({key.preset}, {key.fidelity} data)" for key in judged])
        yield _method("quality", f"judged on {boards}")
        if all(key.selection == "test" for key in judged):
            yield note("selection")
    else:
        yield _not_measured("quality: no variant was trained here")
    if requirements.memory_bytes is not None:
        of = "one sequence" if requirements.mode == "decode" else "one training step"
        limit = size(requirements.memory_bytes)
        yield _method("memory", f"limit of {limit} on the {requirements.memory_words} of {of}")


def _notes_on_judging(unlearned: Sequence[BoardKey], older: Sequence[str]) -> Iterator[Note]:
    """The boards on which nobody is judged."""
    if unlearned:
        tasks = some([key.task for key in unlearned])
        text = f"{REFERENCE} did not learn {tasks}: no variant is judged there"
        yield Note(topic="learned", kind="warning", text=text)
    if older:
        text = f"nobody is judged on {some(older)}: of older versions; --task TASK does so"
        yield Note(topic="version", text=text)


def _method(topic: str, text: str) -> Note:
    return Note(topic=topic, kind="method", text=text)


def _not_measured(what: str) -> Note:
    return Note(topic="not measured", kind="warning", text=what)
