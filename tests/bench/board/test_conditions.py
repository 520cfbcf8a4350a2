"""What a board says of the machine that its times come from."""

import tempfile
from pathlib import Path

import pytest
import torch

from attnbench.bench.board.length_board import board_for_lengths, sweeps
from attnbench.bench.core.record import Measurement
from attnbench.bench.measure import gpu as nvml
from attnbench.bench.measure import roofline as calibration
from attnbench.bench.measure import system_load as foreign
from attnbench.bench.measure.gpu import Gpu, parse_query, read_gpu
from attnbench.bench.measure.roofline import peaks
from attnbench.bench.measure.system_load import LoadMonitor, SystemLoad
from attnbench.bench.score.key import board_keys
from attnbench.bench.store.table import table_of

TIMES = [1.0, 1.02, 0.98, 1.01, 0.99]
GPU = Gpu(clock_mhz=1980.0, memory_clock_mhz=3201.0, celsius=41.0, watts=120.5, throttled=("power cap",), others=1)


def test_nvidia_smi_is_read() -> None:
    assert (
        parse_query(
            "1980, 3201, 41, 120.50, 0x0000000000000004\n",
            "77\n78\n",
        )
        == GPU
    )
    assert parse_query("1980, 3201, 41, [N/A], 0x0\n", "77\n").throttled == ()
    assert parse_query("Failed to initialize NVML\n", "") is None


def test_a_machine_without_a_gpu_has_no_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(nvml, "find_spec", lambda name: None)
    assert read_gpu("GPU-0") is None


def test_only_what_disturbs_is_noted() -> None:
    assert SystemLoad(cores=0.1).note == ""
    assert SystemLoad(cores=1.5).note.startswith("other processes used 1.50 cores")
    assert SystemLoad(gpu=GPU, throttled=("power cap",)).note == (
        "other processes on the GPU: 1; the GPU was throttled by power cap"
    )


def test_our_own_work_is_not_foreign(monkeypatch: pytest.MonkeyPatch) -> None:
    now = {"busy": 100.0, "own": 10.0, "wall": 0.0}
    monkeypatch.setattr(foreign, "_busy_seconds", lambda: now["busy"])
    monkeypatch.setattr(foreign.time, "process_time", lambda: now["own"])
    monkeypatch.setattr(foreign.time, "perf_counter", lambda: now["wall"])
    watch = LoadMonitor(torch.device("cpu"))
    # of 3 busy seconds within 2 of the clock, 2 were ours
    now.update(busy=103.0, own=12.0, wall=2.0)
    assert watch.seen().cores == pytest.approx(0.5)


def test_the_best_peaks_of_a_machine_are_kept_and_a_broken_cache_is_done_without(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(calibration, "SECONDS", 0.02)
    first = peaks(torch.device("cpu"), torch.float32, "box", tmp_path)
    assert first.flops_per_second > 1e8 and first.bytes_per_second > 1e7
    (file,) = (tmp_path / "calibration").glob("*.json")
    earlier = '{"flops_per_second": 1e30, "bytes_per_second": 1.0}'
    file.write_text(earlier)
    kept = peaks(torch.device("cpu"), torch.float32, "box", tmp_path)
    assert kept.flops_per_second == 1e30 and kept.bytes_per_second > 1e7
    for broken in ("{", "[" * 100_000, '{"flops_per_second": 1e300, "bytes_per_second": 1.0}'):
        file.write_text(broken)
        assert peaks(torch.device("cpu"), torch.float32, "box", tmp_path).flops_per_second < 1e30


def test_peaks_that_anybody_may_have_written_are_not_believed(monkeypatch) -> None:
    monkeypatch.setattr(calibration, "SECONDS", 0.02)
    # the temporary folder of pytest is one that others cannot enter
    with tempfile.TemporaryDirectory() as folder:
        for path in (Path(folder), Path(folder, "calibration")):
            path.mkdir(exist_ok=True)
            path.chmod(0o777)
        Path(folder, "calibration", "box-float32.json").write_text(
            '{"flops_per_second": 1e30, "bytes_per_second": 1.0}'
        )
        assert peaks(torch.device("cpu"), torch.float32, "box", Path(folder)).flops_per_second < 1e30


def board(bench, null=None, **more):
    b = bench(task="sweep")
    for length in (256, 512):
        b.task = f"sweep[length={length}]"
        extra = [Measurement.of(name, value, **where) for name, (value, where) in more.get(str(length), {}).items()]
        b.time("softmax", TIMES, TIMES, null, setting={"length": length}, block=f"b{length}", more=extra)
    table = table_of(b.records)
    (found,) = sweeps(table, board_keys(table))
    warnings = [note for note in board_for_lengths(table, found).notes if note.warning and note.topic != "version"]
    return {(note.topic, note.warning): note.text for note in warnings}


def test_a_quiet_machine_gives_no_warning(bench) -> None:
    quiet = {"canary_seconds": (1.0, {"drift": 0.02}), "host_bound": (0.0, {})}
    assert board(bench, **{"256": quiet, "512": quiet}) == {}


def test_a_board_says_when_its_own_aa_test_separates(bench) -> None:
    slower = [1.3 * t for t in TIMES]
    assert "1.300× (1.300–1.300) at length 256, 512" in board(bench, null=slower)["A/A test", True]


def test_a_canary_that_moved_inside_a_block_or_between_blocks_is_told(bench) -> None:
    inside = board(bench, **{"256": {"canary_seconds": (1.0, {"drift": 0.3})}})
    assert "+30 %" in inside["machine speed", True] and "256" in inside["machine speed", True]
    between = board(bench, **{"256": {"canary_seconds": (1.0, {})}, "512": {"canary_seconds": (2.0, {})}})
    assert "67 % at 256, 133 % at 512" in between["machine speed", True]


def test_a_ratio_that_changes_within_its_rounds_is_told(bench) -> None:
    b = bench(task="sweep[length=256]")
    noise, given = [1 + 0.001 * (at % 3) for at in range(40)], {"setting": {"length": 256}}
    b.time("softmax", noise, noise, **given)
    b.time("steady", [2 * t for t in noise[1:] + noise[:1]], noise, **given)
    b.time("moved", [(2 if at < 20 else 3) * t for at, t in enumerate(noise)], noise, **given)
    table = table_of(b.records)
    (found,) = sweeps(table, board_keys(table), least=1)
    (told,) = [note.text for note in board_for_lengths(table, found).notes if note.topic == "halves"]
    assert "for moved, at most 50.0 %" in told and "steady" not in told


def test_launching_that_takes_as_long_as_the_work_is_told(bench) -> None:
    assert "length 256 launching" in board(bench, **{"256": {"host_bound": (0.9, {})}})["host bound", True]
