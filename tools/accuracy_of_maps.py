"""Errors of the maps onto the simplex in float32, by the size that the scores of a row have in common.

    python tools/accuracy_of_maps.py [--impl cpp] [--maps sparsemax,entmax15] [--counts 1,3,1000]

Two tables: the largest |sum of a row of weights - 1|, and the largest error of a gradient from the eager definition in
float64, relative to the gradient's largest entry. Scores are exact in float32: `tests/support/common_scores.py`.
"""

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from common_scores import COUNTS, KINDS, MAPS, SIZES, errors, rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--impl", default="cpp")
    parser.add_argument("--maps", default=";".join(MAPS), help="separated by semicolons")
    parser.add_argument("--counts", default=",".join(map(str, COUNTS)), help="numbers of keys")
    chosen = parser.parse_args()
    counts = [int(count) for count in chosen.counts.split(",")]
    names = chosen.maps.split(";")
    found = {
        (name, kind, count, size): errors(name, chosen.impl, rows(name, count, size, kind))
        for name in names
        for kind in KINDS
        for count in counts
        for size in SIZES
    }
    print(f"impl={chosen.impl}, float32, torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}")
    for at, title in enumerate(("|sum of a row - 1|", "error of a gradient")):
        print(f"\n| {title} | keys | {' | '.join(f'{size:g}' for size in SIZES)} |\n|{'---|' * (2 + len(SIZES))}")
        for name in names:
            for kind in KINDS:
                for count in counts:
                    cells = (f"{found[name, kind, count, size][at]:.0e}" for size in SIZES)
                    print(f"| {name}, {kind} | {count} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
