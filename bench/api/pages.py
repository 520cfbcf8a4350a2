"""Pages of a results folder, and comparisons in words, from Python; nothing here needs PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from ..core.errors import LOG, Notice, SelectionError
from ..core.files import RESULTS
from ..core.registry import VARIANTS
from ..core.spec import Spec
from ..store.records import Records
from .boards import answered

if TYPE_CHECKING:
    from ..board.compare import Comparison
    from ..board.regression import CostChange
    from ..board.report import Overview, Report
    from ..score.key import Filters


def reports(
    results: str | Path | Records = RESULTS,
    *,
    suite: str | None = None,
    margin: float | None = None,
    published: bool = False,
    notice: Notice = LOG.warning,
    **filters: Unpack[Filters],
) -> list[Report]:
    """The boards of a folder with their figures, for a page.

    suite: first the average over the tasks of this suite with a picture of all, then its tasks alone. Without it, the
    average of each built-in suite whose tasks are all there comes before them.
    """
    from ..board.select_reports import reports_with_published, scored_reports
    from ..plan.suite_file import read_suite
    from ..plan.suites import built_in

    table, predictions, keys = answered(results, notice, filters)
    only = None if suite is None else read_suite(suite).declaration
    known = [read_suite(name).declaration for name in built_in()]
    found = scored_reports(table, predictions, keys, margin, suite=only, known=known)
    return reports_with_published(found) if published else found


def overview(reports: Sequence[Report]) -> Overview:
    """The opening of a page of these reports: who leads each board, and pictures of all tasks."""
    from ..board.overview import overview_of

    return overview_of(reports)


def compare(
    one: str,
    other: str = "softmax",
    results: str | Path | Records = RESULTS,
    *,
    margin: float | None = None,
    notice: Notice = LOG.warning,
    **filters: Unpack[Filters],
) -> list[Comparison]:
    """Compare two variants on each board that has both, with intervals and in words.

    Raises SelectionError where no board has both.
    """
    from ..board.compare import compare_on_boards

    table, predictions, keys = answered(results, notice, filters)
    return compare_on_boards(table, keys, _as_recorded(one), _as_recorded(other), predictions, margin)


def _as_recorded(variant: str) -> str:
    """`variant` as Records name it, without values that equal their default; a plugin's as it is given."""
    with suppress(SelectionError):
        spec = Spec.parse(variant)
        if "[" in variant and VARIANTS.is_own(spec.name):
            return str(VARIANTS.resolve(spec))
    return variant


def changes(results: str | Path | Records, against: str | Path, notice: Notice = LOG.warning) -> list[CostChange]:
    """The change of each cost over softmax since an older folder, the slowest first; SelectionError for none."""
    from ..board.regression import changes_since

    return changes_since(*(answered(each, notice, {})[::2] for each in (results, against)))
