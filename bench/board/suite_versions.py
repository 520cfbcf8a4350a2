"""The version of a suite: the Records that its board may average, which are of one version over all tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..core.cell import REFERENCE
from ..score.key import BoardKey
from ..store.rows import ResultRow
from ..store.table import ResultTable
from ..store.versions import complete_variants, harness_version, version_order

Rows = Callable[[ResultRow], bool]


def of_one_version(table: ResultTable, board_keys: Sequence[BoardKey]) -> tuple[ResultTable, dict[str, str]]:
    """The table in which trainings on these boards are of one version, and each variant of one code of its own.

    The version: the newest of lane and objective at which the reference and two others are complete on all tasks, or
    that at which most are. The code of a variant: the newest with which it is complete on all tasks. Second, by name,
    why a variant whose code differs between tasks, and is complete with none, has no average.
    """
    places = {(key.task, key.preset, key.fidelity, key.protocol, key.selection) for key in board_keys}

    def asked(row: ResultRow) -> bool:
        return row.lane == "train" and (row.task, row.preset, row.fidelity, row.protocol, row.selection) in places

    versions = sorted({harness_version(row) for row in table.rows if asked(row)}, key=version_order)
    kept: Rows = lambda row: True  # noqa: E731
    if len(versions) > 1:
        # of equals the newest
        candidates = [(table.only(_of(each, asked)), _of(each, asked)) for each in reversed(versions)]
        table, kept = max(candidates, key=lambda each: _completeness(each[0], board_keys))
    codes, differing = _codes(table, board_keys)
    if codes:
        table = table.only(
            lambda row: kept(row) and (not asked(row) or row.variant_code == codes.get(row.variant, row.variant_code))
        )
    return table, differing


def _of(version: str, asked: Rows) -> Rows:
    return lambda row: not asked(row) or harness_version(row) == version


def _completeness(table: ResultTable, board_keys: Sequence[BoardKey]) -> int:
    found = set.intersection(*(complete_variants(key.runs(table, "train")) for key in board_keys))
    return min(len(found) - 1, 2) if REFERENCE in found else 0


def _codes(table: ResultTable, board_keys: Sequence[BoardKey]) -> tuple[dict[str, str], dict[str, str]]:
    """By variant, the code to average where its code differs between tasks; and why there is none for the others."""
    current: dict[str, dict[str, str]] = {}
    tried: dict[tuple[str, str], dict[str, list[ResultRow]]] = {}
    versions = {row.version for key in board_keys for row in key.runs(table, "train")}
    for key in board_keys:
        for row in key.runs(table, "train"):
            current.setdefault(row.variant, {})[key.task] = row.variant_code
        of_board = (key.task, key.preset, key.fidelity, key.protocol)
        for row in (*table.matching(*of_board), *table.passed_over(*of_board)):
            if row.lane == "train" and row.selection == key.selection and row.version in versions:
                tried.setdefault((row.variant, row.variant_code), {}).setdefault(key.task, []).append(row)
    codes, differing = {}, {}
    for variant, by_task in current.items():
        if len(set(by_task.values())) < 2:
            continue
        complete = {
            code: max(row.at for rows in tasks.values() for row in rows)
            for (name, code), tasks in tried.items()
            if name == variant
            and tasks.keys() == by_task.keys()
            and all(variant in complete_variants(rows) for rows in tasks.values())
        }
        if complete:
            codes[variant] = max(complete, key=lambda code: complete[code])
        else:
            differing[variant] = (
                "its code differs between the tasks, or the kernels do, of a processor and of a GPU, and they are not "
                "averaged; run it anew on one kind of device"
            )
    return codes, differing
