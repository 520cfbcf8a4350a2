"""Every Triton kernel compiles for an H100 or H200 in bfloat16, which needs no GPU.

Cases come from `COMPILE_CASES` of each module `variants/kernels/triton/*.py`, so a new one joins by being there. They
are compiled in a process of their own, since kernels that were imported to be interpreted cannot be compiled.
"""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")
import attnbench.variants.kernels.triton

# what a block of threads may take on compute capability 9.0
LARGEST_SHARED_BYTES = 227 * 1024

CHILD = """
import dataclasses, importlib, json, sys
from attnbench.variants.kernels.triton import launch as triton_launch
for case in importlib.import_module("attnbench.variants.kernels.triton." + sys.argv[1]).COMPILE_CASES:
    try:
        with triton_launch.compiling(capability=90) as compiled:
            case.run()
        bare = [dataclasses.replace(one, constants={}, cubin=b"") for one in compiled]
        line = [dataclasses.asdict(one) | {"cubin": ""} for one in bare]
    except Exception as error:
        line = f"{type(error).__name__}: {error}"
    print(json.dumps([case.name, line]), flush=True)
"""


def modules() -> list[object]:
    """Those with cases; compiling takes minutes in all, so all but one wait for `make soak`."""
    folder = Path(attnbench.variants.kernels.triton.__file__).parent
    names = sorted(path.stem for path in folder.glob("*.py") if "COMPILE_CASES = " in path.read_text())
    return [pytest.param(name, marks=pytest.mark.slow if name == "norm" else pytest.mark.soak) for name in names]


def test_every_kind_of_kernel_has_cases() -> None:
    assert len(modules()) >= 7


@pytest.mark.parametrize("module", modules())
def test_kernels_compile_for_hopper_and_fit_a_multiprocessor(module: str) -> None:
    loaded = importlib.import_module(f"attnbench.variants.kernels.triton.{module}")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", CHILD, module]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found = dict(json.loads(line) for line in done.stdout.split("\n") if line.startswith("["))
    assert list(found) == [case.name for case in loaded.COMPILE_CASES]
    for case, compiled in found.items():
        assert isinstance(compiled, list), (case, compiled)
        assert compiled, f"{case} launched nothing"
        for kernel in compiled:
            assert kernel["shared_bytes"] <= LARGEST_SHARED_BYTES, (case, kernel)
            # more registers than a thread can have lie in memory: a few hundred bytes are slow, more is a mistake
            assert kernel["stack_bytes"] <= 1024, (case, kernel)
