"""The noise of the record recipe, and how many seeds a claim needs. On a quiet machine, twenty minutes on two cores:

attnbench record softmax --seeds 10 --results build/noise
python tools/record_noise.py build/noise
"""

from __future__ import annotations

import argparse
import math
import statistics
from pathlib import Path

import attnbench
from attnbench.bench.stats.intervals import NoiseSource
from attnbench.bench.stats.power import seeds_needed

METRIC = "bits_per_character"
GAINS = (0.01, 0.02, 0.05, 0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a results folder with softmax at ten seeds of one preset")
    bits = {
        record.cell.seed: measured.value
        for record in attnbench.records(parser.parse_args().folder)
        if record.cell.lane == "train" and str(record.cell.variant) == "softmax" and record.cell.preset.name == "record"
        for measured in record.measurements
        if measured.name == METRIC and measured.where.get("split") == "test"
    }
    print(f"softmax at {len(bits)} seeds: {statistics.mean(bits.values()):.4f} bits per character, "
          f"standard deviation {(deviation := statistics.stdev(bits.values())):.4f}")  # fmt: skip
    for gain in GAINS:
        # as if the seeds were not paired, which they are: a pair can need fewer, and no more
        needed = seeds_needed(gain, lambda n: [NoiseSource(deviation * math.sqrt(2 / n), 2 * (n - 1))], 0.95)
        print(f"a gain of {gain} bits is found in 4 of 5 tries with {needed or 'more than 100'} seeds of each")


if __name__ == "__main__":
    main()
