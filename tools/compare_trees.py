"""Time of the C++ kernels of two checkouts, forward and backward, by two processes in turns: new to old.

    OMP_NUM_THREADS=1 python tools/compare_trees.py OLD NEW [--turns 9]

OLD and NEW: folders that hold a checkout named `attnbench` each. Each process times a case once in its turn, and the
turns of one round are neighbours, in an order that changes from round to round. Ratios of processor time within a
round: median and quartiles; the ratio to `scaled_dot_product_attention` in the same process says whether the machine
favoured one. Inputs are standard normal, [batch, 8, length, 64]; "dense" scales the queries by 0.02.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
from pathlib import Path

CASES = [
    (name, batch, length, spread)
    for batch, length in ((8, 256), (2, 1024), (1, 2048))
    for name, spread in (("rela", 1.0), ("sparsemax", 1.0), ("entmax15", 1.0), ("sparsemax", 0.02), ("entmax15", 0.02))
]

CHILD = """
import sys, time, torch
from torch.nn import functional as F
from attnbench.variants import build
from attnbench.variants.contract import AttentionShape, Mask
def timed(call, inputs, upstream):
    leaves = [x.detach().requires_grad_() for x in inputs]
    begun = time.process_time()
    torch.autograd.grad(call(*leaves), leaves, upstream)
    return time.process_time() - begun
for line in sys.stdin:
    name, batch, length, spread = line.split()
    generator = torch.Generator().manual_seed(0)
    q, k, v, upstream = torch.randn(4, int(batch), 8, int(length), 64, generator=generator)
    torch.manual_seed(0)
    variant = build(f"{name}[impl=cpp]", AttentionShape(heads=8, head_dim=64, max_length=int(length)))
    call = lambda *x: variant(*x, Mask())
    for one in (call, F.scaled_dot_product_attention):
        timed(one, (float(spread) * q, k, v), upstream)
    found = [timed(one, (float(spread) * q, k, v), upstream) for one in (call, F.scaled_dot_product_attention)]
    print(*found, flush=True)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs=2, metavar="FOLDER")
    parser.add_argument("--turns", type=int, default=9)
    chosen = parser.parse_args()
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
            env={**os.environ, "PYTHONPATH": str(Path(tree).resolve())},
        )
        for tree in chosen.trees
    ]  # fmt: skip
    order = random.Random(0)
    print(f"{'case':32} {'new to old':>22} {'to softmax, old':>16} {'new':>6} {'softmax, new to old':>20}")
    for case in CASES:
        rounds = []
        for _ in range(chosen.turns):
            found: dict[int, list[float]] = {}
            for which in order.sample((0, 1), 2):
                pipe, answers = children[which].stdin, children[which].stdout
                assert pipe is not None and answers is not None
                print(*case, file=pipe, flush=True)
                found[which] = [float(word) for word in answers.readline().split()]
            rounds.append((*found[0], *found[1]))
        low, middle, high = statistics.quantiles([new / old for old, _, new, _ in rounds], n=4)
        to_old, to_new, plain = (
            statistics.median(ratios) for ratios in zip(*((a / b, c / d, d / b) for a, b, c, d in rounds), strict=True)
        )
        name, batch, length, spread = case
        label = f"{name}{' dense' if spread < 1 else ''} [{batch}, 8, {length}, 64]"
        quartiles = f"{middle:.2f} ({low:.2f} to {high:.2f})"
        print(f"{label:32} {quartiles:>22} {to_old:16.2f} {to_new:6.2f} {plain:20.2f}", flush=True)
    for child in children:
        assert child.stdin is not None
        child.stdin.close()
        child.wait()


if __name__ == "__main__":
    main()
