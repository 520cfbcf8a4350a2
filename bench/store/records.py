"""Records of one selection as a sequence, and as a table of their measurements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, overload

from ..core.cell import Cell
from ..core.record import Outcome, Record
from ..core.spec import Spec

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Records(Sequence[Record]):
    """The Records of one selection, those that failed among them.

    `results`: the folder that holds them. `measured`: those that the call made itself; the others were there before.
    `left_out`: tasks whose plugins did not load, and which have none. `missing`: cells without a Record, since an
    engine lost them; the next run tries them again.
    """

    results: Path
    records: tuple[Record, ...]
    measured: tuple[Record, ...] = ()
    left_out: tuple[Spec, ...] = ()
    missing: tuple[Cell, ...] = ()

    def __len__(self) -> int:
        return len(self.records)

    @overload
    def __getitem__(self, at: int) -> Record: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Record, ...]: ...
    def __getitem__(self, at: int | slice) -> Record | tuple[Record, ...]:
        return self.records[at]

    def __repr__(self) -> str:
        outcomes = Counter(str(record.outcome) for record in self.records)
        listed = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items()) or "none"
        return f"<{len(self)} Records in {self.results}: {listed}>"

    @property
    def failures(self) -> tuple[Record, ...]:
        """The Records whose outcome is not `ok`; each has a reason."""
        return tuple(record for record in self.records if record.outcome is not Outcome.OK)

    def to_pandas(self) -> pd.DataFrame:
        """One row for each measurement; a Record without any has one row, with its outcome and reason.

        Columns: `key`, `variant`, `task`, `preset`, `seed`, `lane`, `selection`, `outcome`, `reason`, `machine`,
        `implementation`, `version`, `started`, `seconds`, then `name`, `value` and `unit` of the measurement and what
        narrows it, such as `split` and `layer`.

        >>> found = attnbench.records("results").to_pandas()                                       # doctest: +SKIP
        >>> tested = found[(found["name"] == "accuracy") & (found["split"] == "test")]             # doctest: +SKIP
        >>> tested.groupby(["task", "variant"])["value"].mean()                                    # doctest: +SKIP
        """
        import pandas as pd

        return pd.DataFrame([row for record in self.records for row in _rows(record)])


def _rows(record: Record) -> Iterator[dict[str, object]]:
    cell = record.cell
    shared = {
        "key": record.key,
        **{name: str(getattr(cell, name)) for name in ("variant", "task", "preset")},
        **{name: getattr(cell, name) for name in ("seed", "lane", "selection")},
        "outcome": str(record.outcome),
        "reason": record.reason,
        "machine": record.machine.id,
        **{name: getattr(record, name) for name in ("implementation", "version", "started", "seconds")},
    }
    for measurement in record.measurements:
        named = {name: getattr(measurement, name) for name in ("name", "value", "unit")}
        yield shared | named | {name: at for name, at in measurement.where.items() if name not in shared | named}
    if not record.measurements:
        yield shared
