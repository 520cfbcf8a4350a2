"""Energy by counters: a fake NVML, and RAPL in a folder; where neither can be read there is a reason and no zero."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fake_cuda import install

from attnbench.bench.core.record import Measurement
from attnbench.bench.core.spec import Spec
from attnbench.bench.measure import energy as module
from attnbench.bench.measure.energy import Energy, energy_of
from attnbench.bench.measure.system_load import SystemLoad
from attnbench.bench.measure.timer import Samples, TimingRun
from attnbench.bench.run.lanes.timing_record import energy
from attnbench.bench.run.workloads.sweep_point import point_of

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


class NvmlError(Exception):
    """As of pynvml."""


class FakeNvml:
    """Counts what work puts into it; a device from before Volta has no counter."""

    def __init__(self, supported: bool = True) -> None:
        self.millijoules, self.open, self.asked = 5_000_000, 0, []
        self.supported = supported
        self.module = SimpleNamespace(
            NVMLError=NvmlError, nvmlInit=self.init, nvmlShutdown=self.shutdown,
            nvmlDeviceGetHandleByUUID=self.asked.append, nvmlDeviceGetTotalEnergyConsumption=self.total,
        )  # fmt: skip

    def init(self) -> None:
        self.open += 1

    def shutdown(self) -> None:
        self.open -= 1

    def total(self, handle: object) -> int:
        assert self.open
        if not self.supported:
            raise NvmlError("Not Supported")
        return self.millijoules


def with_nvml(monkeypatch: pytest.MonkeyPatch, supported: bool = True) -> FakeNvml:
    install(monkeypatch)
    fake = FakeNvml(supported)
    monkeypatch.setitem(sys.modules, "pynvml", fake.module)
    monkeypatch.setattr(module, "find_spec", lambda name: object())
    return fake


def test_energy_of_a_gpu_is_what_its_counter_grew_by_over_a_run_that_is_long_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake, calls = with_nvml(monkeypatch), []

    def work() -> None:
        calls.append(0)
        fake.millijoules += 250

    found = energy_of(work, 0.125, GPU)
    assert isinstance(found, Energy)
    assert (found.joules, found.units, found.source) == (0.25, 16, "nvml")
    assert len(calls) == 16 and fake.open == 0 and set(fake.asked) == {"GPU-00000000"}


def test_a_gpu_without_a_counter_gives_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    with_nvml(monkeypatch, supported=False)
    assert energy_of(lambda: None, 1.0, GPU) == "NVML has no energy counter here: Not Supported"
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    assert "pip install 'attnbench[nvml]'" in str(energy_of(lambda: None, 1.0, GPU))


def test_a_counter_that_stands_still_is_no_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    with_nvml(monkeypatch)
    assert "did not move" in str(energy_of(lambda: None, 1.0, GPU))


def package(folder: Path, number: int, microjoules: int, name: str = "package-0", most: int = 262_143_328_850) -> Path:
    made = folder / f"intel-rapl:{number}"
    made.mkdir(parents=True)
    for file, value in {"name": name, "energy_uj": microjoules, "max_energy_range_uj": most}.items():
        (made / file).write_text(f"{value}\n")
    return made / "energy_uj"


def test_energy_of_a_processor_is_the_sum_over_its_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "POWERCAP", tmp_path)
    one, two = package(tmp_path, 0, 1_000_000), package(tmp_path, 1, 7_000_000, "package-1")
    package(tmp_path, 2, 0, "psys")

    def work() -> None:
        one.write_text(f"{int(one.read_text()) + 3_000_000}\n")
        two.write_text(f"{int(two.read_text()) + 1_000_000}\n")

    found = energy_of(work, 1.0, CPU)
    assert isinstance(found, Energy) and (found.joules, found.units, found.source) == (4.0, 2, "rapl")


def test_a_counter_that_starts_again_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "POWERCAP", tmp_path)
    counter = package(tmp_path, 0, 9_000_000, most=10_000_000)
    found = energy_of(lambda: counter.write_text("1000000\n"), 5.0, CPU)
    assert isinstance(found, Energy) and found.joules == 2.0


def test_counters_that_are_absent_or_for_root_alone_give_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "POWERCAP", tmp_path)
    assert energy_of(lambda: None, 1.0, CPU) == f"there are no RAPL counters in {tmp_path}"
    package(tmp_path, 0, 1)

    def refused(self: object) -> float:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(module.RaplCounter, "read", refused)
    assert "root alone" in str(energy_of(lambda: None, 1.0, CPU))


@pytest.mark.parametrize(("task", "preset", "reason"), [
    ("sweep[length=32,mode=decode]", "quick", "takes its state back"),
    ("sweep[length=32,mode=forward]", "quick[timing_seconds=2]", "timing_seconds of 2"),
    ("sweep[length=32,mode=forward]", "quick", "no RAPL counters"),
])  # fmt: skip
def test_a_point_tells_why_it_has_no_energy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, task: str, preset: str, reason: str
) -> None:
    monkeypatch.setattr("attnbench.bench.gate.build.quick_gate", lambda spec, shape, **_: None)
    monkeypatch.setattr(module, "POWERCAP", tmp_path)
    workloads = point_of(task, CPU, preset)
    timing = TimingRun(samples={"softmax": Samples(seconds=[1.0])}, rounds=1, stopped="", system_load=SystemLoad())
    found = energy(workloads, workloads.workload(Spec("softmax")), "softmax", timing)
    assert reason in str(found) and not isinstance(found, Measurement)


def test_a_point_has_the_energy_of_one_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnbench.bench.gate.build.quick_gate", lambda spec, shape, **_: None)
    given = Energy(joules=3.0, units=4, seconds=2.5, source="rapl")
    monkeypatch.setattr("attnbench.bench.run.lanes.timing_record.energy_of", lambda *_: given)
    workloads = point_of("sweep[length=32,mode=forward]", CPU)
    timing = TimingRun(samples={"softmax": Samples(seconds=[1.0])}, rounds=1, stopped="", system_load=SystemLoad())
    found = energy(workloads, workloads.workload(Spec("softmax")), "softmax", timing)
    assert isinstance(found, Measurement)
    assert (found.value, found.unit, found.where) == (3.0, "J", {"source": "rapl", "units": 4, "seconds": 2.5})
