"""Test sets: the scores on each set of sentences that translations are judged on, as a small board."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from ...board.board import Board, Column, Note, Row, TableCell
from ...board.cells import (
    EMPTY,
    Cell,
    cells_of,
    difference_cell,
    level_cell,
    number_cell,
    plain_columns,
    reference_cell,
)
from ...board.kinds import SetStatistics
from ...board.task_context import finished_runs
from ...core.cell import REFERENCE
from ...core.metrics import Interval, Metric
from ...score.contrasts import Contrasts
from ...score.key import BoardKey
from ...score.quality import SeedScores
from ...stats.bootstrap import DRAWS, Statistics, corpus_score, resampled_scores, sound_statistics
from ...stats.format import listed
from ...stats.intervals import LEVEL, Estimate
from ...store.rows import ResultRow
from ...store.table import ResultTable

_BASELINES = {"copy": "copying", "untrained": "an untrained model"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SetScores:
    """Scores of one variant or baseline on one test set. `lengths`: words of each reference, by sentence."""

    trials: SeedScores
    chrf: tuple[float, ...]
    lengths: npt.NDArray[np.float64] | None = field(default=None, repr=False)
    is_baseline: bool = False


def set_boards(
    board_key: BoardKey, metric: Metric, by_set: Mapping[str, Mapping[str, SetScores]], contrasts: Contrasts
) -> list[Board]:
    """One small board for each set, the ranked one first; moderated and corrected as `contrasts` are."""
    return [_board(board_key, name, rows, metric, contrasts) for name, rows in by_set.items()]


def scores_by_set(
    table: ResultTable, board_key: BoardKey, metric: Metric, read: SetStatistics
) -> dict[str, dict[str, SetScores]]:
    """The scores by set, the ranked one first, and by name, variants first; empty where Records name no sets."""
    if metric.is_share:
        return {}
    grouped = finished_runs(table, board_key)
    names = dict.fromkeys(name for own in grouped.values() for run in own for name in _sets(table, run, metric))
    found: dict[str, dict[str, SetScores]] = {name: {} for name in names}
    for variant, own in grouped.items():
        kept = {run.at: read(run.artifacts["predictions"]) for run in own if "predictions" in run.artifacts}
        for name, place in found.items():
            on_set = [run for run in own if name in _sets(table, run, metric)]
            if on_set:
                place[variant] = _scores(table, name, on_set, metric, kept)
    return found


def _sets(table: ResultTable, run: ResultRow, metric: Metric) -> list[str]:
    measured = table.named(metric.name, run.at)
    tested = [m for m in measured if m.where.get("split") == "test" and math.isfinite(m.value)]
    return [str(m.where["set"]) for m in tested if "set" in m.where]


def _scores(
    table: ResultTable,
    name: str,
    runs: list[ResultRow],
    metric: Metric,
    kept: Mapping[int, Mapping[str, Statistics]],
) -> SetScores:
    places = [run.at for run in runs]
    scores = table.values(metric.name, places, split="test", set=name)
    statistics = [kept.get(at, {}).get(name) for at in places]
    sound = [
        each
        for each, score in zip(statistics, scores, strict=True)
        # statistics that do not give the score of the Record belong to something else
        if each is not None
        and sound_statistics(metric.name, each)
        and abs(corpus_score(metric.name, each) - score) <= 1e-6 * max(1.0, score)
    ]
    whole = len(sound) == len(runs) and all(np.array_equal(each[:, 1], sound[0][:, 1]) for each in sound)
    trials = SeedScores(
        variant=runs[0].variant,
        metric=metric,
        seeds=tuple(run.seed for run in runs),
        scores=tuple(scores),
        examples=len(sound[0]) if whole else 0,
        draws=np.stack([resampled_scores(metric.name, each) for each in sound], axis=1) if whole else None,
    )
    return SetScores(
        trials=trials,
        chrf=tuple(table.values("chrf", places, split="test", set=name)),
        lengths=sound[0][:, 1] if whole else None,
        is_baseline=runs[0].lane == "baseline",
    )


def advantage(own: SetScores, other: SetScores) -> Estimate | None:
    """The advantage of `own` over `other`, by the same sentences in every draw, and by seeds where both have several.

    A baseline is one and the same for all seeds. None where sentences cannot be paired, or no seed is shared.
    """
    if own.lengths is None or other.lengths is None or not np.array_equal(own.lengths, other.lengths):
        return None
    theirs = other.trials
    if other.is_baseline and theirs.draws is not None:
        seeds, count = own.trials.seeds, len(own.trials.seeds)
        theirs = replace(theirs, seeds=seeds, scores=theirs.scores * count, draws=theirs.draws.repeat(count, axis=1))
    if not set(own.trials.seeds) & set(theirs.seeds):
        return None
    return own.trials.advantage_over(theirs)


def verdict_sentence(gaps: Mapping[str, Interval]) -> str:
    """The conclusions from the intervals of the advantage over each of these.

    >>> gaps = {"copy": Interval(2, 1, 3), "untrained": Interval(4, 3, 5), "softmax": Interval(0, -1, 1)}
    >>> verdict_sentence(gaps)
    'better than copying and an untrained model; undecided against softmax'
    """
    said: dict[str, list[str]] = {"better than": [], "worse than": [], "undecided against": []}
    for name, gap in gaps.items():
        how = "better than" if gap.low > 0 else "worse than" if gap.high < 0 else "undecided against"
        said[how].append(_BASELINES.get(name, name))
    return "; ".join(f"{how} {listed(names)}" for how, names in said.items() if names)


def _board(
    board_key: BoardKey, test_set: str, scores: Mapping[str, SetScores], metric: Metric, contrasts: Contrasts
) -> Board:
    against = [each for each in scores if scores[each].is_baseline] + [REFERENCE] * (REFERENCE in scores)
    variants = {name: own.trials for name, own in scores.items() if not own.is_baseline}
    of_variants = Contrasts(variants, contrasts.declared)
    gaps: dict[str, dict[str, Interval]] = {}
    for name, own in scores.items():
        found = {other: advantage(own, scores[other]) for other in against if other != name and name in variants}
        # a baseline is one more in the comparison, as a variant that is not declared is
        gaps[name] = {
            other: of_variants.between(name, other).interval
            if other in variants
            else gap.interval(1 - (1 - LEVEL) / contrasts.pairs(name, other))
            for other, gap in found.items()
            if gap is not None
        }

    def level_of(name: str) -> Interval:
        return of_variants.level_of(name) if name in variants else scores[name].trials.level()

    def versus(other: str, name: str) -> TableCell:
        if other in gaps[name]:
            return difference_cell(metric, gaps[name][other])
        return reference_cell(0.0) if other == name == REFERENCE else EMPTY

    columns: list[tuple[Column, Cell]] = [
        (Column(name=metric.name, title=metric.title, unit=metric.display_unit, better=metric.better, importance=0,
                description=f"{metric.title} on this set alone, with its 95 % interval"),
         lambda name: level_cell(metric, level_of(name))),
        (Column(name="chrf", title="chrF", unit="chrF", better="higher", importance=3,
                description="chrF on this set alone"),
         lambda name: number_cell(_mean(scores[name].chrf), "{:.2f}".format)),
        *(
            (Column(name=f"vs_{other}", title=f"vs {'copying' if other == 'copy' else other}",
                    unit=metric.of_difference, better=metric.better,
                    description="difference on the same sentences, with its 95 % interval, corrected as on the board"),
             partial(versus, other))
            for other in against
        ),
        (Column(name="verdict", title="verdict", importance=4, description="conclusion from these intervals"),
         lambda name: TableCell(text=verdict_sentence(gaps[name]))),
    ]  # fmt: skip
    rows: dict[bool, list[Row]] = {False: [], True: []}
    for name, own in scores.items():
        rows[own.is_baseline].append(Row(name=name, entries=cells_of(columns, name)))
    count = max((each.trials.examples for each in scores.values()), default=0)
    return Board(
        name=f"{board_key.name}/{test_set}",
        title=f"{test_set}{f', {count:,} sentences' if count else ''}",
        question="",
        columns=plain_columns(columns),
        ranked=(),
        unranked=tuple(rows[False]),
        baselines=tuple(rows[True]),
    )


def _mean(values: tuple[float, ...]) -> float | None:
    return sum(values) / len(values) if values else None


def set_notes(by_set: Mapping[str, Mapping[str, SetScores]]) -> Iterator[Note]:
    """The way in which the intervals of `set_boards` were made."""
    every = [scores for rows in by_set.values() for scores in rows.values()]
    seeds = sorted({seed for scores in every if not scores.is_baseline for seed in scores.trials.seeds})
    if not seeds:
        return
    if any(scores.lengths is None for scores in every):
        lacking = "rows without an interval have no statistics of sentences"
        yield Note(topic="test sets", kind="warning", text=lacking)
    of_one = f"sentences at seed {seeds[0]} alone (another seed may differ by more)"
    over = of_one if len(seeds) == 1 else "sentences and seeds (Student's t)"
    drawn = f"{DRAWS} bootstrap draws, the same sentences for both (Koehn 2004), corrected as on the board"
    text = f"brackets: {100 * LEVEL:.0f} % intervals of the difference over {over}; {drawn}"
    yield Note(topic="test sets", kind="method", text=text)
    if any("untrained" in rows for rows in by_set.values()):
        text = f"{REFERENCE} before its training of seed 0, with the same search"
        yield Note(topic="untrained", kind="method", text=text)
