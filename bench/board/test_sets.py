"""Test sets: what each set of sentences that translations are judged on says of every variant, as a small board."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from ..core.cell import REFERENCE
from ..core.interval import Interval
from ..core.metrics import Metric
from ..core.record import Outcome
from ..score.key import BoardKey
from ..score.quality import SeedScores
from ..stats import format as wording
from ..stats.bootstrap import DRAWS, Statistics, corpus_score, resampled_scores, sound_statistics
from ..stats.intervals import LEVEL, Estimate
from ..store.rows import ResultRow, newest
from ..store.table import ResultTable
from .board import Board, Column, Footnote, Row, TableCell

SetStatistics = Callable[[str], Mapping[str, Statistics]]
"""Reads an artifact of predictions: the statistics of each sentence, by test set; empty where they are not at hand."""

_SPOKEN = {"copy": "copying", "untrained": "an untrained model"}

PERCENT = f"{LEVEL:.0%}".replace("%", " %")


@dataclass(frozen=True, slots=True, kw_only=True)
class OnSet:
    """What is known of one variant or baseline on one test set. `lengths`: words of each reference, by sentence."""

    trials: SeedScores
    chrf: tuple[float, ...]
    lengths: npt.NDArray[np.float64] | None = field(default=None, repr=False)
    is_baseline: bool = False


def boards_of_sets(board_key: BoardKey, metric: Metric, by_set: Mapping[str, Mapping[str, OnSet]]) -> list[Board]:
    """One small board for each set, the ranked one first."""
    return [_board(board_key, name, rows, metric) for name, rows in by_set.items()]


def judged_by_set(
    table: ResultTable, board_key: BoardKey, metric: Metric, read: SetStatistics
) -> dict[str, dict[str, OnSet]]:
    """By set, the ranked one first, and by name, variants before baselines; empty where Records name no sets."""
    if metric.is_share:
        return {}
    runs = [run for run in newest(board_key.runs(table, "train"), "key") if run.outcome == Outcome.OK]
    fixed = [run for run in newest(board_key.runs(table, "baseline"), "variant") if run.outcome == Outcome.OK]
    grouped: dict[str, list[ResultRow]] = {}
    for run in [*sorted(runs, key=_by_name), *sorted(fixed, key=_by_name)]:
        grouped.setdefault(run.variant, []).append(run)
    names = dict.fromkeys(name for own in grouped.values() for run in own for name in _sets(table, run, metric))
    found: dict[str, dict[str, OnSet]] = {name: {} for name in names}
    for variant, own in grouped.items():
        kept = {run.at: read(run.artifacts["predictions"]) for run in own if "predictions" in run.artifacts}
        for name, place in found.items():
            on_set = [run for run in own if name in _sets(table, run, metric)]
            if on_set:
                place[variant] = _on_set(table, name, on_set, metric, kept)
    return found


def _by_name(run: ResultRow) -> tuple[str, int]:
    return run.variant, run.seed


def _sets(table: ResultTable, run: ResultRow, metric: Metric) -> list[str]:
    measured = table.numbers.of(run.at).get(metric.name, ())
    tested = [m for m in measured if m.where.get("split") == "test" and math.isfinite(m.value)]
    return [str(m.where["set"]) for m in tested if "set" in m.where]


def _on_set(
    table: ResultTable,
    name: str,
    runs: list[ResultRow],
    metric: Metric,
    kept: Mapping[int, Mapping[str, Statistics]],
) -> OnSet:
    places = [run.at for run in runs]
    scores = table.values(metric.name, places, split="test", set=name)
    statistics = [kept.get(at, {}).get(name) for at in places]
    sound = [
        each
        for each, score in zip(statistics, scores, strict=True)
        # what does not bear out its Record's score is not its own
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
    return OnSet(
        trials=trials,
        chrf=tuple(table.values("chrf", places, split="test", set=name)),
        lengths=sound[0][:, 1] if whole else None,
        is_baseline=runs[0].lane == "baseline",
    )


def advantage(own: OnSet, other: OnSet) -> Estimate | None:
    """How much better `own` is than `other`, by the same sentences in every draw, and by seeds where both have several.

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
    return own.trials.gap(theirs)


def in_words(gaps: Mapping[str, Interval]) -> str:
    """What intervals of the advantage over each of these say.

    >>> gaps = {"copy": Interval(2, 1, 3), "untrained": Interval(4, 3, 5), "softmax": Interval(0, -1, 1)}
    >>> in_words(gaps)
    'better than copying and an untrained model; undecided against softmax'
    """
    said: dict[str, list[str]] = {"better than": [], "worse than": [], "undecided against": []}
    for name, gap in gaps.items():
        how = "better than" if gap.low > 0 else "worse than" if gap.high < 0 else "undecided against"
        said[how].append(_SPOKEN.get(name, name))
    return "; ".join(f"{how} {wording.listed(names)}" for how, names in said.items() if names)


def _board(board_key: BoardKey, name: str, rows: Mapping[str, OnSet], metric: Metric) -> Board:
    against = [each for each in rows if rows[each].is_baseline]
    if REFERENCE in rows:
        against.append(REFERENCE)
    columns = (
        Column(name=metric.name, title=metric.title, unit=metric.display_unit, better=metric.better, importance=0,
               description=f"{metric.title} on this set alone, with its {PERCENT} interval"),
        Column(name="chrf", title="chrF", unit="chrF", better="higher", importance=3, description="chrF on this set"),
        *(
            Column(name=f"vs_{other}", title=f"vs {'copying' if other == 'copy' else other}", importance=1,
                   unit=metric.of_difference, better=metric.better,
                   description=f"difference on the same sentences, with the {PERCENT} interval of a paired bootstrap")
            for other in against
        ),
        Column(name="in_words", title="in words", importance=4, description="what these intervals say"),
    )  # fmt: skip
    count = max((each.trials.examples for each in rows.values()), default=0)
    return Board(
        name=f"{board_key.name}/{name}",
        title=f"{name}{f', {count:,} sentences' if count else ''}",
        question="",
        columns=columns,
        ranked=(),
        unranked=tuple(_row(each, rows, against) for each in rows if not rows[each].is_baseline),
        baselines=tuple(_row(each, rows, against) for each in rows if rows[each].is_baseline),
    )


def _row(name: str, rows: Mapping[str, OnSet], against: list[str]) -> Row:
    own = rows[name]
    level, metric = own.trials.level(), own.trials.metric
    entries = [TableCell(text=metric.level(level), value=level.value, low=level.low, high=level.high)]
    mean = sum(own.chrf) / len(own.chrf) if own.chrf else None
    entries.append(TableCell() if mean is None else TableCell(text=f"{mean:.2f}", value=mean))
    found: dict[str, Interval] = {}
    for other in against:
        gap = None if other == name or own.is_baseline else advantage(own, rows[other])
        if gap is None:
            entries.append(TableCell(text="reference", value=0.0) if other == name == REFERENCE else TableCell())
            continue
        ends = found[other] = gap.interval()
        shown = metric.difference(ends)
        entries.append(
            TableCell(text=metric.gap(ends), brief=metric.gap_in_brief(ends), value=shown.value, low=shown.low,
                  high=shown.high)
        )  # fmt: skip
    entries.append(TableCell(text=in_words(found)))
    return Row(name=name, entries=tuple(entries))


def footnotes_of_sets(by_set: Mapping[str, Mapping[str, OnSet]]) -> Iterator[Footnote]:
    """What a reader of these boards must know."""
    every = [each for rows in by_set.values() for each in rows.values()]
    trained = [each for each in every if not each.is_baseline]
    if not trained:
        return
    if any(each.lengths is None for each in every):
        text = "no statistics of sentences are at hand for every row: those without have no interval"
        yield Footnote(topic="test sets", text=text, warning=True)
    seeds = sorted({seed for each in trained for seed in each.trials.seeds})
    over = (
        f"over sentences, for the one training of seed {seeds[0]}: another training may differ by more"
        if len(seeds) == 1
        else "over sentences and over seeds (Student's t), their squares added"
    )
    yield Footnote(
        topic="test sets",
        text=f"brackets: {PERCENT} intervals of the difference {over}; {DRAWS} bootstrap draws, the same sentences for "
        "both (Koehn 2004); each comparison by itself, not corrected for their number",
    )
    if any("untrained" in rows for rows in by_set.values()):
        yield Footnote(
            topic="untrained",
            text=f"{REFERENCE} with the parameters that its training of seed 0 begins with, translating with the same "
            "search",
        )
