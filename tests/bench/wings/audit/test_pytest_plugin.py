"""The fixture for pytest-benchmark, used as a stranger would; and the noise that `doctor --noise` measures."""

import json
import os
import subprocess
import sys

import pytest
import torch

from attnbench.bench.run.noise import WINDOWS, measure_noise

TEST = """
def test_linear(attention_benchmark):
    found = attention_benchmark("linear", "sweep[length=64,heads=1,head_dim=16,mode=forward]", budget_seconds=0.1)
    assert found.ratio_low <= found.ratio <= found.ratio_high
    assert found.peak_bytes > 3 * 64 * 16 * 4 and found.implementation == "eager"
    assert 0 <= found.sparsity <= 1 and 0 <= found.block_sparsity <= 1


def test_decoding(attention_benchmark):
    attention_benchmark("softmax", "sweep[length=64,heads=1,head_dim=16,mode=decode]", budget_seconds=0.1)
"""


@pytest.mark.slow
def test_a_strangers_test_file_gets_times_and_our_figures_beside_them(tmp_path):
    pytest.importorskip("pytest_benchmark")
    (tmp_path / "test_mine.py").write_text(TEST)
    command = [sys.executable, "-m", "pytest", "-q", "--benchmark-only", "--benchmark-max-time=0.1"]
    command += ["--benchmark-json=out.json", "-p", "no:cacheprovider", "test_mine.py"]
    # a run of ours under xdist must not look to the stranger's pytest as if it ran under xdist too
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    ran = subprocess.run(command, cwd=tmp_path, env=outside, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = {b["name"]: b for b in json.loads((tmp_path / "out.json").read_text())["benchmarks"]}
    info = found["test_linear"]["extra_info"]
    assert info["ratio_low"] <= info["ratio"] <= info["ratio_high"] and info["peak_bytes"] > 0
    assert info["task"].startswith("sweep[length=64")
    assert found["test_decoding"]["stats"]["rounds"] == 20


def test_loading_the_plugin_costs_no_torch():
    script = "import sys; import attnbench.bench.wings.audit.pytest_plugin; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "False\n"


def test_noise_is_that_of_identical_code(monkeypatch):
    monkeypatch.setattr("attnbench.bench.gate.build.quick_gate", lambda spec, shape, **_: None)
    found = measure_noise(torch.device("cpu"), 0.3, "sweep[length=64,heads=1,head_dim=16,mode=forward]")
    assert len(found.windows) == WINDOWS and found.rounds >= 5 * WINDOWS
    assert found.null.low <= found.null.value <= found.null.high
    assert found.visible >= min(w.high / w.value - 1 for w in found.windows)
    assert 0 <= found.separated <= WINDOWS
