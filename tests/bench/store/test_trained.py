"""Trained cells by the beginning of their key."""

from pathlib import Path

import pytest

from attnbench.bench.core.errors import SelectionError
from attnbench.bench.store.store import Store
from attnbench.bench.store.trained import find_trained


def test_cells_of_strangers_are_listed_in_short_lines(bench, tmp_path: Path) -> None:
    store, made = Store(tmp_path), bench()
    made.train(f"rela[{'a' * 400}={'b' * 400}]", [0.5])
    store.append(made.records[0])
    with pytest.raises(SelectionError) as refused:
        find_trained(store, "nothing")
    (note,) = refused.value.__notes__
    assert note.split("  ")[1].startswith("rela[aaa") and len(note) < 300
