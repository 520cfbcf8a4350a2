"""Counts of the compiled kernels, which needs no GPU: `python tools/gpu/compiled_counts.py [--modules maps entmax]`.

Compiles `COMPILE_CASES` of the modules for compute capability 9.0 and prints a table in Markdown of the kernels that
multiply on tensor cores: registers of a thread, bytes of its stack, shared memory; and of each innermost loop with a
product the instructions of a thread for one tile, those of a warp for a thousand scores, and the kinds that a redesign
wants to be rid of. Loops stand in the order of their addresses: with a causal mask one is that of tiles seen whole, the
dearer one that of the diagonal.
"""

import argparse
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

# kernels that were imported to be interpreted cannot be compiled
os.environ.pop("TRITON_INTERPRET", None)

# column: what the names of its instructions begin with
KINDS = {
    "barriers": ("BAR",),
    "shuffles": ("SHFL", "REDUX"),
    "maxima": ("FMNMX",),
    "special functions": ("MUFU",),
    "products": ("HGMMA", "HMMA"),
    "stack": ("LDL", "STL"),
}
# address, name, and the operands, of which the last is where a jump goes
INSTRUCTION = re.compile(r"\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z]\w*)([^;]*);")
TARGET = re.compile(r"0x([0-9a-f]+)\s*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """An innermost loop: `instructions` of a thread in one round, `per_thousand` of a warp for a thousand scores."""

    instructions: int
    per_thousand: float
    kinds: dict[str, int]


def loops(sass, warps, scores):
    """The innermost loops with a product, from the text that cuobjdump prints. `scores`: of the tile of one round."""
    code = [(int(at, 16), name, TARGET.search(operands)) for at, name, operands in INSTRUCTION.findall(sass)]
    # a branch to itself ends every kernel, and is no loop
    jumps = {(int(to[1], 16), at) for at, name, to in code if name == "BRA" and to and int(to[1], 16) < at}
    inner = [
        one for one in sorted(jumps) if not any(two != one and one[0] <= two[0] <= two[1] <= one[1] for two in jumps)
    ]
    for first, last in inner:
        counted = Counter(name for at, name, _ in code if first <= at <= last and name != "NOP")
        kinds = {kind: sum(counted[name] for name in names) for kind, names in KINDS.items()}
        if kinds["products"]:
            total = sum(counted.values())
            yield Loop(instructions=total, per_thousand=round(1000 * total * warps / scores, 1), kinds=kinds)


def disassembled(cubin):
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([tool, "-sass", file.name], check=True, capture_output=True, text=True).stdout


def rows(modules, pattern):
    """A dictionary for each kernel of each case whose name matches."""
    from attnbench.variants.kernels.triton import launch

    for module in modules:
        for case in importlib.import_module(f"attnbench.variants.kernels.triton.{module}").COMPILE_CASES:
            if not re.search(pattern, case.name):
                continue
            with launch.compiling(capability=90) as compiled:
                case.run()
            for one in compiled:
                fixed = one.constants
                scores = fixed.get("ROWS", 1) * fixed.get("COLUMNS", 1)
                found = loops(disassembled(one.cubin), one.warps, scores)
                yield {
                    "case": f"{module} {case.name}", "kernel": one.kernel, "warps": one.warps,
                    "tile": f"{fixed['ROWS']} × {fixed['COLUMNS']}" if "COLUMNS" in fixed else "–",
                    "registers": one.registers, "stack_bytes": one.stack_bytes, "shared_bytes": one.shared_bytes,
                    "loops": [asdict(loop) for loop in found],
                }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--modules", nargs="+", default=["maps", "entmax", "interval"], help="of variants/kernels/triton"
    )
    parser.add_argument("--cases", default="", metavar="PATTERN", help="names of cases, as a regular expression")
    parser.add_argument("--json", metavar="PATH", help="write the same there, one object a line")
    chosen = parser.parse_args()
    import torch
    import triton

    print(f"Triton {triton.__version__}, torch {torch.__version__}, compute capability 9.0\n")
    names = ("instructions", "a 1000 scores", *KINDS)
    print(f"| case | kernel | tile, warps | registers / stack / KiB shared | {' | '.join(names)} |")
    print("|---" * (4 + len(names)) + "|")
    for row in rows(chosen.modules, chosen.cases):
        if chosen.json:
            with Path(chosen.json).open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        found = row["loops"]
        if not found:
            continue
        columns = [[loop["instructions"] for loop in found], [loop["per_thousand"] for loop in found]]
        columns += [[loop["kinds"][kind] for loop in found] for kind in KINDS]
        cells = (" / ".join(map(str, column)) or "–" for column in columns)
        taken = f"{row['registers']} / {row['stack_bytes']} / {row['shared_bytes'] / 1024:.0f}"
        print(
            f"| {row['case']} | {row['kernel']} | {row['tile']}, {row['warps']} | {taken} | {' | '.join(cells)} |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
