"""Every Triton kernel compiles for the GPUs and by the Tritons that it claims to, which needs no GPU.

Cases come from `COMPILE_CASES` of each module `variants/kernels/triton/*.py`, so a new one joins by being there. Other
Tritons than the installed one are taken from folders `triton-VERSION` of ATTNBENCH_TRITONS, by default build/tritons;
pip puts there what is missing (200 MB each), and where it cannot, the test is skipped.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import compiled_kernels
import pytest

pytest.importorskip("triton", reason="Triton is not installed")
import attnbench.variants.kernels.triton

CAPABILITIES = (80, 90, 100)
LARGEST_SHARED_BYTES = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
"""What a block of threads may take."""
TRITONS = ("3.6.0", "3.7.1", "3.9.0")
"""The oldest and the newest that pyproject.toml allows, and the one that is pinned."""
ROOT = Path(attnbench.__file__).parent


def modules() -> list[str]:
    folder = Path(attnbench.variants.kernels.triton.__file__).parent
    return sorted(path.stem for path in folder.glob("*.py") if "COMPILE_CASES = " in path.read_text())


def path_of(version: str) -> str:
    """What goes before the installed packages for that Triton; empty for the installed one."""
    if importlib.metadata.version("triton") == version:
        return ""
    folder = Path(os.environ.get("ATTNBENCH_TRITONS", ROOT / "build" / "tritons")) / f"triton-{version}"
    if not folder.exists():
        making = Path(f"{folder}.{os.getpid()}")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(making)]
        done = subprocess.run([*command, f"triton=={version}"], capture_output=True, text=True, timeout=600)
        if done.returncode:
            pytest.skip(f"no Triton {version} in ATTNBENCH_TRITONS, and pip: {done.stderr.strip()[-200:]}")
        # whole or not at all, whoever else is putting it there
        if not folder.exists():
            making.rename(folder)
    return str(folder)


def compiled(kind: str, version: str, capability: int, *names: str) -> dict[str, list[list[object]]]:
    """What each case launches, compiled: kernel, registers, bytes of stack and of shared memory."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (path_of(version), environment.get("PYTHONPATH"))))
    command = [sys.executable, compiled_kernels.__file__, kind, str(capability), *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.split("\n") if line.startswith("[")]
    found = {case: kernels for *_, case, kernels in lines}
    assert {(line[0], line[1]) for line in lines} == {(version, capability)}
    for case, kernels in found.items():
        assert isinstance(kernels, list), (version, capability, case, kernels)
        assert kernels, f"{case} launched nothing"
        for kernel, _, stack, shared in kernels:
            assert shared <= LARGEST_SHARED_BYTES[capability], (case, kernel, shared)
            # more registers than a thread can have lie in memory: a few hundred bytes are slow, more is a mistake
            assert stack <= 1024, (case, kernel, stack)
    return found


def test_every_kind_of_kernel_has_cases() -> None:
    assert len(modules()) >= 7


def test_an_attention_compiles_for_hopper_and_fits_a_multiprocessor() -> None:
    """One case of a map, forward and backward, in eleven seconds of a core; the next run finds them on the disk."""
    found = compiled("own", importlib.metadata.version("triton"), 90, "maps/bf16 64 causal")
    assert list(found) == ["bf16 64 causal"]
    assert [kernel[0] for kernel in found["bf16 64 causal"]] == ["_forward", "_backward_queries", "_backward_keys"]


@pytest.mark.slow
def test_kernels_compile_for_hopper_and_fit_a_multiprocessor() -> None:
    """One kind of kernel; `make soak` compiles all."""
    found = compiled("own", importlib.metadata.version("triton"), 90, "norm")
    loaded = importlib.import_module("attnbench.variants.kernels.triton.norm")
    assert list(found) == [case.name for case in loaded.COMPILE_CASES]


@pytest.mark.soak
@pytest.mark.parametrize("module", modules())
@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("version", TRITONS)
def test_kernels_compile_by_every_triton_for_every_gpu(version: str, capability: int, module: str) -> None:
    found = compiled("own", version, capability, module)
    loaded = importlib.import_module(f"attnbench.variants.kernels.triton.{module}")
    assert list(found) == [case.name for case in loaded.COMPILE_CASES]


@pytest.mark.soak
@pytest.mark.parametrize("module", ["maps", "entmax", "interval", "linear"])
def test_kernels_compile_in_every_dtype_and_width_of_a_preset(module: str) -> None:
    assert len(compiled("wide", importlib.metadata.version("triton"), 90, module)) == 12
