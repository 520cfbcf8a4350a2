"""Records and boards of a results folder, from Python; nothing here needs PyTorch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from ..core.errors import LOG, Notice
from ..core.files import RESULTS
from ..store.records import Records

if TYPE_CHECKING:
    from ..board.board import Board
    from ..score.cost import Mode
    from ..score.key import BoardKey, Filters
    from ..store.artifacts import StoredPredictions
    from ..store.table import ResultTable


def records(results: str | Path = RESULTS, *, notice: Notice = LOG.warning) -> Records:
    """The Records of a results folder in the order of arrival; empty where there is no folder.

    notice: is told of lines that cannot be read, which are left out.
    """
    from ..store.store import Store

    return Records(results=Path(results), records=tuple(Store(Path(results), notice).records()))


def boards(
    results: str | Path | Records = RESULTS,
    *,
    suite: str | None = None,
    lengths: bool = False,
    mode: Mode | None = None,
    margin: float | None = None,
    published: bool = False,
    notice: Notice = LOG.warning,
    **filters: Unpack[Filters],
) -> list[Board]:
    """The boards of a results folder, or those that the Records of a run answer: one for each task and preset.

    suite: average over the tasks of this suite instead. lengths: only cost over lengths. mode: `step`, `forward` or
    `decode`, of boards of cost alone. margin: points worse than the reference that still count as no worse; None for
    each task's own. published: what papers reported beside ours, never ranked with it. filters: see `Filters`.
    Raises StoreError where the folder has no Records, SelectionError where the filters leave none.

    >>> print(attnbench.boards("results", task="lra-text")[0].to_pandas())                         # doctest: +SKIP
    """
    from ..board.kinds import with_published
    from ..board.select import scored
    from ..plan.suite_file import read_suite
    from ..store.table import garbage_collection_paused

    with garbage_collection_paused():
        table, predictions, keys = answered(results, notice, filters)
        declared = None if suite is None else read_suite(suite).declaration
        # some suites have no preset of their own
        wanted = "" if declared is None or lengths or filters.get("preset") else declared[3]
        if wanted and not any(key.preset == wanted for key in keys):
            notice(f"the suite {suite} is of preset {wanted}, which nothing here is; of other presets:")
        found = scored(table, predictions, keys, margin, suite=declared, lengths=lengths, mode=mode)
        return with_published(found, suite) if published else found


def answered(
    results: str | Path | Records, notice: Notice, filters: Filters
) -> tuple[ResultTable, StoredPredictions, list[BoardKey]]:
    """The whole folder, and the boards of it that are asked for: of Records those that they answer."""
    from ..board.select import read_store
    from ..score.key import answering, board_keys
    from ..store.controls import control_records, unestablished
    from ..store.store import Store

    folder = results.results if isinstance(results, Records) else Path(results)
    table, predictions = read_store(Store(folder, notice))
    trained = sorted({row.variant for row in table.rows if row.lane == "train"})
    table = replace(table, unestablished=unestablished(trained, control_records(folder)))
    keys = board_keys(table, **filters)
    return table, predictions, answering(keys, results) if isinstance(results, Records) else keys
