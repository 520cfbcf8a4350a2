"""Changes since an older folder: what became slower is named, noise is not, and a failure counts."""

from pathlib import Path

import pytest

from attnbench.bench.api.pages import changes
from attnbench.bench.core.errors import SelectionError
from attnbench.bench.store.store import Store

SOFTMAX = [1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 1.0]


def folder(bench, path: Path, factors: dict[str, float], noise: float = 0.002) -> Path:
    b = bench(task="sweep")
    for name, factor in ({"softmax": 1.0} | factors).items():
        b.time(name, [factor * s * (1 + noise * (-1) ** at) for at, s in enumerate(SOFTMAX)], SOFTMAX)
    store = Store(path, print)
    for record in b.records:
        store.append(record)
    return path


def test_only_what_is_shown_to_be_slower_fails(bench, tmp_path) -> None:
    old = folder(bench, tmp_path / "old", {"rela": 2.0, "linear": 0.5, "local": 1.0})
    new = folder(bench, tmp_path / "new", {"rela": 2.2, "linear": 0.51, "local": 0.9})
    found = {change.variant: change for change in changes(new, old)}
    assert list(found) == ["rela", "linear", "local"]
    assert found["rela"].times.value == pytest.approx(1.1, rel=0.01)
    assert [name for name, change in found.items() if change.is_slower(0.05)] == ["rela"]
    assert [name for name, change in found.items() if change.is_slower(0.01)] == ["rela", "linear"]
    assert found["rela"].words.startswith("rela on sweep, a training step: +10.0 % (")


def test_a_change_within_the_noise_does_not_fail(bench, tmp_path) -> None:
    old = folder(bench, tmp_path / "old", {"rela": 1.0}, noise=0.5)
    new = folder(bench, tmp_path / "new", {"rela": 1.1}, noise=0.5)
    (change,) = changes(new, old)
    assert change.times.value > 1.05 and not change.is_slower(0.05)


def test_folders_that_share_no_time_are_refused(bench, tmp_path) -> None:
    old, new = folder(bench, tmp_path / "old", {"rela": 1.0}), folder(bench, tmp_path / "new", {"linear": 1.0})
    with pytest.raises(SelectionError, match="expected times of the same task"):
        changes(new, old)
