"""Counts of compiled kernels against texts whose counts are known, and of one kernel as compiled."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from implementations import NO_TRITON

SCRIPT = Path(__file__).parents[2] / "tools" / "gpu" / "compiled_counts.py"
CODE = """
import importlib.util, json, os, sys
os.environ.pop("TRITON_INTERPRET", None)
described = importlib.util.spec_from_file_location("compiled_counts", sys.argv[1])
script = importlib.util.module_from_spec(described)
sys.modules["compiled_counts"] = script
described.loader.exec_module(script)
"""
# as cuobjdump prints it: an outer loop from 0x10 with three inner ones, of which the last has no product
SASS = """
        /*0000*/                   MOV R1, c[0x0][0x28] ;          /* 0x00000a0000017a02 */
                                                                   /* 0x003fde0000000f00 */
        /*0010*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*0020*/              @!P0 LDL.LU R4, [R1+0x10] ;
        /*0030*/                   HGMMA.64x64x16.F32.BF16 R56, gdesc[UR12], RZ, !UPT ;
        /*0040*/               @P1 SHFL.BFLY PT, R8, R8, 0x1, 0x1f ;
        /*0050*/                   NOP ;
        /*0060*/             @!UP0 UIADD3 UR4, UR4, 0x1, URZ ;
        /*0070*/               @P2 BRA 0x20 ;
        /*0080*/                   HMMA.16816.F32 R4, R8, R12, R4 ;
        /*0090*/               @P2 BRA 0x80 ;
        /*00a0*/                   FMNMX R4, R4, R5, !PT ;
        /*00b0*/               @P2 BRA 0xa0 ;
        /*00c0*/               @P3 BRA 0x10 ;
        /*00d0*/                   EXIT ;
        /*00e0*/                   BRA 0xe0;
"""


def run(code: str, *arguments: str) -> str:
    command = [sys.executable, "-c", CODE + code, str(SCRIPT), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_of_nested_loops_the_innermost_with_a_product_are_counted() -> None:
    printed = run("print(json.dumps([script.asdict(one) for one in script.loops(sys.argv[2], 4, 128 * 64)]))", SASS)
    loop, second = json.loads(printed)
    # LDL, HGMMA, SHFL, UIADD3 and the branch; NOP is none, and the barrier stands outside
    assert loop["instructions"] == 5
    assert loop["per_thousand"] == round(1000 * 5 * 4 / (128 * 64), 1)
    expected = {"barriers": 0, "shuffles": 1, "maxima": 0, "special functions": 0, "products": 1, "stack": 1}
    assert loop["kinds"] == expected
    assert second["instructions"] == 2
    assert second["kinds"] == dict.fromkeys(expected, 0) | {"products": 1}


KERNEL = """
import triton
import triton.language as tl

@triton.jit
def multiply(x_ptr, out_ptr, tiles, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows, columns = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    at = x_ptr + rows[:, None] * COLUMNS + columns[None, :]
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for tile in range(tiles):
        x = tl.load(at + tile * ROWS * COLUMNS)
        sums = tl.dot(x, x, sums)
    tl.store(out_ptr + rows[:, None] * COLUMNS + columns[None, :], sums)
"""
COUNTED = """
import importlib, torch
sys.path.insert(0, sys.argv[2])
from attnbench.variants.kernels.triton import launch
kernel = importlib.import_module("tiny_kernel").multiply
with launch.compiling(90) as compiled:
    x = torch.empty(64 * 64, dtype=torch.bfloat16, device="meta")
    out = torch.empty(64 * 64, dtype=torch.float32, device="meta")
    launch.launch(kernel, (1,), x, out, 100, warps=4, stages=2, ROWS=64, COLUMNS=64)
(one,) = compiled
sass = script.disassembled(one.cubin)
found = [script.asdict(loop) for loop in script.loops(sass, one.warps, 64 * 64)]
print(json.dumps({"loops": found, "registers": one.registers, "stack": one.stack_bytes, "sass": sass}))
"""


@pytest.mark.slow
@pytest.mark.skipif(NO_TRITON, reason="no Triton")
def test_a_product_of_64_by_64_by_64_is_four_instructions_of_a_warp_group(tmp_path: Path) -> None:
    (tmp_path / "tiny_kernel.py").write_text(KERNEL)
    found = json.loads(run(COUNTED, str(tmp_path)))
    (loop,) = found["loops"]
    # wgmma multiplies 16 of the inner dimension at once
    assert loop["kinds"]["products"] == 64 // 16
    assert loop["kinds"]["stack"] == 0 and found["stack"] == 0
    assert 0 < loop["instructions"] < len(re.findall(r"^\s+/\*[0-9a-f]{4,}\*/", found["sass"], re.MULTILINE))
    # a register of 32 bits for each of the 32 sums of a thread, at the least, and of what there are 255 at most
    assert 32 < found["registers"] <= 255
    largest = max(int(name) for name in re.findall(r"\bR(\d+)\b", found["sass"]))
    assert largest < found["registers"]
