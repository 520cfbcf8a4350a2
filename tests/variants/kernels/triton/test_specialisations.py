"""How often kernels are compiled: what a launch asks Triton for, noted without a GPU, and how much of it a gate needs.

In processes of their own, since kernels that were imported to be interpreted have no specialisations. A device that
behaves like CUDA stands behind the gate; `recording` notes what is launched on it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import fake_cuda
import pytest

pytest.importorskip("triton", reason="Triton is not installed")

MOST = 12
"""Specialisations of a variant in a whole quick gate of a run without dropout, of about a second each. Of rela,
entmax15, linear and local it asked for 20, 23, 16 and 16: eight, or of local six, at an odd width, and of all but
linear four with dropout. Now it asks for 8, 11, 8 and 6, all at the width that is measured."""

NOTED = """
import json, sys
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime.driver import driver
from attnbench.variants.kernels.triton import launch, norm, tiles

class Hopper:
    get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))
    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda device: 0)

driver.set_active(Hopper())
launched, run = [], launch._specialisation
def both(kernel, arguments, options):
    launched.append((kernel, arguments, options))
    return run(kernel, arguments, options)
launch._specialisation = both
with launch.recording(90) as noted:
    for case in norm.COMPILE_CASES:
        case.run()
launch.compile_all(noted.values(), 2)
missed = []
def compiled_anew(*, cache_hit, src, **_):
    if not cache_hit:
        missed.append(src.name)
triton.knobs.compilation.listener = compiled_anew
found = set()
for kernel, arguments, options in launched:
    options = dict(options)
    binary = kernel.warmup(*arguments, grid=(1,), **options)
    found.add(binary.hash)
print(json.dumps([len(noted), len(found), missed]))
"""

GATED = """
import collections, dataclasses, json, sys
import pytest, torch
import fake_cuda
from attnbench.bench.gate import suite
from attnbench.variants.contract import AttentionShape
from attnbench.variants.kernels.triton import launch

CUDA = torch.device("cuda", 0)

class Pretended(fake_cuda.Redirected):
    # tensors say that they lie on the device, so that whoever chooses a path by that takes the kernels
    def __torch_function__(self, func, types, args=(), kwargs=None):
        found = super().__torch_function__(func, types, args, kwargs)
        if func == torch.Tensor.device.__get__:
            return CUDA if found.type == "cpu" else found
        return True if func == torch.Tensor.is_cuda.__get__ else found

# longer than the short form, so that the length and the batch to be measured have a form of their own
shape = AttentionShape(
    heads=4, head_dim=64, max_length=128, causal=True, padding=True, dropout=float(sys.argv[2]), dtype="bfloat16",
    device="cuda:0",
)
examine = suite.Property.examine
with pytest.MonkeyPatch.context() as patch:
    fake_cuda.install(patch)
    # results mean nothing here, and the gate must not stop at the first that fails
    patch.setattr(suite.Property, "examine", lambda *given: dataclasses.replace(examine(*given), verdict="holds"))
    with Pretended(), launch.recording(90) as noted:
        assert suite.quick_gate(sys.argv[1], shape, batch=32) is None
found = collections.Counter()
for one in noted.values():
    source = one.source
    constants = {source.fn.arg_names[at]: value for (at,), value in source.constants.items()}
    # a width that is no constant counts by the power of two that holds it
    width = constants.get("HEAD_DIM", constants.get("WIDTH", "any"))
    found[f"{width}{' dropout' * bool(constants.get('DROP'))}"] += 1
print(json.dumps(found))
"""


def said(script: str, *arguments: str, **environment: str) -> object:
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | environment
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, (str(Path(fake_cuda.__file__).parent), kept.get("PYTHONPATH"))))
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, env=kept, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.strip().rpartition("\n")[2])


def test_what_is_noted_is_what_triton_compiles_for_these_launches(tmp_path: Path) -> None:
    noted, compiled, missed = said(NOTED, TRITON_CACHE_DIR=str(tmp_path))  # type: ignore[misc]
    assert noted == compiled == 4
    # a launch finds all of it on the disk
    assert missed == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["linear", "local", *(pytest.param(name, marks=pytest.mark.soak) for name in ("rela", "entmax15", "additive"))],
)
def test_a_gate_compiles_few_kernels_of_a_variant_and_all_at_the_width_that_is_measured(name: str) -> None:
    found = said(GATED, name, "0.0")
    assert isinstance(found, dict)
    assert set(found) <= {"64", "any"}
    assert 0 < sum(found.values()) <= MOST, found


@pytest.mark.soak
@pytest.mark.parametrize("name", ["rela", "local"])
def test_a_gate_of_a_run_with_dropout_compiles_a_forward_and_a_backward_pass_more(name: str) -> None:
    found = said(GATED, name, "0.1")
    assert isinstance(found, dict)
    # with padding, and the forward pass without as well
    assert 0 < found.pop("64 dropout") <= 4, found
    assert sum(found.values()) <= MOST, found
