"""Environment that torch and triton read once at import, and data that tests of tasks and commands share."""

from __future__ import annotations

import getpass
import os
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from seeds import seed
from small_run import SmallRun, small_run_in

if TYPE_CHECKING:
    from attnbench.tasks.contract import DataPlace

# One thread for each process of pytest; a test that needs two sets them. Threads that wait sleep, since spinning ones
# take the cores from the other processes.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# the compiler's cache does not tell processors apart: code that it made for AVX-512 would meet headers without it
if capability := os.environ.get("ATEN_CPU_CAPABILITY"):
    folder = Path(tempfile.gettempdir()) / f"torchinductor-{getpass.getuser()}-{capability}"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))
# without a GPU, Triton kernels are proved in its interpreter; torch.compile on CPU works as before
if shutil.which("nvidia-smi") is None:
    os.environ.setdefault("TRITON_INTERPRET", "1")

REVIEWS = {
    "train/neg": ["awful", "a line\u0085still the same line", "dull \u2028 dull", "twice", "twice", "in both splits"],
    "train/pos": ["great", "fine", "caf\u00e9 \U0001f600", "lovely", "good", "superb"],
    "test/neg": ["bad", "in both splits", "worse"],
    "test/pos": ["best", "better", "nice"],
}


@pytest.fixture(autouse=True)
def _drawn_from_one_seed() -> None:
    """What a test draws depends neither on the tests before it nor on which process runs it."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed())


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> SmallRun:
    """A run of two variants, made once for all processes of the session; tests only read it."""
    folder = tmp_path_factory.getbasetemp()
    # with xdist each process has a folder of its own below that of the session
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    return small_run_in(folder / "small-run")


@pytest.fixture
def own_results(small_run: SmallRun, tmp_path: Path) -> Path:
    """A copy of the results of `small_run`, which one test may change."""
    return Path(shutil.copytree(small_run.results, tmp_path / "results"))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataPlace:
    """Empty folders, no network, and no data of the machine's own."""
    from attnbench.tasks.contract import DataPlace

    for name in ("ATTNBENCH_DATA", "ATTNBENCH_CACHE", "XDG_CACHE_HOME", "TFDS_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "root").mkdir()
    return DataPlace(root=tmp_path / "root", cache=tmp_path / "cache", offline=True, notice=lambda message: None)


@pytest.fixture
def tree(place: DataPlace) -> Path:
    """A small aclImdb/ tree under the root, with files that a reader must pass over."""
    root = place.root / "aclImdb"
    for folder, texts in REVIEWS.items():
        (root / folder).mkdir(parents=True)
        for index, text in enumerate(texts):
            (root / folder / f"{index}_7.txt").write_text(text, encoding="utf-8", newline="\n")
    (root / "train" / "unsup").mkdir()
    (root / "train" / "unsup" / "0_0.txt").write_text("no label", encoding="utf-8")
    (root / "README").write_text("not a review", encoding="utf-8")
    return root


@pytest.fixture
def real_data() -> Path:
    root = os.environ.get("ATTNBENCH_DATA", "")
    if not root:
        pytest.skip("real data: ATTNBENCH_DATA is not set")
    return Path(root)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Prints the torture cases tried and passed; here, since with several processes only this file is read in time."""
    tried: Counter[str] = Counter()
    passed: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "teardown":
                for name, value in report.user_properties:
                    if name == "torture":
                        kind, cases, good = value
                        tried[kind] += cases
                        passed[kind] += good
    if tried:
        again = os.environ.get("ATTNBENCH_TEST_SEED", "0")
        terminalreporter.section(f"torture: cases passed of those tried, ATTNBENCH_TEST_SEED={again}")
        for kind in sorted(tried):
            terminalreporter.write_line(f"{kind:52} {passed[kind]:6} / {tried[kind]:6}")
        terminalreporter.write_line(f"{'all':52} {passed.total():6} / {tried.total():6}")
