"""Reports of a results folder: the averages of suites, then single tasks, then cost over lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..core.errors import SelectionError
from ..score.key import BoardKey
from ..store.artifacts import StoredCurves, StoredMaps, StoredPredictions
from ..store.table import ResultTable
from .build_report import report_for_suite, report_for_task, reports_for_sweeps
from .kinds import with_published
from .overview import Declaration, suites_with_boards
from .report import Report
from .select import scored

MAP_CHARACTERS = 1_500_000
"""Room that the attention maps of all reports take together, so that a page stays light."""


def scored_reports(
    table: ResultTable,
    predictions: StoredPredictions,
    keys: list[BoardKey],
    margin: float | None,
    *,
    suite: Declaration | None,
    known: Sequence[Declaration],
) -> list[Report]:
    """The reports of the boards of these keys.

    `suite`: the only one, whose average comes before its tasks alone. None: each of `known` whose tasks are all there.
    Raises SelectionError where the tasks of `suite` have no average.
    """
    trained = [key for key in keys if key.runs(table, "train", "baseline")]
    if suite is not None:
        keys = [key for key in keys if key.task in suite[1]]
        trained = [key for key in trained if key.task in suite[1]]
        averaged = [(suite, keys)]
    else:
        averaged = suites_with_boards(known, [key for key in trained if key.runs(table, "train")])
    whole: list[Report] = []
    groups: dict[BoardKey, str] = {}
    for declared, of_suite in averaged:
        title = f"Suite {declared[0]}" + (f", preset {of_suite[0].preset}" if of_suite else "")
        try:
            averages = scored(table, predictions, of_suite, margin, suite=declared)
        except SelectionError:
            # tasks that are judged by different metrics have no average
            if suite is not None:
                raise
            continue
        whole += [replace(report_for_suite(table, board, of_suite), group=title) for board in averages]
        groups |= {replace(key, machine=""): title for key in of_suite}
    by_name = {board.name: board for board in scored(table, predictions, keys, margin)}
    curves, maps = StoredCurves(predictions.store), StoredMaps(predictions.store)
    untrained = sorted(set(keys) - set(trained))
    room = MAP_CHARACTERS // max(len(trained), 1)
    found = [
        replace(
            report_for_task(table, key, predictions, curves, margin, maps, room, by_name.get(key.name)),
            group=groups.get(replace(key, machine=""), ""),
        )
        for key in trained
    ]
    return whole + found + reports_for_sweeps(table, trained, untrained)


def reports_with_published(reports: Sequence[Report]) -> list[Report]:
    """Our reports, each followed by what papers printed on its task."""
    ours = {id(report.board): report for report in reports}
    boards = with_published([report.board for report in reports], None)
    return [ours.get(id(board)) or Report(name=board.name, board=board, commands={}, machines={}) for board in boards]
