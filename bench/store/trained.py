"""Trained Cells by the beginning of their key. Without torch, so that a wrong key is answered at once."""

from __future__ import annotations

from ..core.decode import brief
from ..core.errors import SelectionError
from ..core.record import Outcome, Record
from .store import Store

SHOWN = 20
"""Cells that an error lists."""


def find_trained(store: Store, key: str) -> Record:
    """Find the newest Record of training whose Cell's key begins with `key`.

    Raises SelectionError, with the keys as its notes, where no Cell or several Cells fit.
    """
    trained = {
        record.key: record for record in store.records() if record.cell.lane == "train" and record.outcome is Outcome.OK
    }
    found = [record for name, record in trained.items() if name.startswith(key)]
    if not trained:
        example = "`attnbench run --variants rela --task tinyshakespeare`"
        raise SelectionError(f"no trained cell in {store.root}; {example} trains some, or name a folder with --results")
    if len(found) != 1:
        named = [record for record in trained.values() if key in str(record.cell)]
        shown = sorted(found or named or trained.values(), key=lambda record: str(record.cell))[:SHOWN]
        problem = SelectionError(
            f"expected the beginning of one key, got {key!r}, which fits {len(found)} of the {len(trained)} cells "
            f"trained in {store.root}"
        )
        for record in shown:
            problem.add_note(f"{record.key}  {brief(record.cell)}")
        if (more := len(found or named or trained) - len(shown)) > 0:
            problem.add_note(f"and {more:,} more; a word such as a variant or a task narrows the list")
        raise problem
    return found[0]
