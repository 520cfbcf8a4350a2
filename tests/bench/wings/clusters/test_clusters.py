"""Jobs through submitit and Ray: whatever dies, every Cell has one Record."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from attnbench.bench.core.cell import Cell, Job
from attnbench.bench.core.errors import StoreError
from attnbench.bench.core.record import Outcome
from attnbench.bench.core.spec import Spec
from attnbench.bench.run.executors.engines import status_of
from attnbench.bench.run.executors.executor import Needs
from attnbench.bench.store.store import Store
from attnbench.bench.wings.clusters.job_files import JobFiles, Submission
from attnbench.bench.wings.clusters.settings import SlurmOptions
from attnbench.bench.wings.clusters.slurm import SlurmExecutor

pytest.importorskip("submitit", reason="the extra slurm is not installed")

SUPPORT = Path(__file__).parents[3] / "support"
VARIANTS = "softmax,rela,linear"
PATIENCE = 120.0


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where fake workers read what to do and write that they have started; see `support/fake_worker.py`."""
    folder = tmp_path / "notes"
    folder.mkdir()
    monkeypatch.setenv("FAKE_NOTES", str(folder))
    path = os.pathsep.join(filter(None, [str(SUPPORT), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)
    # shells of the machine's owner have no say
    monkeypatch.setenv("HOME", str(tmp_path))
    return folder


def driver(results: Path, executor: str, jobs: int, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(SUPPORT / "fake_blocks.py"), str(results), VARIANTS, executor, str(jobs), *options]
    # no pipe: what outlives a killed driver would keep it open
    with (results.parent / "said").open("a") as said:
        return subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, text=True)


def ended(process: subprocess.Popen[str], results: Path) -> str:
    code = process.wait(timeout=PATIENCE)
    said = (results.parent / "said").read_text(encoding="utf-8")
    assert code == 0, said
    return said


def wait_until(holds: Callable[[], object], what: str) -> None:
    ends = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < ends, f"waited {PATIENCE:g} s until {what}"
        time.sleep(0.05)


def outcomes(results: Path) -> dict[str, list[Outcome]]:
    """All Records, by variant: a doubled one is seen."""
    found: dict[str, list[Outcome]] = {}
    for record in Store(results).records():
        found.setdefault(record.cell.variant.name, []).append(record.outcome)
    return found


def starts(notes: Path, variant: str) -> list[int]:
    path = notes / f"{variant}.starts"
    return [int(line) for line in path.read_text(encoding="ascii").split("\n") if line] if path.exists() else []


EACH_ONCE = {name: [Outcome.OK] for name in VARIANTS.split(",")}


def in_this_process(results: Path) -> None:
    """submitit's `debug` runs jobs where it is called."""
    code = "import sys, fake_blocks; from pathlib import Path; fake_blocks.drive(fake_blocks.runner(Path(sys.argv[1]), "
    code += f"{VARIANTS!r}, 'slurm', cluster='debug'))"
    subprocess.run([sys.executable, "-c", code, str(results)], check=True, capture_output=True, timeout=PATIENCE)


@pytest.mark.slow
def test_submitit_brings_every_block_to_a_record_and_leaves_nothing_to_do(tmp_path: Path, notes: Path) -> None:
    for _ in range(2):
        in_this_process(tmp_path / "r")
        assert outcomes(tmp_path / "r") == EACH_ONCE
    assert [len(starts(notes, name)) for name in EACH_ONCE] == [1, 1, 1]
    (record, *_) = Store(tmp_path / "r").records()
    assert (record.executor, record.device) == ("slurm", "cpu") and record.node


def test_a_folder_that_others_may_write_in_is_refused() -> None:
    """Whoever may write there could give the nodes another pickle to run."""
    # not below the folder of the tests, which others cannot enter
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        results = Path(folder) / "r"
        executor = SlurmExecutor(results, JobFiles(results), SlurmOptions(cluster="local"), 1, print)
        with pytest.raises(StoreError, match="nobody else can write in"):
            executor._engine(Needs(gpus=0, threads=1))


def test_a_process_that_a_job_file_names_lives_on_unless_it_is_ours(tmp_path: Path) -> None:
    """Numbers of processes are given again, and whoever may write in the folder may name any."""
    cell = Cell(variant=Spec("rela"), task=Spec("t"), preset=Spec("smoke"))
    job = Job(id="0123456789abcdef", cells=(cell,), digests={}, device="cpu", results=tmp_path,
              data_dir=None, offline=True)  # fmt: skip
    files = JobFiles(tmp_path)
    with subprocess.Popen(["sleep", "60"]) as other:
        files.submit(Submission(block=job.id, lane="train", cells={}, executor="slurm", handle=str(other.pid)))
        executor = SlurmExecutor(tmp_path, files, SlurmOptions(cluster="local"), 1, print)
        executor.submit(job, Needs(gpus=0, threads=1))
        executor.cancel(job.id)
        assert other.poll() is None
        other.kill()


@pytest.mark.soak
@pytest.mark.parametrize("executor", ["slurm", "ray"])
def test_a_child_that_dies_and_one_that_is_too_slow_are_outcomes(tmp_path: Path, notes: Path, executor: str) -> None:
    _needs(executor)
    (notes / "rela.does").write_text("die", encoding="ascii")
    (notes / "linear.does").write_text("sleep", encoding="ascii")
    options = ["timeout=8", *(["cluster=local"] if executor == "slurm" else [])]
    ended(driver(tmp_path / "r", executor, 2, *options), tmp_path / "r")
    assert outcomes(tmp_path / "r") == {
        "softmax": [Outcome.OK], "rela": [Outcome.CRASHED], "linear": [Outcome.TIMEOUT],
    }  # fmt: skip
    assert {len(starts(notes, name)) for name in EACH_ONCE} == {1}
    assert status_of(tmp_path / "r").counts == {"failed": 2, "done": 1}


@pytest.mark.soak
def test_a_killed_driver_of_slurm_submits_nothing_twice_and_collects_what_ended_meanwhile(
    tmp_path: Path, notes: Path
) -> None:
    results = tmp_path / "r"
    (notes / "softmax.does").write_text("sleep", encoding="ascii")
    (notes / "rela.does").write_text("sleep", encoding="ascii")
    first = driver(results, "slurm", 2, "cluster=local")
    wait_until(lambda: starts(notes, "softmax") and starts(notes, "rela"), "two jobs run")
    assert status_of(results).counts.get("running") == 2 and status_of(results).submitting
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert not status_of(results).submitting
    # one ends while nobody looks, the other still runs when the same command comes again
    (notes / "softmax.go").touch()
    files = JobFiles(results)
    wait_until(lambda: sum(map(files.is_running, files.blocks_with_events())) == 1, "a job has ended")
    second = driver(results, "slurm", 2, "cluster=local")
    wait_until(lambda: starts(notes, "linear"), "what was not submitted runs")
    (notes / "rela.go").touch()
    ended(second, results)
    assert outcomes(results) == EACH_ONCE
    assert [len(starts(notes, name)) for name in EACH_ONCE] == [1, 1, 1]
    assert status_of(results).counts == {"done": 3}


@pytest.mark.soak
def test_a_preempted_block_of_slurm_goes_on(tmp_path: Path, notes: Path) -> None:
    results = tmp_path / "r"
    (notes / "rela.does").write_text("sleep", encoding="ascii")
    running = driver(results, "slurm", 3, "cluster=local")
    wait_until(lambda: starts(notes, "rela"), "the job runs")
    (pid,) = starts(notes, "rela")
    # as Slurm does it: the signal reaches submitit's process on the node
    process = next(p for p in psutil.Process(pid).parents() if "submitit.core._submit" in p.cmdline())
    process.send_signal(signal.SIGUSR2)
    wait_until(lambda: len(starts(notes, "rela")) == 2, "it is started again")
    (notes / "rela.go").touch()
    ended(running, results)
    assert outcomes(results) == EACH_ONCE
    assert [len(starts(notes, name)) for name in EACH_ONCE] == [1, 2, 1]


@pytest.mark.soak
@pytest.mark.parametrize("told", [signal.SIGKILL, signal.SIGTERM])
def test_a_job_that_the_engine_ends_is_submitted_again(tmp_path: Path, notes: Path, told: signal.Signals) -> None:
    """Slurm sends SIGTERM to all processes of a job at once; the end of the child is no outcome then."""
    results = tmp_path / "r"
    (notes / "rela.does").write_text("sleep", encoding="ascii")
    running = driver(results, "slurm", 3, "cluster=local")
    wait_until(lambda: starts(notes, "rela"), "the job runs")
    (pid,) = starts(notes, "rela")
    ancestors = [p for p in psutil.Process(pid).parents() if "submitit." in " ".join(p.cmdline())]
    for process in [psutil.Process(pid), *psutil.Process(pid).parents()[:3]] if told == signal.SIGTERM else ancestors:
        process.send_signal(told)
    wait_until(lambda: len(starts(notes, "rela")) == 2, "it is submitted again")
    (notes / "rela.go").touch()
    assert "submitted again" in ended(running, results)
    assert outcomes(results) == EACH_ONCE


def _needs(executor: str) -> None:
    if executor == "ray":
        pytest.importorskip("ray", reason="the extra ray is not installed")


@pytest.mark.soak
@pytest.mark.parametrize("shared", [True, False])
def test_a_block_whose_ray_worker_is_lost_starts_again(tmp_path: Path, notes: Path, shared: bool) -> None:
    _needs("ray")
    results = tmp_path / "r"
    (notes / "rela.does").write_text("sleep", encoding="ascii")
    running = driver(results, "ray", 3, *([] if shared else ["share="]))
    wait_until(lambda: starts(notes, "rela"), "the job runs")
    (pid,) = starts(notes, "rela")
    worker = next(p for p in psutil.Process(pid).parents() if "attnbench.bench.process.server" not in p.cmdline())
    worker.kill()
    wait_until(lambda: len(starts(notes, "rela")) == 2, "it is started again")
    (notes / "rela.go").touch()
    ended(running, results)
    assert outcomes(results) == EACH_ONCE
    assert [len(starts(notes, name)) for name in EACH_ONCE] == [1, 2, 1]


def ray_processes() -> set[psutil.Process]:
    """Those of clusters that attnbench has started, with their descendants."""
    found = set()
    for process in psutil.process_iter(["cmdline"]):
        if any("/tmp/ray-" in word for word in process.info["cmdline"] or ()):
            found |= {process, *process.children(recursive=True)}
    return found


@pytest.mark.soak
def test_a_terminated_run_on_ray_says_so_in_one_line(tmp_path: Path) -> None:
    _needs("ray")
    command = [sys.executable, "-m", "attnbench", "run", "--variants", "softmax", "--task", "recall", "--seeds", "1"]
    command += ["--preset", "quick", "--lanes", "train", "--threads", "1", "--executor", "ray", "--results"]
    running = subprocess.Popen(
        [*command, str(tmp_path / "r")], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    wait_until(lambda: list((tmp_path / "r" / "jobs").glob("*.events")), "a job runs")
    running.send_signal(signal.SIGTERM)
    _, said = running.communicate(timeout=PATIENCE)
    assert running.returncode == 128 + signal.SIGTERM
    assert "SIGTERM" in said.rstrip("\n").split("\n")[-1] and "@" not in said and "stack" not in said.lower(), said
    wait_until(lambda: not ray_processes(), "all processes of Ray have ended")


@pytest.mark.soak
def test_a_killed_driver_of_ray_goes_on_with_what_has_no_record(tmp_path: Path, notes: Path) -> None:
    _needs("ray")
    results = tmp_path / "r"
    (notes / "rela.does").write_text("sleep", encoding="ascii")
    first = driver(results, "ray", 1)
    wait_until(lambda: starts(notes, "rela"), "the second job runs")
    (pid,) = starts(notes, "rela")
    before, folders = ray_processes(), set(Path("/tmp").glob("ray-*"))
    first.send_signal(signal.SIGKILL)
    first.wait()
    killed = time.monotonic()
    wait_until(lambda: not psutil.pid_exists(pid), "what it ran has ended with it")
    wait_until(lambda: not any(each.is_running() for each in before), "all processes of Ray have ended")
    wait_until(lambda: not any(each.exists() for each in folders), "its folder has gone")
    assert before and time.monotonic() - killed < 30
    (notes / "rela.go").touch()
    ended(driver(results, "ray", 1), results)
    assert outcomes(results) == EACH_ONCE
    assert [len(starts(notes, name)) for name in EACH_ONCE] == [1, 2, 1]


@pytest.mark.soak
@pytest.mark.parametrize("executor", ["slurm", "ray"])
def test_the_numbers_are_those_of_this_machine(tmp_path: Path, notes: Path, executor: str) -> None:
    """Real training, whole commands: the same Records but for times, places and names."""
    _needs(executor)
    found = {}
    for name in ("local", executor):
        command = [sys.executable, "-m", "attnbench", "run", "--variants", "softmax", "--task", "lra-listops"]
        command += ["--preset", "smoke", "--lanes", "baseline,train", "--threads", "1", "--device", "cpu"]
        command += ["--executor", name, "--results", str(tmp_path / name)]
        command += ["--executor-option", "cluster=local"] if name == "slurm" else []
        ran = subprocess.run(command, capture_output=True, text=True, timeout=5 * PATIENCE)
        assert ran.returncode == 0, ran.stderr
        records = list(Store(tmp_path / name).records())
        assert {record.executor for record in records} == {name} and len(records) > 1
        found[name] = {
            record.key: (record.outcome, record.digest, record.artifacts.get("predictions"), [
                measured for measured in record.measurements if measured.name not in ("train_seconds", "data_share")
            ])
            for record in records
        }  # fmt: skip
    assert found["local"] == found[executor]
